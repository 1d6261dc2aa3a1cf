"""Threads that cannot be started any more."""

from __future__ import annotations

import threading
import unittest
from unittest import mock

from omnibus.crew import Crew, away

_HANGS = 30.0


class Shortage(unittest.TestCase):
    """A process that has no room for another thread goes on with those it has."""

    def setUp(self) -> None:
        self.done: list[str] = []
        start = threading.Thread.start
        self.left = 1  # threads that can still be started

        def start_or_not(t: threading.Thread) -> None:
            if t.name.startswith("omnibus-"):
                if not self.left:
                    raise RuntimeError("can't start new thread")
                self.left -= 1
            start(t)

        patch = mock.patch.object(threading.Thread, "start", start_or_not)
        patch.start()
        self.addCleanup(patch.stop)

    def test_jobs_wait_for_a_thread(self) -> None:
        crew = Crew(turns=4, callers=0)
        begun, go_on = threading.Event(), threading.Event()

        def first() -> None:
            begun.set()
            go_on.wait(_HANGS)
            self.done.append("first")

        ended = threading.Event()

        def third() -> None:
            self.done.append("third")
            ended.set()

        crew.put(first)
        self.assertTrue(begun.wait(_HANGS))
        with self.assertLogs("omnibus", "WARNING") as logged:
            crew.put(lambda: self.done.append("second"))
            crew.put(third)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ulimit -u", logged.output[0])
        go_on.set()
        self.assertTrue(ended.wait(_HANGS), "a job that no thread could be started for is lost")
        crew.stop()
        crew.join()
        self.assertEqual(self.done, ["first", "second", "third"])

    def test_who_waits_for_the_host_comes_back(self) -> None:
        crew = Crew(turns=1, callers=0)
        ended = threading.Event()

        def waits() -> None:
            with away():  # its turn is another's, for whom there is no thread
                crew.put(ended.set)
            self.done.append("came back")

        with self.assertLogs("omnibus", "WARNING"):
            crew.put(waits)
            self.assertTrue(ended.wait(_HANGS), "a job that no thread could be started for is lost")
        crew.stop()
        crew.join()
        self.assertEqual(self.done, ["came back"])

    def test_nobody_at_all(self) -> None:
        self.left = 0
        crew = Crew(turns=1, callers=0)
        with self.assertRaisesRegex(RuntimeError, "can't start new thread"):
            crew.put(lambda: None)


if __name__ == "__main__":
    unittest.main()
