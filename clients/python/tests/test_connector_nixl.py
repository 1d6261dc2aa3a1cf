"""Values that another process reads by NIXL, which the tests have from its wheel, and vLLM-Omni's NixlConnector."""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import socket
import struct
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import fakehost  # noqa: F401  (finds the package)
import peercase
import realstore
from peercase import EDGE, POOL, plain, until

from omnibus.connector import BadMetadata, Damaged, OmnibusConnector, Unavailable
from omnibus.connector.contract import Edge, Gone
from omnibus.connector.nixl_metadata import parse_plan
from omnibus.connector.nixl import Nixl
from omnibus.connector.stores import TooLarge
from omnibus.errors import PayloadError
from omnibus.msgpack import packb, unpackb

PAYLOADS = int(os.environ.get("OMNIBUS_STORE_PAYLOADS", "1000")) // 10  # each of vLLM-Omni's takes a connection of its own

class NixlTest(peercase.PeerCase):
    mode, module, extra, size_key, gone = "nixl", "nixl_cu12._api", "nixl", "size", Gone

    def tearDown(self) -> None:
        for n in (self.sender, self.receiver):
            n.remove(n.own_names())
            n._returned.clear()
            self.assertEqual(n.pool.free_bytes(), n.pool.size, "memory is lost")

    def claim(self, key: str, claim: str, generation: str | None = None) -> Any:
        """The sender's answer to a consumer that claims a value."""
        question = packb({"key": key, "generation": generation, "claim_id": claim})
        answer = self.receiver.requester.request(self.sender.address, b"nixl_get_meta" + question, time.monotonic() + 20)
        return None if answer == b"nixl_meta_not_found" else unpackb(answer)

    def done(self, key: str, claim: str, generation: str | None) -> bytes:
        question = packb({"key": key, "generation": generation, "claim_id": claim})
        return self.receiver.requester.request(self.sender.address, b"nixl_xfer_done" + question, time.monotonic() + 20)

    def forget(self, key: str) -> None:
        """Remove a value whose claim has expired."""
        with self.sender._mu:
            self.sender._remove_value(self.sender._values[key])

    def test_replaced(self) -> None:
        old, new = self.put("once", b"old"), self.put("once", b"new")
        with self.assertRaisesRegex(Gone, self.sender.address):
            self.get("once", old)
        self.assertEqual(self.get("once", new), b"new")

    def test_edges_of_one_process_are_apart(self) -> None:
        """A stage between two gets a key on one edge and puts it on the next."""
        between = self.open(sender_host="127.0.0.1", sender_zmq_port=self.sender.address.rpartition(":")[2])
        self.put("key", b"before")
        between.put(between.name(Edge("talker", "vocoder"), "key"), [b"after"])
        self.assertEqual(self.get("key", n=between), b"before")
        self.assertEqual(self.get("key", n=between, edge=Edge("talker", "vocoder")), b"after")

    def test_a_wait_for_a_removed_value_ends(self) -> None:
        store = self.store()
        metadata = self.put("gone", b"x")
        self.get("gone", metadata)
        with self.assertRaises(Gone):
            store.wait(EDGE, "gone", metadata, plain, time.monotonic() + 600)

    def test_metadata(self) -> None:
        metadata = self.put("metadata", b"x" * 100)
        for name, value in (
            ("schema_version", 2), ("schema_version", "1"), ("generation", 5), ("generation", None), ("size", "100"), ("size", -1),
            ("sender_host", "a/b"), ("sender_host", 7), ("sender_zmq_port", 70000), ("sender_zmq_port", "x"),
        ):  # fmt: skip
            with self.subTest(name, value=value), self.assertRaisesRegex(BadMetadata, name):
                self.get("metadata", {**metadata, name: value})
        with self.assertRaisesRegex(Damaged, "another version"):
            self.get("metadata", {**metadata, "size": 7})
        # The same under the names that vLLM-Omni has for a sender that its caller knows.
        host, _, port = self.sender.address.partition(":")
        self.assertEqual(self.get("metadata", {"source_host": host, "source_port": int(port)}), b"x" * 100)

    def test_a_take_above_the_limit_keeps_the_value(self) -> None:
        metadata = self.put("small", b"x" * 1000)
        name = self.receiver.name(EDGE, "small")
        self.assertEqual(self.receiver.take_value(name, metadata, 999), (None, 1000))
        self.assertEqual(self.receiver.take_value(name, metadata, 1000)[0], b"x" * 1000)
        self.receiver.put_back(name, [b"x" * 1000], metadata)
        with self.assertRaises(Gone):
            self.receiver.take_value(name, {**metadata, "generation": "another"})
        self.assertEqual(self.receiver.take_value(name, metadata)[1], 1000)

    def test_claims(self) -> None:
        metadata = self.put("claimed", b"x" * 100)
        first = self.claim("claimed", "first")
        self.assertEqual((first["generation"], first["claim_id"]), (metadata["generation"], "first"))
        self.assertIsNone(self.claim("claimed", "second"), "a value is got once")
        self.assertEqual(self.claim("claimed", "first", metadata["generation"])["claim_id"], "first", "an answer may be lost")
        with self.assertRaises(Gone):
            self.get("claimed", metadata)
        self.assertEqual(self.done("claimed", "second", metadata["generation"]), b"nixl_meta_not_found")
        # What is cleaned up, or replaced, stays for the one that reads it.
        self.sender.remove([self.sender.name(EDGE, "claimed")])
        self.put("claimed", b"y" * 100)
        self.assertEqual(self.sender.pool.size - self.sender.pool.free_bytes(), 2 * 4096)
        self.assertEqual(self.claim("claimed", "first", metadata["generation"])["claim_id"], "first")
        for _ in range(2):
            self.assertEqual(self.done("claimed", "first", metadata["generation"]), b"nixl_ack", "an answer may be lost")
        self.assertEqual(self.sender.pool.size - self.sender.pool.free_bytes(), 4096)
        self.assertEqual(self.claim("claimed", "third")["size"], 100)
        self.assertEqual(self.done("claimed", "third", None), b"nixl_meta_not_found")
        self.forget("claimed")

    def test_an_untaken_value_expires(self) -> None:
        n = self.open(lease_seconds=0.05)
        metadata = self.put("lease", b"x" * 100, n)
        until(lambda: n.pool.free_bytes() == n.pool.size)
        with self.assertRaises(Gone):
            self.get("lease", metadata)
        n = self.open(transfer_timeout_s=0.05)
        metadata = self.put("claim", b"x" * 100, n)
        self.assertIsNotNone(n.claim("claim", None, "of a dead one"))
        until(lambda: n.pool.free_bytes() == n.pool.size)
        with self.assertRaises(Gone):
            self.get("claim", metadata)

    def test_a_value_removed_during_the_read_is_discarded(self) -> None:
        """A read under an expired claim may be of another value, and is discarded."""
        metadata = self.put("late", b"x" * 100)
        wait = self.receiver._peer

        def late(*arguments: Any) -> Any:
            self.forget("late")
            return wait(*arguments)

        with mock.patch.object(self.receiver, "_peer", late), self.assertRaisesRegex(Gone, "while it was read"):
            self.get("late", metadata)

    def test_dead_sender(self) -> None:
        child = self.child()
        metadata = [child.put(f"dead{i}", 1 << 20) for i in range(3)]
        self.assertEqual(len(self.get("dead0", metadata[0])), 1 << 20)
        peer = self.receiver._peer

        def killed(*arguments: Any) -> Any:
            child.kill()
            return peer(*arguments)

        address = f"127.0.0.1:{metadata[0]['sender_zmq_port']}"
        with mock.patch.object(self.receiver, "_peer", killed), self.assertRaisesRegex(Unavailable, address):
            self.get("dead1", metadata[1])
        with self.assertRaisesRegex(Gone, address):
            self.get("dead2", metadata[2])
        until(lambda: self.receiver.pool.free_bytes() == self.receiver.pool.size)

    def test_stopped_sender(self) -> None:
        """A get times out, and names the sender; the block of an unfinished read is not reused before its end."""
        child = self.child(UCX_TLS="tcp")
        with mock.patch.dict(os.environ, UCX_TLS="tcp"):  # through shared memory it could be read all the same
            n = self.open(timeout=1)
        metadata = [child.put(f"stopped{i}", 4 << 20) for i in range(3)]
        address = f"127.0.0.1:{metadata[0]['sender_zmq_port']}"
        self.assertEqual(len(self.get("stopped0", metadata[0], n)), 4 << 20)
        peer = n._peer

        def stopped(*arguments: Any) -> Any:
            child.stop()
            return peer(*arguments)

        with mock.patch.object(n, "_peer", stopped), self.assertRaisesRegex(Unavailable, f"{address}.*timeout"):
            self.get("stopped1", metadata[1], n)
        self.assertEqual(n.pool.size - n.pool.free_bytes(), 4 << 20)
        with self.assertRaisesRegex(Unavailable, f"{address} does not answer.*stopped"):
            self.get("stopped2", metadata[2], n)
        child.process.send_signal(signal.SIGCONT)
        until(lambda: n.pool.free_bytes() == n.pool.size)
        self.assertEqual(len(self.get("stopped2", metadata[2], n)), 4 << 20)
        with self.assertRaises(Gone):  # it was acknowledged, as vLLM-Omni's does
            self.get("stopped1", metadata[1], n)

    @contextlib.contextmanager
    def listener(self, answer: Callable[[bytes], bytes]) -> Iterator[dict[str, Any]]:
        with peercase.listener(answer) as port:
            yield {"schema_version": 1, "generation": "g", "sender_host": "127.0.0.1", "sender_zmq_port": port}

    def test_hostile_sender(self) -> None:
        """No read follows an inconsistent description, and no write leaves the allocated block."""
        self.put("hostile", b"x" * 100)
        good = self.claim("hostile", "c")
        self.forget("hostile")
        parse_plan("a", bytes(packb({**good, "generation": "g"})))
        spec, group = good["tensor_specs"][0], good["descriptor_groups"][0]
        region = group["regions"][0]
        two = [{**spec}, {**spec}]

        def regions(*changed: Any, **more: Any) -> dict[str, Any]:
            return {"descriptor_groups": [{**group, "tensor_indices": list(range(len(changed))), "regions": list(changed), **more}]}

        bad: list[Any] = [
            b"", b"\xc1", b"\x93", packb([1]), packb({**good, "schema_version": 2}), *({**good, "generation": "g", **change} for change in (
                {"kind": "pickle"}, {"kind": None}, {"agent_metadata": "text"}, {"generation": "other"}, {"size": "100"},
                {"tensor_specs": None}, {"tensor_specs": []}, {"tensor_specs": [5]}, {"descriptor_groups": {}}, {"descriptor_groups": []},
                *({"tensor_specs": [{**spec, **s}]} for s in (
                    {"shape": [-100]}, {"shape": [100.0]}, {"shape": "100"}, {"shape": [1 << 62, 1 << 62]}, {"shape": [1] * 40},
                    {"shape": [101]}, {"size": 101}, {"size": None}, {"dtype": "torch.complex32"}, {"dtype": "torch.float32"},
                    {"dtype": None}, {"shape": [10, 10]},
                )),
                {"tensor_specs": two}, {"tensor_specs": two, **regions(region, region)},
                {"tensor_specs": two, "kind": "tensors", **regions(region)},
                {"tensor_specs": two, "kind": "tensors", **regions(region, region, tensor_indices=[0, 0])},
                {"tensor_specs": two, "kind": "tensors", **regions(region, region, tensor_indices=[0, 2])},
                *(regions(r) for r in (
                    [0, 100, 0, ""], [-5, 100, 0, ""], [region[0], 101, 0, ""], [region[0], 99, 0, ""], [(1 << 64) - 1, 100, 0, ""],
                    [region[0], 100], [region[0], 100, -1, ""], [region[0], 100, 1 << 40, ""], ["x", 100, 0, ""], 5, [True, 100, 0, ""],
                )),
                regions(region, memory_type="FILE"), regions(region, memory_type=None), regions(region, tensor_indices=[1]),
            )),
        ]  # fmt: skip
        for i, answer in enumerate(bad):
            text = bytes(answer) if isinstance(answer, (bytes, bytearray)) else bytes(packb(answer))
            with self.subTest(i, answer=answer), self.listener(lambda _, text=text: text) as metadata:  # type: ignore[misc]
                with self.assertRaisesRegex(BadMetadata, f"127.0.0.1:{metadata['sender_zmq_port']}"):
                    self.get("hostile", metadata)
        for change in (
            {"agent_metadata": b"x" * 100}, {"agent_metadata": b""},
            regions([self.sender.pool.address + POOL, 100, 0, ""]), regions([8, 100, 0, ""]), regions(region, memory_type="VRAM"),
        ):  # fmt: skip
            text = bytes(packb({**good, "generation": "g", **change}))
            with self.subTest(change=change), self.listener(lambda _, text=text: text) as metadata:  # type: ignore[misc]
                with self.assertRaisesRegex(Unavailable, f"127.0.0.1:{metadata['sender_zmq_port']}.*cannot be read"):
                    self.get("hostile", metadata)
        large = bytes(packb({**good, "generation": "g", "tensor_specs": [{**spec, "shape": [1 << 50], "size": 1 << 50}],
                             **regions([region[0], 1 << 50, 0, ""])}))  # fmt: skip
        with self.listener(lambda _: large) as metadata, self.assertRaisesRegex(TooLarge, "memory_pool_size"):
            self.get("hostile", metadata)
        good_again = self.put("hostile", b"good")
        self.assertEqual(self.get("hostile", good_again), b"good")

    def structured(self, header: Any, tensors: list[bytes]) -> bytes:
        """Get a value of kind structured, whose parts lie in the sender."""
        blocks = []
        for data in (bytes(packb(header)), *tensors):
            block = self.sender.pool.allocate(len(data))
            self.sender.pool.view(block)[:] = data
            blocks.append(block)
        try:
            answer = bytes(packb({
                "schema_version": 1, "kind": "structured", "size": 1, "generation": "g", "agent_metadata": self.sender._own_metadata,
                "tensor_specs": [{"shape": [b.size], "dtype": "torch.uint8", "device": "cpu", "size": b.size} for b in blocks],
                "descriptor_groups": [{"memory_type": "DRAM", "tensor_indices": list(range(len(blocks))),
                                       "regions": [[self.sender.pool.address_of(b), b.size, 0, ""] for b in blocks]}],
            }))  # fmt: skip
            with self.listener(lambda _: answer) as metadata:
                return self.get("structured", {"source_host": "127.0.0.1", "source_port": metadata["sender_zmq_port"]})
        except Gone:
            return b""
        finally:
            for block in blocks:
                self.sender.pool.free(block)

    def test_hostile_structure(self) -> None:
        for i in (2, -1, "0", True, None):
            with self.assertRaisesRegex(PayloadError, "a structure names tensor"):
                self.structured({"a": {"__nixl_tensor_index__": i}}, [b"x", b"y"])

    def test_hostile_consumer(self) -> None:
        metadata = self.put("asked", b"x" * 100)
        for message in (
            b"", b"nixl", b"nixl_get_meta", b"nixl_get_meta\xc1", b"nixl_xfer_done\xc1", b"nixl_get_meta" + packb(5),
            *(op + packb(asked) for op in (b"nixl_get_meta", b"nixl_xfer_done") for asked in (
                {}, {"key": 5, "claim_id": "c"}, {"key": "asked"}, {"key": "asked", "claim_id": ""}, {"key": "asked", "claim_id": 5},
                {"key": "asked", "claim_id": "c", "generation": 5}, {"key": "asked", "claim_id": "c", "generation": "other"},
            )),
        ):  # fmt: skip
            with self.subTest(message):
                try:
                    answer = self.receiver.requester.request(self.sender.address, bytes(message), time.monotonic() + 0.05)
                except Unavailable:
                    continue  # a message that is none has no answer
                self.assertEqual(answer, b"nixl_meta_not_found")
        with socket.create_connection(tuple(self.sender.address.split(":"))) as s:  # type: ignore[arg-type]
            s.sendall(struct.pack(">Q", 1 << 60) * 100)
        self.assertEqual(self.get("asked", metadata), b"x" * 100)

    def test_settings(self) -> None:
        for name, value in (
            ("timeout", 0), ("host", 5), ("zmq_port", 65536), ("role", "boss"), ("memory_pool_size", 0), ("lease_seconds", -1),
            ("transfer_timeout_s", 0), ("sender_zmq_port", "x"), ("backends", ["LIBFABRIC"]),
        ):  # fmt: skip
            with self.subTest(name), self.assertRaisesRegex(ValueError, name):
                OmnibusConnector({"mode": "nixl", name: value})
        with self.assertRaisesRegex(Unavailable, "memory_pool_size"):
            OmnibusConnector({"mode": "nixl", "memory_pool_size": 1 << 62})

    def test_listens_on_the_loopback_interface_alone(self) -> None:
        child = self.child()
        child.put("x", 1)
        own = {os.readlink(f"/proc/{child.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{child.process.pid}/fd")}
        with open("/proc/net/tcp", encoding="ascii") as f:
            rows = [line.split() for line in f][1:]
        hosts = {row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
        self.assertEqual(hosts, {"0100007F"})

    def test_close_waits_for_those_that_read(self) -> None:
        n = Nixl({"memory_pool_size": POOL})
        metadata = self.put("reading", b"x" * 100, n)
        self.assertIsNotNone(n.claim("reading", None, "c"))
        closing = threading.Thread(target=n.close)
        closing.start()
        until(lambda: n._closing)
        self.assertIsNone(n.claim("reading", None, "d"))
        self.assertTrue(closing.is_alive())
        self.assertTrue(n.finish_claim("reading", metadata["generation"], "c"))
        closing.join()
        with self.assertRaises(Unavailable):
            self.put("closed", b"x", n)

    def test_forked_child(self) -> None:
        store = self.store()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                store.get(EDGE, "forked", None, plain)
            except Unavailable as e:
                status = 0 if "spawn" in str(e) else 1
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)

    def test_connector(self) -> None:
        with OmnibusConnector({"mode": "nixl"}) as put, OmnibusConnector({"mode": "nixl"}) as get:
            ok, size, metadata = put.put("0", "1", "r_0_0", {"x": b"1"})
            self.assertTrue(ok)
            self.assertEqual(get.get("0", "1", "r_0_0", {"r_0_0": metadata}), ({"x": b"1"}, size))
            self.assertIsNone(get.get("0", "1", "other"))
            self.assertEqual((get.health()["missing"], get.health()["errors"]), (1, 0))
            with self.assertLogs("omnibus", "ERROR") as logs:
                self.assertIsNone(get.get("0", "1", "r_0_0", metadata))
            self.assertIn(str((metadata or {})["sender_zmq_port"]), logs.output[0])
            self.assertEqual(get.health()["status"], "healthy")

    def test_real_connector(self) -> None:
        """vLLM-Omni's own class at the other side, both ways, byte for byte, and its kinds of tensors."""
        real = realstore.Real("nixl", {"host": "127.0.0.1", "metadata_query_timeout_ms": 20_000, "transfer_timeout_s": 30})  # not the 10 of its default
        self.addCleanup(real.close)
        with OmnibusConnector({"mode": "nixl"}) as c:
            for seed in range(PAYLOADS):
                value = realstore.value(seed)
                ok, size, metadata = real.ask("put", f"real{seed}", seed)
                self.assertTrue(ok)
                self.assertEqual(c.get("0", "1", f"real{seed}", metadata), (value, size))
                self.assertIsNone(real.ask("get", f"real{seed}", metadata))
                ok, size, metadata = c.put("0", "1", f"ours{seed}", value)
                self.assertTrue(ok)
                text, there = real.ask("get", f"ours{seed}", metadata)
                self.assertEqual((base64.b64decode(text), there), (c.serialize_obj(value), size))
            self.assertEqual(c.health()["errors"], 0)
            store: Any = c._transport
            self.assertEqual(store._store.pool.free_bytes(), store._store.pool.size)
            for seed in range(30):
                ok, size, metadata = real.ask("tensors", f"tensors{seed}", seed)
                self.assertTrue(ok)
                self.assertEqual(metadata["kind"], "structured" if seed % 3 == 2 else "tensors")
                got = c.get("0", "1", f"tensors{seed}", metadata)
                assert got is not None
                self.assertEqual(c.serialize_obj(got[0]), base64.b64decode(real.ask("encode", "", seed)))


class ApartTest(unittest.TestCase):
    """Runs the tests above in a process of their own."""

    def test_apart(self) -> None:
        peercase.run_apart(self, "test_connector_nixl.NixlTest", "nixl")


def load_tests(loader: unittest.TestLoader, _tests: unittest.TestSuite, _pattern: str | None) -> unittest.TestSuite:
    return loader.loadTestsFromTestCase(ApartTest)


if __name__ == "__main__":
    unittest.main()
