"""The thread pool when the process cannot start another thread."""

from __future__ import annotations

import threading
import unittest
from unittest import mock

from fakehost import deliver, serving
from stagecase import NARROW, StageCase, opened

import omnibus
from omnibus import threadpool, wire
from omnibus.codec import encode
from omnibus.errors import Code
from omnibus.threadpool import ThreadPool, blocking

_HANGS = 30.0


class LimitedThreads(unittest.TestCase):
    left = 1  #: threads of a pool that can still be started

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

    def set_stranded_seconds(self, seconds: float) -> None:
        patch = mock.patch.object(threadpool, "_STRANDED_SECONDS", seconds)
        patch.start()
        self.addCleanup(patch.stop)


class PoolShortage(LimitedThreads):
    """A pool that cannot start another thread uses the threads it has."""

    def setUp(self) -> None:
        super().setUp()
        self.done: list[str] = []

    def test_jobs_wait_for_a_thread(self) -> None:
        pool = ThreadPool(permits=4, outside_threads=0)
        begun, go_on = threading.Event(), threading.Event()

        def first() -> None:
            begun.set()
            go_on.wait(_HANGS)
            self.done.append("first")

        ended = threading.Event()

        def third() -> None:
            self.done.append("third")
            ended.set()

        pool.submit(first)
        self.assertTrue(begun.wait(_HANGS))
        with self.assertLogs("omnibus", "WARNING") as logged:
            pool.submit(lambda: self.done.append("second"))
            pool.submit(third)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ulimit -u", logged.output[0])
        go_on.set()
        self.assertTrue(ended.wait(_HANGS), "a job that no thread could be started for is lost")
        pool.stop()
        pool.join()
        self.assertEqual(self.done, ["first", "second", "third"])

    def test_blocked_job_regains_its_permit(self) -> None:
        pool = ThreadPool(permits=1, outside_threads=0)
        ended = threading.Event()

        def waits() -> None:
            with blocking():  # its permit goes to the next job, for which there is no thread
                pool.submit(ended.set)
            self.done.append("came back")

        with self.assertLogs("omnibus", "WARNING"):
            pool.submit(waits)
            self.assertTrue(ended.wait(_HANGS), "a job that no thread could be started for is lost")
        pool.stop()
        pool.join()
        self.assertEqual(self.done, ["came back"])

    def test_pool_without_any_thread_raises(self) -> None:
        self.left = 0
        pool = ThreadPool(permits=1, outside_threads=0)
        with self.assertRaisesRegex(RuntimeError, "can't start new thread"):
            pool.submit(lambda: None)

    def test_stranded_jobs_are_refused_after_the_delay(self) -> None:
        self.set_stranded_seconds(0)
        stranded = threading.Event()
        pool = ThreadPool(permits=2, outside_threads=0, on_stranded=stranded.set)
        self.assertIsNone(pool.rejection_delay())
        go_on, refused = threading.Event(), threading.Event()

        def waits() -> None:
            pool.submit(lambda: self.done.append("second"), refused.set)
            pool.reject_stranded()  # no effect: this thread takes the job next
            self.assertFalse(refused.is_set())
            with blocking():
                go_on.wait(_HANGS)
            self.done.append("came back")

        pool.submit(waits)
        self.assertTrue(stranded.wait(_HANGS))
        self.assertEqual(pool.rejection_delay(), 0)
        self.set_stranded_seconds(_HANGS)
        pool.reject_stranded()
        self.assertFalse(refused.is_set())
        self.set_stranded_seconds(0)
        pool.reject_stranded()
        self.assertTrue(refused.is_set())
        self.assertIsNone(pool.rejection_delay())
        go_on.set()
        pool.stop()
        pool.join()
        self.assertEqual(self.done, ["came back"])

    def test_jobs_start_when_a_thread_can_be_started_again(self) -> None:
        self.set_stranded_seconds(0)
        stranded, go_on, refused = threading.Event(), threading.Event(), threading.Event()
        pool = ThreadPool(permits=1, outside_threads=0, on_stranded=stranded.set)

        def waits() -> None:
            pool.submit(go_on.set, refused.set)
            with blocking():
                go_on.wait(_HANGS)

        pool.submit(waits)
        self.assertTrue(stranded.wait(_HANGS))
        self.left = 1
        pool.reject_stranded()
        pool.stop()
        pool.join()
        self.assertEqual((go_on.is_set(), refused.is_set()), (True, False))


class StrandedRun(LimitedThreads, StageCase):
    """All threads of `run` wait for the host, and no thread can be started for the next delivery."""

    left = 0

    def test_function_deliveries_are_refused(self) -> None:
        @omnibus.stage
        def same(x: int) -> int:
            return x

        self.is_refused(same)

    def test_batches_are_refused(self) -> None:
        @omnibus.stage(batch=2)
        def same(xs: list[int]) -> list[int]:
            return xs

        self.is_refused(same, batch=2)

    def is_refused(self, function: omnibus.StageFunction, **more: int) -> None:
        self.set_stranded_seconds(0.01)
        r = self.run_stage(function, outputs=NARROW, **more)
        first = self.full(1)[1]
        self.host.send(deliver(1, 7, encode(1)))  # waits in the only thread
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

    def test_refuses_while_the_host_drains(self) -> None:
        """Plain functions beside coroutines run in pool threads, too."""
        self.left = 1
        self.set_stranded_seconds(0.01)

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
