"""Files in /dev/shm that never are half there, and are not taken for others.

A file is made without a name, filled, and linked. An `Identity` tells it from all others that
have had its name. Nothing of another user's is touched, and no link is followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..omni.encoder import Buffer
from .contract import BadKey, Busy, Damaged, NoRoom, Unavailable

_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BASIC_AND_BTIME = 0x7FF | 0x800
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_IN_APPEARS = 0x8 | 0x80 | 0x100  # written and closed, moved to, created
_EVENT_BYTES = 1 << 16
_event = struct.Struct("iIII")
_LONGEST_POLL_SECONDS = 3600.0
_PIECES = 1024  # as many as one system call takes


# A struct statx: links, owner, mode, inode, size, blocks of 512 bytes, and the seconds and nanoseconds of its birth.
# Unpacked at once, for ctypes makes an object of each field that is looked at.
_stat = struct.Struct("@16xII4xH2xQQQ24xqI")
_Stat: Any = ctypes.c_char * 256

_libc = ctypes.CDLL(None, use_errno=True)
_statx = _libc.statx  # without argtypes, which take longer than the call: what it is given is of the types it takes


class Identity(NamedTuple):
    """Which file it is, whatever its name."""

    inode: int
    born_ns: int  # 0 where the kernel does not know


class File(NamedTuple):
    """What is known of a file."""

    identity: Identity
    mode: int
    owner: int
    size: int
    bytes: int  #: that have memory behind them
    names: int

    def check(self) -> None:
        """Raise BadKey for what is no file of this user's."""
        if not stat.S_ISREG(self.mode):
            raise BadKey("what has this name is no regular file")
        if self.owner != os.geteuid():
            raise BadKey(f"what has this name belongs to user {self.owner}")


def full(e: OSError) -> Exception:
    """The error, or NoRoom if that is what it says."""
    if e.errno not in _NO_ROOM:
        return e
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return NoRoom(f"no room: {e.strerror}: raise the limit of this process (ulimit -n)")
    return NoRoom(f"no room: {e.strerror}: make /dev/shm larger, or remove what lies there")


class Directory:
    """Where segments and their locks lie."""

    def __init__(self, path: str = "/dev/shm", fd: int | None = None) -> None:
        """`fd`: it is open already, and the descriptor is closed with it. Raises Unavailable and NoRoom."""
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if fd is None else fd
        except OSError as e:
            if e.errno in _NO_ROOM:
                raise full(e) from None
            raise Unavailable(f"{path}: {e.strerror}") from None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def lookup(self, name: str) -> File | None:
        """What lies under a name; None: nothing."""
        return self._describe(self.fd, os.fsencode(name), _AT_SYMLINK_NOFOLLOW)

    def inode(self, name: str) -> int | None:
        """The number of what lies under a name, which tells it from what is open; None: nothing lies there."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def has(self, name: str) -> bool:
        """Whether anything lies under a name. For what mostly is gone this is the cheapest to ask."""
        return os.access(name, os.F_OK, dir_fd=self.fd, follow_symlinks=False)

    def is_still(self, fd: int, name: str, seen: File) -> bool:
        """Whether what is open is what was seen under a name, and still has it: it may have another, as `spares` have."""
        now = os.fstat(fd)
        if now.st_ino != seen.identity.inode:
            return False
        return now.st_nlink == seen.names or self.inode(name) == now.st_ino

    def described(self, fd: int) -> File:
        f = self._describe(fd, b"", _AT_EMPTY_PATH)
        assert f is not None
        return f

    def _describe(self, fd: int, name: bytes, flags: int) -> File | None:
        st = _Stat()
        if _statx(fd, name, flags, _STATX_BASIC_AND_BTIME, st):
            code = ctypes.get_errno()
            if code == errno.ENOENT:
                return None
            raise OSError(code, os.strerror(code))
        names, owner, mode, inode, size, blocks, born, born_ns = _stat.unpack_from(st)
        return File(Identity(inode, born * 1_000_000_000 + born_ns), mode, owner, size, 512 * blocks, names)

    def open(self, name: str, how: int) -> tuple[int, File] | None:
        """A descriptor, the caller's to close; None: there is no such file."""
        fd = self.open_any(name, how)
        if fd is None:
            return None
        try:
            f = self.described(fd)
            f.check()
        except BaseException:
            os.close(fd)
            raise
        return fd, f

    def open_any(self, name: str, how: int) -> int | None:
        """The same for whatever has a name and is no directory, link or device."""
        try:
            # Not blocking, so that a pipe in its place holds nobody up.
            return os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            # The name was there until now, and its writer has a lease while it looks whether the file is free.
            raise Busy("another process had the file leased") from None
        except OSError as e:
            if e.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise BadKey("what has this name is no regular file") from None
            raise full(e) from None

    def create(self) -> int:
        """A file without a name, which goes with its descriptor unless it is linked."""
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        except OSError as e:
            raise full(e) from None

    def link(self, fd: int, name: str) -> None:
        """Give a file its name. Raises FileExistsError if that is taken."""
        try:
            # With a directory's descriptor Python follows the link to the file.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as e:
            raise full(e) from None

    def unlink(self, name: str) -> bool:
        """Remove a name. False: there is none."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True


def write_all(fd: int, pieces: Sequence[Buffer]) -> None:
    """Write all pieces, one behind the other, from the beginning of the file on."""
    left, at = list(pieces), 0
    while left:
        try:
            n = os.pwritev(fd, left[:_PIECES], at)
        except OSError as e:
            raise full(e) from None
        at += n
        whole = 0
        while whole < len(left) and n >= len(left[whole]):
            n -= len(left[whole])
            whole += 1
        del left[:whole]
        if n:
            left[0] = memoryview(left[0])[n:]


def read_all(fd: int, size: int) -> bytes:
    """Read so many bytes from the file's beginning. The file is never mapped: it may be cut short."""
    whole = os.pread(fd, size, 0)
    if len(whole) < size:
        rest, at = [whole], len(whole)
        while at < size:
            piece = os.pread(fd, size - at, at)
            if not piece:
                raise Damaged(f"the segment has {at} bytes of {size}")
            rest.append(piece)
            at += len(piece)
        whole = b"".join(rest)
    return whole


class Lock:
    """A lock file that this process has locked. The kernel unlocks it when the process dies."""

    def __init__(self, directory: Directory, name: str, fd: int, linked: bool) -> None:
        """Lock a file, which is closed if that fails. Raises Busy when somebody else has it."""
        self.directory = directory
        self.name = name
        self.linked = linked
        self._fd = fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            f = directory.described(fd)
            if linked:
                f.check()
                # A consumer removes the file with the segment: whoever locks it after that has
                # locked nothing.
                if not f.names:
                    raise Busy("the lock was removed just now")
        except BlockingIOError:
            os.close(fd)
            raise Busy("another process holds the lock") from None
        except BaseException:
            os.close(fd)
            raise
        self.identity = f.identity

    @classmethod
    def of(cls, directory: Directory, name: str) -> Lock | None:
        """Lock an existing file; None: there is none."""
        fd = directory.open_any(name, os.O_RDWR)
        return None if fd is None else cls(directory, name, fd, True)

    @classmethod
    def new(cls, directory: Directory, name: str) -> Lock:
        """A locked file that has no name yet."""
        return cls(directory, name, directory.create(), False)

    def link(self) -> None:
        """Give the file its name. Raises FileExistsError if there is one already."""
        if not self.linked:
            self.directory.link(self._fd, self.name)
            self.linked = True

    def remove(self) -> None:
        self.directory.unlink(self.name)

    def release(self) -> None:
        """Unlock. A child that was forked meanwhile has the descriptor too, and no lock."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Inotify:
    """Tells what has changed, of files and in directories. Where the system has no watch left it tells nothing.

    It lasts: the kernel takes milliseconds to close one.
    """

    def __init__(self) -> None:
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  #: that is readable when there is something to tell

    def add(self, path: str, changes: int) -> int:
        """Watch a file too, or a directory. Returns the number of the error, 0 if there is none."""
        if self.fd < 0:
            return errno.EBADF
        return ctypes.get_errno() if _libc.inotify_add_watch(self.fd, os.fsencode(path), changes) < 0 else 0

    def names(self) -> set[bytes]:
        """What has changed in directories; an empty name for a file, and for what nobody knows any more."""
        try:
            events = os.read(self.fd, _EVENT_BYTES) if self.fd >= 0 else b""
        except BlockingIOError:
            return set()
        names, at = set(), 0
        while at < len(events):
            _wd, _mask, _cookie, size = _event.unpack_from(events, at)
            at += _event.size + size
            names.add(events[at - size : at].rstrip(b"\0"))
        return names

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Watch:
    """Tells one thread when files of a directory come to be, or that it need not wait any more."""

    def __init__(self, directory: Directory) -> None:
        self.abandoned = False
        self._inotify = Inotify()
        if self._inotify.add(directory.path, _IN_APPEARS):
            self._inotify.close()
        self._poll = select.poll()
        try:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # the process has no descriptor left: it naps
            self._wake = -1
            self._inotify.close()
        if self._inotify.fd >= 0:
            self._poll.register(self._wake, select.POLLIN)
            self._poll.register(self._inotify.fd, select.POLLIN)

    def __del__(self) -> None:
        if self._wake >= 0:
            os.close(self._wake)

    def abandon(self) -> None:
        """Have the thread wait no more. From any thread."""
        self.abandoned = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _woken(self) -> bool:
        try:
            return self._wake >= 0 and os.eventfd_read(self._wake) > 0
        except BlockingIOError:
            return False

    def clear(self) -> None:
        """Forget what has come to be until now."""
        self.abandoned = False
        while self._inotify.names() or self._woken():
            pass

    def wait(self, names: tuple[str, ...], deadline: float) -> bool | None:
        """Wait until there is something new under one of the names. False: the time is up. None: nobody would tell."""
        if self._inotify.fd < 0:
            return None
        wanted = {os.fsencode(name) for name in names}
        while (left := deadline - time.monotonic()) > 0:
            if self._poll.poll(poll_millis(left)):
                new = self._inotify.names()
                if self._woken() or not wanted.isdisjoint(new) or b"" in new:
                    return True
        return False


class Waits:
    """The threads that wait for a key."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._own = threading.local()  # a Watch for each thread that has waited
        self._mu = threading.Lock()
        self._keys: dict[Watch, str] = {}

    @contextlib.contextmanager
    def of(self, key: str) -> Iterator[Watch]:
        """The watch of this thread, which waits for the key meanwhile."""
        watch: Watch | None = getattr(self._own, "watch", None)
        if watch is None:
            watch = self._own.watch = Watch(self._directory)
        watch.clear()
        with self._mu:
            self._keys[watch] = key
        try:
            yield watch
        finally:
            with self._mu:
                del self._keys[watch]

    def close(self) -> None:
        """Let the watches go, whose descriptors are not left to a collection."""
        self._own = threading.local()

    def abandon(self, key: str) -> None:
        """Have the threads that wait for the key wait no more."""
        with self._mu:
            for watch in [watch for watch, of in self._keys.items() if of == key]:
                watch.abandon()


def poll_millis(seconds: float) -> float:
    """What poll waits for so many seconds, of which there may be more than it takes: whoever waits looks again."""
    # A millisecond more, or it would wake up a little too early.
    return min(seconds, _LONGEST_POLL_SECONDS) * 1000 + 1


class Nap:
    """Short sleeps, until a time: a lock in the hands of another process tells nobody."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._next = 50e-6

    def take(self) -> bool:
        """Sleep. False: the time is up."""
        left = self._deadline - time.monotonic()
        if not left > 0:
            return False
        time.sleep(min(left, self._next))
        self._next = min(2 * self._next, 2e-3)
        return True
