"""Emissions from the client's own segments, also with tensors on an emulated GPU, to a host that follows the protocol."""

from __future__ import annotations

import gc
import json
import mmap
import os
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from fakehost import deliver, over
from hostcase import HostCase
from stagecase import opened

import omnibus
from omnibus import bundle, dlpack, gpu, puts, wire
from omnibus.bundle import HANDLE, POOL
from omnibus.codec import encode
from omnibus.errors import Code
from omnibus.gpu import DriverError, emul
from omnibus.runner import _Runner
from omnibus.session import OutOfTime

BIG = bytes(range(256)) * 40
POOLED, LENT = wire.Tensors(2, 0), wire.Tensors(1, 0)


class PutsCase(HostCase):
    def task(self, *edges: wire.Edge, tensors: wire.Tensors = POOLED, **options: Any) -> omnibus.Delivery:
        """A delivery of a task whose edges carry tensors."""
        self.client = self.connect()
        self.client._session.inline_bytes = 512  # so that little has to be sent
        self.client._session.gpu_options = gpu.Options(
            **{"device": emul.uuid(5), "arena_bytes": 1 << 16, "max_bytes": 1 << 16} | options
        )
        serving = self.beside(lambda: self.client.deliveries("upper"))
        outputs = list(edges) or [wire.Edge("upper->next", "next", 2, 1 << 20)]
        self.host.serve(outputs=outputs, tensors=[tensors] * len(outputs))
        it = serving()
        self.host.send(opened(1), deliver(1, 7, encode("x")))
        return next(it).keep()

    def put(self) -> wire.Put:
        m = self.host.expect(wire.Put)
        self.assertEqual((m.source, m.delivery, m.attempt), (1, 7, 0))
        return m

    def returned(self, *puts: wire.Put) -> None:
        self.host.send(wire.Returned([m.put for m in puts]))

    def heard(self) -> None:
        """The client has handled what it was sent."""
        done = self.beside(lambda: self.client.call("status"))
        self.host.send(wire.Reply(self.host.expect(wire.Call).token, 0, b"{}"))
        done()


class WayTest(PutsCase):
    def test_emissions_keep_order_and_do_not_wait(self) -> None:
        d = self.task(wire.Edge("upper->next", "next"))
        d.emit("small", key="k")
        d.task._run_rest(d.task._emit(BIG, d.task._envelope(7), omnibus.RAW))
        d.task._current_delivery = 7
        with d.task.reserve(20_000) as room:
            room.view[:3] = b"abc"
            room.send(3, last=True)
        d.task.forward(d, to="next")
        small = self.put()
        self.assertEqual((small.flags, small.payload, small.key, small.edge), (wire.INLINE, encode("small"), "k", wire.ALL_EDGES))
        offer, memory = self.host.offered()
        big = self.put()
        self.assertEqual((big.flags, big.segment, big.codec), (0, offer.segment, omnibus.RAW))
        self.assertEqual(memory[big.offset : big.offset + big.size], BIG)
        part = self.put()
        self.assertEqual((part.flags, part.size, memory[part.offset : part.offset + 3]), (wire.LAST, 3, b"abc"))
        forward = self.put()
        self.assertEqual((forward.flags, forward.size, forward.edge), (wire.FORWARD, 0, 0))
        self.assertEqual(len({m.put for m in (small, big, part, forward)}), 4)
        self.returned(small, part)
        self.heard()
        d.task.emit_bytes(BIG)
        self.assertEqual(self.put().offset, part.offset)  # a returned block is reused; one that is not returned is not

    def test_payload_beyond_the_arena_has_its_own_segment(self) -> None:
        d = self.task()
        d.task._current_delivery = 7
        self.client._session.arena_bytes = 8192
        d.task.reserve(10_000).abort()
        offer, _ = self.host.offered()
        self.assertEqual(self.host.expect(wire.Forget).segment, offer.segment)
        d.task.emit_bytes(BIG)
        offer, memory = self.host.offered()
        m = self.put()
        self.assertEqual((m.flags, m.segment, m.offset, m.size), (wire.OWN_SEGMENT, offer.segment, 0, len(BIG)))
        self.assertEqual(memory[: m.size], BIG)
        self.returned(m)
        self.heard()
        self.host.nothing()  # the host has forgotten it by itself

    def test_put_that_cannot_be_encoded(self) -> None:
        d = self.task()
        d.task._current_delivery = 7
        with d.task.reserve(len(BIG)) as room, self.assertRaises(omnibus.LabelError):
            room.send(attrs={"": "no name"})
        self.host.offered()
        for _ in range(2):  # neither the block nor the credit is lost
            d.emit(BIG, codec=omnibus.RAW)
            self.assertEqual(self.put().offset, 0 if _ == 0 else 10_240)


class WindowTest(PutsCase):
    def waits(self, emit: Callable[[], Any]) -> Callable[[], Any]:
        done = self.beside(emit)
        while not self.client._session.polled:
            pass
        self.host.nothing()
        return done

    def test_the_window(self) -> None:
        for free in (self.returned, lambda m: self.host.send(wire.Spent(m.put, 0))):
            with self.subTest(free=free):
                d = self.task()
                d.emit(1)
                d.emit(2)
                first, second = self.put(), self.put()
                done = self.waits(lambda: d.emit(3))  # noqa: B023
                free(first)
                done()
                third = self.put()
                self.assertEqual(third.payload, encode(3))
                self.returned(second, *([] if free == self.returned else [first]))
                d.emit(4)
                self.put()
                self.doCleanups()
                self.setUp()

    def test_puts_without_a_window_are_bounded(self) -> None:
        d = self.task(wire.Edge("upper->next", "next"))
        with mock.patch.object(puts, "MAX_OUT", 3):
            for n in range(3):
                d.emit(n)
            done = self.beside(lambda: d.emit(3))
            while not self.client._session.polled:
                pass
            first = [self.put() for _ in range(3)]
            self.host.nothing()
            self.returned(first[0])
            done()
            self.assertEqual(self.put().payload, encode(3))

    def test_waiting_emissions_keep_their_order(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 1, 0))
        d.emit(0)
        m = self.put()
        done = [self.waits(lambda: d.emit(1))]
        done.append(self.beside(lambda: d.emit(2)))
        while len(self.client._session.polled._waiting) < 2:
            pass
        for n in (1, 2):
            self.returned(m)
            m = self.put()
            self.assertEqual(m.payload, encode(n))
            done[n - 1]()

    def test_small_emission_does_not_overtake_a_waiting_one(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 0, 16_000))
        d.emit(BIG, codec=omnibus.RAW)
        self.host.offered()
        m = self.put()
        large = self.waits(lambda: d.emit(BIG, codec=omnibus.RAW))
        small = self.beside(lambda: d.emit(1))
        while len(self.client._session.polled._waiting) < 2:
            pass
        self.host.nothing()
        self.returned(m)
        self.assertEqual({self.put().size, self.put().size}, {1, len(BIG)})  # of two threads
        large()
        small()

    def test_abandoned_emission_blocks_no_other(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 0, 16_000))
        s = self.client._session
        work = d.task._emit_work(BIG, d.task._envelope(7), omnibus.RAW)
        d.emit(BIG, codec=omnibus.RAW)
        self.host.offered()
        first = self.put()
        large = next(work)
        small = self.beside(lambda: d.emit(1))
        while len(s.polled._waiting) < 2:
            pass
        s.questions.abandon(large)  # as when a coroutine is cancelled, and before the host says anything
        self.assertEqual(self.put().size, 1)
        small()
        large = next(d.task._emit_work(bytes(6000), d.task._envelope(7), omnibus.RAW))
        behind = self.beside(lambda: d.emit(BIG, codec=omnibus.RAW))
        while len(s.polled._waiting) < 2:
            pass
        self.returned(first)
        while not large.done:
            pass
        s.questions.abandon(large)  # it held credit
        self.assertEqual(self.put().size, len(BIG))
        behind()

    def test_the_byte_window(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 0, 16_000))
        d.emit(BIG, codec=omnibus.RAW)
        self.host.offered()
        m = self.put()
        done = self.waits(lambda: d.emit(BIG, codec=omnibus.RAW))
        self.host.send(wire.Spent(m.put, wire.SPENT_BYTES))
        done()
        second = self.put()
        self.returned(m)  # which gives nothing back a second time
        done = self.waits(lambda: d.emit(BIG, codec=omnibus.RAW))
        alone = self.waits(lambda: d.emit(BIG * 2, codec=omnibus.RAW))  # more than the window
        self.returned(second)
        done()
        third = self.put()
        self.heard()
        self.host.nothing()
        self.returned(third)
        self.host.offered()
        alone()
        m = self.put()
        self.assertEqual((m.size, m.flags & wire.OWN_SEGMENT), (len(BIG) * 2, wire.OWN_SEGMENT))
        behind = self.waits(lambda: d.emit(BIG, codec=omnibus.RAW))  # it has the window to itself
        self.returned(m)
        behind()
        self.put()

    def test_a_window_full_of_input_kept_for_a_replay(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 0, 16_000))
        d.emit(BIG, codec=omnibus.RAW)
        self.host.offered()
        m = self.put()
        done = self.waits(lambda: d.emit(BIG, codec=omnibus.RAW))
        self.host.send(wire.Spent(m.put, 0))  # the count, but not the bytes
        with self.assertRaisesRegex(omnibus.WindowFull, "kept for a replay fills the byte window of upper->next"):
            done()
        d.emit(BIG[:1000], codec=omnibus.RAW)  # there is space beside them
        small = self.put()
        self.host.send(wire.Spent(m.put, wire.SPENT_BYTES))
        self.returned(m)  # which gives nothing back a second time
        self.heard()
        d.emit(BIG, codec=omnibus.RAW)
        self.put()
        done = self.waits(lambda: d.emit(BIG, codec=omnibus.RAW))  # it waits for what no replay keeps
        self.returned(small)
        self.heard()
        self.host.nothing()
        self.host.send(over(1))
        with self.assertRaises(omnibus.RequestOver):
            done()

    def test_policies(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 1, 0, 1), wire.Edge("upper->other", "other", 1, 0, 2))
        for n in range(3):
            d.emit(n, to="other")
            self.put()
        d.emit(0, to="next")
        self.put()
        with self.assertRaises(omnibus.WindowFull) as caught:
            d.emit(1, to="next", key="k")
        self.assertEqual((caught.exception.edge, caught.exception.seq, caught.exception.key), ("upper->next", 1, "k"))

    def test_the_end_of_the_request(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 1, 0))
        d.emit(1)
        m = self.put()
        done = self.waits(lambda: d.emit(2))
        self.host.send(over(1))
        with self.assertRaises(omnibus.RequestOver):
            done()
        self.returned(m)
        self.heard()

    def test_the_end_of_the_host(self) -> None:
        d = self.task(wire.Edge("upper->next", "next", 1, 0))
        d.emit(1)
        self.put()
        done = self.waits(lambda: d.emit(2))
        self.host.close_socket()
        with self.assertRaises(omnibus.HostGone):
            done()


class TensorsTest(PutsCase):
    def setUp(self) -> None:
        super().setUp()
        self.fds: list[int] = []  # that were published

    def published(self, number: int) -> wire.Publish:
        m = self.publishes(number)
        self.host.send(wire.Published(m.token))
        return m

    def publishes(self, number: int) -> wire.Publish:
        m = self.host.expect(wire.Publish)
        self.assertEqual(m.number, number)
        self.fds.append(self.host.fds.popleft())
        self.addCleanup(os.close, self.fds[-1])
        return m

    def filled(self, n: int = 4096) -> gpu.ChunkTensor:
        t = self.client.gpu.empty(n, "uint8")
        dlpack.borrow(t).view()[:] = b"x" * n
        return t

    def read(self, m: wire.Put, memory: mmap.mmap) -> bundle.Bundle:
        self.assertEqual((m.codec, m.flags & wire.INLINE), (omnibus.BUNDLE, 0))
        b = bundle.Bundle(memory[m.offset : m.offset + m.size])
        if b.places:  # in a message nothing would keep them
            self.assertGreater(m.size, self.host.inline_bytes)
        return b

    def in_use(self) -> int:
        gc.collect()
        with self.client._session.locked:
            return self.client.gpu._pool.in_use

    def test_a_chunk_is_named_and_stays_until_it_is_returned(self) -> None:
        d = self.task()
        done = self.beside(lambda: d.emit({"x": self.filled()}))
        words, arena = self.published(0), self.published(1)
        self.assertEqual(arena.pool, words.pool)
        done()
        fd, arena_fd = self.fds
        _, memory = self.host.offered()
        m = self.put()
        b = self.read(m, memory)
        (p,) = b.places
        self.assertEqual((p.kind, p.pool, p.arena, p.slot, p.generation), (POOL, words.pool, 1, 0, 1))
        with mmap.mmap(arena_fd, arena.size) as a:
            self.assertEqual(a[p.offset : p.offset + 4096], b"x" * 4096)
        with mmap.mmap(fd, words.size, mmap.MAP_SHARED, mmap.PROT_READ) as w:
            self.assertEqual(w[64 * p.slot :][:8], b"\1\0\0\0\0\0\0\0")
        self.assertEqual(self.in_use(), 1)
        self.assertFalse(self.client.drain(0))
        runner = _Runner(self.client, [("upper", omnibus.stage("upper")(str))], 1, threading.Event(), False)
        self.client._session.stages.clear()
        self.assertFalse(runner.is_idle())  # `run` does not leave yet: others find the memory no more then
        self.returned(m)
        self.assertTrue(self.client.drain())
        self.assertTrue(runner.is_idle())
        self.assertEqual(self.in_use(), 0)
        s = self.client.gpu.stats
        self.assertEqual((s.cuda_ipc_pool, s.fallbacks, s.small), (gpu.Sent(1, 4096), 0, 0))

    def test_name_is_looked_up_once(self) -> None:
        """Also if the asker times out: the answer serves the next asker, too."""
        d = self.task()
        value = {"x": self.filled()}
        with self.assertRaises(OutOfTime):
            self.client._session.run(d.task._emit_work(value, d.task._envelope(7)), time.monotonic())
        words = self.publishes(0)
        done = self.beside(lambda: d.emit(value))
        self.host.send(wire.Published(words.token))
        self.published(1)
        done()
        _, memory = self.host.offered()
        self.assertEqual(len(self.read(self.put(), memory).places), 1)
        self.assertEqual(self.client.gpu.stats.fallbacks, 0)

    def test_few_bytes_travel_in_the_payload(self) -> None:
        d = self.task(tensors=wire.Tensors(2, 4097))
        d.emit({"x": self.filled()})
        _, memory = self.host.offered()
        b = self.read(self.put(), memory)
        self.assertEqual((b.places, b.tensors[0].raw()), ([], b"x" * 4096))
        s = self.client.gpu.stats
        self.assertEqual((s.small, s.default, self.in_use()), (1, gpu.Sent(1, 4096), 0))

    def test_a_host_that_takes_no_names(self) -> None:
        d = self.task()
        with self.assertLogs("omnibus", "WARNING") as log:
            done = self.beside(lambda: d.emit({"x": self.filled()}))
            self.host.send(wire.Failed(self.host.expect(wire.Publish).token, Code.OVERLOADED, "too many names"))
            os.close(self.host.fds.popleft())
            done()
        self.assertIn("cuda_ipc_pool", log.output[0])
        self.assertIn("too many names", log.output[0])
        _, memory = self.host.offered()
        self.assertEqual(self.read(self.put(), memory).places, [])
        s = self.client.gpu.stats
        self.assertEqual((s.fallbacks, s.default.messages, s.cuda_ipc_pool.messages), (1, 1, 0))

    def test_a_device_that_makes_no_arenas(self) -> None:
        d = self.task()
        no = DriverError("cuMemCreate", 801, "not supported")
        with mock.patch.object(emul.Emulated, "new_arena", side_effect=no), self.assertLogs("omnibus", "WARNING"):
            t = self.filled()
            self.assertFalse(t.chunk.pooled)
            done = self.beside(lambda: d.emit({"x": t}))
            self.published(0)
            done()
        _, memory = self.host.offered()
        b = self.read(self.put(), memory)
        self.assertEqual((b.places, b.tensors[0].raw()), ([], b"x" * 4096))
        s = self.client.gpu.stats
        self.assertEqual((s.fallbacks, s.default.messages, s.spilt), (1, 1, 0))

    def test_the_host_is_told_the_figures(self) -> None:
        """In a while, and before the client leaves; and never again what it knows."""
        d = self.task(tensors=wire.Tensors(2, 4097))
        with mock.patch("omnibus.gpu.sender.REPORT_SECONDS", 0.0):
            d.emit({"x": self.filled()})
        _, memory = self.host.offered()
        self.put()
        while not self.host.figures:
            assert self.host.sock is not None
            self.assertEqual(self.host._asked(self.host.sock.recv(wire.MAX_PACKET_BYTES), []), [])
        want = {
            "default": {"messages": 1, "bytes": 4096}, "cuda_ipc": {"messages": 0, "bytes": 0},
            "cuda_ipc_pool": {"messages": 0, "bytes": 0}, "fallbacks": 0, "small": 1, "spilt": 0,
        }  # fmt: skip
        self.assertEqual(json.loads(self.host.figures.pop()), want)
        with mock.patch("omnibus.gpu.sender.REPORT_SECONDS", 60.0):
            d.emit({"x": self.filled()})
        self.put()
        self.client.close()
        self.assertIsNone(self.host.receive())
        want |= {"default": {"messages": 2, "bytes": 8192}, "small": 2}
        self.assertEqual([json.loads(f) for f in self.host.figures], [want])

    def test_figures_without_more_threads(self) -> None:
        """As in one that goes on when the main thread has ended: the host is told when the client leaves."""
        d = self.task(tensors=wire.Tensors(2, 4097))
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            d.emit({"x": self.filled()})
        self.host.offered()
        self.put()
        self.client.close()
        self.assertIsNone(self.host.receive())
        self.assertEqual([json.loads(f)["small"] for f in self.host.figures], [1])

    def test_lent_memory_stays_allocated_when_the_host_is_gone(self) -> None:
        d = self.task(tensors=LENT)
        memory = emul.device(emul.uuid(5)).new_memory(4096)
        view = memoryview(memory.tracked_view(0, 4096, lambda _: None)[0])
        done = self.beside(lambda: d.emit({"x": omnibus.Tensor("uint8", (4096,), view)}))
        self.published(0)
        done()
        _, payload = self.host.offered()
        (p,) = self.read(self.put(), payload).places
        self.assertEqual((p.kind, p.arena, p.nbytes), (HANDLE, 0, 4096))
        self.addCleanup(puts.orphaned_memory.clear)
        self.assertEqual(puts.orphaned_memory, [])
        self.client.close()
        self.assertEqual(len(puts.orphaned_memory), 1)


if __name__ == "__main__":
    unittest.main()
