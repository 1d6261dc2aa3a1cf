"""Tests of what the host reads of handlers that run."""

from __future__ import annotations

import mmap
import os
import struct
import time
import unittest

from omnibus import scoreboard

_ENTRY = struct.Struct("qQII")


class ScoreboardTest(unittest.TestCase):
    def setUp(self) -> None:
        fd = scoreboard.memory()
        self.board = scoreboard.Scoreboard(fd)
        self.memory = mmap.mmap(fd, scoreboard.BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        self.addCleanup(self.memory.close)
        os.close(fd)

    def entries(self) -> list[tuple[int, ...]]:
        """Request, stage, edge and age in nanoseconds of what runs or waits."""
        now = time.monotonic_ns()
        all_of_them = (_ENTRY.unpack_from(self.memory, at) for at in range(0, scoreboard.BYTES, 32))
        return [(request, stage, edge, now - since) for since, request, stage, edge in all_of_them if since]

    def test_a_handler_runs(self) -> None:
        self.assertEqual(self.entries(), [])
        one, other = self.board.begin(3, 1 << 40), self.board.begin(4, 7)
        assert one is not None and other is not None
        self.assertEqual(sorted(e[:3] for e in self.entries()), [(7, 4, 0), (1 << 40, 3, 0)])
        one.end()
        self.assertEqual([e[:3] for e in self.entries()], [(7, 4, 0)])
        other.end()
        self.assertEqual(self.entries(), [])

    def test_a_wait_is_no_time_of_the_handler(self) -> None:
        running = self.board.begin(3, 7)
        assert running is not None
        running._since -= 63 * 10**9  # it began so long ago
        running.wait(2)
        (entry,) = self.entries()
        self.assertEqual(entry[:3], (7, 3, 3))
        self.assertLess(entry[3], 10**9)
        running._waits -= 60 * 10**9  # and has waited for so long
        running.go_on()
        (entry,) = self.entries()
        self.assertEqual(entry[:3], (7, 3, 0))
        self.assertLess(entry[3], 10 * 10**9)
        self.assertGreater(entry[3], 2 * 10**9)
        running.end()

    def test_more_handlers_than_entries(self) -> None:
        running = [self.board.begin(0, i) for i in range(130)]
        self.assertEqual(sum(r is None for r in running), 2)
        for r in running:
            if r is not None:
                r.end()
        self.assertEqual(self.entries(), [])
        self.assertIsNotNone(self.board.begin(0, 1))

    def test_a_forked_child_writes_nothing(self) -> None:
        running = self.board.begin(3, 7)
        assert running is not None
        pid = os.fork()
        if pid == 0:
            try:
                running.wait(1)
                running.go_on()
                running.end()
            finally:
                os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual([e[:3] for e in self.entries()], [(7, 3, 0)])


if __name__ == "__main__":
    unittest.main()
