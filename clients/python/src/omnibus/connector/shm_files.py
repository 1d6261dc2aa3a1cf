"""Files in /dev/shm that appear complete, and are not mistaken for other files.

A file is created without a name, written, and then linked. An `Identity` distinguishes it from all other files that have
had its name. Files of other users are refused, and links are not followed.
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
_NO_SPACE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_IN_APPEARED = 0x8 | 0x80 | 0x100  # written and closed, moved to, created
_EVENT_BYTES = 1 << 16
_event = struct.Struct("iIII")
_MAX_POLL_SECONDS = 3600.0
_MAX_PIECES = 1024  # of one system call


# A struct statx: links, owner, mode, inode, size, blocks of 512 bytes, and the seconds and nanoseconds of its birth.
# One unpack, since ctypes creates an object for each field that is read.
_stat = struct.Struct("@16xII4xH2xQQQ24xqI")
_Stat: Any = ctypes.c_char * 256

_libc = ctypes.CDLL(None, use_errno=True)
_statx = _libc.statx  # without argtypes, which take longer than the call: all arguments have the right types


class Identity(NamedTuple):
    """Identifies a file, independently of its names."""

    inode: int
    birth_ns: int  # 0 if the kernel does not report it


class File(NamedTuple):
    """The attributes of a file."""

    identity: Identity
    mode: int
    owner: int
    size: int
    allocated_bytes: int  #: of memory
    links: int

    def check(self) -> None:
        """Raise BadKey unless it is a regular file of this user."""
        if not stat.S_ISREG(self.mode):
            raise BadKey("what has this name is no regular file")
        if self.owner != os.geteuid():
            raise BadKey(f"what has this name belongs to user {self.owner}")


def as_no_room(e: OSError) -> Exception:
    """NoRoom for an error that reports a lack of space or descriptors; else the error."""
    if e.errno not in _NO_SPACE_ERRNOS:
        return e
    if e.errno in (errno.EMFILE, errno.ENFILE):
        return NoRoom(f"no room: {e.strerror}: raise the limit of this process (ulimit -n)")
    return NoRoom(f"no room: {e.strerror}: make /dev/shm larger, or remove what lies there")


class Directory:
    """The directory of segments and their locks."""

    def __init__(self, path: str = "/dev/shm", fd: int | None = None) -> None:
        """`fd` is its open descriptor, which this object closes. Raises Unavailable and NoRoom."""
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if fd is None else fd
        except OSError as e:
            if e.errno in _NO_SPACE_ERRNOS:
                raise as_no_room(e) from None
            raise Unavailable(f"{path}: {e.strerror}") from None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def lookup(self, name: str) -> File | None:
        """The file with a name; None: there is none."""
        return self._describe(self.fd, os.fsencode(name), _AT_SYMLINK_NOFOLLOW)

    def inode(self, name: str) -> int | None:
        """The inode of the file with a name; None: there is none. It differs from that of any other open file."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Whether a file has the name. The cheapest check for a file that is mostly gone."""
        return os.access(name, os.F_OK, dir_fd=self.fd, follow_symlinks=False)

    def is_current(self, fd: int, name: str, seen: File) -> bool:
        """Whether the open file is the one that was seen under a name, and still has it. It may have a second name, as in
        `file_pool`."""
        now = os.fstat(fd)
        if now.st_ino != seen.identity.inode:
            return False
        return now.st_nlink == seen.links or self.inode(name) == now.st_ino

    def fstat(self, fd: int) -> File:
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
        names, owner, mode, inode, size, blocks, born, birth_ns = _stat.unpack_from(st)
        return File(Identity(inode, born * 1_000_000_000 + birth_ns), mode, owner, size, 512 * blocks, names)

    def open(self, name: str, how: int) -> tuple[int, File] | None:
        """A descriptor, the caller's to close; None: there is no such file."""
        fd = self.open_non_directory(name, how)
        if fd is None:
            return None
        try:
            f = self.fstat(fd)
            f.check()
        except BaseException:
            os.close(fd)
            raise
        return fd, f

    def open_non_directory(self, name: str, how: int) -> int | None:
        """Like `open`, for any file but a directory, link or device, and without its attributes."""
        try:
            # O_NONBLOCK, so that a pipe of that name does not block the call.
            return os.open(name, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            # The file lost the name just now, and its writer holds a lease while it checks that the file is free.
            raise Busy("another process had the file leased") from None
        except OSError as e:
            if e.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise BadKey("what has this name is no regular file") from None
            raise as_no_room(e) from None

    def create(self) -> int:
        """Create a file without a name. It ends with its descriptor unless it is linked."""
        try:
            return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        except OSError as e:
            raise as_no_room(e) from None

    def link(self, fd: int, name: str) -> None:
        """Give a file its name. Raises FileExistsError if the name exists."""
        try:
            # Python follows the link only if a directory's descriptor is passed.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as e:
            raise as_no_room(e) from None

    def unlink(self, name: str) -> bool:
        """Remove a name. False: there is none."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True


def write_all(fd: int, pieces: Sequence[Buffer]) -> None:
    """Write all pieces in order, from the start of the file."""
    left, at = list(pieces), 0
    while left:
        try:
            n = os.pwritev(fd, left[:_MAX_PIECES], at)
        except OSError as e:
            raise as_no_room(e) from None
        at += n
        whole = 0
        while whole < len(left) and n >= len(left[whole]):
            n -= len(left[whole])
            whole += 1
        del left[:whole]
        if n:
            left[0] = memoryview(left[0])[n:]


def read_all(fd: int, size: int) -> bytes:
    """Read so many bytes from the start of the file. The file is never mapped, since it may be truncated."""
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
        """Lock a file, and close it if that fails. Raises Busy if another process holds the lock."""
        self.directory = directory
        self.name = name
        self.linked = linked
        self._fd = fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            f = directory.fstat(fd)
            if linked:
                f.check()
                # A consumer removes the file with the segment. A lock on a removed file guards nothing.
                if not f.links:
                    raise Busy("the lock was removed just now")
        except BlockingIOError:
            os.close(fd)
            raise Busy("another process holds the lock") from None
        except BaseException:
            os.close(fd)
            raise
        self.identity = f.identity

    @classmethod
    def open(cls, directory: Directory, name: str) -> Lock | None:
        """Lock an existing file; None: the file does not exist."""
        fd = directory.open_non_directory(name, os.O_RDWR)
        return None if fd is None else cls(directory, name, fd, True)

    @classmethod
    def create(cls, directory: Directory, name: str) -> Lock:
        """Create a locked file without a name."""
        return cls(directory, name, directory.create(), False)

    def link(self) -> None:
        """Give the file its name. Raises FileExistsError if the name exists."""
        if not self.linked:
            self.directory.link(self._fd, self.name)
            self.linked = True

    def remove(self) -> None:
        self.directory.unlink(self.name)

    def release(self) -> None:
        """Unlock explicitly: a child that was forked meanwhile has the descriptor, too, and would keep the lock."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Inotify:
    """Reports changes of files and in directories. Without a watch left in the system it reports none.

    It is kept open, since the kernel takes milliseconds to close one.
    """

    def __init__(self) -> None:
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  #: readable when there are events

    def add(self, path: str, changes: int) -> int:
        """Also watch a file or a directory. Returns the errno, 0 without an error."""
        if self.fd < 0:
            return errno.EBADF
        return ctypes.get_errno() if _libc.inotify_add_watch(self.fd, os.fsencode(path), changes) < 0 else 0

    def changed_names(self) -> set[bytes]:
        """The names that have changed in directories; an empty name for a watched file, and for lost events."""
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
    """Wakes one thread when a file appears in a directory, or when its wait is abandoned."""

    def __init__(self, directory: Directory) -> None:
        self.abandoned = False
        self._inotify = Inotify()
        if self._inotify.add(directory.path, _IN_APPEARED):
            self._inotify.close()
        self._poll = select.poll()
        try:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:  # the process has no descriptor left: the caller polls
            self._wake = -1
            self._inotify.close()
        if self._inotify.fd >= 0:
            self._poll.register(self._wake, select.POLLIN)
            self._poll.register(self._inotify.fd, select.POLLIN)

    def __del__(self) -> None:
        if self._wake >= 0:
            os.close(self._wake)

    def abandon(self) -> None:
        """End the wait. From any thread."""
        self.abandoned = True
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    def _read_wake(self) -> bool:
        try:
            return self._wake >= 0 and os.eventfd_read(self._wake) > 0
        except BlockingIOError:
            return False

    def clear(self) -> None:
        """Discard the events until now."""
        self.abandoned = False
        while self._inotify.changed_names() or self._read_wake():
            pass

    def wait(self, names: tuple[str, ...], deadline: float) -> bool | None:
        """Wait until a file with one of the names appears. False: the deadline has passed. None: there are no events, so poll."""
        if self._inotify.fd < 0:
            return None
        wanted = {os.fsencode(name) for name in names}
        while (left := deadline - time.monotonic()) > 0:
            if self._poll.poll(poll_millis(left)):
                new = self._inotify.changed_names()
                if self._read_wake() or not wanted.isdisjoint(new) or b"" in new:
                    return True
        return False


class Watches:
    """The watches of the waiting threads, by key."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._own = threading.local()  # a Watch for each thread that has waited
        self._mu = threading.Lock()
        self._keys: dict[Watch, str] = {}

    @contextlib.contextmanager
    def watching(self, key: str) -> Iterator[Watch]:
        """The watch of this thread, registered for the key inside the `with`."""
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
        """Drop the watches at once, so that their descriptors do not wait for a garbage collection."""
        self._own = threading.local()

    def abandon(self, key: str) -> None:
        """End the waits for the key."""
        with self._mu:
            for watch in [watch for watch, of in self._keys.items() if of == key]:
                watch.abandon()


def poll_millis(seconds: float) -> float:
    """The timeout of poll in milliseconds, bounded by _MAX_POLL_SECONDS: the caller checks its deadline and polls again."""
    # One millisecond more, since poll may round down and return early.
    return min(seconds, _MAX_POLL_SECONDS) * 1000 + 1


class Backoff:
    """Sleeps of growing length, until a deadline, for a condition without events, such as a lock of another process."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._next = 50e-6

    def sleep(self) -> bool:
        """Sleep. False: the deadline has passed."""
        left = self._deadline - time.monotonic()
        if not left > 0:
            return False
        time.sleep(min(left, self._next))
        self._next = min(2 * self._next, 2e-3)
        return True
