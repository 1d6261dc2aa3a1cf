"""What would be left in /dev/shm if this process died now, written down beforehand.

A journal is a file of slots of 1,024 bytes, each empty or with a record, a line of text::

    p 1234 1700000000000000000 1235 1700000000000000001 "key"

`p` is for a segment that was put: it and its lock are the writer's to remove. `g` is for one
that is being got: its lock is, once the segment is gone. The numbers are inode and time of birth
of the segment, and of its lock. The journal is locked while its process lives; whoever opens one
next does what the dead have left to do. The Go package connector/segment has the same format in
the same place, so each sweeps behind the other.

Of what was put to outlive its process, as `omnibus connector put` does, there is a note beside the journals: a file of
two lines, of which the second is the record, and the first says until when it may lie, in nanoseconds of Unix time::

    l 1800000000000000000 "key"

Beside them are second names of files that their process may use again, `spare-JOURNAL-n`: see `spares`. One is
nobody's when its journal is gone.
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
from .files import Directory, Identity, Lock, Nap, full

log = logging.getLogger("omnibus")

SLOT_BYTES = 1024
PUTTING, GETTING = "p", "g"
NEVER = Identity(0, 0)  #: what there is none of

_NOTE = "lasting-"  # begins the names of notes
SPARE = "spare-"  # begins second names
_SPARE = re.compile(rf"{SPARE}(.+)-[0-9]+", re.DOTALL)
_NOTE_BYTES = 8192  # more than one has
_UNTIL = re.compile(rb"l (\d{1,19}) ")
_PATIENCE_SECONDS = 0.1  # locks are held for as long as a copy takes, unless who has one is stopped
_PIECE_SLOTS = 64  # that are read at once
_QUOTED = re.compile(r'"([^"\\]|\\.)*"')
_COMES_AND_GOES = 16  # how often others may take the directory away


class Record(NamedTuple):
    """What is to be removed."""

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
        """The record of a slot; None: it is empty, or was never finished."""
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
    """The key, unless it would name something else in the directory than a segment."""
    if key.startswith(".") or key.startswith("sem."):
        raise BadKey(f"{key[:64]!r}: a segment's name does not begin with a dot, nor as those of semaphores do")
    if key.startswith("shm_") and key.endswith("_lockfile.lock"):
        raise BadKey(f"{key[:64]!r} is the name of a lock")
    return key


def settle(directory: Directory, r: Record, is_it: Callable[[], bool] = lambda: True) -> None:
    """Remove what a record is about, as far as it is still there, and is it.

    `is_it`: whoever may have put another value in the same file since the record says whether it has not.
    Raises Busy when a living process has it locked.
    """
    try:
        lock = Lock.of(directory, lock_name(r.name))
    except BadKey:
        lock = None  # what has the lock's name is none, and not ours
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


def remove(directory: Directory, name: str) -> None:
    """Remove a segment and its lock, if they are there. Raises Busy when a living process has it locked."""
    there = [directory.lookup(n) for n in (check_name(name), lock_name(name))]
    for f in there:
        if f is not None:
            f.check()
    settle(directory, Record(PUTTING, name, *(NEVER if f is None else f.identity for f in there)))


class Journal:
    """The journal of this process. Safe from any thread."""

    def __init__(self, directory: Directory) -> None:
        """Make a journal. It is locked before it has a name, so that nobody takes it for a dead one's."""
        self._directory = directory
        self._mu = threading.Lock()
        self._free: list[int] = []
        self._slots = 0
        self._unswept = False
        self.home, self.name, self._fd = _make(directory)
        _journals.add(self)

    def add(self, r: Record) -> int:
        """Write a record to a slot, and return that."""
        with self._mu:
            if self._free:
                slot = self._free.pop()
            else:
                slot = self._slots
                self._slots += 1
        try:
            os.pwrite(self._fd, r.encode(), slot * SLOT_BYTES)
        except OSError as e:
            self.clear(slot)
            raise full(e) from None
        return slot

    def clear(self, slot: int) -> None:
        """Empty a slot, for the next record."""
        try:
            os.pwrite(self._fd, b"\n", slot * SLOT_BYTES)
        except OSError:
            pass  # it names something that is gone: nothing comes of it
        self.release(slot)

    def release(self, slot: int) -> None:
        """Leave a slot to the next record, as it is: what it names is gone, and nothing else is ever taken for that."""
        with self._mu:
            self._free.append(slot)

    def sweep(self) -> None:
        """Do what the dead have left to do.

        What a living process has locked just now is tried again for a moment, and waits then until this is closed, or
        for the next who opens.
        """
        nap = Nap(time.monotonic() + _PATIENCE_SECONDS)
        left = self._sweep()
        while self._is_locked(left) and nap.take():
            left = self._sweep()
        self._unswept = self._is_locked(left)
        self._tell(left)

    def _sweep(self, begins: str = "") -> list[Exception]:
        """Do so once, for names that begin so, and return what kept it from being done."""
        try:
            names = os.listdir(self.home.fd)
        except OSError as e:
            return [e]
        left: list[Exception] = []
        # Spares come last: the journals of the dead are gone then.
        for name in sorted(names, key=lambda n: n.startswith(SPARE)):
            if name == self.name or not name.startswith(begins):
                continue
            try:
                if name.startswith(SPARE):
                    self._sweep_spare(name)
                else:
                    self._sweep_one(name)
            except (OSError, OmnibusError) as e:
                left.append(e)
        return left

    @staticmethod
    def _is_locked(left: list[Exception]) -> bool:
        return any(isinstance(e, Busy) for e in left)

    def _tell(self, left: list[Exception]) -> None:
        for e in left:
            log.warning("segments of a dead process stay in %s: %s", self._directory.path, e)

    def _sweep_spare(self, name: str) -> None:
        # Its journal was there before it was: one that is not there now is gone.
        of = _SPARE.fullmatch(name)
        if of and not self.home.has(of[1]):
            self.home.unlink(name)

    def _sweep_one(self, name: str) -> None:
        found = self.home.open(name, os.O_RDWR)
        if found is None:
            return
        fd, f = found
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # it lives
            now = self.home.lookup(name)
            if now is None or now.identity != f.identity:
                return  # somebody else has swept it
            swept = 0
            if not name.startswith(_NOTE):
                swept = self._settle_all(fd)
            elif not self._is_over(fd):
                return
            self.home.unlink(name)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
        if swept:
            log.info("removed what a dead process left in %s", self._directory.path)

    def _is_over(self, fd: int) -> bool:
        """Whether the value of a note is gone, of itself or because its time is over."""
        line, _, record = os.pread(fd, _NOTE_BYTES, 0).partition(b"\n")
        until, r = _UNTIL.match(line), Record.parse(record)
        now = self._directory.lookup(r.name) if until and r else None
        if not until or not r or now is None or now.identity != r.segment:
            return True
        if not 0 < int(until[1]) <= time.time_ns():
            return False
        settle(self._directory, r)
        return True

    def _settle_all(self, fd: int) -> int:
        """Do what a journal has left to do, and return how many records it had. Raises what kept one from being done."""
        at, records = 0, 0
        left: Exception | None = None
        while piece := os.pread(fd, _PIECE_SLOTS * SLOT_BYTES, at):
            at += len(piece)
            for slot in range(0, len(piece), SLOT_BYTES):
                r = Record.parse(piece[slot : slot + SLOT_BYTES])
                if r is None:
                    continue
                records += 1
                try:
                    settle(self._directory, r)
                except (OSError, OmnibusError) as e:
                    left = e
        if left is not None:
            raise left
        return records

    def close(self, done: bool) -> None:
        """Give it up. `done`: nothing in it is left to do; otherwise the next who opens sweeps it."""
        if self._fd < 0:
            return
        self._tell(self._sweep("" if self._unswept else _NOTE))  # notes of what was got here
        if done:
            self.home.unlink(self.name)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.forget()
        try:
            os.rmdir(journals_name(), dir_fd=self._directory.fd)
        except OSError:
            pass  # others have theirs there

    def forget(self) -> None:
        """Close the descriptors. In a forked child they would keep the parent's journal locked."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self.home.close()


def journals_name() -> str:
    """The directory of this user's journals. No segment's name begins with a dot."""
    return f".omnibus-{os.geteuid()}"


def _make(directory: Directory) -> tuple[Directory, str, int]:
    for _ in range(_COMES_AND_GOES):
        home = _home(directory)
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
    """What a journal cannot be opened for: no room, or no leave to write."""
    told = full(e)
    return Unavailable(f"the journal of segments, {path}: {e.strerror}") if told is e else told


def _home(directory: Directory) -> Directory | None:
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
    f = home.described(fd)
    if f.owner != os.geteuid() or f.mode & 0o077:
        home.close()
        raise BadKey(f"{path} is not this user's alone")
    return home


_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _forked() -> None:
    for j in list(_journals):
        j.forget()


os.register_at_fork(after_in_child=_forked)
