"""Memory in which this process says which handlers it runs. The host reads it also while this process hangs.

An entry is one handler: since when it runs (i64, nanoseconds of CLOCK_MONOTONIC; 0: there is none), its request
(u64), the number of its stage (u32), and the output for whose window it waits, and one more (u32; 0: it runs).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from .errors import out_of_memory
from .locked import current
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena

BYTES = 4096
_ENTRY_BYTES = 32
_WHAT = struct.Struct("QII")  # in the machine's order of bytes, and by one store each, as the host reads
_SINCE = struct.Struct("q")
_EDGE = struct.Struct("I")


class Scoreboard:
    """The entries of one connection. Safe from any thread; each entry is its handler's."""

    __slots__ = ("_memory", "_free", "_pid")

    def __init__(self, fd: int) -> None:
        """Map memory that `memory` has made."""
        self._memory = Arena(0, fd, BYTES).memory
        self._free = list(range(0, BYTES, _ENTRY_BYTES))
        self._pid = os.getpid()

    def begin(self, stage: int, request: int) -> Running | None:
        """A handler runs. None: there is no entry left, and the host does not see it."""
        try:
            entry = self._free.pop()
        except IndexError:
            return None
        _WHAT.pack_into(self._memory, entry + 8, request, stage, 0)
        since = time.monotonic_ns()
        _SINCE.pack_into(self._memory, entry, since)
        return Running(self, entry, since)


class Running:
    """A handler that runs."""

    __slots__ = ("_board", "_entry", "_since", "_waits")

    def __init__(self, board: Scoreboard, entry: int, since: int) -> None:
        self._board, self._entry, self._since = board, entry, since
        self._waits = 0  # since when; 0: it does not

    def wait(self, edge: int) -> None:
        """It waits for the window of an output."""
        self._waits = time.monotonic_ns()
        self._say(edge + 1, self._waits)

    def go_on(self) -> None:
        """It runs again. The time in which it waited does not count."""
        if self._waits:  # and no emission of a delivery that was kept has gone on before
            self._since += time.monotonic_ns() - self._waits
            self._waits = 0
            self._say(0, self._since)

    def end(self) -> None:
        """It has returned."""
        board = self._board
        if current.pid == board._pid:  # and not a child of it that the handler has forked
            _SINCE.pack_into(board._memory, self._entry, 0)
            board._free.append(self._entry)

    def _say(self, edge: int, since: int) -> None:
        board = self._board
        if current.pid == board._pid:
            _SINCE.pack_into(board._memory, self._entry, 0)
            _EDGE.pack_into(board._memory, self._entry + 20, edge)
            _SINCE.pack_into(board._memory, self._entry, since)


def memory() -> int:
    """The descriptor of memory for a scoreboard, the caller's to close."""
    fd = -1
    try:
        fd = os.memfd_create("omnibus-scoreboard", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.posix_fallocate(fd, 0, BYTES)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    except OSError as e:
        if fd >= 0:
            os.close(fd)
        raise out_of_memory("no memory for a scoreboard", e.errno or 0) from None
    return fd
