"""Threads that cannot be started any more."""

from __future__ import annotations

import threading
import unittest
from unittest import mock

from fakehost import deliver, serving
from stagecase import NARROW, StageCase, opened

import omnibus
from omnibus import crew, wire
from omnibus.codec import encode
from omnibus.crew import Crew, away
from omnibus.errors import Code

_HANGS = 30.0


class Short(unittest.TestCase):
    left = 1  #: threads of a crew that can still be started

    def setUp(self) -> None:
        super().setUp()
        start = threading.Thread.start

        def start_or_not(t: threading.Thread) -> None:
            if t.name.startswith("omnibus-") and t.name[-1].isdigit():
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(t)

        patch = mock.patch.object(threading.Thread, "start", start_or_not)
        patch.start()
        self.addCleanup(patch.stop)

    def patient_with_threads(self, seconds: float) -> None:
        patch = mock.patch.object(crew, "_PATIENCE_SECONDS", seconds)
        patch.start()
        self.addCleanup(patch.stop)


class Shortage(Short):
    """A process that has no room for another thread goes on with those it has."""

    def setUp(self) -> None:
        super().setUp()
        self.done: list[str] = []

    def test_jobs_wait_for_a_thread(self) -> None:
        some = Crew(turns=4, callers=0)
        begun, go_on = threading.Event(), threading.Event()

        def first() -> None:
            begun.set()
            go_on.wait(_HANGS)
            self.done.append("first")

        ended = threading.Event()

        def third() -> None:
            self.done.append("third")
            ended.set()

        some.put(first)
        self.assertTrue(begun.wait(_HANGS))
        with self.assertLogs("omnibus", "WARNING") as logged:
            some.put(lambda: self.done.append("second"))
            some.put(third)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ulimit -u", logged.output[0])
        go_on.set()
        self.assertTrue(ended.wait(_HANGS), "a job that no thread could be started for is lost")
        some.stop()
        some.join()
        self.assertEqual(self.done, ["first", "second", "third"])

    def test_who_waits_for_the_host_comes_back(self) -> None:
        some = Crew(turns=1, callers=0)
        ended = threading.Event()

        def waits() -> None:
            with away():  # its turn is another's, for whom there is no thread
                some.put(ended.set)
            self.done.append("came back")

        with self.assertLogs("omnibus", "WARNING"):
            some.put(waits)
            self.assertTrue(ended.wait(_HANGS), "a job that no thread could be started for is lost")
        some.stop()
        some.join()
        self.assertEqual(self.done, ["came back"])

    def test_nobody_at_all(self) -> None:
        self.left = 0
        some = Crew(turns=1, callers=0)
        with self.assertRaisesRegex(RuntimeError, "can't start new thread"):
            some.put(lambda: None)

    def test_who_waits_too_long_is_refused(self) -> None:
        self.patient_with_threads(0)
        stranded = threading.Event()
        some = Crew(turns=2, callers=0, on_stranded=stranded.set)
        self.assertIsNone(some.patience())
        go_on, refused = threading.Event(), threading.Event()

        def waits() -> None:
            some.put(lambda: self.done.append("second"), refused.set)
            some.give_up()  # in vain: this thread is to take it when it has done this
            self.assertFalse(refused.is_set())
            with away():
                go_on.wait(_HANGS)
            self.done.append("came back")

        some.put(waits)
        self.assertTrue(stranded.wait(_HANGS))
        self.assertEqual(some.patience(), 0)
        self.patient_with_threads(_HANGS)
        some.give_up()
        self.assertFalse(refused.is_set())
        self.patient_with_threads(0)
        some.give_up()
        self.assertTrue(refused.is_set())
        self.assertIsNone(some.patience())
        go_on.set()
        some.stop()
        some.join()
        self.assertEqual(self.done, ["came back"])

    def test_a_thread_is_to_be_had_again(self) -> None:
        self.patient_with_threads(0)
        stranded, go_on, refused = threading.Event(), threading.Event(), threading.Event()
        some = Crew(turns=1, callers=0, on_stranded=stranded.set)

        def waits() -> None:
            some.put(go_on.set, refused.set)
            with away():
                go_on.wait(_HANGS)

        some.put(waits)
        self.assertTrue(stranded.wait(_HANGS))
        self.left = 1
        some.give_up()
        some.stop()
        some.join()
        self.assertEqual((go_on.is_set(), refused.is_set()), (True, False))


class Stranded(Short, StageCase):
    """All threads of `run` wait for the host, and perhaps for what no thread is left for."""

    left = 0

    def test_functions(self) -> None:
        @omnibus.stage
        def same(x: int) -> int:
            return x

        self.is_refused(same)

    def test_batch(self) -> None:
        @omnibus.stage(batch=2)
        def same(xs: list[int]) -> list[int]:
            return xs

        self.is_refused(same, batch=2)

    def is_refused(self, function: omnibus.StageFunction, **more: int) -> None:
        self.patient_with_threads(0.01)
        r = self.run_stage(function, outputs=NARROW, **more)
        first = self.full(1)[1]
        self.host.send(deliver(1, 7, encode(1)))  # which waits in the only thread there is
        with self.assertLogs("omnibus") as logged:
            self.host.send(opened(2), deliver(2, 8, encode(2)))
            m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (8, Code.MEMORY))
        self.assertIn("no thread can be started for the handler; raise this process's limits (ulimit -u", m.text)
        self.assertIn("0000000000000066", logged.output[-1])
        with self.assertLogs("omnibus"):
            self.host.send(opened(3), wire.End(3))
            end = self.host.expect(wire.Ended)
        self.assertEqual((end.task, end.code), (3, Code.MEMORY))
        self.host.send(wire.Returned([first.put]))
        self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.host.send(opened(4), deliver(4, 9, encode(3)))
        self.host.emitted()
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (9, Code.OK))
        self.bye(r)

    def test_while_it_leaves(self) -> None:
        """And the functions of coroutines have threads, too."""
        self.left = 1
        self.patient_with_threads(0.01)

        @omnibus.stage("first")
        async def first(x: int) -> None:
            pass

        @omnibus.stage
        def upper(x: int) -> int:
            return x

        r = self.beside(lambda: omnibus.run(first, upper, path=self.host.path))
        self.host.welcome()
        for number, name in (4, "first"), (5, "upper"):
            m = self.host.expect(wire.Serve)
            self.assertEqual(m.stage, name)
            self.host.send(serving(m.token, stage=number, outputs=NARROW))
        self.host.send(opened(1))
        first = self.full(1)[1]
        self.host.send(deliver(1, 7, encode(1)))
        self.host.send(wire.Drain(), opened(2), deliver(2, 8, encode(2)))
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (8, Code.MEMORY))
        self.host.send(wire.Returned([first.put]))
        self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.bye(r)


if __name__ == "__main__":
    unittest.main()
