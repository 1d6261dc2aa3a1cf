"""The scoreboard, as the host reads it."""

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
        fd = scoreboard.create_memory()
        self.board = scoreboard.Scoreboard(fd)
        self.memory = mmap.mmap(fd, scoreboard.BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        self.addCleanup(self.memory.close)
        os.close(fd)

    def entries(self) -> list[tuple[int, ...]]:
        """Request, stage, edge and age in nanoseconds of the handlers that run or wait."""
        now = time.monotonic_ns()
        all_of_them = (_ENTRY.unpack_from(self.memory, at) for at in range(0, scoreboard.BYTES, 32))
        return [(request, stage, edge, now - since) for since, request, stage, edge in all_of_them if since]

    def test_a_handler_runs(self) -> None:
        self.assertEqual(self.entries(), [])
        one, other = self.board.add(3, 1 << 40), self.board.add(4, 7)
        assert one is not None and other is not None
        self.assertEqual(sorted(e[:3] for e in self.entries()), [(7, 4, 0), (1 << 40, 3, 0)])
        one.remove()
        self.assertEqual([e[:3] for e in self.entries()], [(7, 4, 0)])
        other.remove()
        self.assertEqual(self.entries(), [])

    def test_wait_does_not_count_as_running_time(self) -> None:
        running = self.board.add(3, 7)
        assert running is not None
        running._since -= 63 * 10**9  # it began so long ago
        running.begin_wait(2)
        (entry,) = self.entries()
        self.assertEqual(entry[:3], (7, 3, 3))
        self.assertLess(entry[3], 10**9)
        running._waiting_since -= 60 * 10**9  # and has waited for so long
        running.end_wait()
        (entry,) = self.entries()
        self.assertEqual(entry[:3], (7, 3, 0))
        self.assertLess(entry[3], 10 * 10**9)
        self.assertGreater(entry[3], 2 * 10**9)
        running.remove()

    def test_more_handlers_than_entries(self) -> None:
        running = [self.board.add(0, i) for i in range(130)]
        self.assertEqual(sum(r is None for r in running), 2)
        for r in running:
            if r is not None:
                r.remove()
        self.assertEqual(self.entries(), [])
        self.assertIsNotNone(self.board.add(0, 1))

    def test_a_forked_child_writes_nothing(self) -> None:
        running = self.board.add(3, 7)
        assert running is not None
        pid = os.fork()
        if pid == 0:
            try:
                running.begin_wait(1)
                running.end_wait()
                running.remove()
            finally:
                os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual([e[:3] for e in self.entries()], [(7, 3, 0)])


if __name__ == "__main__":
    unittest.main()
