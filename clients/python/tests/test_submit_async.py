"""The same as in test_submit, awaited."""

from __future__ import annotations

import asyncio
import threading
import unittest
from typing import Any
from unittest import mock

from fakehost import EDGE_IN, EDGE_OUT, deliver, over
from hostcase import HostCase

import omnibus
from omnibus import gpu, wire
from omnibus.codec import encode
from omnibus.segments import BlockAllocator, OutstandingPut


class AsyncTest(HostCase):
    def test_async_caller(self) -> None:
        async def caller() -> list[Any]:
            async with await omnibus.aconnect(self.host.path) as bus:
                async with await bus.submit("hello") as r:
                    return [d.value() async for d in r]

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.submitted(3)
        self.host.emitted()
        self.host.send(deliver(3, 1, encode("A")), deliver(3, 2, encode("B")))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 1)
        self.host.send(over(3))
        self.assertEqual(r(), ["A", "B"])
        self.assertEqual(self.host.expect(wire.Finish).delivery, 2)
        self.host.expect(wire.Bye)

    def test_gpu_memory_is_awaited(self) -> None:
        async def caller() -> list[Any]:
            options = gpu.Options(device=gpu.emul.uuid(0), slots=1, when_full="block")
            async with await omnibus.aconnect(self.host.path, gpu=options) as bus:
                first = await bus.gpu.achunk(256)
                waits = asyncio.ensure_future(bus.gpu.aempty((2, 3), "int32"))
                await asyncio.sleep(0)  # it begins, and the event loop goes on
                waited = not waits.done()
                del first
                t = await waits
                return [waited, t.shape, t.dtype, bus.gpu.options.slots]

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.assertEqual(r(), [True, (2, 3), "int32", 1])

    def test_a_host_that_is_stopped_at_the_deadline(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                async with await bus.stream(deadline=1) as r:
                    self.patient_for(0.01)
                    with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not say how it ended"):
                        await r.values()

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.submitted(3)
        r()
        self.host.given_up(3)

    def test_a_host_that_is_stopped_before_it_has_the_request(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                for late in (bus.stream(timeout=0), bus.submit("x", deadline=1, fail_fast=True)):
                    with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                        await late
                async with await bus.stream() as r:
                    r._deadline = 1
                    bus.inputs[:] = [wire.Edge("caller->upper", "upper", 3, 0)]
                    with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                        while True:  # as far as there is credit
                            await r.send(bytes(100), to="upper")

        with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
            r = self.beside(lambda: asyncio.run(caller()))
            self.host.welcome()
            for _ in "12":
                m = self.host.expect(wire.Submit)
                self.host.given_up(m.source)
            self.host.submitted(5)
            r()

    def test_cancelled_connect_leaves(self) -> None:
        async def caller() -> None:
            job = asyncio.ensure_future(omnibus.aconnect(self.host.path))
            while not connected.is_set():
                await asyncio.sleep(0)
            job.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await job
            cancelled.set()

        connected, cancelled = threading.Event(), threading.Event()
        r = self.beside(lambda: asyncio.run(caller()))
        self.host.sock, _ = self.host.listener.accept()
        self.host.sock.settimeout(60)
        connected.set()
        self.assertTrue(cancelled.wait(60))
        self.host.expect(wire.Hello)
        self.host.send(wire.Welcome(wire.VERSION, 0, 1, 7, 512, 0, "test", [EDGE_IN], [EDGE_OUT], []))
        self.host.expect(wire.Bye)
        r()

    def test_cancelled_submit_closes_the_request(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                job = asyncio.ensure_future(bus.submit("hello", fail_fast=True))
                while not bus._session.pending_submits:
                    await asyncio.sleep(0)
                job.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await job
                while bus._session.sources:
                    await asyncio.sleep(0)
                self.assertFalse(bus._session.pending_submits)

        for crossed in (True, False):
            with self.subTest(crossed=crossed):
                r = self.beside(lambda: asyncio.run(caller()))
                self.host.welcome()
                m = self.host.expect(wire.Submit)
                self.assertEqual(self.host.expect(wire.Close).source, m.source)
                if crossed:
                    self.host.begin(m, 3, over(3, wire.OUTCOME_ABORTED))
                else:
                    self.host.refuse(m, 9, "aborted")
                r()
                self.host.expect(wire.Bye)
                self.host.close_socket()

    def test_cancelled_last_input_leaves_the_end_to_the_caller(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                r = await bus.stream()
                bus.inputs[:] = [wire.Edge("caller->upper", "upper", 1, 0)]
                await r.send("first")
                job = asyncio.ensure_future(r.send("x" * 1000, last=True))
                while not bus._session.polled:
                    await asyncio.sleep(0)
                job.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await job
                r.close_send()

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.submitted(3)
        self.host.expect(wire.Put)
        self.assertEqual(self.host.expect(wire.CloseSend).source, 3)
        r()

    def test_async_host_goes_away(self) -> None:
        async def caller() -> None:
            bus = await omnibus.aconnect(self.host.path)
            try:
                await bus.stream()
            finally:
                await bus.close()

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.expect(wire.Submit)
        self.host.close_socket()
        with self.assertRaises(omnibus.HostGone):
            r()

    def test_drain_looks_with_the_lock(self) -> None:
        """Other threads put something meanwhile."""
        client = self.connect()
        looks = []

        def keeps(room: BlockAllocator) -> bool:
            looks.append(client._session.lock._is_owned())  # type: ignore[attr-defined]
            return False

        with mock.patch.object(BlockAllocator, "retains_memory", property(keeps)):
            self.assertTrue(client.drain())
        self.assertEqual(set(looks), {True})

    def test_drain(self) -> None:
        """As with memory of a GPU's, which others find only as long as the client is there."""

        class RetainingPut(OutstandingPut):
            retains_memory = True

        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                self.assertTrue(await bus.drain())
                with bus._session.locked:
                    puts.append(bus._session.allocator.register_put(None, RetainingPut()))
                self.assertFalse(await bus.drain(0))
                kept.set()
                self.assertTrue(await bus.drain())

        puts: list[int] = []
        kept = threading.Event()
        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.assertTrue(kept.wait(60))
        self.host.send(wire.Returned(puts))
        r()

    def test_close_ends_the_loop_of_another_task(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                r = await bus.stream()
                job = asyncio.ensure_future(r.values())
                while not r._on_change:
                    await asyncio.sleep(0)
                r.close()
                with self.assertRaisesRegex(omnibus.Finished, "the request was closed"):
                    await asyncio.wait_for(job, 60)

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.submitted(3)
        self.assertEqual(self.host.expect(wire.Close).source, 3)
        r()

    def test_client_of_an_ended_loop_raises(self) -> None:
        async def connect() -> omnibus.AsyncClient:
            return await omnibus.aconnect(self.host.path)

        async def use() -> None:
            for work in bus.call("status"), bus.submit("x"), bus.deliveries("upper").__anext__():
                with self.assertRaisesRegex(RuntimeError, "in the loop that connected it"):
                    await work
            await bus.close()

        r = self.beside(lambda: asyncio.run(connect()))
        self.host.welcome()
        bus = r()
        self.beside(lambda: asyncio.run(use()))()
        self.host.expect(wire.Bye)


if __name__ == "__main__":
    unittest.main()
