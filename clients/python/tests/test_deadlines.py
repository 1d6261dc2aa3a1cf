"""Deadlines travel as time left, and are instants of the monotonic clock in a process."""

from __future__ import annotations

import math
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from fakehost import deliver
from hostcase import HostCase
from stagecase import StageCase, opened

import omnibus
from omnibus import deadlines, wire
from omnibus.codec import encode
from omnibus.errors import Code

_FIRST, _LAST = -(2**63), 2**63 - 1


class TimeLeftTest(unittest.TestCase):
    def test_to_wire_bounds(self) -> None:
        for seconds in (0.0, -0.0, 1e-300, -1.0, -1e300, -math.inf, 1e9, 8.9e9, 9e9, 1e300, math.inf):
            with self.subTest(seconds):
                at = deadlines.deadline_of(seconds, None)
                left = deadlines.to_wire(at)
                self.assertTrue(_FIRST <= left <= _LAST)
                self.assertEqual((at is None, left == 0), (seconds >= 9e9, seconds >= 9e9))
                self.assertEqual(left < 0, seconds < 1e-9)

    def test_from_wire_round_trip(self) -> None:
        self.assertIsNone(deadlines.from_wire(0))
        for left in (_FIRST, -1, 1, _LAST):
            with self.subTest(left):
                at = deadlines.from_wire(left)
                self.assertEqual(deadlines.has_passed(at), left < 2)
                self.assertTrue(_FIRST <= deadlines.to_wire(at) <= _LAST)

    def test_earlier_deadline_wins(self) -> None:
        now = time.monotonic()
        for timeout, deadline, least in ((5.0, time.time() + 500, 5), (500.0, time.time() + 5, 4), (None, time.time() + 5, 4)):
            at = deadlines.deadline_of(timeout, deadline)
            assert at is not None
            self.assertTrue(now + least <= at < now + 400, at - now)


    def test_nan_is_refused(self) -> None:
        for timeout, deadline in ((math.nan, None), (5.0, math.nan), (math.nan, time.time() + 5)):
            with self.assertRaisesRegex(ValueError, "nan is not a time"):
                deadlines.deadline_of(timeout, deadline)


class SubmitTest(HostCase):
    def test_wait_before_submit_reduces_the_time_left(self) -> None:
        client = self.connect()
        submits: list[Callable[[], omnibus.Request]] = [
            lambda: client.submit("b", timeout=3600),
            lambda: client.submit("b", timeout=3600, fail_fast=True),
            lambda: client.stream(deadline=time.time() + 3600),
        ]
        for number, submit in enumerate(submits):
            with self.subTest(number), mock.patch.object(wire, "MAX_QUESTIONS", 1):
                first = client.submit("a")
                m = self.host.expect(wire.Submit)
                self.host.emitted()
                r = self.beside(submit)
                while not client._session.polled:
                    pass
                waiting = time.monotonic()
                self.host.begin(m, 2 * number + 3)
                client.process()
                m = self.host.expect(wire.Submit)
                self.host.begin(m, 2 * number + 4)
                request = r()
                assert request._deadline is not None
                most = (request._deadline - waiting) * 1e9
                for gone in first, request:
                    gone.close()
                    while not isinstance(self.host.receive(), wire.Close):
                        pass
                self.assertLessEqual(m.time_left, most)

    def test_wall_clock_changes_do_not_move_deadlines(self) -> None:
        client = self.connect()
        for more in {"timeout": 5.0}, {"deadline": 5.0}:
            with self.subTest(more):
                with mock.patch.object(time, "time", return_value=0.0):
                    r = client.submit("a", **more)  # type: ignore[arg-type]
                m = self.host.expect(wire.Submit)
                self.host.emitted()
                self.assertIn(m.time_left, range(1, 5_000_000_001))
                assert r._deadline is not None
                self.assertLessEqual(r._deadline, time.monotonic() + 5)
                with mock.patch.object(time, "time", return_value=1e12):
                    limit = deadlines.wait_limit(r._deadline)
                self.assertEqual(limit, r._deadline + deadlines.SLACK_SECONDS)


class TaskTest(StageCase):
    def verdict(self, left: int) -> wire.Finish:
        """What the host is told of a handler that fails, in a task with so much time left."""

        @omnibus.stage
        def upper(_: str, task: omnibus.Task) -> None:
            task.wait_aborted(0)
            raise ValueError("no")

        r = self.beside(lambda: omnibus.run(upper, path=self.host.path))
        self.host.welcome()
        self.host.serve("upper")
        self.host.send(opened(1, time_left=left), deliver(1, 7, encode("a")))
        m: Any = self.host.expect(wire.Finish)
        self.bye(r)
        self.host.close_socket()
        self.host.waiting.clear()
        assert isinstance(m, wire.Finish)
        return m

    def test_the_hosts_clock_decides(self) -> None:
        """A failure behind the deadline, by this process's clock, is for the host to judge."""
        for left, code in ((0, Code.INTERNAL), (_LAST, Code.INTERNAL), (-1, Code.OVER), (_FIRST, Code.OVER)):
            with self.subTest(left), self.assertLogs("omnibus", "ERROR"):
                m = self.verdict(left)
                self.assertEqual(m.code, code)
                self.assertIn("ValueError: no", m.text)


if __name__ == "__main__":
    unittest.main()
