"""Stores with names, as a connector uses them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator

from posixcase import EDGE, MIB, StoreCase, get, put

from omnibus.connector import BadMetadata, Busy, Missing, NoRoom, OmnibusConnector, Unavailable
from omnibus.connector.contract import Edge, seconds
from omnibus.connector.posix import Store
from omnibus.errors import OmnibusError

ROOT = os.path.join(os.path.dirname(__file__), *[".."] * 3)


@contextlib.contextmanager
def descriptors(few: int) -> Iterator[None]:
    """There are only so many of them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0) for _ in range(few + 1)]
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class StoreTest(StoreCase):
    def test_contract(self) -> None:
        a, b = self.store(), self.store()
        self.assertRaises(Missing, get, b, "k")
        for size in (0, 1, 63, 64, 65, 4096, 300_000):
            value = os.urandom(size)
            metadata = put(a, "k", value)
            self.assertEqual(metadata["store"], "speech")
            self.assertEqual(get(b, "k", metadata if size % 2 else None), value)
            self.assertRaises(Missing, get, b, "k", metadata)
        first, second = put(a, "k", b"1"), put(a, "k", b"2")
        self.assertRaises(Missing, get, b, "k", first)
        self.assertRaises(Missing, get, b, "k", None, Edge("talker", "thinker"))
        self.assertEqual(get(a, "k", second), b"2")  # by its own creator
        self.assertRaises(Missing, get, b, "k")
        put(a, "r_thinker_0", b"of r"), put(a, "s", b"not of r")
        b.cleanup("s")  # it is not its own
        a.cleanup("r")
        self.assertRaises(Missing, get, b, "r_thinker_0")
        self.assertEqual(get(b, "s"), b"not of r")
        self.assertRaises(BadMetadata, get, b, "k", {"store": "other", "entry": "1"})
        self.assertRaises(BadMetadata, get, b, "k", {"store": "speech", "entry": "x"})
        put(a, "left", b"left")
        self.assertEqual(a.health(), {"status": "healthy", "pending": 1})
        a.close()
        self.assertEqual(self.files(), [])
        self.assertRaises(Missing, get, b, "left")
        self.assertRaises(OmnibusError, get, a, "left")
        self.assertEqual(a.health()["status"], "closed")

    def test_connector(self) -> None:
        with OmnibusConnector(self.config()) as a, OmnibusConnector(self.config()) as b:
            ok, size, metadata = a.put("0", "1", "k", {"x": [1, 2, 3]})
            self.assertTrue(ok)
            self.assertEqual(b.get("0", "1", "k", metadata), ({"x": [1, 2, 3]}, size))
            self.assertIsNone(b.get("0", "1", "k", metadata))
            self.assertEqual(b.put("0", "1", "k", 1), (False, 0, None))  # the other end puts
            self.assertEqual(b.health()["error_kinds"], {"Unavailable": 1})

    def test_a_process_that_closes_nothing_ends(self) -> None:
        """And leaves no file, although a thread of its connector sweeps what lies."""
        code = (
            "import json, sys; from omnibus.connector import OmnibusConnector\n"
            "c = OmnibusConnector(json.loads(sys.argv[1])); print(c.put('0', '1', 'k', 1)[0])"
        )
        env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients", "python", "src")}
        for mode in ("ring", "segment"):
            with tempfile.TemporaryDirectory(prefix="omnibus-test-", dir="/dev/shm") as folder:
                config = {"mode": mode, "dir": folder, "ring_bytes": MIB, "store": "exits" if mode == "ring" else None}
                out = subprocess.run(
                    [sys.executable, "-c", code, json.dumps(config)], env=env, timeout=60, check=True, capture_output=True
                ).stdout
                self.assertEqual((out, os.listdir(folder)), (b"True\n", []))

    def test_settings(self) -> None:
        for bad in (
            {"store": ""}, {"store": "a/b"}, {"store": ".."}, {"store": "a.b"}, {"store": "x" * 101}, {"store": 7},
            {"readers": 0}, {"readers": 64}, {"ring_bytes": 65_535}, {"ttl": "soon"}, {"timeout": -1}, {"timeout": 0},
        ):  # fmt: skip
            with self.subTest(bad):
                self.assertRaises(ValueError, Store, self.config(**bad))
        self.assertRaises(ValueError, OmnibusConnector, self.config(mode="segment"))
        self.assertRaises(Unavailable, Store, self.config(dir="/nowhere"))

    def test_durations(self) -> None:
        for text, want in ((3, 3.0), (0.5, 0.5), ("30s", 30.0), ("1m30s", 90.0), ("250ms", 0.25), ("0", 0.0),
                           (".5s", 0.5), ("+1m.5s", 60.5), ("5.ms", 0.005), ("2\u00b5s", 2e-6), ("2\u03bcs", 2e-6)):  # fmt: skip
            self.assertEqual(seconds(text), want)
        for bad in (-1, "-1s", "x", "1d", ".s", "1.2.3s", "\u0663s", float("nan"), float("inf"), None):
            self.assertRaises((ValueError, TypeError), seconds, bad)

    def test_full(self) -> None:
        a, b = self.store(timeout=0.05), self.store()
        half = bytes(MIB // 2 - 100)
        put(a, "a", half), put(a, "b", half)
        self.assertRaisesRegex(NoRoom, "2 values that nobody has got", put, a, "c", half)
        self.assertRaisesRegex(NoRoom, "raise ring_bytes to", put, a, "c", bytes(MIB // 2))
        get(b, "a")
        put(a, "c", half)  # in the room of what was got

    def test_no_descriptors(self) -> None:
        """A store that cannot be made or opened for want of them leaves nothing, and can be once there are some."""
        a, b = self.store(readers=2), self.store()
        few = itertools.count()
        while True:
            try:
                with descriptors(next(few)):
                    put(a, "k", b"value")
                break
            except NoRoom as e:
                self.assertIn("ulimit", str(e))
                self.assertEqual(self.files(), [])
        few = itertools.count()
        while True:
            try:
                with descriptors(next(few)):
                    value = get(b, "k")
                break
            except NoRoom as e:
                self.assertIn("ulimit", str(e))
        self.assertEqual(value, b"value")
        with descriptors(0):
            a.close()
        self.assertEqual(self.files(), [])

    def test_close_leaves_no_descriptor(self) -> None:
        gc.collect()  # what other tests left
        before = len(os.listdir("/proc/self/fd"))
        a, b = self.store(), self.store()
        put(a, "k", b"v")
        b.wait(EDGE, "k", None, bytes, time.monotonic() + 60)  # type: ignore[arg-type]
        b.close()
        a.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_full_of_small(self) -> None:
        a = self.store(timeout=0.001, ring_bytes=65_536)
        for n in range(64):
            put(a, str(n), b"x")
        self.assertRaises(NoRoom, put, a, "one more", b"x")
        put_again = threading.Thread(target=lambda: put(a, "one more", b"x"))
        a.cleanup("7")
        put_again.start()
        put_again.join()
        self.assertEqual(get(a, "one more"), b"x")

    def test_replaced_when_full(self) -> None:
        a, b = self.store(), self.store()
        for n in range(2000):  # more than there are slots
            put(a, "same", b"%d" % n)
        self.assertEqual(get(b, "same"), b"1999")

    def test_ttl(self) -> None:
        logging.getLogger("omnibus").disabled = False
        a, b = self.store(ttl=0.05), self.store()
        with self.assertLogs("omnibus", "WARNING") as log:
            put(a, "k", b"value")
            while a.health()["pending"]:
                time.sleep(0.001)
            a.close()
        self.assertIn("thinker -> talker, key k", log.output[0])
        self.assertRaises(Missing, get, b, "k")

    def test_deadlines(self) -> None:
        b = self.store()
        for deadline in (float("-inf"), 0.0, time.monotonic(), float("nan")):
            self.assertRaises(Missing, b.wait, EDGE, "k", None, bytes, deadline)
        a = self.store()
        for deadline in (1e18, float("inf")):
            late = threading.Timer(0.05, put, (a, "k", b"late"))
            late.start()
            self.assertEqual(b.wait(EDGE, "k", None, bytes, deadline)[0], b"late")  # type: ignore[arg-type]
            late.join()

    def test_wait(self) -> None:
        b, got = self.store(), []
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            got.append(b.wait(EDGE, "k", None, bytes, time.monotonic() + 30)[0])  # type: ignore[arg-type]

        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait()
        a = self.store()
        put(a, "other", b"")
        put(a, "k", b"value")
        thread.join()
        self.assertEqual(got, [b"value"])
        self.assertRaises(Missing, b.wait, EDGE, "k", None, bytes, time.monotonic() + 0.01)
        # What has a number was there: it is not waited for.
        self.assertRaises(Missing, b.wait, EDGE, "k", {"store": "speech", "entry": "1"}, bytes, time.monotonic() + 99)

    def test_abandoned(self) -> None:
        b, ended = self.store(), []

        def wait() -> None:
            try:
                b.wait(EDGE, "k", None, bytes, time.monotonic() + 30)  # type: ignore[arg-type]
            except Missing as e:
                ended.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        while thread.is_alive():
            b.abandon("k")
            thread.join(0.001)
        self.assertEqual(len(ended), 1)

    def test_places(self) -> None:
        a, b, c = self.store(), self.store(), self.store()
        put(a, "k", b"1")
        self.assertEqual(get(b, "k"), b"1")
        self.assertRaisesRegex(Busy, f"by the processes {os.getpid()}", get, c, "k")
        self.assertRaisesRegex(Busy, f"process {os.getpid()} has a store of this name", put, c, "k", b"2")
        b.close()
        put(a, "k", b"3")
        self.assertEqual(get(c, "k"), b"3")

    def test_many_threads(self) -> None:
        # All of them fit: readers that do not wait long may pass what is put late, and leave it there.
        a, readers = self.store(readers=3, ring_bytes=4 * MIB), [self.store() for _ in range(3)]
        put(a, "begin", b"")
        values = {f"{n}": os.urandom(random.Random(n).randrange(20_000)) for n in range(200)}
        got: list[tuple[str, bytes]] = []

        def take(s: Store) -> None:
            for key in values:
                try:
                    got.append((key, s.wait(EDGE, key, None, bytes, time.monotonic() + 0.002)[0]))  # type: ignore[arg-type]
                except Missing:
                    pass

        threads = [threading.Thread(target=take, args=(s,)) for s in readers for _ in range(2)]
        for t in threads:
            t.start()
        for key, value in values.items():
            put(a, key, value)
        for t in threads:
            t.join()
        self.assertEqual(len(got), len({key for key, _ in got}), "a value was got twice")
        for key, value in got:
            self.assertEqual(value, values[key])
        for key in values.keys() - {key for key, _ in got}:
            self.assertEqual(get(readers[0], key), values[key])


if __name__ == "__main__":
    unittest.main()
