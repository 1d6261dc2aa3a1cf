"""Payloads under keys, with a host that follows the protocol and believes nothing."""

from __future__ import annotations

import gc
import os
import random
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from hostcase import HostCase

import omnibus
from omnibus import wire
from omnibus.segments import BlockAllocator, large_bytes

BIG = bytes(range(256)) * 160


class ExchangeCase(HostCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = self.connect()
        self.exchange = self.client.exchange(1 << 20)

    def putting(self, content: bytes, key: str = "k", timeout: float | None = None) -> Any:
        def write(room: memoryview) -> None:
            room[:] = content

        return self.beside(lambda: self.exchange.put("a", "b", key, len(content), write, timeout))

    def fetched(self, **more: Any) -> wire.Fetch:
        """Answer a fetch with a payload in segment 1."""
        m = self.host.expect(wire.Fetch)
        fields = {"delivery": 7, "flags": 0, "segment": 1, "offset": 256, "size": 4096, "payload": b"", **more}
        self.host.send(wire.Fetched(m.token, **fields))
        return m

    def placed(self, content: bytes, memory: Any, **more: Any) -> wire.Place:
        """See a payload that lies in the client's memory."""
        m = self.host.expect(wire.Place)
        self.assertEqual((m.flags, m.payload), (0, b""))
        self.assertEqual(memory[m.offset : m.offset + m.size], content)
        self.host.send(wire.Placed(m.token, 7))
        return m


class PutTest(ExchangeCase):
    def test_small_payloads_travel_in_the_message(self) -> None:
        done = self.putting(b"abc")
        m = self.host.expect(wire.Place)
        self.assertEqual((m.from_, m.to, m.key, m.flags, m.payload), ("a", "b", "k", wire.INLINE, b"abc"))
        self.host.send(wire.Placed(m.token, 7))
        done()

    def test_large_payloads_lie_in_client_memory(self) -> None:
        done = self.putting(BIG)
        offer, memory = self.host.offered()
        self.assertEqual(offer.bytes, 1 << 20)
        m = self.placed(BIG, memory)
        self.assertEqual(m.segment, offer.segment)
        done()
        done = self.putting(BIG[::-1])
        second = self.placed(BIG[::-1], memory)
        done()
        self.assertNotEqual((m.put, m.offset), (second.put, second.offset))
        self.assertEqual(memory[m.offset : m.offset + m.size], BIG)  # it stays until it is returned
        self.host.send(wire.Returned([m.put]))
        self.client.process()
        done = self.putting(BIG)
        self.assertEqual(self.placed(BIG, memory).offset, m.offset)
        done()
        self.host.nothing()

    def test_refused(self) -> None:
        done = self.putting(b"abc")
        self.host.send(wire.Failed(self.host.expect(wire.Place).token, 13, "no such key"))
        with self.assertRaises(omnibus.HostError):
            done()
        memory, offsets = None, set()
        for _ in range(3):
            done = self.putting(BIG)
            memory = memory or self.host.offered()
            m = self.host.expect(wire.Place)
            offsets.add(m.offset)
            self.host.send(wire.Failed(m.token, 11, "too many"))
            with self.assertRaises(omnibus.Overloaded):
                done()
        self.assertEqual(offsets, {0})  # the block is free again

    def test_small_payloads_use_client_memory_when_the_host_is_full(self) -> None:
        content = bytes(range(256)) * 128  # of the size of the largest that travels in a message
        done = self.putting(content)
        m = self.host.expect(wire.Place)
        self.assertEqual((m.flags, m.payload), (wire.INLINE, content))
        self.host.send(wire.Failed(m.token, 11, "full"))
        self.placed(content, self.host.offered()[1])
        done()

    def test_failed_write_puts_nothing(self) -> None:
        def write(room: memoryview) -> None:
            raise ValueError("no")

        for _ in range(300):  # more than fit into the memory
            with self.assertRaisesRegex(ValueError, "no"):
                self.exchange.put("a", "b", "k", len(BIG), write)
        self.host.offered()
        self.host.nothing()
        with self.assertRaises(omnibus.ProtocolError):
            self.exchange.put("a", "b", "\ud800", len(BIG), lambda room: None)
        self.assertFalse(self.client._session.allocator.has_puts)

    def test_no_space_within_the_timeout(self) -> None:
        content = bytes(900_000)
        done = self.putting(content)
        m = self.placed(content, self.host.offered()[1])
        done()
        with self.assertRaises(omnibus.OutOfMemory):
            self.putting(content, timeout=0.05)()
        with self.assertRaises(omnibus.TooLarge):
            self.putting(bytes(2 << 20))()
        done = self.putting(content, timeout=60)
        self.host.send(wire.Returned([m.put]))
        self.host.send(wire.Placed(self.host.expect(wire.Place).token, 7))
        done()

    def test_waiting_puts_allocate_once(self) -> None:
        content, puts, memory = bytes(300_000), [], None
        for _ in range(3):
            done = self.putting(content)
            memory = memory or self.host.offered()[1]
            puts.append(self.placed(content, memory).put)
            done()
        reads = self.beside(lambda: self.exchange.wait("a", "b", "other"))  # its thread reads for the waiting one, too
        fetch = self.host.expect(wire.Fetch)
        done = self.putting(content)
        waits = False
        while not waits:
            with self.client._session.locked:
                waits = bool(self.client._session.reader.waiters)
        self.host.send(wire.Returned(puts))
        self.host.send(wire.Returned([self.placed(content, memory).put]))
        done()
        self.host.send(wire.Failed(fetch.token, 15, ""))
        with self.assertRaises(omnibus.Nothing):
            reads()
        self.assertTrue(all(s.free_list.empty for s in self.client._session.allocator._segments.values()))

    def test_interrupted_put_allocates_nothing(self) -> None:
        content = bytes(900_000)
        done = self.putting(content)
        m = self.placed(content, self.host.offered()[1])
        done()
        session = self.client._session

        def wait(looks: Callable[[], bool], timeout: float | None) -> bool:
            self.host.send(wire.Returned([m.put]))
            self.client.process()
            with session.locked:
                self.assertTrue(looks())  # as another thread does, which reads
            raise KeyboardInterrupt

        with mock.patch.object(session, "wait", wait), self.assertRaises(KeyboardInterrupt):
            self.exchange.put("a", "b", "k", len(content), lambda room: None)
        self.assertTrue(all(s.free_list.empty for s in session.allocator._segments.values()))

    def test_returned_of_an_unknown_put(self) -> None:
        self.host.send(wire.Returned([5]))
        self.client.process()
        with self.assertRaises(omnibus.ProtocolError):
            self.exchange.put("a", "b", "k", 1, lambda room: None)

    def test_cleanup_and_close(self) -> None:
        other = self.client.exchange()
        owners = set()
        for do, key in ((lambda: self.exchange.cleanup("r"), "r"), (other.close, "")):
            done = self.beside(do)
            m = self.host.expect(wire.Cleanup)
            self.assertEqual(m.key, key)
            owners.add(m.owner)
            self.host.send(wire.Cleaned(m.token, 3))
            done()
        self.assertEqual(len(owners), 2)


class AllocatorTest(unittest.TestCase):
    """The allocator of the client's memory."""

    def setUp(self) -> None:
        self.said: list[Any] = []
        self.allocator = BlockAllocator(self.post)

    def post(self, m: Any, fd: int) -> None:
        self.said.append(m)
        if fd >= 0:
            os.close(fd)

    def test_blocks_do_not_overlap_and_are_reused(self) -> None:
        r = random.Random(3)
        most = 1 << 20
        out: list[tuple[int, Any]] = []
        for step in range(3000):
            if out and (r.random() < 0.5 or step > 2500):
                self.allocator.returned(out.pop(r.randrange(len(out)))[0])
                continue
            got = self.allocator.allocate(r.randint(1, 60_000), most)
            if got is None:
                continue
            for _, other in out:
                apart = got.offset + got.size <= other.offset or other.offset + other.size <= got.offset
                self.assertTrue(apart or got.segment != other.segment)
            out.append((self.allocator.register_put(got), got))
        while out:
            self.allocator.returned(out.pop()[0])
        self.assertTrue(all(s.free_list.empty for s in self.allocator._segments.values()))
        self.assertFalse(self.allocator.has_puts)

    def test_segments_are_bounded_and_dropped(self) -> None:
        most = 64 << 20
        puts = [self.allocator.register_put(r) for r in (self.allocator.allocate(9 << 20, most) for _ in range(7)) if r is not None]
        self.assertEqual(len(puts), 7)
        self.assertIsNone(self.allocator.allocate(9 << 20, most))
        for put in puts:
            self.allocator.returned(put)
        large = self.allocator.allocate(60 << 20, most)
        assert large is not None
        kinds = [type(m).__name__ for m in self.said]
        self.assertEqual(kinds, ["Offer"] * 7 + ["Forget"] * 7 + ["Offer"])
        self.allocator.free(large)
        self.assertIsNotNone(self.allocator.allocate(1000, most))

    def test_small_payloads_do_not_split_large_segments(self) -> None:
        most = 64 << 20
        size = (16 << 20) + 64  # a tensor of 16 MiB, with its header
        for _ in range(100):
            large = self.allocator.allocate(size, most)
            small = [self.allocator.allocate(1000, most), self.allocator.allocate((1 << 20) - 1, most)]
            assert large is not None and small[0] is not None and small[1] is not None
            self.assertEqual((large.offset, len(large.view)), (0, size))
            self.assertTrue(all(r.segment != large.segment for r in small if r is not None))
            put = self.allocator.register_put(large)
            self.allocator.free(small[0])
            self.allocator.returned(put)
            self.allocator.free(small[1])
        self.assertEqual([m.bytes for m in self.said], [18 << 20, 16 << 20])  # each was reused

    def test_large_segments_serve_payloads_of_nearly_their_size(self) -> None:
        r = random.Random(4)
        for _ in range(2000):
            size = r.randint(1 << 20, 1 << 34)
            segment = large_bytes(size)
            self.assertTrue(size <= segment <= size + size // 8, (size, segment))
            self.assertEqual(large_bytes(segment), segment)
        self.assertEqual(len({large_bytes(n) for n in range((1 << 20) + 1, (1 << 21) + 1, 1000)}), 8)

    def test_dedicated_segments_are_bounded(self) -> None:
        self.allocator.limit_segments(4)  # one that is used again, and three for a payload each
        rooms = [self.allocator.allocate_dedicated(5000) for _ in range(3)]
        with self.assertRaisesRegex(omnibus.OutOfMemory, "other processes hold 3 payloads"):
            self.allocator.allocate_dedicated(5000)
        self.allocator.free(rooms[0])
        self.allocator.returned(self.allocator.register_put(rooms[1]))
        for _ in range(2):
            self.allocator.allocate_dedicated(5000)
        with self.assertRaises(omnibus.OutOfMemory):
            self.allocator.allocate_dedicated(5000)


class GetTest(ExchangeCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.segment(1, bytes(range(256)) * 32)

    def test_in_place_until_the_last_view_is_gone(self) -> None:
        done = self.beside(lambda: self.exchange.get("a", "b", "k"))
        m = self.fetched()
        self.assertEqual((m.from_, m.to, m.key, m.flags), ("a", "b", "k", 0))
        view = done()
        self.assertEqual(bytes(view.data), bytes(range(256)) * 16)
        piece = view.data[10:20]
        del view, done
        gc.collect()
        self.host.nothing()
        del piece
        self.assertEqual(self.host.expect(wire.Finish), wire.Finish(7))
        self.host.nothing()

    def test_inline(self) -> None:
        done = self.beside(lambda: self.exchange.get("a", "b", "k"))
        self.fetched(flags=wire.INLINE, segment=0, offset=0, size=3, payload=b"abc")
        self.assertEqual(bytes(done().data), b"abc")
        self.assertEqual(self.host.expect(wire.Finish), wire.Finish(7))

    def test_nothing_there(self) -> None:
        done = self.beside(lambda: self.exchange.get("a", "b", "k"))
        self.host.send(wire.Failed(self.host.expect(wire.Fetch).token, 15, ""))
        with self.assertRaises(omnibus.Nothing):
            done()

    def test_payload_after_cancel_is_put_back(self) -> None:
        done = self.beside(lambda: self.exchange.wait("a", "b", "k", 0.05))
        m = self.host.expect(wire.Fetch)
        self.assertEqual(m.flags, wire.WAIT)
        self.assertEqual(self.host.expect(wire.Cancel).token, m.token)
        with self.assertRaises(omnibus.Nothing):
            done()
        self.host.send(wire.Fetched(m.token, 7, 0, 1, 0, 100, b""))
        self.beside(self.client.process)()
        self.assertEqual(self.host.expect(wire.Finish), wire.Finish(7, wire.UNREAD))
        gc.collect()
        self.host.nothing()  # once

    def test_abandon(self) -> None:
        done = self.beside(lambda: self.exchange.wait("a", "b", "k"))
        m = self.host.expect(wire.Fetch)
        self.exchange.abandon("other")
        self.exchange.abandon("k")
        self.assertEqual(self.host.expect(wire.Cancel).token, m.token)
        self.host.send(wire.Failed(m.token, 15, "canceled"))
        with self.assertRaises(omnibus.Nothing):
            done()

    def test_out_of_bounds(self) -> None:
        done = self.beside(lambda: self.exchange.get("a", "b", "k"))
        self.fetched(offset=8000, size=1000)
        with self.assertRaises(omnibus.ProtocolError):
            done()

    def test_views_outlive_the_host(self) -> None:
        done = self.beside(lambda: self.exchange.get("a", "b", "k"))
        self.fetched()
        view = done()
        self.host.close_socket()
        with self.assertRaises(omnibus.HostGone):
            self.exchange.get("a", "b", "k")
        self.assertEqual(bytes(view.data[:4]), b"\0\1\2\3")


if __name__ == "__main__":
    unittest.main()
