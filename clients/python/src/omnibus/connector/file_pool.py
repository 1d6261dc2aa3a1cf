"""A pool of segment files, which puts use again.

Most of the cost of a value in /dev/shm is the allocation, clearing and freeing of its memory. So the writer keeps the
files open, and reuses a file once no other process can read it. Readers remove the key as usual, and need not know.

A file of the pool has a second name, in the directory of the journals::

    spare-JOURNAL-n     JOURNAL is the name of its process's journal, n counts from 1

A file is free if that is its only name and the kernel grants a lease on it, which the kernel does only if no other
descriptor or mapping of the file exists. The name is checked first: without the key no process opens the file any more.
On a kernel without leases the pool keeps no files. A process that dies leaves second names; the next process that
opens a journal removes those of missing journals.
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
from . import shm_files
from .contract import NoRoom
from .shm_files import Directory, Identity
from .journal import SPARE_PREFIX, Journal

_T = TypeVar("_T")

MAX_FILES = 32
MAX_BYTES = 64 << 20
IDLE_SECONDS = 5.0  # until an unused file is closed

_FILESYSTEM_SHARE = 8  # the pool has at most this fraction of the file system
_CHECKS_PER_PUT = 2
_REFUSALS = 256  # without a grant ever: kernels before 5.3 refuse a lease on a file with two names
_NO_FILE = Identity(0, 0)


class PooledFile:
    """The file of a segment. `name` is its second name, empty if the file is not in the pool."""

    __slots__ = ("used_at", "fd", "shrinks", "name", "segment", "size", "value")

    def __init__(self, size: int) -> None:
        self.fd = -1
        self.name = ""
        self.segment = _NO_FILE
        self.size = size  #: in bytes, of the payload
        self.shrinks = False  # it is longer than the next payload, and is truncated before the write
        self.used_at = 0.0  # of time.monotonic
        self.value: Any = None  #: the put that the file holds, None once that is reported or unknown


class FilePool:
    """The files of one transport. Safe from any thread."""

    def __init__(self, directory: Directory, journal: Journal, gone: Callable[[Any], None]) -> None:
        """`gone` is called with each value whose segment has lost its key. It must not put."""
        self._directory = directory
        self._journals = journal.journals
        self._prefix = f"{SPARE_PREFIX}{journal.name}-"
        self._key_removed = gone
        self._mu = threading.RLock()  # a finalizer or a signal handler may interrupt any call
        self._files: set[PooledFile] = set()  # all files of the pool: used, free, and being written
        self._used: deque[PooledFile] = deque()  # the least recently checked or put first
        self._free: list[PooledFile] = []
        self._named = 0
        self._bytes = 0  # of all files
        self._refused: float = 0  # leases refused before the first grant; then -inf
        self._disabled = False  # no file joins the pool any more
        whole = os.statvfs(self._journals.fd)
        size = whole.f_blocks * whole.f_frsize // _FILESYSTEM_SHARE
        self._most_bytes = min(MAX_BYTES, size or MAX_BYTES)  # 0: the file system has no limit
        _all.add(self)

    def write(self, payload: Encoded) -> PooledFile:
        """A file with the payload, which no other process knows yet. The caller passes it to `add_used` in any case."""
        return self.freeing_space(lambda: self._write(payload))

    def freeing_space(self, do: Callable[[], _T]) -> _T:
        """Call `do`. If it raises NoRoom, close the files of the pool, and call it once more."""
        try:
            return do()
        except NoRoom:
            with self._mu:
                if not self._close_unwritten():
                    raise
        return do()

    def _write(self, payload: Encoded) -> PooledFile:
        s = self._acquire(payload.size)
        try:
            if s.fd < 0:
                try:
                    headroom.check(f"no segment of {payload.size} bytes", payload.size)
                except OutOfMemory as e:
                    raise NoRoom(str(e)) from None
                s.fd = self._directory.create()
            elif s.shrinks:
                os.ftruncate(s.fd, s.size)
            shm_files.write_all(s.fd, payload.pieces)
            if s.segment is _NO_FILE:
                s.segment = self._directory.fstat(s.fd).identity
                self._add_second_name(s)
        except BaseException:
            with self._mu:
                self._close_file(s)
            raise
        return s

    def add_used(self, s: PooledFile, value: Any) -> bool:
        """Note that a file holds a value; None: its put failed. Returns whether the file is in the pool."""
        with self._mu:
            if s in self._files:
                s.value = value
                s.used_at = time.monotonic()
                self._used.append(s)
                return True
            self._close_file(s)
            return False

    def link_key(self, s: PooledFile, name: str) -> None:
        """Give a file its key as a name. Raises FileExistsError if the name exists."""
        if not s.name:
            self._directory.link(s.fd, name)
            return
        try:  # a link by name is cheaper than one by descriptor
            os.link(s.name, name, src_dir_fd=self._journals.fd, dst_dir_fd=self._directory.fd, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError as e:
            raise shm_files.as_no_room(e) from None

    def check_used(self) -> None:
        """Check which used files are free, and so which of their values are gone."""
        with self._mu:
            self._check_used(len(self._used))

    def close_idle(self) -> float | None:
        """Close files that were not used for IDLE_SECONDS, and return when to check again; None: the pool is empty."""
        now = time.monotonic()
        with self._mu:
            for s in [s for s in (*self._used, *self._free) if now - s.used_at >= IDLE_SECONDS]:
                self._close_file(s)
            if len(self._files) > len(self._used) + len(self._free):
                return IDLE_SECONDS
            return min((IDLE_SECONDS - (now - s.used_at) for s in self._files), default=None)

    def close(self) -> None:
        """Close all files. A segment that has its key stays."""
        with self._mu:
            self._close_locked()

    def close_descriptors(self) -> None:
        """Close the descriptors, in a forked child: the names belong to the parent."""
        self._disabled = True
        for s in list(self._files):
            fd, s.fd = s.fd, -1
            if fd >= 0:
                os.close(fd)

    # The methods below run under the lock; those that acquire it themselves may be called without.

    def _acquire(self, size: int) -> PooledFile:
        """A file for so many bytes: a free one, or a new one, in the pool if that has space."""
        with self._mu:
            self._check_used(min(_CHECKS_PER_PUT, len(self._used)))
            if self._free:
                s = self._free[0] if len(self._free) == 1 else min(self._free, key=lambda s: abs(s.size - size))
                if self._make_space(size - s.size, s):
                    self._free.remove(s)
                    self._bytes += size - s.size
                    s.shrinks = s.size > size
                    s.size = size
                    return s
            s = PooledFile(size)
            if not self._disabled and len(self._files) < MAX_FILES and self._make_space(size):
                self._files.add(s)
                self._bytes += size
            return s

    def _check_used(self, most: int) -> None:
        for _ in range(most):
            if not self._used:
                return
            s = self._used[0]
            at = s.used_at
            free = self._is_free(s)
            if self._used and self._used[0] is s and s.used_at == at:  # and no interrupting call has put it again
                self._used.popleft()
                (self._free if free else self._used).append(s)

    def _is_free(self, s: PooledFile) -> bool:
        """Whether no other process has the file open, or can open it.

        The key is checked first: without it no process opens the file. A reader that had found the name just before
        checks it again after the read (see `Segments`).
        """
        try:
            now = os.stat(s.name, dir_fd=self._journals.fd, follow_symlinks=False)
        except OSError:
            self._close_file(s)  # without its second name the number of names says nothing
            return False
        if now.st_ino != s.segment.inode:
            s.name = ""  # another file has the name
            self._close_file(s)
            return False
        if now.st_nlink != 1:
            return False
        value, s.value = s.value, None
        if value is not None:
            self._key_removed(value)
        self._bytes += now.st_size - s.size
        s.size = now.st_size  # a reader may have changed it
        try:
            # A process that opens the file during the lease sends this one a signal: SIGIO by default, which would end
            # it. The end of each lease resets the signal.
            fcntl.fcntl(s.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(s.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            fcntl.fcntl(s.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as e:
            self._refused += 1
            if e.errno != errno.EAGAIN or self._refused > _REFUSALS:
                self._close_locked()  # the kernel has no leases, or none on such files
            return False
        self._refused = -math.inf
        return True

    def _make_space(self, more: int, for_: PooledFile | None = None) -> bool:
        """Close free files, the smaller first, if that makes space for so many bytes more."""
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
            self._close_file(s)
        return True

    def _add_second_name(self, s: PooledFile) -> None:
        """Give a new file its second name. Without one it leaves the pool."""
        with self._mu:
            if s not in self._files:
                return
            self._named += 1
            name = f"{self._prefix}{self._named}"
            try:
                stats = os.statvfs(self._journals.fd)
                if 2 * stats.f_bavail < stats.f_blocks:  # the other half is left for values
                    raise NoRoom("no room to spare")
                self._journals.link(s.fd, name)
            except (OSError, OmnibusError):
                self._files.remove(s)
                self._bytes -= s.size
            else:
                s.name = name

    def _close_unwritten(self) -> bool:
        """Close all files that are not being written: used ones may be free by now. False: there were none."""
        some = (*self._used, *self._free)
        for s in some:
            self._close_file(s)
        return bool(some)

    def _close_file(self, s: PooledFile) -> None:
        if s in self._files:
            if s in self._used:
                self._used.remove(s)
            elif s in self._free:
                self._free.remove(s)
            self._remove_second_name(s)
            self._files.remove(s)
            self._bytes -= s.size
        fd, s.fd = s.fd, -1
        if fd >= 0:
            os.close(fd)

    def _remove_second_name(self, s: PooledFile) -> None:
        s.value = None  # `Segments` checks the value itself from now on
        name, s.name = s.name, ""
        if name:
            try:
                self._journals.unlink(name)
            except OSError:
                pass  # the next sweep removes it

    def _close_locked(self) -> None:
        self._disabled = True
        self._close_unwritten()
        for s in self._files:  # the writing thread closes a file that is being written
            self._remove_second_name(s)
        self._files.clear()
        self._bytes = 0


_all: weakref.WeakSet[FilePool] = weakref.WeakSet()


def _forked() -> None:
    for pool in list(_all):
        pool.close_descriptors()


os.register_at_fork(after_in_child=_forked)
