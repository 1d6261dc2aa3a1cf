"""The formats in which vLLM-Omni's SharedMemoryConnector exchanges values on one machine.

Generation 2, since vLLM-Omni 0.14: the payload lies in /dev/shm in a file named by its key, and a
lock file beside it is locked while it is written or read. Generation 1: small payloads travel in the
metadata, others lie in segments with names that mean nothing. Whichever is put, both are
got, and a segment with its lock is removed by whoever gets it.

Beyond that:

- A segment appears when it is whole.
- It is read, never mapped: whoever made it may cut it short at any time.
- Files are used again, once nobody can have them any more: see `spares`.
- A process that dies leaves nothing for good: see `journal`.
- Each process has its own accounts; what a forked child inherits is the parent's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ..errors import OmnibusError
from ..omni.encoder import Encoded
from . import files
from .address import locate, round_up
from .contract import Busy, Damaged, Decode, Edge, Missing, NoRoom, setting
from .files import Directory, Lock, Nap, Waits
from .journal import GETTING, NEVER, PUTTING, Journal, Record, check_name, lock_name, remove, settle
from .spares import REST_SECONDS, Spare, Spares
from .sweeper import Sweeper

log = logging.getLogger("omnibus")

_T = TypeVar("_T")

BY_METADATA, BY_KEY = 1, 2

_REAPED_A_PUT = 2
_REAPED = 64
_TTL = 600.0
_SOON = 5e-3  # to look again at what somebody has locked


class _Put(NamedTuple):
    """A value that was put here. Nobody says when it has been got."""

    record: Record
    edge: Edge
    key: str
    slot: int
    file: Spare
    size: int
    at: float


class Segments:
    """A transport over the segments of /dev/shm."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._generation = setting(config, "generation", BY_KEY)
        self._timeout = setting(config, "timeout", 30.0)
        self._ttl = setting(config, "ttl", _TTL)
        self._path = setting(config, "dir", "/dev/shm")
        self._closed = False
        self._open()

    def _open(self) -> None:
        self._mu = threading.Lock()
        self._held: OrderedDict[str, _Put] = OrderedDict()  # by the name of the segment
        self._directory = Directory(self._path)
        self._waits = Waits(self._directory)
        try:
            self._journal = Journal(self._directory)
        except BaseException:
            self._directory.close()
            raise
        self._journal.sweep()
        self._spares = Spares(self._directory, self._journal, self._gone)
        self._sweeper = Sweeper(self._tidy)
        self._users = 0
        self._pid = os.getpid()

    # Uses, which the end waits for.

    def __enter__(self) -> None:
        if self._closed:
            raise OmnibusError("the connector is closed")
        if os.getpid() != self._pid:  # a forked child: what was put is the parent's
            with _beginning:
                if os.getpid() != self._pid:  # still: another thread may have been here
                    self._spares.forget()
                    self._directory.close()
                    self._open()
        with self._mu:
            if self._closed:
                raise OmnibusError("the connector is closed")
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._mu:
            self._users -= 1
            last = self._closed and not self._users
        if last:
            try:
                self._end()
            except (OSError, OmnibusError) as e:
                log.warning("values stay in %s until somebody opens a connector: %s", self._path, e)

    # Putting.

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        with self:
            return self._put(edge, key, payload)

    def _put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        if self._generation == BY_KEY:
            check_name(key)
        file = self._spares.write(payload)
        p = None
        try:
            publish = self._publish if self._generation == BY_KEY else self._publish_anonymous
            p = self._patiently(lambda: publish(edge, key, file))
        finally:
            again = self._spares.put(file, p)
        self._sweeper.begin(min(self._ttl or REST_SECONDS, REST_SECONDS) if again else self._ttl)
        self._reap(_REAPED_A_PUT, newest=p.record.name)
        return {"shm": {"name": p.record.name, "size": payload.size}}

    def _publish(self, edge: Edge, key: str, file: Spare) -> _Put:
        """Give a segment its key for a name. Most keys are new: so a lock is made before one is looked for."""
        name = lock_name(key)
        try:
            return self._publish_under(Lock.new(self._directory, name), edge, key, file)
        except FileExistsError:
            lock = Lock.of(self._directory, name)
        if lock is None:
            raise Busy("another process had the lock until now")
        return self._publish_under(lock, edge, key, file)

    def _publish_under(self, held: Lock, edge: Edge, key: str, file: Spare) -> _Put:
        """Do so under a lock, which is released, in place of what had that name."""
        with held as lock:
            record = Record(PUTTING, key, file.segment, lock.identity)
            slot = self._journal.add(record)
            made = not lock.linked
            try:
                lock.link()
                try:
                    self._place(file, key)
                except BaseException:
                    if made:
                        lock.remove()
                    raise
            except BaseException:
                self._journal.clear(slot)
                raise
            return self._hold(_Put(record, edge, key, slot, file, file.size, time.monotonic()))

    def _place(self, file: Spare, name: str) -> None:
        for _ in range(16):
            try:
                self._spares.link(file, name)
                return
            except FileExistsError:
                now = self._directory.lookup(name)
                if now is not None:
                    now.check()
                    self._directory.unlink(name)
        raise Busy("somebody keeps making a segment of this name without its lock")

    def _publish_anonymous(self, edge: Edge, key: str, file: Spare) -> _Put:
        for _ in range(16):
            record = Record(PUTTING, "psm_" + secrets.token_hex(4), file.segment, NEVER)
            slot = self._journal.add(record)
            try:
                self._spares.link(file, record.name)
            except BaseException as e:
                self._journal.clear(slot)
                if not isinstance(e, FileExistsError):
                    raise
            else:
                return self._hold(_Put(record, edge, key, slot, file, file.size, time.monotonic()))
        raise Busy("all names are taken")

    def _hold(self, p: _Put) -> _Put:
        with self._mu:
            old = self._held.pop(p.record.name, None)
            self._held[p.record.name] = p
        if old is not None:
            self._journal.release(old.slot)
        return p

    # Getting.

    def get(self, edge: Edge, key: str, metadata: Any, decode: Decode, consume: bool = True) -> tuple[Any, int]:
        name, size = locate(key, metadata or {})
        with self:
            payload = self._spares.making_room(lambda: self._take(name, size, consume))
        return decode(payload, padded=not size), len(payload)

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        try:
            return self.get(edge, key, metadata, decode)
        except (Missing, Busy):
            pass  # then it is watched for, before the next look
        name = locate(key, metadata or {})[0]
        nap = Nap(deadline)
        with self._waits.of(key) as watch:
            while True:
                try:
                    return self.get(edge, key, metadata, decode)
                except Missing:
                    told = watch.wait((name, lock_name(name)), deadline)
                    if told is False or (told is None and not nap.take()) or watch.abandoned:
                        raise
                    if told:
                        nap = Nap(deadline)
                except Busy:
                    if not nap.take() or watch.abandoned:
                        raise

    def abandon(self, key: str) -> None:
        self._waits.abandon(key)

    def _take(self, name: str, size: int, consume: bool) -> bytes:
        """Read a segment under its lock, and remove both, if it is to be consumed.

        Without metadata (size 0) a segment that has no lock is not there: its writer may be at work. With them the
        writer has finished, and a lock may never have been, or be gone already: whoever unlinks the segment
        has got it.
        """
        lock = Lock.of(self._directory, lock_name(name))
        if lock is None and not size:
            raise Missing(name)
        try:
            return self._read(name, size, lock, consume)
        finally:
            if lock is not None:
                lock.release()

    def _read(self, name: str, size: int, lock: Lock | None, consume: bool) -> bytes:
        fd = self._directory.open_any(name, os.O_RDONLY)
        if fd is None:
            raise Missing(name)
        try:
            # No file that is open is used for another value. So if this has its name now, it is what is read.
            f = self._directory.lookup(name)
            if f is None:
                raise Missing(name)
            f.check()
            if not size and not f.size:
                raise Missing(name)  # its writer has died, or is none that locks
            if f.size not in (size or f.size, round_up(size)) or f.bytes < (size or f.size):
                raise Damaged(f"a segment of {f.size} bytes, {f.bytes} of them written, for {size or f.size}")
            payload = files.read_all(fd, size or f.size)
            if not self._directory.is_still(fd, name, f):
                raise Missing(name)  # somebody was faster
            if consume:
                self._consume(name, f.identity, lock)
            return payload
        finally:
            os.close(fd)

    def _consume(self, name: str, segment: files.Identity, lock: Lock | None) -> None:
        """Remove a segment, which is open, and its lock. Whoever dies between the two has recorded the lock.

        Where there is no room for that it does without: this makes some, and a connector that put it has recorded the lock.
        """
        slot = None
        if lock is not None:
            with contextlib.suppress(NoRoom):
                slot = self._journal.add(Record(GETTING, name, segment, lock.identity))
        try:
            if not self._directory.unlink(name):
                raise Missing(name)  # somebody was just as fast, and has got it
            if lock is not None:
                lock.remove()
        finally:
            if slot is not None:
                self._journal.release(slot)
        with self._mu:
            mine = self._held.get(name)
        if mine is not None and mine.record.segment == segment:
            self._forget(mine)

    # Taking back.

    def cleanup(self, key: str) -> None:
        with self:
            with self._mu:
                mine = [p for p in self._held.values() if p.key == key]
            self._reclaim(mine)

    def remove(self, name: str) -> None:
        """Remove what has a name, whichever process put it."""
        with self:
            self._patiently(lambda: remove(self._directory, name))

    def _reclaim(self, mine: list[_Put]) -> None:
        deadline = time.monotonic() + self._timeout
        left: Exception | None = None
        for p in mine:
            try:
                self._patiently(lambda: self._settle(p), deadline)  # noqa: B023
            except (OSError, OmnibusError) as e:
                left = e
            else:
                self._forget(p)
        if left is not None:
            raise left

    def _settle(self, p: _Put) -> None:
        settle(self._directory, p.record, lambda: self._held.get(p.record.name) is p)

    def _tidy(self) -> float | None:
        """Remove what lies too long, values and files, and say when to look again; None: nothing lies."""
        waits = self._spares.rest(), self._sweep() if self._ttl else None
        return min((w for w in waits if w is not None), default=None)

    def _sweep(self) -> float | None:
        """Remove what nobody came for in its time, and say when to look again; None: nothing is held."""
        now = time.monotonic()
        with self._mu:
            late = [p for p in self._held.values() if now - p.at >= self._ttl]
        again = None
        for p in late:
            try:
                there = self._directory.lookup(p.record.name)
                self._settle(p)
            except (OSError, OmnibusError):
                again = _SOON  # somebody has it
                continue
            self._forget(p)
            if there is not None and there.identity == p.record.segment:
                log.warning(
                    "no reader came for a value of %d bytes, edge %s -> %s, key %r, in %g s",
                    p.size, *p.edge, p.key, self._ttl,
                )  # fmt: skip
        if again is not None:
            return again
        with self._mu:
            return min((self._ttl - (now - p.at) for p in self._held.values()), default=None)

    def _forget(self, p: _Put) -> None:
        with self._mu:
            if self._held.get(p.record.name) is not p:
                return
            del self._held[p.record.name]
        self._journal.release(p.slot)

    def _gone(self, p: _Put) -> None:
        """Its segment has lost its key, and the file will have another: of this value there may be a lock."""
        name = p.record.name
        if self._held.get(name) is p and (p.record.lock is NEVER or not self._directory.has(lock_name(name))):
            self._forget(p)
            return
        with self._mu:
            if self._held.get(name) is p:  # whatever has that name later, in the same file too, is not this
                self._held[name] = p._replace(record=p.record._replace(segment=NEVER))

    def reap(self) -> None:
        with self:
            self._spares.look()
            self._reap(_REAPED)

    def _reap(self, most: int, newest: str | None = None) -> None:
        """Look whether what was put longest ago is still there, and not at the newest, which is."""
        for _ in range(most):
            with self._mu:
                name = next(iter(self._held), newest)
                if name == newest or name is None:
                    return
                p = self._held[name]
                self._held.move_to_end(name)
            if p.file.value is p:
                continue  # that is looked at by itself
            now = self._directory.lookup(name)
            if now is not None and now.identity == p.record.segment:
                continue
            lock = self._directory.lookup(lock_name(name))
            # A lock without its segment: the consumer is about to remove it, or has died before it could.
            if now is not None or lock is None or lock.identity != p.record.lock:
                self._forget(p)

    def _patiently(self, do: Callable[[], _T], deadline: float | None = None) -> _T:
        """Try again for as long as a living process keeps a lock, until the timeout. What has no room gets spares'."""
        nap = None
        while True:
            try:
                return self._spares.making_room(do)
            except Busy:
                nap = nap or Nap(time.monotonic() + self._timeout if deadline is None else deadline)
                if not nap.take():
                    raise

    def health(self) -> dict[str, Any]:
        return {"status": "closed" if self._closed else "healthy", "pending": len(self._held)}

    def close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:  # a forked child: what was put is the parent's
            self._closed = True
            self._directory.close()
            return
        with self._mu:
            last = not self._closed and not self._users
            self._closed = True
        if last:
            self._end()

    def _end(self) -> None:
        """Take back all, once nobody is at work here any more."""
        self._sweeper.stop()
        done = False
        try:
            with self._mu:
                mine = list(self._held.values())
            self._reclaim(mine)
            done = True
        finally:
            self._spares.close()
            self._journal.close(done)
            self._directory.close()
            self._waits.close()

    def drop(self) -> None:
        self._timeout = 0.0
        self.close()


_beginning = threading.Lock()  # of children that begin anew


def _forked() -> None:
    global _beginning
    _beginning = threading.Lock()


os.register_at_fork(after_in_child=_forked)
