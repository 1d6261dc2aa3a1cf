"""A host that is stopped, and goes on after the deadline of what was asked of it: the client waits no longer than that."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import traceback
import unittest
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

from fakehost import FakeHost, deliver, over
from hostcase import HostCase
from stagecase import NARROW, opened

import omnibus
from omnibus import wire
from omnibus.codec import encode
from omnibus.errors import Code

#: More than goes into a message.
LARGE = "x" * 40_960


def stop() -> None:
    """The host stops here, until it is told to go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


async def done(x: Any) -> Any:
    """What a client returns, of whichever kind it is."""
    return await x if inspect.isawaitable(x) else x


class StoppedTest(HostCase):
    """The host is another process."""

    def begin(self, host: Callable[[FakeHost], None], then: Callable[[], None] | None = None) -> None:
        self.child = os.fork()
        if self.child == 0:
            well = 1
            try:
                self.host.welcome()
                host(self.host)
                (then or self.works_on)()
                well = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(well)

    def stopped(self) -> None:
        _, status = os.waitpid(self.child, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status), "it has ended")

    def works_on(self) -> None:
        """What the host sees at last: a request as any other, and nothing besides."""
        h = self.host
        h.submitted(8)
        h.emitted()
        h.send(deliver(8, 80, encode("well")), over(8))
        assert h.expect(wire.Finish).delivery == 80
        h.expect(wire.Bye)
        assert h.receive() is None

    async def late(self, bus: Any, do: Callable[[], Any]) -> None:
        """Something that the host, which is about to stop, does not answer by the deadline."""
        self.stopped()
        with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
            await self.is_late(bus, do)

    async def is_late(self, bus: Any, do: Callable[[], Any]) -> None:
        with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
            await done(do())
        os.kill(self.child, signal.SIGCONT)
        while bus._session.questions or bus._session.sources:
            bus.process()
            await asyncio.sleep(0)

    def each_way(self, host: Callable[[FakeHost], None], client: Callable[[Any], Awaitable[None]]) -> None:
        """Have a client of either kind do something, and then go on."""

        async def caller(connect: Callable[[str], Any]) -> None:
            bus = await done(connect(self.host.path))
            await client(bus)
            r = await done(bus.submit("again", timeout=60))
            self.assertEqual(await done(r.values()), ["well"])
            self.assertEqual((len(bus._session.questions), bus._session.sources), (0, {}))
            await done(bus.close())

        for connect in omnibus.connect, omnibus.aconnect:
            with self.subTest(connect.__name__):
                gc.collect()  # what others have left; what is left here is to go without
                before = len(os.listdir("/proc/self/fd"))
                self.begin(host)
                try:
                    self.beside(lambda: asyncio.run(caller(connect)))()  # noqa: B023
                except BaseException:
                    os.kill(self.child, signal.SIGKILL)
                    raise
                finally:
                    _, status = os.waitpid(self.child, 0)
                self.assertEqual(status, 0, "the host has more to say")
                self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_submit(self) -> None:
        def denied(h: FakeHost) -> None:
            stop()
            m = h.expect(wire.Submit)
            h.given_up(m.source)
            h.refuse(m, Code.OVER, "the deadline")

        def taken(h: FakeHost) -> None:
            stop()
            h.submitted(3)  # and reads only then that the client has closed it
            h.given_up(3)
            h.send(over(3, wire.OUTCOME_ABORTED))

        async def submit(bus: Any) -> None:
            await self.late(bus, lambda: bus.submit("a", deadline=1, fail_fast=True))

        async def stream(bus: Any) -> None:
            await self.late(bus, lambda: bus.stream(deadline=1))

        for host in denied, taken:
            for client in submit, stream:
                with self.subTest(client.__name__, host=host.__name__):
                    self.each_way(host, client)

    def test_send(self) -> None:
        """An input with credit is sent, and the host reads it later; one without waits no longer than its limit."""

        def host(h: FakeHost) -> None:
            h.submitted(3)
            stop()
            h.emitted()
            h.send(deliver(3, 30, encode("a")), over(3, wire.OUTCOME_DEADLINE, text="at a stage"))
            assert h.expect(wire.Finish).delivery == 30

        async def client(bus: Any) -> None:
            inputs = list(bus.inputs)
            bus.inputs[:] = [wire.Edge("caller->upper", "upper", 1, 0)]
            r = await done(bus.stream(deadline=1))
            self.stopped()
            await done(r.send("a"))
            for more in "b", LARGE:
                with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01), self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                    await done(r.send(more))
            bus.inputs[:] = inputs
            os.kill(self.child, signal.SIGCONT)
            while bus._session.sources:
                bus.process()
                await asyncio.sleep(0)
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "at a stage"):
                await done(r.values())
            with self.assertRaisesRegex(omnibus.RequestOver, "at a stage"):
                await done(r.send("b"))

        self.each_way(host, client)

    def test_emissions_of_a_task(self) -> None:
        def host(h: FakeHost) -> None:
            h.serve("upper", outputs=NARROW)
            h.send(opened(3, time_left=-1), deliver(3, 30, encode("a")))
            h.expect(wire.Put)
            stop()
            h.send(over(3, wire.OUTCOME_DEADLINE))
            assert h.expect(wire.Finish).delivery == 30

        async def client(bus: Any) -> None:
            stream = bus.deliveries("upper")
            d = await anext(stream) if hasattr(stream, "__anext__") else next(stream)
            await done(d.emit("first"))
            self.stopped()
            late = "past its deadline, and the host does not answer"
            with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
                for emit in (
                    lambda: d.emit("x"), lambda: d.task.emit_bytes(b"x"), lambda: d.task.forward(d),
                    lambda: d.task.reserve(1 << 16), lambda: d.task.emit(LARGE),
                ):  # fmt: skip
                    with self.assertRaisesRegex(omnibus.RequestOver, late):
                        await done(emit())
                if isinstance(d.task, omnibus.Task):
                    self.assertTrue(d.task.wait_aborted())
            os.kill(self.child, signal.SIGCONT)
            while bus._session.questions or bus._session.sources:
                bus.process()
                if d.task.aborted and not d.finished:
                    d.finish()
                await asyncio.sleep(0)

        self.each_way(host, client)

    def test_a_handler_that_emits(self) -> None:
        """Its delivery is finished as those of requests that are over."""

        def host(h: FakeHost) -> None:
            h.serve("upper", outputs=NARROW)
            h.send(opened(3, time_left=-1), deliver(3, 30, encode("a")))
            h.expect(wire.Put)
            stop()
            m = h.expect(wire.Finish)
            assert (m.delivery, m.code) == (30, Code.OVER), m
            h.send(over(3, wire.OUTCOME_DEADLINE), wire.Bye())

        def function(text: str, task: omnibus.Task) -> None:
            task.emit(text)
            self.stopped()
            try:
                task.emit(text)
            finally:
                os.kill(self.child, signal.SIGCONT)

        async def coroutine(text: str, task: omnibus.AsyncTask) -> None:
            await task.emit(text)
            self.stopped()
            try:
                await task.emit(text)
            finally:
                os.kill(self.child, signal.SIGCONT)

        for handler in function, coroutine:
            with self.subTest(handler.__name__), mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
                self.begin(host, lambda: None)
                stage = omnibus.stage("upper")(handler)
                try:
                    self.beside(lambda: omnibus.run(stage, path=self.host.path))()  # noqa: B023
                except BaseException:
                    os.kill(self.child, signal.SIGKILL)
                    raise
                finally:
                    _, status = os.waitpid(self.child, 0)
                self.assertEqual(status, 0, "the host has more to say")


if __name__ == "__main__":
    unittest.main()
