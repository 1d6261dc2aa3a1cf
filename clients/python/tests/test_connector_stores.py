"""Values in Mooncake and in Yuanrong, whose servers the tests start from their wheels."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import fakehost  # noqa: F401  (finds the package)
import realstore
import storeserver

from omnibus.connector import BadMetadata, Damaged, Missing, NoRoom, OmnibusConnector, Unavailable, encode
from omnibus.connector.contract import BadKey, Edge
from omnibus.connector.drop_in import BACKENDS
from omnibus.connector.stores import StoreTransport, TooLarge

EDGE = Edge("thinker", "talker")
PAYLOADS = int(os.environ.get("OMNIBUS_STORE_PAYLOADS", "1000"))

# Puts a value, says so, and waits to be killed.
CHILD = """
import sys, json
from omnibus.connector import OmnibusConnector
c = OmnibusConnector(json.loads(sys.argv[1]))
print(c.put("thinker", "talker", sys.argv[2], b"x" * int(sys.argv[3])), flush=True)
sys.stdin.read()
"""


def plain(payload: Any, *, padded: bool = False) -> bytes:
    return bytes(payload)


class StoreCase(unittest.TestCase):
    """The common tests of both stores."""

    kind = ""
    server: storeserver.Server
    store: StoreTransport
    fill_bytes = 8 << 20

    @classmethod
    def setUpClass(cls) -> None:
        if not cls.kind:
            raise unittest.SkipTest("not a kind of its own")
        cls.server = storeserver.Server(cls.kind)
        cls.addClassCleanup(cls.server.close)
        cls.store = StoreTransport(cls.server.extra(timeout=2), BACKENDS[cls.kind])
        cls.addClassCleanup(cls.close_store)

    @classmethod
    def close_store(cls) -> None:
        try:
            cls.store.close()
        except Unavailable:
            pass  # a test has left the server dead

    def put(self, key: str, data: bytes, store: StoreTransport | None = None) -> bytes:
        payload = encode(data)
        (store or self.store).put(EDGE, key, payload)
        return bytes(payload)

    def get(self, key: str, metadata: Any = None, store: StoreTransport | None = None) -> bytes:
        got: bytes = (store or self.store).get(EDGE, key, metadata, plain)[0]
        return got

    def none(self, key: str, store: StoreTransport | None = None) -> None:
        with self.assertRaises(Missing):
            self.get(key, store=store)

    def other(self, **more: Any) -> StoreTransport:
        """Another client of the server."""
        store = StoreTransport(self.server.extra(timeout=2, **more), BACKENDS[self.kind])
        self.addCleanup(store.close)
        return store

    def test_got_once_and_replaced(self) -> None:
        for size in (1, 1000, 1 << 20):
            want = self.put("once", os.urandom(size))
            self.assertEqual(self.get("once"), want)
            self.none("once")
        self.put("once", b"a" * 5000)
        want = self.put("once", b"b" * 3000)
        self.assertEqual(self.get("once", {"size": len(want)}), want)
        self.put("once", b"a" * 5000)
        self.assertEqual(len(self.put("once", b"c" * 5000)), len(self.get("once")))
        self.none("once")

    def test_a_value_of_another_process_is_complete(self) -> None:
        """The payload of a get stays valid after the store reuses its memory."""
        other = self.other()
        payloads = [self.put(f"whole{i}", os.urandom(1 << 20)) for i in range(4)]
        got = []
        for i in range(4):
            got.append(self.get(f"whole{i}", store=other))
            self.put("over", os.urandom(1 << 20))
        self.assertEqual(got, payloads)
        self.none("whole0")
        self.get("over", store=other)

    def test_buffer_outlives_the_value(self) -> None:
        values = self.store._store
        want = self.put("held", os.urandom(600_000))
        held, _ = values.take_value(values.name(EDGE, "held"))
        for i in range(20):
            self.put(f"over{i}", os.urandom(600_000))
            self.get(f"over{i}")
        self.assertEqual(bytes(held), want)

    def test_cleanup_removes(self) -> None:
        keys = ["r1_thinker_0", "r1_thinker_0_0_1", "omni_thinker_to_talker_kv_cache_r1", "r11_thinker_0"]
        for key in [*keys, "r1"]:
            self.put(key, b"x" * 100)
        self.store.cleanup("r1")
        self.none("r1")
        for key in keys:
            self.get(key)
        self.store.cleanup("r1")
        other = self.other()
        self.put("own", b"y")
        other.cleanup("own")  # another's
        self.get("own", store=other)

    def test_close_removes_values(self) -> None:
        other = StoreTransport(self.server.extra(timeout=2), BACKENDS[self.kind])
        self.put("left", b"x" * 100, other)
        other.close()
        self.none("left")

    def test_wait(self) -> None:
        begun = threading.Event()
        got: list[Any] = []

        def wait() -> None:
            begun.set()
            got.append(self.store.wait(EDGE, "later", None, plain, time.monotonic() + 60)[0])

        waiter = threading.Thread(target=wait)
        waiter.start()
        begun.wait()
        want = self.put("later", b"z" * 1000)
        waiter.join()
        self.assertEqual(got, [want])
        with self.assertRaises(Missing):
            self.store.wait(EDGE, "never", None, plain, time.monotonic() + 0.05)

    def test_abandon(self) -> None:
        waiter = threading.Thread(
            target=lambda: self.assertRaises(Missing, self.store.wait, EDGE, "never", None, plain, time.monotonic() + 600)
        )
        waiter.start()
        while waiter.is_alive():
            self.store.abandon("never")
            waiter.join(0.01)

    def test_many_at_once(self) -> None:
        def work(n: int) -> None:
            for i in range(20):
                want = self.put(f"many_{n}_{i}", os.urandom(1 + i * 997))
                self.assertEqual(self.get(f"many_{n}_{i}"), want)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertFalse([n for n in self.store._store.own_names() if n.key.startswith("many")])

    def test_values_got_by_others_are_forgotten(self) -> None:
        other = self.other()
        self.put("got", b"x")
        self.put("left", b"x")
        self.get("got", store=other)
        self.store.reap()
        self.assertEqual([n.key for n in self.store._store.own_names()], ["left"])
        self.get("left")

    def test_metadata_of_another_version(self) -> None:
        want = self.put("versions", b"x" * 100)
        with self.assertRaises(BadMetadata):
            self.get("versions", {"size": "100"})
        with self.assertRaisesRegex(Damaged, "another version"):
            self.get("versions", {"size": 7})
        self.assertEqual(self.get("versions", {"source_host": "10.0.0.1", "source_port": 5555}), want)

    def test_full(self) -> None:
        """A put without space leaves no value under its key, also not the old one."""
        keys = []
        error: NoRoom | None = None
        for i in range(40):
            try:
                keys.append(f"full{i}")
                self.put(keys[-1], bytes(self.fill_bytes))
            except NoRoom as e:
                error = e
                self.assertIn(self.server.address, str(e))
                break
        for key in keys if error else []:
            self.store.cleanup(key)
        self.full(error, keys[-1])
        self.put("after", b"x")
        self.get("after")

    def full(self, error: NoRoom | None, key: str) -> None:
        raise NotImplementedError

    def test_stopped_server_is_named_in_time(self) -> None:
        self.put("kept", b"k" * 100)
        self.server.stop()
        try:
            for call in (lambda: self.get("kept"), lambda: self.put("stopped", b"x")):
                with self.assertRaisesRegex(Unavailable, self.server.address + ".*stopped"):
                    call()
            c = OmnibusConnector({"mode": self.kind, **self.server.extra(timeout=0.2)})
        except Unavailable:
            pass  # a listening socket of a stopped process still accepts, and its client may say no
        else:
            c.close()
        finally:
            self.server.resume()
        self.until_back(lambda: self.put("again", b"y"))
        self.assertEqual(len(self.get("kept")), encode(b"k" * 100).size)
        self.none("stopped")
        self.get("again")

    def until_back(self, call: Callable[[], Any]) -> None:
        """Call until the client has reconnected to its server."""
        deadline = time.monotonic() + 60
        while True:
            try:
                call()
                return
            except (Unavailable, NoRoom):
                self.assertLess(time.monotonic(), deadline)

    def test_killed_server(self) -> None:
        """An error names a dead server; the same client works after its restart, without the old values."""
        server = storeserver.Server(self.kind)
        self.addCleanup(server.close)
        store = StoreTransport(server.extra(timeout=2), BACKENDS[self.kind])
        self.killed_peer(server, store)
        self.put("lost", b"x" * 100, store)
        server.kill()
        for call in (lambda: self.get("lost", store=store), lambda: self.put("dead", b"x", store)):
            with self.assertRaisesRegex(Unavailable, server.address):
                call()
        with self.assertRaisesRegex(Unavailable, server.address + " cannot be reached.*start it"):
            StoreTransport(server.extra(), BACKENDS[self.kind])
        server.start()
        self.until_back(lambda: self.put("again", b"y" * 100, store))
        self.assertEqual(len(self.get("again", store=store)), encode(b"y" * 100).size)
        self.none("lost", store)
        self.none("dead", store)
        store.close()

    def killed_peer(self, server: storeserver.Server, store: StoreTransport) -> None:
        """A get of a value of a dead process returns it complete or raises; it does not hang."""
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps({"mode": self.kind, **server.extra()}), "peer", "5000"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert child.stdout is not None and child.stdin is not None
        self.assertIn(b"True", child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        child.stdin.close()
        try:
            self.assertEqual(self.get("peer", store=store), bytes(encode(b"x" * 5000)))
        except (Missing, Unavailable):
            pass
        want = self.put("peer", b"new", store)
        self.assertEqual(self.get("peer", store=store), want)

    def test_another_program_at_the_address(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            extra = self.server.extra(timeout=0.5, master=f"127.0.0.1:{port}", port=port)
            with self.assertRaisesRegex(Unavailable, f"127.0.0.1:{port}"):
                StoreTransport(extra, BACKENDS[self.kind])

    def test_client_is_not_installed(self) -> None:
        with mock.patch.dict(sys.modules, {storeserver.MODULES[self.kind].split(".")[0]: None}):
            for name in [m for m in sys.modules if m.startswith(("mooncake.", "yr."))]:
                del sys.modules[name]
            with self.assertRaisesRegex(Unavailable, rf"install omnibus\[{self.kind}\]"):
                OmnibusConnector({"mode": self.kind, **self.server.extra()})

    def test_client_of_another_version(self) -> None:
        module = "mooncake.store" if self.kind == "mooncake" else "yr.datasystem.kv_client"
        nothing = types.SimpleNamespace
        fake = types.SimpleNamespace(
            ReplicateConfig=nothing, MooncakeDistributedStore=nothing, WriteMode=nothing, KVClient=nothing
        )
        with mock.patch.dict(sys.modules, {module: fake}):
            with self.assertRaisesRegex(Unavailable, rf"this version.*install omnibus\[{self.kind}\]"):
                OmnibusConnector({"mode": self.kind, **self.server.extra()})

    def test_settings(self) -> None:
        for name, value in (("timeout", 0), ("host", 5), ("segment" if self.kind == "mooncake" else "port", "x")):
            with self.assertRaisesRegex(ValueError, name):
                OmnibusConnector({"mode": self.kind, **self.server.extra(**{name: value})})

    def test_forked_child(self) -> None:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                self.put("forked", b"f" * 100)
            except Unavailable as e:
                status = 0 if "spawn" in str(e) else 1
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_connector(self) -> None:
        with OmnibusConnector({"mode": self.kind, **self.server.extra()}) as c:
            ok, size, metadata = c.put("0", "1", "r_0_0", {"x": b"1"})
            self.assertEqual((ok, metadata), (True, {"size": size}))
            self.assertEqual(c.get("0", "1", "r_0_0", metadata), ({"x": b"1"}, size))
            self.assertIsNone(c.get("0", "1", "r_0_0", metadata))
            self.assertEqual(c.health()["status"], "healthy")
        self.assertEqual(c.health()["status"], "closed")

    def test_real_connector(self) -> None:
        """vLLM-Omni's own class at the other side, both ways, byte for byte."""
        real = realstore.Real(self.kind, self.server.extra())
        self.addCleanup(real.close)
        with OmnibusConnector({"mode": self.kind, **self.server.extra()}) as c:
            for seed in range(PAYLOADS):
                value = realstore.value(seed)
                ok, size, _ = real.ask("put", f"real{seed}", seed)
                self.assertTrue(ok)
                self.assertEqual(c.get("0", "1", f"real{seed}"), (value, size))
                ok, size, _ = c.put("0", "1", f"ours{seed}", value)
                self.assertTrue(ok)
                text, there = real.ask("get", f"ours{seed}")
                self.assertEqual((base64.b64decode(text), there), (c.serialize_obj(value), size))
                c.cleanup(f"ours{seed}")


class MooncakeTest(StoreCase):
    kind = "mooncake"

    def full(self, error: NoRoom | None, key: str) -> None:
        self.assertIsNotNone(error)
        self.none(key)

    def test_too_large(self) -> None:
        with self.assertRaisesRegex(TooLarge, "localbuf"):
            self.put("large", bytes(33 << 20))
        self.none("large")

    def test_got_at_once_by_one(self) -> None:
        stores = [self.store, self.other()]
        got: list[bytes] = []
        for i in range(30):
            self.put(f"race{i}", b"x" * 1000)
            barrier = threading.Barrier(2)

            def take(store: StoreTransport, key: str = f"race{i}", barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                try:
                    got.append(self.get(key, store=store))
                except Missing:
                    pass

            threads = [threading.Thread(target=take, args=(s,)) for s in stores]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(len(got), 30)


class YuanrongTest(StoreCase):
    kind = "yuanrong"

    def full(self, error: NoRoom | None, key: str) -> None:
        """The worker evicts old values for new ones, as vLLM-Omni configures it."""
        if error is None:
            self.none("full0")

    def test_too_large(self) -> None:
        with self.assertRaisesRegex((NoRoom, Unavailable), self.server.address):  # it tries until timeout
            self.put("large", bytes(140 << 20))
        self.none("large")

    def test_mooncake_after_yuanrong(self) -> None:
        with mock.patch.dict(sys.modules):
            sys.modules.pop("mooncake.store", None)
            with self.assertRaisesRegex(Unavailable, "would crash"):
                OmnibusConnector({"mode": "mooncake"})

    def test_keys(self) -> None:
        for key in ("a b", "\u00e4", "a.b", "k" * 253):
            with self.assertRaises(BadKey):
                self.put(key, b"x")
            self.none(key)


class ApartTest(unittest.TestCase):
    """Runs the tests above in a process of their own: their clients' threads break with the forks of other tests."""

    def test_apart(self) -> None:
        for name in ("MooncakeTest", "YuanrongTest"):
            with self.subTest(name):
                run = subprocess.run(
                    [sys.executable, "-m", "unittest", "-v", f"test_connector_stores.{name}"], cwd=os.path.dirname(__file__),
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                )  # fmt: skip
                self.assertEqual(run.returncode, 0, run.stdout[-20_000:])
                if "OK (skipped" in run.stdout:
                    self.skipTest(f"omnibus[{name.removesuffix('Test').lower()}] is not installed")


def load_tests(loader: unittest.TestLoader, _tests: unittest.TestSuite, _pattern: str | None) -> unittest.TestSuite:
    return loader.loadTestsFromTestCase(ApartTest)


if __name__ == "__main__":
    unittest.main()
