"""What `ended` says of the place where a request failed, and lanes, of which this client knows nothing."""

from __future__ import annotations

import gc
import os
import unittest
from collections.abc import Iterator
from typing import Any
from unittest import mock

from fakehost import EDGE_OUT, deliver
from hostcase import HostCase
from stagecase import StageCase
from test_wire import LANE_KINDS, load

import omnibus
from omnibus import wire
from omnibus.codec import encode
from omnibus.errors import Code
from omnibus.puts import Puts
from omnibus.room import OwnRoom

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

    def test_end_that_gets_no_room_says_which_emission_failed(self) -> None:
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
        with mock.patch.object(OwnRoom, "take", side_effect=omnibus.TooLarge(Code.TOO_LARGE, "too large")):
            with self.assertLogs("omnibus", "ERROR"):
                self.host.send(wire.End(1))
                m = self.host.expect(wire.Ended)
        self.assertEqual((m.code, m.edge, m.key, m.seq), (14, "upper->caller", "k" * 200, 1))
        self.bye(r)

    def test_what_was_forwarded_counts_and_end_says_which_emission_failed(self) -> None:
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

    def test_end_that_fails_by_itself_knows_no_place(self) -> None:
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
                self.host.hang_up()
                self.assertEqual(len(os.listdir("/proc/self/fd")), before)


if __name__ == "__main__":
    unittest.main()
