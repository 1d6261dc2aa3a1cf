"""The formats in which vLLM-Omni's SharedMemoryConnector exchanges values on one machine.

Generation 2, since vLLM-Omni 0.14: the payload lies in /dev/shm in a file named by its key, and a
lock file beside it is locked while it is written or read. Generation 1: small payloads travel in the
metadata, others lie in segments with random names. One generation is put, both are got, and the reader removes the
segment and its lock.

Beyond that:

- A segment gets its name when it is complete.
- It is read, never mapped: its writer may truncate it at any time.
- Files are reused once no other process can read them: see `file_pool`.
- Files of a process that dies are removed by another: see `journal`.
- Each process has its own accounts. Values that a forked child inherits belong to the parent.
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
from . import shm_files
from .address import locate, round_up
from .contract import Busy, Damaged, Decode, Edge, Missing, NoRoom, setting
from .shm_files import Directory, Lock, Backoff, Watches
from .journal import GETTING, NO_FILE, PUTTING, Journal, Record, check_name, lock_name, remove_segment, remove_recorded
from .file_pool import IDLE_SECONDS, FilePool, PooledFile
from .sweeper import Sweeper

log = logging.getLogger("omnibus")

_T = TypeVar("_T")

BY_METADATA, BY_KEY = 1, 2

_REAPED_PER_PUT = 2
_REAPED = 64
_TTL = 600.0
_RETRY_SECONDS = 5e-3  # until a locked segment is checked again


class _Put(NamedTuple):
    """A value that was put here. Its reader does not report the get."""

    record: Record
    edge: Edge
    key: str
    slot: int
    file: PooledFile
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
        self._puts: OrderedDict[str, _Put] = OrderedDict()  # by the name of the segment
        self._directory = Directory(self._path)
        self._watches = Watches(self._directory)
        try:
            self._journal = Journal(self._directory)
        except BaseException:
            self._directory.close()
            raise
        self._journal.sweep()
        self._files = FilePool(self._directory, self._journal, self._key_removed)
        self._sweeper = Sweeper(self._tidy)
        self._users = 0
        self._pid = os.getpid()

    # Calls in progress, for which the close waits.

    def __enter__(self) -> None:
        if self._closed:
            raise OmnibusError("the connector is closed")
        if os.getpid() != self._pid:  # a forked child: the values belong to the parent
            with _reopening:
                if os.getpid() != self._pid:  # unless another thread has reopened it
                    self._files.close_descriptors()
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
                self._close_unused()
            except (OSError, OmnibusError) as e:
                log.warning("values stay in %s until a process opens a connector: %s", self._path, e)

    # Putting.

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        with self:
            return self._put(edge, key, payload)

    def _put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        if self._generation == BY_KEY:
            check_name(key)
        file = self._files.write(payload)
        p = None
        try:
            publish = self._publish if self._generation == BY_KEY else self._publish_anonymous
            p = self._retry_while_busy(lambda: publish(edge, key, file))
        finally:
            again = self._files.add_used(file, p)
        self._sweeper.schedule(min(self._ttl or IDLE_SECONDS, IDLE_SECONDS) if again else self._ttl)
        self._reap(_REAPED_PER_PUT, newest=p.record.name)
        return {"shm": {"name": p.record.name, "size": payload.size}}

    def _publish(self, edge: Edge, key: str, file: PooledFile) -> _Put:
        """Name a segment by its key. Most keys are new, so a new lock is tried before an existing one."""
        name = lock_name(key)
        try:
            return self._publish_under(Lock.create(self._directory, name), edge, key, file)
        except FileExistsError:
            lock = Lock.open(self._directory, name)
        if lock is None:
            raise Busy("another process had the lock until now")
        return self._publish_under(lock, edge, key, file)

    def _publish_under(self, held: Lock, edge: Edge, key: str, file: PooledFile) -> _Put:
        """Name a segment under a lock, which is released, in place of any segment with that name."""
        with held as lock:
            record = Record(PUTTING, key, file.segment, lock.identity)
            slot = self._journal.add(record)
            made = not lock.linked
            try:
                lock.link()
                try:
                    self._link_segment(file, key)
                except BaseException:
                    if made:
                        lock.remove()
                    raise
            except BaseException:
                self._journal.clear_slot(slot)
                raise
            return self._add_put(_Put(record, edge, key, slot, file, file.size, time.monotonic()))

    def _link_segment(self, file: PooledFile, name: str) -> None:
        for _ in range(16):
            try:
                self._files.link_key(file, name)
                return
            except FileExistsError:
                now = self._directory.lookup(name)
                if now is not None:
                    now.check()
                    self._directory.unlink(name)
        raise Busy("another process keeps creating a segment of this name without its lock")

    def _publish_anonymous(self, edge: Edge, key: str, file: PooledFile) -> _Put:
        for _ in range(16):
            record = Record(PUTTING, "psm_" + secrets.token_hex(4), file.segment, NO_FILE)
            slot = self._journal.add(record)
            try:
                self._files.link_key(file, record.name)
            except BaseException as e:
                self._journal.clear_slot(slot)
                if not isinstance(e, FileExistsError):
                    raise
            else:
                return self._add_put(_Put(record, edge, key, slot, file, file.size, time.monotonic()))
        raise Busy("all names are taken")

    def _add_put(self, p: _Put) -> _Put:
        with self._mu:
            old = self._puts.pop(p.record.name, None)
            self._puts[p.record.name] = p
        if old is not None:
            self._journal.release_slot(old.slot)
        return p

    # Getting.

    def get(self, edge: Edge, key: str, metadata: Any, decode: Decode, consume: bool = True) -> tuple[Any, int]:
        name, size = locate(key, metadata or {})
        with self:
            payload = self._files.freeing_space(lambda: self._take_segment(name, size, consume))
        return decode(payload, padded=not size), len(payload)

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        try:
            return self.get(edge, key, metadata, decode)
        except (Missing, Busy):
            pass  # the watch starts before the next get
        name = locate(key, metadata or {})[0]
        backoff = Backoff(deadline)
        with self._watches.watching(key) as watch:
            while True:
                try:
                    return self.get(edge, key, metadata, decode)
                except Missing:
                    appeared = watch.wait((name, lock_name(name)), deadline)
                    if appeared is False or (appeared is None and not backoff.sleep()) or watch.abandoned:
                        raise
                    if appeared:
                        backoff = Backoff(deadline)
                except Busy:
                    if not backoff.sleep() or watch.abandoned:
                        raise

    def abandon(self, key: str) -> None:
        self._watches.abandon(key)

    def _take_segment(self, name: str, size: int, consume: bool) -> bytes:
        """Read a segment under its lock, and remove both if `consume`.

        Without metadata (size 0) a segment without a lock counts as missing: its writer may not have finished. With
        metadata the writer has finished, and the lock may be missing: the process that unlinks the segment has got it.
        """
        lock = Lock.open(self._directory, lock_name(name))
        if lock is None and not size:
            raise Missing(name)
        try:
            return self._read_segment(name, size, lock, consume)
        finally:
            if lock is not None:
                lock.release()

    def _read_segment(self, name: str, size: int, lock: Lock | None, consume: bool) -> bytes:
        fd = self._directory.open_non_directory(name, os.O_RDONLY)
        if fd is None:
            raise Missing(name)
        try:
            # An open file is not reused. So if the file has the name now, the read is of the value of that name.
            f = self._directory.lookup(name)
            if f is None:
                raise Missing(name)
            f.check()
            if not size and not f.size:
                raise Missing(name)  # its writer has died, or uses no lock
            if f.size not in (size or f.size, round_up(size)) or f.allocated_bytes < (size or f.size):
                raise Damaged(f"a segment of {f.size} bytes, {f.allocated_bytes} of them written, for {size or f.size}")
            payload = shm_files.read_all(fd, size or f.size)
            if not self._directory.is_current(fd, name, f):
                raise Missing(name)  # another reader was faster
            if consume:
                self._remove_segment(name, f.identity, lock)
            return payload
        finally:
            os.close(fd)

    def _remove_segment(self, name: str, segment: shm_files.Identity, lock: Lock | None) -> None:
        """Remove an open segment and its lock. The journal has the lock, for a death between the two.

        Without space for the record the segment is removed all the same: that frees space, and the connector that put
        the value has a record of the lock.
        """
        slot = None
        if lock is not None:
            with contextlib.suppress(NoRoom):
                slot = self._journal.add(Record(GETTING, name, segment, lock.identity))
        try:
            if not self._directory.unlink(name):
                raise Missing(name)  # another reader has got it meanwhile
            if lock is not None:
                lock.remove()
        finally:
            if slot is not None:
                self._journal.release_slot(slot)
        with self._mu:
            own = self._puts.get(name)
        if own is not None and own.record.segment == segment:
            self._remove_put(own)

    # Removing.

    def cleanup(self, key: str) -> None:
        with self:
            with self._mu:
                puts = [p for p in self._puts.values() if p.key == key]
            self._reclaim(puts)

    def remove(self, name: str) -> None:
        """Remove the segment with a name, of any process."""
        with self:
            self._retry_while_busy(lambda: remove_segment(self._directory, name))

    def _reclaim(self, puts: list[_Put]) -> None:
        deadline = time.monotonic() + self._timeout
        left: Exception | None = None
        for p in puts:
            try:
                self._retry_while_busy(lambda: self._remove_files(p), deadline)  # noqa: B023
            except (OSError, OmnibusError) as e:
                left = e
            else:
                self._remove_put(p)
        if left is not None:
            raise left

    def _remove_files(self, p: _Put) -> None:
        remove_recorded(self._directory, p.record, lambda: self._puts.get(p.record.name) is p)

    def _tidy(self) -> float | None:
        """Remove expired values, and close idle files. Returns the seconds until the next call; None: there are none."""
        waits = self._files.close_idle(), self._sweep() if self._ttl else None
        return min((w for w in waits if w is not None), default=None)

    def _sweep(self) -> float | None:
        """Remove values past the TTL. Returns the seconds until the next call; None: there are no values."""
        now = time.monotonic()
        with self._mu:
            late = [p for p in self._puts.values() if now - p.at >= self._ttl]
        again = None
        for p in late:
            try:
                found = self._directory.lookup(p.record.name)
                self._remove_files(p)
            except (OSError, OmnibusError):
                again = _RETRY_SECONDS  # another process has it locked
                continue
            self._remove_put(p)
            if found is not None and found.identity == p.record.segment:
                log.warning(
                    "no reader came for a value of %d bytes, edge %s -> %s, key %r, in %g s",
                    p.size, *p.edge, p.key, self._ttl,
                )  # fmt: skip
        if again is not None:
            return again
        with self._mu:
            return min((self._ttl - (now - p.at) for p in self._puts.values()), default=None)

    def _remove_put(self, p: _Put) -> None:
        with self._mu:
            if self._puts.get(p.record.name) is not p:
                return
            del self._puts[p.record.name]
        self._journal.release_slot(p.slot)

    def _key_removed(self, p: _Put) -> None:
        """The segment of a put has lost its key, and its file may be reused. A lock of the value may remain."""
        name = p.record.name
        if self._puts.get(name) is p and (p.record.lock is NO_FILE or not self._directory.exists(lock_name(name))):
            self._remove_put(p)
            return
        with self._mu:
            if self._puts.get(name) is p:  # a later value of that name, also in the same file, is another put
                self._puts[name] = p._replace(record=p.record._replace(segment=NO_FILE))

    def reap(self) -> None:
        with self:
            self._files.check_used()
            self._reap(_REAPED)

    def _reap(self, most: int, newest: str | None = None) -> None:
        """Forget those of the oldest puts that readers have got. `newest` was put just now, and is not checked."""
        for _ in range(most):
            with self._mu:
                name = next(iter(self._puts), newest)
                if name == newest or name is None:
                    return
                p = self._puts[name]
                self._puts.move_to_end(name)
            if p.file.value is p:
                continue  # the file pool reports it
            now = self._directory.lookup(name)
            if now is not None and now.identity == p.record.segment:
                continue
            lock = self._directory.lookup(lock_name(name))
            # A lock without its segment: its consumer is about to remove it, or died before that. The record stays.
            if now is not None or lock is None or lock.identity != p.record.lock:
                self._remove_put(p)

    def _retry_while_busy(self, do: Callable[[], _T], deadline: float | None = None) -> _T:
        """Call `do`, and retry while it raises Busy, until the timeout. For want of space the pooled files are closed."""
        backoff = None
        while True:
            try:
                return self._files.freeing_space(do)
            except Busy:
                backoff = backoff or Backoff(time.monotonic() + self._timeout if deadline is None else deadline)
                if not backoff.sleep():
                    raise

    def health(self) -> dict[str, Any]:
        return {"status": "closed" if self._closed else "healthy", "pending": len(self._puts)}

    def close(self) -> None:
        if self._closed:
            return
        if os.getpid() != self._pid:  # a forked child: the values belong to the parent
            self._closed = True
            self._directory.close()
            return
        with self._mu:
            last = not self._closed and not self._users
            self._closed = True
        if last:
            self._close_unused()

    def _close_unused(self) -> None:
        """Remove all values, once no call is in progress."""
        self._sweeper.stop()
        done = False
        try:
            with self._mu:
                puts = list(self._puts.values())
            self._reclaim(puts)
            done = True
        finally:
            self._files.close()
            self._journal.close(done)
            self._directory.close()
            self._watches.close()

    def close_nowait(self) -> None:
        self._timeout = 0.0
        self.close()


_reopening = threading.Lock()  # serializes the reopening in a forked child


def _forked() -> None:
    global _reopening
    _reopening = threading.Lock()


os.register_at_fork(after_in_child=_forked)
