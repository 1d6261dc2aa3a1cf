"""Files of segments that are used again.

What is dear about a value in /dev/shm is that the system finds, clears and frees its memory. So whoever puts keeps the
files open, and uses one again once nobody can have it any more. Readers remove the key, as ever, and know nothing of it.

A file that may be used again has a second name, in the directory of the journals::

    spare-JOURNAL-n     JOURNAL is the name of its process's journal, n counts from 1

It is free when that is its only name, and then the kernel grants a lease on it, which it does only where nobody else
has the file open or mapped. In this order: without its key nobody opens it any more. Where there are no leases,
nothing is used again. A process that dies leaves second names, and whoever opens a journal removes
those of journals that are gone.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from .. import headroom
from ..errors import OmnibusError, OutOfMemory
from ..omni.encoder import Encoded
from . import files
from .contract import NoRoom
from .files import Directory, Identity
from .journal import SPARE, Journal

_T = TypeVar("_T")

MOST = 32
MOST_BYTES = 64 << 20
REST_SECONDS = 5.0  # that one lies unused before it is let go

_OF_THE_FILESYSTEM = 8  # no more than one part of so many
_LOOKS_A_PUT = 2
_REFUSALS = 256  # without a grant ever, as by kernels before 5.3, to which a second name is another who has it
_NOWHERE = Identity(0, 0)


class Spare:
    """The file of a segment that is put, or was. It has no name here if it is not to be used again."""

    __slots__ = ("at", "fd", "longer", "name", "segment", "size", "value")

    def __init__(self, size: int) -> None:
        self.fd = -1
        self.name = ""
        self.segment = _NOWHERE
        self.size = size  #: in bytes, of what is written to it now
        self.longer = False  # before that is written
        self.at = 0.0  # when it was used last
        self.value: Any = None  #: that lies in it, unless somebody else knows


class Spares:
    """The files of one transport. Safe from any thread."""

    def __init__(self, directory: Directory, journal: Journal, gone: Callable[[Any], None]) -> None:
        """`gone` is told of each value whose segment has lost its key. It must not put."""
        self._directory = directory
        self._home = journal.home
        self._prefix = f"{SPARE}{journal.name}-"
        self._gone = gone
        self._mu = threading.RLock()  # for a finalizer, or a signal's handler, may come in the middle of anything
        self._mine: set[Spare] = set()  # all that may be used again: those below, and what is being written
        self._used: deque[Spare] = deque()  # the one that was looked at, or put, longest ago first
        self._free: list[Spare] = []
        self._named = 0
        self._bytes = 0  # of all
        self._refused: float = 0  # how often no lease was granted, until one is
        self._off = False  # no more of them
        whole = os.statvfs(self._home.fd)
        size = whole.f_blocks * whole.f_frsize // _OF_THE_FILESYSTEM
        self._most_bytes = min(MOST_BYTES, size or MOST_BYTES)  # none: it has no limit
        _all.add(self)

    def write(self, payload: Encoded) -> Spare:
        """A file that has the payload, and nobody else knows. It goes to `put` then, whatever happens."""
        return self.making_room(lambda: self._write(payload))

    def making_room(self, do: Callable[[], _T]) -> _T:
        """Do what may find no room, or no descriptor, and once more when it found none and something could go."""
        try:
            return do()
        except NoRoom:
            with self._mu:
                if not self._empty():
                    raise
        return do()

    def _write(self, payload: Encoded) -> Spare:
        s = self._take(payload.size)
        try:
            if s.fd < 0:
                try:
                    headroom.check(f"no segment of {payload.size} bytes", payload.size)
                except OutOfMemory as e:
                    raise NoRoom(str(e)) from None
                s.fd = self._directory.create()
            elif s.longer:
                os.ftruncate(s.fd, s.size)
            files.write_all(s.fd, payload.pieces)
            if s.segment is _NOWHERE:
                s.segment = self._directory.described(s.fd).identity
                self._keep(s)
        except BaseException:
            with self._mu:
                self._let_go(s)
            raise
        return s

    def put(self, s: Spare, value: Any) -> bool:
        """It was put as this value, or as none (None). Returns whether it may be used again."""
        with self._mu:
            if s in self._mine:
                s.value = value
                s.at = time.monotonic()
                self._used.append(s)
                return True
            self._let_go(s)
            return False

    def link(self, s: Spare, name: str) -> None:
        """Give a file its key. Raises FileExistsError if that is taken."""
        if not s.name:
            self._directory.link(s.fd, name)
            return
        try:  # from name to name, which is cheaper than from a descriptor
            os.link(s.name, name, src_dir_fd=self._home.fd, dst_dir_fd=self._directory.fd, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError as e:
            raise files.full(e) from None

    def look(self) -> None:
        """Look at all whether they are free, and so, whether what was put in them is gone."""
        with self._mu:
            self._look(len(self._used))

    def rest(self) -> float | None:
        """Let go of what was not used for a while, and say when to look again; None: nothing is kept."""
        now = time.monotonic()
        with self._mu:
            for s in [s for s in (*self._used, *self._free) if now - s.at >= REST_SECONDS]:
                self._let_go(s)
            if len(self._mine) > len(self._used) + len(self._free):
                return REST_SECONDS
            return min((REST_SECONDS - (now - s.at) for s in self._mine), default=None)

    def close(self) -> None:
        """Let go of all. A segment that has its key lives on."""
        with self._mu:
            self._close()

    def forget(self) -> None:
        """Close the descriptors, in a forked child: names and accounts are the parent's."""
        self._off = True
        for s in list(self._mine):
            fd, s.fd = s.fd, -1
            if fd >= 0:
                os.close(fd)

    # What of this does not take the lock is called with it.

    def _take(self, size: int) -> Spare:
        """A file for so many bytes: one that is free, or a new one that may be used again, or else none yet."""
        with self._mu:
            self._look(min(_LOOKS_A_PUT, len(self._used)))
            if self._free:
                s = self._free[0] if len(self._free) == 1 else min(self._free, key=lambda s: abs(s.size - size))
                if self._make_room(size - s.size, s):
                    self._free.remove(s)
                    self._bytes += size - s.size
                    s.longer = s.size > size
                    s.size = size
                    return s
            s = Spare(size)
            if not self._off and len(self._mine) < MOST and self._make_room(size):
                self._mine.add(s)
                self._bytes += size
            return s

    def _look(self, most: int) -> None:
        for _ in range(most):
            if not self._used:
                return
            s = self._used[0]
            at = s.at
            free = self._is_free(s)
            if self._used and self._used[0] is s and s.at == at:  # and was not put by whoever came between
                self._used.popleft()
                (self._free if free else self._used).append(s)

    def _is_free(self, s: Spare) -> bool:
        """Whether nobody has it, or can come to have it.

        The key first: without it nobody opens the file any more, but who had found it just before, and looks again (see
        `Segments`).
        """
        try:
            now = os.stat(s.name, dir_fd=self._home.fd, follow_symlinks=False)
        except OSError:
            self._let_go(s)  # the name is not there, and says nothing any more
            return False
        if now.st_ino != s.segment.inode:
            s.name = ""  # which is somebody else's
            self._let_go(s)
            return False
        if now.st_nlink != 1:
            return False
        value, s.value = s.value, None
        if value is not None:
            self._gone(value)
        self._bytes += now.st_size - s.size
        s.size = now.st_size  # whoever had it may have changed that
        try:
            # Whoever opens it while it is leased would end this process with the signal that there is otherwise. The
            # end of each lease resets it.
            fcntl.fcntl(s.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(s.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(s.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as e:
            self._refused += 1
            if e.errno != errno.EAGAIN or self._refused > _REFUSALS:
                self._close()  # a kernel without leases, or without such ones
            return False
        self._refused = -math.inf
        return True

    def _make_room(self, more: int, for_: Spare | None = None) -> bool:
        """Let go of what is free, the smaller first, if that makes room for so many bytes more."""
        over = self._bytes + more - self._most_bytes
        if over <= 0:
            return True
        others = sorted((s for s in self._free if s is not for_), key=lambda s: s.size)
        if sum(s.size for s in others) < over:
            return False
        for s in others:
            if over <= 0:
                break
            over -= s.size
            self._let_go(s)
        return True

    def _keep(self, s: Spare) -> None:
        """Give a new file its second name. It does without where that is not to be had."""
        with self._mu:
            if s not in self._mine:
                return
            self._named += 1
            name = f"{self._prefix}{self._named}"
            try:
                room = os.statvfs(self._home.fd)
                if 2 * room.f_bavail < room.f_blocks:  # it is for values, of all processes
                    raise NoRoom("no room to spare")
                self._home.link(s.fd, name)
            except (OSError, OmnibusError):
                self._mine.remove(s)
                self._bytes -= s.size
            else:
                s.name = name

    def _empty(self) -> bool:
        """Let go of all that is not being written, for what was used may be free by now. False: there was none."""
        some = (*self._used, *self._free)
        for s in some:
            self._let_go(s)
        return bool(some)

    def _let_go(self, s: Spare) -> None:
        if s in self._mine:
            if s in self._used:
                self._used.remove(s)
            elif s in self._free:
                self._free.remove(s)
            self._unname(s)
            self._mine.remove(s)
            self._bytes -= s.size
        fd, s.fd = s.fd, -1
        if fd >= 0:
            os.close(fd)

    def _unname(self, s: Spare) -> None:
        s.value = None  # whoever put it looks for itself
        name, s.name = s.name, ""
        if name:
            try:
                self._home.unlink(name)
            except OSError:
                pass  # whoever sweeps next does it

    def _close(self) -> None:
        self._off = True
        self._empty()
        for s in self._mine:  # what is being written is closed by whoever writes it
            self._unname(s)
        self._mine.clear()
        self._bytes = 0


_all: weakref.WeakSet[Spares] = weakref.WeakSet()


def _forked() -> None:
    for spares in list(_all):
        spares.forget()


os.register_at_fork(after_in_child=_forked)
