"""Values that a process writes into another by Mooncake's transfer engine, and vLLM-Omni's MooncakeTransferEngineConnector."""

from __future__ import annotations

import base64
import os
import random
import signal
import time
import unittest
from typing import Any
from unittest import mock

import fakehost  # noqa: F401  (finds the package)
import peercase
import realstore
import storeserver
from peercase import POOL, until

from omnibus.connector import BadMetadata, Damaged, Missing, OmnibusConnector, Unavailable
from omnibus.connector.contract import Absent
from omnibus.connector.stores import TooLarge
from omnibus.msgpack import packb, unpackb

KEY = "{}@thinker_talker"
PAYLOADS = int(os.environ.get("OMNIBUS_STORE_PAYLOADS", "1000")) // 4


class MooncakeEngineTest(peercase.PeerCase):
    mode, module, extra, size_key = "mooncake-engine", "mooncake.engine", "mooncake", "data_size"
    patience = 2.0

    def tearDown(self) -> None:
        for n in (self.sender, self.receiver):
            n.remove(n.own_names())
            until(lambda n=n: n.pool.free_bytes() == n.pool.size)  # type: ignore[misc]

    def ask(self, message: Any) -> bytes:
        """The sender's answer to a consumer."""
        text = message if isinstance(message, bytes) else bytes(packb(message))
        return self.receiver.requester.request(self.sender.address, text, time.monotonic() + 20)

    def pull(self, key: str, **changes: Any) -> bytes:
        return self.ask({"remote_hostname": "127.0.0.1", "remote_port": self.receiver._port, "request_id": KEY.format(key),
                         "dst_addrs": [self.receiver.pool.address], "lengths": [100], **changes})  # fmt: skip

    def test_metadata(self) -> None:
        metadata = self.put("metadata", b"x" * 100)
        for name, value in (
            ("data_size", "100"), ("data_size", -1), ("size", "100"), ("source_host", "a/b"), ("source_host", 7),
            ("source_port", 70000), ("source_port", "x"),
        ):  # fmt: skip
            with self.subTest(name, value=value), self.assertRaisesRegex(BadMetadata, name):
                self.get("metadata", {**metadata, name: value})
        with self.assertRaisesRegex(Damaged, "another version"):
            self.get("metadata", {**metadata, "size": 7})
        self.assertEqual(self.get("metadata", {**metadata, "size": 100}), b"x" * 100)

    def after_too_large(self, metadata: dict[str, Any]) -> None:
        self.assertEqual(len(self.get("large", metadata)), POOL, "it stays for another")

    def test_hostile_consumer(self) -> None:
        """The sender writes only into a consumer's memory, and a value stays until it is written."""
        metadata = self.put("asked", b"x" * 100)
        for message in (b"", b"\xc1", b"query_info", b"query_info\xc1", b"query_info" + packb({"request_id": 5}), packb([1]), packb({})):
            with self.subTest(message):
                try:
                    answer = self.receiver.requester.request(self.sender.address, bytes(message), time.monotonic() + 0.05)
                except Unavailable:
                    continue  # a message that is none has no answer
                self.fail(repr(answer))
        for change in (
            {"lengths": [101]}, {"lengths": [99]}, {"lengths": []}, {"lengths": None}, {"dst_addrs": []}, {"dst_addrs": [-1]},
            {"dst_addrs": ["x"]}, {"dst_addrs": [8]}, {"dst_addrs": [self.receiver.pool.address + POOL]}, {"remote_hostname": ""},
            {"remote_hostname": 5}, {"remote_port": 0}, {"remote_port": 1}, {"remote_port": "x"}, {"request_id": "other"},
            {"remote_port": self.sender._port, "dst_addrs": [self.sender.pool.address + 8192]},
        ):  # fmt: skip
            with self.subTest(change):
                self.assertEqual(self.pull("asked", **change), b"trans_error")
        self.assertEqual(unpackb(self.ask(b"query_info" + bytes(packb({"request_id": KEY.format("asked")}))))["data_size"], 100)
        self.assertEqual(self.get("asked", metadata), b"x" * 100)

    def test_hostile_sender(self) -> None:
        good = {"request_id": KEY.format("hostile"), "data_size": 100, "is_fast_path": False}
        for answer in (b"", b"\xc1", packb(5), *(packb({**good, **c}) for c in (
            {"data_size": 0}, {"data_size": -1}, {"data_size": "x"}, {"data_size": True}, {"is_fast_path": 1}, {"request_id": "other"},
        ))):  # fmt: skip
            with self.subTest(answer), peercase.listener(lambda _, answer=answer: bytes(answer)) as port:  # type: ignore[misc]
                with self.assertRaisesRegex(BadMetadata, f"127.0.0.1:{port}"):
                    self.get("hostile", {"source_host": "127.0.0.1", "source_port": port})
        large = bytes(packb({**good, "data_size": 1 << 50}))
        with peercase.listener(lambda _: large) as port, self.assertRaisesRegex(TooLarge, "memory_pool_size"):
            self.get("hostile", {"source_host": "127.0.0.1", "source_port": port})
        with peercase.listener(lambda m: bytes(packb(good)) if m.startswith(b"query") else b"trans_error") as port:
            with self.assertRaisesRegex(Unavailable, f"127.0.0.1:{port} cannot write"):
                self.get("hostile", {"source_host": "127.0.0.1", "source_port": port})

    def test_dead_sender(self) -> None:
        """The receiver's memory is reused after the sender's writes have arrived."""
        child = self.child()
        metadata = [child.put(f"dead{i}", 1 << 20) for i in range(3)]
        self.assertEqual(len(self.get("dead0", metadata[0])), 1 << 20)
        address = f"127.0.0.1:{metadata[0]['source_port']}"
        take = self.receiver.pool.allocate

        def killed(size: int) -> Any:
            child.kill()
            return take(size)

        with mock.patch.object(self.receiver.pool, "allocate", killed), self.assertRaisesRegex(Absent, address):
            self.get("dead1", metadata[1])
        with self.assertRaisesRegex(Absent, address):
            self.get("dead2", metadata[2])

    def test_stopped_sender(self) -> None:
        """A get times out, and names the sender; memory that the sender may write to is not reused before its answer."""
        child = self.child()
        n = self.open(timeout=1)
        metadata = [child.put(f"stopped{i}", 4 << 20) for i in range(2)]
        address = f"127.0.0.1:{metadata[0]['source_port']}"
        take = n.pool.allocate

        def stopped(size: int) -> Any:
            child.stop()
            return take(size)

        with mock.patch.object(n.pool, "allocate", stopped), self.assertRaisesRegex(Unavailable, f"{address} does not answer.*stopped"):
            self.get("stopped0", metadata[0], n)
        with self.assertRaisesRegex(Missing, "given up"):
            self.get("stopped0", metadata[0], n)
        with mock.patch("omnibus.connector.mooncake_engine._DRAIN_SECONDS", 0):
            for _ in range(2):
                n._expire()
            self.assertEqual(n.pool.size - n.pool.free_bytes(), 4 << 20)
        with self.assertRaisesRegex(Unavailable, address):
            self.get("stopped1", metadata[1], n)
        child.process.send_signal(signal.SIGCONT)
        until(lambda: n.pool.free_bytes() == n.pool.size)
        self.assertEqual(len(self.get("stopped1", metadata[1], n)), 4 << 20)

    def test_an_untaken_value_expires(self) -> None:
        n = self.open(buffer_ttl_seconds=0.05)
        metadata = self.put("lease", b"x" * 100, n)
        until(lambda: n.pool.free_bytes() == n.pool.size)
        with self.assertRaises(Missing):
            self.get("lease", metadata)

    def test_settings(self) -> None:
        for name, value in (("memory_pool_device", "cuda"), ("buffer_ttl_seconds", -1), ("role", "boss"), ("protocol", 5)):
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                OmnibusConnector({"mode": "mooncake-engine", name: value})

    def test_real_connector(self) -> None:
        """vLLM-Omni's own class at the other side, both ways, byte for byte, and the raw bytes that it puts."""
        (port,) = storeserver.free_ports(1)
        real = realstore.Real("mooncake-engine", {"host": "127.0.0.1", "zmq_port": port, "protocol": "tcp", "memory_pool_size": POOL})
        self.addCleanup(real.close)
        with OmnibusConnector({"mode": "mooncake-engine"}) as c:
            for seed in range(PAYLOADS):
                value = realstore.value(seed)
                ok, size, metadata = real.ask("put", f"real{seed}", seed)
                self.assertTrue(ok)
                self.assertEqual(c.get("0", "1", f"real{seed}", metadata), (value, size))
                self.assertIsNone(real.ask("get", f"real{seed}", {"source_host": "127.0.0.1", "source_port": port}))
                ok, size, metadata = c.put("0", "1", f"ours{seed}", value)
                self.assertTrue(ok)
                text, there = real.ask("get", f"ours{seed}", metadata)
                self.assertEqual((base64.b64decode(text), there), (c.serialize_obj(value), size))
            for seed in range(20):
                _, _, metadata = real.ask("bytes", f"bytes{seed}", seed * 999)
                got = c.get("0", "1", f"bytes{seed}", metadata)
                assert got is not None
                self.assertEqual(got[0], random.Random(seed * 999).randbytes(seed * 999 + 1))
            self.assertEqual(c.health()["errors"], 0)


class ApartTest(unittest.TestCase):
    """Runs the tests above in a process of their own."""

    def test_apart(self) -> None:
        peercase.run_apart(self, "test_connector_mooncake_engine.MooncakeEngineTest", "mooncake")


def load_tests(loader: unittest.TestLoader, _tests: unittest.TestSuite, _pattern: str | None) -> unittest.TestSuite:
    return loader.loadTestsFromTestCase(ApartTest)


if __name__ == "__main__":
    unittest.main()
