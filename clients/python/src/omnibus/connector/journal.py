"""A journal of the files in /dev/shm that this process would leave if it died now.

A journal is a file of slots of 1,024 bytes, each empty or with a record, a line of text::

    p 1234 1700000000000000000 1235 1700000000000000001 "key"

`p` is for a segment that was put: the segment and its lock are removed. `g` is for a segment that is being got: its
lock is removed if the segment is gone. The numbers are inode and birth time of the segment, and of its lock. The journal
is locked while its process lives. The next process that opens a journal removes the files that the journals of dead
processes name. The Go package connector/segment has the same format in the same directory, so each sweeps for the other.

A value that outlives its process, as of `omnibus connector put`, has a note beside the journals: a file of two lines.
The second is the record, and the first has its expiry, in nanoseconds of Unix time::

    l 1800000000000000000 "key"

Beside them are the second names of pooled files, `spare-JOURNAL-n`: see `file_pool`. One whose journal is missing is
removed.
"""

from __future__ import annotations

import ast
import errno
import fcntl
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from ..errors import OmnibusError
from .contract import BadKey, Busy, Unavailable, check_key
from .shm_files import Directory, Identity, Lock, Backoff, as_no_room

log = logging.getLogger("omnibus")

SLOT_BYTES = 1024
PUTTING, GETTING = "p", "g"
NO_FILE = Identity(0, 0)  #: the identity of no file

_NOTE = "lasting-"  # the prefix of notes
SPARE_PREFIX = "spare-"  # the prefix of second names
_SPARE = re.compile(rf"{SPARE_PREFIX}(.+)-[0-9]+", re.DOTALL)
_NOTE_BYTES = 8192  # more than any note has
_UNTIL = re.compile(rb"l (\d{1,19}) ")
_RETRY_SECONDS = 0.1  # a lock is held for the time of a copy, unless its process is stopped
_READ_SLOTS = 64  # per read
_QUOTED = re.compile(r'"([^"\\]|\\.)*"')
_MAX_ATTEMPTS = 16  # other processes may remove the directory between two steps


class Record(NamedTuple):
    """The files to be removed for one value."""

    purpose: str
    name: str
    segment: Identity
    lock: Identity

    def encode(self) -> bytes:
        quoted = self.name.replace("\\", "\\\\").replace('"', '\\"')
        (inode, born), (lock, lock_born) = self.segment, self.lock
        return f'{self.purpose} {inode} {born} {lock} {lock_born} "{quoted}"\n'.encode()

    @classmethod
    def parse(cls, slot: bytes) -> Record | None:
        """The record of a slot; None: the slot is empty, or its write was not finished."""
        line, end, _ = slot.partition(b"\n")
        try:
            purpose, si, sb, li, lb, quoted = line.decode().split(" ", 5)
            name = ast.literal_eval(quoted) if _QUOTED.fullmatch(quoted) else None
            r = cls(purpose, check_name(check_key(name)), Identity(int(si), int(sb)), Identity(int(li), int(lb)))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return r if end and purpose in (PUTTING, GETTING) else None


def lock_name(name: str) -> str:
    """The name of the file whose lock guards a segment."""
    return f"shm_{name}_lockfile.lock"


def check_name(key: str) -> str:
    """The key. Raises BadKey if another kind of file in the directory could have the name."""
    if key.startswith(".") or key.startswith("sem."):
        raise BadKey(f"{key[:64]!r}: a segment's name does not begin with a dot, nor as those of semaphores do")
    if key.startswith("shm_") and key.endswith("_lockfile.lock"):
        raise BadKey(f"{key[:64]!r} is the name of a lock")
    return key


def remove_recorded(directory: Directory, r: Record, is_it: Callable[[], bool] = lambda: True) -> None:
    """Remove the files of a record that still exist and have its identities.

    `is_it` returns False if the file holds another value by now, for a caller that reuses files.
    Raises Busy if a living process has the segment locked.
    """
    try:
        lock = Lock.open(directory, lock_name(r.name))
    except BadKey:
        lock = None  # the file is no lock, or another user's
    try:
        now = directory.lookup(r.name)
        if now is not None and r.purpose == PUTTING and now.identity == r.segment and is_it():
            directory.unlink(r.name)
            now = None
        if now is None and lock is not None and lock.identity == r.lock:
            lock.remove()
    finally:
        if lock is not None:
            lock.release()


def remove_segment(directory: Directory, name: str) -> None:
    """Remove a segment and its lock, if they exist. Raises Busy if a living process has the segment locked."""
    there = [directory.lookup(n) for n in (check_name(name), lock_name(name))]
    for f in there:
        if f is not None:
            f.check()
    remove_recorded(directory, Record(PUTTING, name, *(NO_FILE if f is None else f.identity for f in there)))


class Journal:
    """The journal of this process. Safe from any thread."""

    def __init__(self, directory: Directory) -> None:
        """Create a journal. It is locked before it has a name, so that no sweep takes it for a dead process's."""
        self._directory = directory
        self._mu = threading.Lock()
        self._free: list[int] = []
        self._slots = 0
        self._unswept = False
        self.journals, self.name, self._fd = _create_journal(directory)
        _journals.add(self)

    def add(self, r: Record) -> int:
        """Write a record, and return its slot."""
        with self._mu:
            if self._free:
                slot = self._free.pop()
            else:
                slot = self._slots
                self._slots += 1
        try:
            os.pwrite(self._fd, r.encode(), slot * SLOT_BYTES)
        except OSError as e:
            self.clear_slot(slot)
            raise as_no_room(e) from None
        return slot

    def clear_slot(self, slot: int) -> None:
        """Empty a slot, and free it for another record."""
        try:
            os.pwrite(self._fd, b"\n", slot * SLOT_BYTES)
        except OSError:
            pass  # the files of the stale record are gone, so it has no effect
        self.release_slot(slot)

    def release_slot(self, slot: int) -> None:
        """Free a slot without a write: its files are gone, and no other file has their identities."""
        with self._mu:
            self._free.append(slot)

    def sweep(self) -> None:
        """Remove the files that dead processes have left.

        A file that a living process has locked is retried for _RETRY_SECONDS, and then when this journal is closed, or
        when another is opened.
        """
        backoff = Backoff(time.monotonic() + _RETRY_SECONDS)
        left = self._sweep_once()
        while self._is_locked(left) and backoff.sleep():
            left = self._sweep_once()
        self._unswept = self._is_locked(left)
        self._log_leftovers(left)

    def _sweep_once(self, begins: str = "") -> list[Exception]:
        """Sweep once, the names with a prefix, and return the errors."""
        try:
            names = os.listdir(self.journals.fd)
        except OSError as e:
            return [e]
        left: list[Exception] = []
        # Second names come last, when the journals of dead processes are removed.
        for name in sorted(names, key=lambda n: n.startswith(SPARE_PREFIX)):
            if name == self.name or not name.startswith(begins):
                continue
            try:
                if name.startswith(SPARE_PREFIX):
                    self._sweep_spare(name)
                else:
                    self._sweep_journal(name)
            except (OSError, OmnibusError) as e:
                left.append(e)
        return left

    @staticmethod
    def _is_locked(left: list[Exception]) -> bool:
        return any(isinstance(e, Busy) for e in left)

    def _log_leftovers(self, left: list[Exception]) -> None:
        for e in left:
            log.warning("segments of a dead process stay in %s: %s", self._directory.path, e)

    def _sweep_spare(self, name: str) -> None:
        # A journal exists before its second names, so a missing one was removed.
        of = _SPARE.fullmatch(name)
        if of and not self.journals.exists(of[1]):
            self.journals.unlink(name)

    def _sweep_journal(self, name: str) -> None:
        found = self.journals.open(name, os.O_RDWR)
        if found is None:
            return
        fd, f = found
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # its process lives
            now = self.journals.lookup(name)
            if now is None or now.identity != f.identity:
                return  # another process has swept it
            swept = 0
            if not name.startswith(_NOTE):
                swept = self._remove_all_recorded(fd)
            elif not self._note_expired(fd):
                return
            self.journals.unlink(name)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
        if swept:
            log.info("removed what a dead process left in %s", self._directory.path)

    def _note_expired(self, fd: int) -> bool:
        """Whether the value of a note is gone, or was removed here because it has expired."""
        line, _, record = os.pread(fd, _NOTE_BYTES, 0).partition(b"\n")
        until, r = _UNTIL.match(line), Record.parse(record)
        now = self._directory.lookup(r.name) if until and r else None
        if not until or not r or now is None or now.identity != r.segment:
            return True
        if not 0 < int(until[1]) <= time.time_ns():
            return False
        remove_recorded(self._directory, r)
        return True

    def _remove_all_recorded(self, fd: int) -> int:
        """Remove the files of a journal's records, and return the number of records. Raises the last error."""
        at, records = 0, 0
        left: Exception | None = None
        while piece := os.pread(fd, _READ_SLOTS * SLOT_BYTES, at):
            at += len(piece)
            for slot in range(0, len(piece), SLOT_BYTES):
                r = Record.parse(piece[slot : slot + SLOT_BYTES])
                if r is None:
                    continue
                records += 1
                try:
                    remove_recorded(self._directory, r)
                except (OSError, OmnibusError) as e:
                    left = e
        if left is not None:
            raise left
        return records

    def close(self, done: bool) -> None:
        """Close the journal. `done`: all its files are removed; otherwise the next process that opens a journal sweeps it."""
        if self._fd < 0:
            return
        self._log_leftovers(self._sweep_once("" if self._unswept else _NOTE))  # and the notes of values that were got here
        if done:
            self.journals.unlink(self.name)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.close_descriptors()
        try:
            os.rmdir(journals_name(), dir_fd=self._directory.fd)
        except OSError:
            pass  # other journals are in it

    def close_descriptors(self) -> None:
        """Close the descriptors. In a forked child they would keep the parent's journal locked."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.journals.close()


def journals_name() -> str:
    """The directory of this user's journals. No segment's name begins with a dot."""
    return f".omnibus-{os.geteuid()}"


def _create_journal(directory: Directory) -> tuple[Directory, str, int]:
    for _ in range(_MAX_ATTEMPTS):
        home = _open_journals(directory)
        if home is None:
            continue
        fd = -1
        try:
            fd = home.create()
            name = f"{os.getpid()}-{os.fstat(fd).st_ino}"
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            home.link(fd, name)
            return home, name, fd
        except BaseException as e:
            if fd >= 0:
                os.close(fd)
            home.close()
            if isinstance(e, FileNotFoundError):
                continue
            if isinstance(e, OSError) and not isinstance(e, OmnibusError):
                raise _unavailable(e, home.path) from None
            raise
    raise Busy(f"{journals_name()} comes and goes")


def _unavailable(e: OSError, path: str) -> Exception:
    """The error of a journal that cannot be opened: no space, or no permission."""
    told = as_no_room(e)
    return Unavailable(f"the journal of segments, {path}: {e.strerror}") if told is e else told


def _open_journals(directory: Directory) -> Directory | None:
    path = os.path.join(directory.path, journals_name())
    try:
        os.mkdir(journals_name(), 0o700, dir_fd=directory.fd)
    except FileExistsError:
        pass
    except OSError as e:
        raise _unavailable(e, path) from None
    try:
        fd = os.open(journals_name(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
    except FileNotFoundError:
        return None
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENOTDIR):
            raise BadKey(f"{path} is no directory") from None
        raise _unavailable(e, path) from None
    home = Directory(path, fd)
    f = home.fstat(fd)
    if f.owner != os.geteuid() or f.mode & 0o077:
        home.close()
        raise BadKey(f"{path} is not this user's alone")
    return home


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _forked() -> None:
    for j in list(_journals):
        j.close_descriptors()


os.register_at_fork(after_in_child=_forked)
