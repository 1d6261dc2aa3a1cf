"""The failed emission that `ended` names, and lanes, which this client does not support."""

from __future__ import annotations

import gc
import os
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from fakehost import EDGE_IN, EDGE_OUT, deliver
from hostcase import HostCase
from stagecase import StageCase
from test_wire import LANE_KINDS, load

import omnibus
from omnibus import wire
from omnibus.codec import encode
from omnibus.errors import Code
from omnibus.puts import Puts
from omnibus.segments import BlockAllocator

OTHER_IN = wire.Edge("other->upper", "upper")
OTHER_OUT = wire.Edge("upper->other", "other")


class EndedTest(StageCase):
    def refused_end(self, function: omnibus.StageFunction, n: int = 1, **more: Any) -> wire.Ended:
        """One input, whose handler emits `n` values; what `end` emits is refused."""
        r = self.run_stage(function, **more)
        self.host.send(deliver(1, 7, encode("x"), flags=wire.INLINE | wire.LAST))
        for _ in range(n):
            self.host.emitted()
        self.host.expect(wire.Finish)
        with mock.patch.object(Puts, "_put_locked", side_effect=omnibus.TooLarge(Code.TOO_LARGE, "too large")):
            with self.assertLogs("omnibus", "ERROR"):
                self.host.send(wire.End(1))
                m = self.host.expect(wire.Ended)
        self.assertEqual((m.task, m.code), (1, 14))
        self.assertTrue(m.text.startswith("omnibus.errors.TooLarge: too large\n"), m.text)
        self.bye(r)
        return m

    def ends_with(self, to: str | None, key: str, first: int = 0) -> omnibus.StageFunction:
        """A stage that emits `first` values to the caller, 2 everywhere, and one more at the end."""

        @omnibus.stage
        def upper(text: str, task: omnibus.Task) -> Iterator[str]:
            for _ in range(first):
                task.emit(text, to="")
            yield text
            yield text

        @upper.end
        def end(task: omnibus.Task) -> None:
            task.emit("end", to=to, key=key)

        return upper

    def test_end_says_which_emission_failed(self) -> None:
        m = self.refused_end(self.ends_with("", "k", first=1), 3, outputs=[OTHER_OUT, EDGE_OUT])
        self.assertEqual((m.edge, m.key, m.seq), ("upper->caller", "k", 3))

    def test_end_of_a_stage_with_one_edge(self) -> None:
        m = self.refused_end(self.ends_with(None, "k"), 2)
        self.assertEqual((m.edge, m.key, m.seq), ("upper->caller", "k", 2))

    def test_end_without_space_says_which_emission_failed(self) -> None:
        @omnibus.stage
        def upper(text: str, task: omnibus.Task) -> None:
            task.emit_bytes(bytes(50_000))
            with task.reserve(10):
                pass  # it is not sent, and does not count

        @upper.end
        def end(task: omnibus.Task) -> None:
            task.emit_bytes(bytes(50_000), key="k" * 200)

        r = self.run_stage(upper)
        self.host.send(deliver(1, 7, encode("x")))
        self.host.filled()
        self.host.expect(wire.Finish)
        with mock.patch.object(BlockAllocator, "allocate", side_effect=omnibus.TooLarge(Code.TOO_LARGE, "too large")):
            with self.assertLogs("omnibus", "ERROR"):
                self.host.send(wire.End(1))
                m = self.host.expect(wire.Ended)
        self.assertEqual((m.code, m.edge, m.key, m.seq), (14, "upper->caller", "k" * 200, 1))
        self.bye(r)

    def test_forwards_count_and_end_says_which_emission_failed(self) -> None:
        @omnibus.stage
        def upper(text: str, task: omnibus.Task, delivery: omnibus.Delivery) -> None:
            task.forward(delivery)

        @upper.end
        def end(task: omnibus.Task) -> None:
            task.emit("end")

        m = self.refused_end(upper)
        self.assertEqual((m.edge, m.key, m.seq), ("upper->caller", "", 1))

    def test_end_does_not_guess_the_edge(self) -> None:
        m = self.refused_end(self.ends_with(None, "k"), 2, outputs=[OTHER_OUT, EDGE_OUT])
        self.assertEqual((m.edge, m.key, m.seq), ("", "k", 0))

    def test_end_does_not_know_what_other_replicas_emitted(self) -> None:
        m = self.refused_end(self.ends_with("", "k"), 2, state=1)
        self.assertEqual((m.edge, m.key, m.seq), ("", "k", 0))

    def test_end_that_is_async_says_which_emission_failed(self) -> None:
        @omnibus.stage
        async def upper(text: str) -> str:
            return text

        @upper.end
        async def end(task: omnibus.AsyncTask) -> None:
            await task.emit("end", key="k")

        m = self.refused_end(upper)
        self.assertEqual((m.edge, m.key, m.seq), ("upper->caller", "k", 1))

    def test_end_that_raises_names_no_emission(self) -> None:
        @omnibus.stage
        def upper(text: str) -> None:
            pass

        @upper.end
        def end(task: omnibus.Task) -> None:
            raise ValueError("no end")

        r = self.run_stage(upper)
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send(wire.End(1))
            m = self.host.expect(wire.Ended)
        self.assertEqual((m.code, m.edge, m.key, m.seq), (14, "", "", 0))
        self.assertTrue(m.text.startswith("ValueError: no end"), m.text)
        self.bye(r)


class UnaskedTest(StageCase):
    """The end of a task that is not asked for."""

    def last(self, delivery: int = 7, **more: Any) -> None:
        self.host.send(deliver(1, delivery, encode("x"), flags=wire.INLINE | wire.LAST, **more))

    def finished(self, *kinds: type) -> list[Any]:
        """What comes in the packet of a finish."""
        finish = self.host.expect(wire.Finish)
        rest = list(self.host.waiting)
        self.host.waiting.clear()
        self.assertEqual([type(m) for m in rest], list(kinds))
        return [finish, *rest]

    def test_ended_follows_the_finish_of_the_last_input(self) -> None:
        @omnibus.stage
        def upper(text: str) -> str:
            return text

        @omnibus.stage("upper")
        async def aupper(text: str) -> str:
            return text

        @omnibus.stage("upper", batch=2)
        def batch(texts: list[str]) -> list[str]:
            return texts

        for stage in (upper, aupper, batch):
            with self.subTest(stage.function.__name__):
                r = self.run_stage(stage, inputs=[EDGE_IN, OTHER_IN])
                self.assertTrue(self.host.ends_unasked)
                self.last()
                self.host.emitted()
                self.finished()  # another input is to come
                self.last(8, edge=1)
                put = self.host.expect(wire.Put)
                if not stage.is_async:  # whose loop may do other things first
                    self.assertEqual([type(m) for m in self.host.waiting], [wire.Finish, wire.Ended])
                self.host.send(wire.Returned([put.put]))
                _, ended = self.finished(wire.Ended)
                self.assertEqual((ended.task, ended.code), (1, 0))
                self.bye(r)
                self.host.close_socket()

    def test_stage_with_an_end_handler_waits_for_end(self) -> None:
        @omnibus.stage
        def upper(text: str) -> None:
            pass

        @upper.end
        def end(task: omnibus.Task) -> None:
            pass

        @omnibus.stage("upper")
        class Upper:
            def __call__(self, text: str) -> None:
                pass

            def end(self, task: omnibus.Task) -> None:
                pass

        for stage in (upper, Upper):
            r = self.run_stage(stage)
            self.assertFalse(self.host.ends_unasked)
            self.last()
            self.finished()
            self.host.nothing()
            self.host.send(wire.End(1))
            self.host.expect(wire.Ended)
            self.bye(r)
            self.host.close_socket()

    def test_failure_sends_no_ended(self) -> None:
        """The last input may come again: then the host asks for the end."""
        calls = []

        @omnibus.stage
        def upper(text: str) -> None:
            calls.append(text)
            if len(calls) == 1:
                raise ValueError("not now")

        r = self.run_stage(upper)
        with self.assertLogs("omnibus", "ERROR"):
            self.last()
            (finish,) = self.finished()
        self.assertEqual(finish.code, omnibus.Code.INTERNAL)
        self.last(8, attempt=1)
        self.finished()
        self.host.nothing()
        self.host.send(wire.End(1))
        self.host.expect(wire.Ended)
        self.bye(r)

    def test_ended_waits_for_kept_deliveries(self) -> None:
        kept = []

        @omnibus.stage
        def upper(text: str, delivery: omnibus.Delivery, task: omnibus.Task) -> None:
            kept.append(delivery.keep())
            task.emit(text)

        r = self.run_stage(upper)
        self.last()
        self.host.emitted()
        while kept[0].task._busy:
            pass
        self.host.nothing()
        kept[0].finish()
        self.finished(wire.Ended)
        self.bye(r)

    def test_a_handler_that_finishes_early_goes_on(self) -> None:
        @omnibus.stage
        def upper(text: str, delivery: omnibus.Delivery) -> str:
            delivery.finish()
            return text

        r = self.run_stage(upper)
        self.last()
        self.finished()
        self.host.emitted()
        self.host.expect(wire.Ended)
        self.bye(r)


class LanesTest(HostCase):
    def test_a_host_that_speaks_of_lanes_breaks_the_protocol(self) -> None:
        first = {v["kind"]: v for v in reversed(load("vectors.json")) if v["kind"] in LANE_KINDS}
        self.assertEqual(sorted(first), list(LANE_KINDS))
        for v in first.values():
            with self.subTest(v["name"]):
                gc.collect()  # what other tests left
                before = len(os.listdir("/proc/self/fd"))
                client = self.connect()
                asked = self.beside(lambda: client.call("status"))  # noqa: B023
                self.host.expect(wire.Call)
                fds = tuple(os.memfd_create("lane", os.MFD_CLOEXEC) for _ in range(v["descriptors"]))
                with self.assertLogs("omnibus", "ERROR"), self.assertRaises(omnibus.ProtocolError):
                    self.host.send_raw(bytes.fromhex(v["hex"]), fds)
                    asked()
                for fd in fds:
                    os.close(fd)
                client.close()
                self.host.close_socket()
                self.assertEqual(len(os.listdir("/proc/self/fd")), before)


if __name__ == "__main__":
    unittest.main()
