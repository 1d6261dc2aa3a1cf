"""The scoreboard: shared memory that lists the running handlers. The host can read it while this process hangs.

An entry describes one handler: the time since which it runs (i64, nanoseconds of CLOCK_MONOTONIC; 0: the entry is
free), its request (u64), the number of its stage (u32), and 1 plus the output whose window it waits for (u32; 0: it
runs).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from .errors import out_of_memory
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena
from .sessionbase import this_process

BYTES = 4096
_ENTRY_BYTES = 32
# In native byte order; each field is written by one store, since the host reads concurrently.
_HANDLER = struct.Struct("QII")
_SINCE = struct.Struct("q")
_EDGE = struct.Struct("I")


class Scoreboard:
    """The entries of one connection. Safe from any thread; only the handler's thread writes its entry."""

    __slots__ = ("_memory", "_free", "_pid")

    def __init__(self, fd: int) -> None:
        """Map the memory of `create_memory`."""
        self._memory = Arena(0, fd, BYTES).memory
        self._free = list(range(0, BYTES, _ENTRY_BYTES))
        self._pid = os.getpid()

    def add(self, stage: int, request: int) -> HandlerEntry | None:
        """Add an entry for a handler that starts; None if no entry is free, and the host does not see the handler."""
        try:
            entry = self._free.pop()
        except IndexError:
            return None
        _HANDLER.pack_into(self._memory, entry + 8, request, stage, 0)
        since = time.monotonic_ns()
        _SINCE.pack_into(self._memory, entry, since)
        return HandlerEntry(self, entry, since)


class HandlerEntry:
    """The entry of a running handler."""

    __slots__ = ("_board", "_entry", "_since", "_waiting_since")

    def __init__(self, board: Scoreboard, entry: int, since: int) -> None:
        self._board, self._entry, self._since = board, entry, since
        self._waiting_since = 0  # nanoseconds; 0: it runs

    def begin_wait(self, edge: int) -> None:
        """Mark the handler as waiting for the window of an output."""
        self._waiting_since = time.monotonic_ns()
        self._write(edge + 1, self._waiting_since)

    def end_wait(self) -> None:
        """Mark the handler as running again. The wait does not count as running time."""
        if self._waiting_since:  # an emission of a kept delivery may have ended the wait already
            self._since += time.monotonic_ns() - self._waiting_since
            self._waiting_since = 0
            self._write(0, self._since)

    def remove(self) -> None:
        """Free the entry: the handler has returned."""
        board = self._board
        if this_process.pid == board._pid:  # not in a child that the handler has forked
            _SINCE.pack_into(board._memory, self._entry, 0)
            board._free.append(self._entry)

    def _write(self, edge: int, since: int) -> None:
        board = self._board
        if this_process.pid == board._pid:
            _SINCE.pack_into(board._memory, self._entry, 0)
            _EDGE.pack_into(board._memory, self._entry + 20, edge)
            _SINCE.pack_into(board._memory, self._entry, since)


def create_memory() -> int:
    """Create the memory of a scoreboard. Returns its descriptor, which the caller closes."""
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
