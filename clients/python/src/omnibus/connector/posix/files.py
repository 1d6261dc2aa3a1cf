"""The files of a store with a name, and the locks on the first of them.

A file is read and written by system calls and never mapped: all processes of the user may shorten it, which would end
with SIGBUS whoever has it mapped, and here is an error. What changes while it is read is looked at until two looks
agree, for a system call copies bytes, and need not copy a number at once; and what others decide by is changed
in one byte, which is never seen half. `omnibus.fence` says what comes before what.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
import time
from collections.abc import Sequence

from ..contract import Busy, Damaged, Missing, NoRoom, Unavailable
from ..encoder import Buffer
from ..files import Directory, Inotify, Nap, full, poll_millis, write_all
from .layout import BELL_AT, HEAD_BYTES, LOCK_CREATOR, RECORD_BYTES, WORD_BYTES, Record

_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_flock = struct.Struct("hhqqi4x")
_STORES_COME_AND_GO = 16

#: How long a nap between two looks is where nobody would tell.
_UNTOLD_SECONDS = 2e-3


class NoStore(Missing):
    """There is no store of this name, or its creator is gone."""


class File:
    """A file of a store. Safe from any thread."""

    __slots__ = ("fd", "name")

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name

    def read(self, size: int, at: int) -> bytes:
        """Raises Damaged for a file that was cut short."""
        b = os.pread(self.fd, size, at)
        if len(b) == size:
            return b
        pieces = [b]
        while size > (have := sum(map(len, pieces))):  # a signal came, or too much was asked for
            b = os.pread(self.fd, size - have, at + have)
            if not b:
                raise Damaged(f"{self.name} was cut short: {at + have} bytes, and {at + size} are needed")
            pieces.append(b)
        return b"".join(pieces)

    def settled(self, size: int, at: int) -> bytes:
        """What lies there, of one moment, while others write."""
        last = self.read(size, at)
        while (now := self.read(size, at)) != last:
            last = now
        return now

    def word(self, at: int) -> int:
        """A number of 8 bytes."""
        return int.from_bytes(self.settled(WORD_BYTES, at), "little")

    def write(self, data: Buffer, at: int) -> None:
        self.write_pieces((data,), at)

    def write_pieces(self, pieces: Sequence[Buffer], at: int) -> None:
        write_all(self.fd, pieces, at)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Head(File):
    """The first file, with the locks that it stands for.

    They belong to the open file, so the kernel gives them up with its process, and all of one process are one's.
    """

    __slots__ = ("inode",)

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, name)
        self.inode = os.fstat(fd).st_ino

    def record(self) -> Record:
        """Raises NoStore for one that is not complete."""
        r = Record.parse(os.pread(self.fd, RECORD_BYTES, 0))
        if r is None:
            raise NoStore("there is no store of this name")
        return r

    def ring(self, count: int) -> None:
        """Have those look again who wait for a value."""
        self.write(count.to_bytes(WORD_BYTES, "little"), BELL_AT)

    def _lock(self, kind: int, command: int, at: int) -> int:
        answer = fcntl.fcntl(self.fd, command, _flock.pack(kind, os.SEEK_SET, at, 1, 0))
        return int(_flock.unpack(answer)[0])

    def try_lock(self, at: int) -> bool:
        """Lock a byte, if nobody has it."""
        try:
            self._lock(fcntl.F_WRLCK, fcntl.F_OFD_SETLK, at)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as e:
            raise full(e) from None
        return True

    def unlock(self, at: int) -> None:
        self._lock(fcntl.F_UNLCK, fcntl.F_OFD_SETLK, at)

    def held(self, at: int) -> bool:
        """Whether another has locked a byte. It locks nothing."""
        return self._lock(fcntl.F_WRLCK, fcntl.F_OFD_GETLK, at) != fcntl.F_UNLCK

    def lock_soon(self, at: int, seconds: float, why: str) -> None:
        """Lock a byte that others have for a moment. Raises Busy when it takes longer."""
        nap = Nap(time.monotonic() + seconds)
        while not self.try_lock(at):
            if not nap.take():
                raise Busy(why)


class Files:
    """Those of one store, in the directory of all, which is held open."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.head = f"omnibus-{os.geteuid()}-{name}"
        self._all = Directory(path)
        self._made: list[str] = []

    def close(self) -> None:
        self._all.close()

    def name(self, part: str) -> str:
        return f"{self.head}.{part}"

    def _open(self, name: str, how: int) -> int:
        """Raises FileNotFoundError, and Unavailable for what is none of this user's alone."""
        foreign = (
            f"{self.path}/{name} is no regular file of user {os.geteuid()} with mode 0600: take another name for the "
            "store, or have the file removed"
        )
        try:
            # Not blocking, so that a pipe in its place holds nobody up.
            fd = os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._all.fd)
        except OSError as e:
            if e.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES):
                raise Unavailable(foreign) from None
            raise full(e) from None
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or st.st_uid != os.geteuid() or st.st_mode & 0o077:
            os.close(fd)
            raise Unavailable(foreign)
        return fd

    def open(self, part: str, how: int, size: int | None) -> File:
        """A file of a store that there is, of exactly this size, and with all its pages."""
        name = self.name(part)
        f = File(self._open(name, how), name)
        st = os.fstat(f.fd)
        if size is not None and (st.st_size != size or st.st_blocks * 512 < size):
            f.close()
            raise Damaged(
                f"{name} has {st.st_size} bytes, of which {st.st_blocks * 512} are allocated, instead of {size}"
            )
        return f

    def open_head(self) -> Head:
        """Raises FileNotFoundError."""
        return Head(self._open(self.head, os.O_RDWR), self.head)

    def make(self, part: str, size: int) -> File:
        """A new file of the store, of its final size and with all its pages."""
        name = self.name(part)
        how = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            f = File(os.open(name, how, 0o600, dir_fd=self._all.fd), name)
        except OSError as e:
            raise full(e) from None
        self._made.append(name)
        try:
            if size:
                os.posix_fallocate(f.fd, 0, size)
        except OSError as e:
            f.close()
            raise self._no_room(e, f"{size} bytes for {name}") from None
        return f

    def _no_room(self, e: OSError, what: str) -> Exception:
        said = full(e)
        if isinstance(said, NoRoom):
            return NoRoom(f"no room for {what}: {e.strerror}: make {self.path} larger, or the store smaller")
        return said

    def check_room(self, size: int) -> None:
        """Raise NoRoom for more than the file system has left."""
        st = os.fstatvfs(self._all.fd)
        if st.f_blocks and st.f_bavail * st.f_frsize < size:
            left = st.f_bavail * st.f_frsize
            raise NoRoom(
                f"{self.path} has {left} bytes left, and {size} are needed: make it larger, or the store smaller"
            )

    def remove(self) -> None:
        """Take all files of the store away but the first. What is not this user's stays, and is an error."""
        try:
            names = os.listdir(self._all.fd)  # which takes a descriptor
        except OSError as e:
            raise full(e) from None
        for name in names:
            if not name.startswith(self.name("")):
                continue
            try:
                os.close(self._open(name, os.O_RDONLY))
            except FileNotFoundError:
                continue
            self._all.unlink(name)

    def remove_made(self) -> None:
        """Take away what was made here, the first file last. It takes no descriptor, of which there may be none left."""
        while self._made:
            self._all.unlink(self._made[-1])
            self._made.pop()
        self.remove_head()

    def remove_head(self) -> None:
        self._all.unlink(self.head)

    def current(self, head: Head) -> bool:
        """Whether the name is this file's."""
        now = self._all.lookup(self.head)
        return now is not None and now.identity.inode == head.inode

    def claim(self) -> Head:
        """Make the first file of a new store, and remove what a dead creator left. Raises Busy if one lives."""
        for _ in range(_STORES_COME_AND_GO):
            try:
                return self._new_head()
            except FileExistsError:
                self._bury()
        raise Busy("stores of this name come and go")

    def _new_head(self) -> Head:
        """It is locked before it has a name, so that nobody takes it for a dead process's."""
        h = Head(self._all.create(), self.head)
        try:
            os.posix_fallocate(h.fd, 0, HEAD_BYTES)
            h.write(Record(0, os.getpid(), 0, 0, 0).encode(), 0)
            h.try_lock(LOCK_CREATOR)  # nobody else has the file
            self._all.link(h.fd, self.head)
        except BaseException as e:
            h.close()
            if isinstance(e, OSError):
                raise full(e) from None
            raise
        return h

    def _bury(self) -> None:
        """Remove what a dead creator left. Its lock is what allows that."""
        try:
            dead = self.open_head()
        except FileNotFoundError:
            return
        try:
            if not dead.try_lock(LOCK_CREATOR):
                pid = int.from_bytes(os.pread(dead.fd, 8, 16), "little")
                raise Busy(
                    f"process {pid} has a store of this name, and puts into it alone: take another name here, or end it"
                )
            if self.current(dead):  # otherwise somebody else has buried it
                self.remove()
                self.remove_head()
        finally:
            dead.close()


class Bell:
    """Wakes one thread when files change, or somebody in this process says so."""

    def __init__(self) -> None:
        """Raises NoRoom where there are no descriptors left."""
        self._nudged = -1
        self._inotify = Inotify()
        try:
            self._nudged = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as e:
            self._inotify.close()
            raise full(e) from None
        self._poll = select.poll()
        for fd in (self._inotify.fd, self._nudged):
            if fd >= 0:
                self._poll.register(fd, select.POLLIN)
        self._told = self._inotify.fd >= 0

    def file(self, path: str) -> None:
        """Watch a file for changes too. Where there is none yet, its directory tells."""
        self._add(path, _IN_MODIFY)

    def directory(self, path: str) -> None:
        """Watch for files that are made."""
        self._add(path, _IN_CREATE)

    def _add(self, path: str, changes: int) -> None:
        self._told = self._told and self._inotify.add(path, changes) in (0, errno.ENOENT)

    def nudge(self) -> None:
        """Wake it. From any thread."""
        os.eventfd_write(self._nudged, 1)

    def clear(self) -> None:
        """Forget what has changed until now."""
        self._read("")

    def wait(self, deadline: float, name: str) -> bool:
        """Wait until something has changed: a file, or one of this name was made. False: the time is up."""
        while (left := deadline - time.monotonic()) > 0:
            if not self._told:
                time.sleep(min(left, _UNTOLD_SECONDS))
                return True
            if self._poll.poll(poll_millis(left)) and self._read(name):
                return True
        return False

    def _read(self, name: str) -> bool:
        """Whether anything matters of what there is to know."""
        try:
            nudged = os.eventfd_read(self._nudged) > 0
        except BlockingIOError:
            nudged = False
        changed = self._inotify.names()
        return nudged or b"" in changed or os.fsencode(name) in changed

    def __del__(self) -> None:
        if self._nudged >= 0:
            os.close(self._nudged)
