"""The side of a store with a name that puts: its creator, and nobody else."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

from ...errors import OmnibusError
from ...fence import fence
from ..contract import Edge, Missing, NoRoom, request_of
from ..encoder import Buffer, Encoded
from ..sweeper import Sweeper
from .files import Bell, Files, Head
from .index import OwnIndex
from .layout import (
    LOCK_CREATOR, LOCK_SLOTS, PID_AT, WAITING_AT, WORD_BYTES, Record, entry_at, hash_of, index_cells, label_of,
)  # fmt: skip
from .reader import SLOT_SECONDS, TAKING, is_marked
from .room import PER_ARENA, Object, Placed, Room, words

log = logging.getLogger("omnibus")

#: Of those that lie longest, how many are looked at with each put: so as to have their room before any other.
_REAPED_A_PUT = 2
#: How often whoever waits for room looks for what nobody tells: readers that have died.
_LOOK_SECONDS = 1.0


class Options(NamedTuple):
    """What the creator says."""

    name: str
    path: str
    readers: int
    size: int
    timeout: float
    ttl: float


class _Value(NamedTuple):
    """One that nobody is known to have got."""

    edge: Edge
    key: str
    hash: int
    object: Object
    size: int
    cell: int
    at: float


class Owner:
    """A store as its creator has it. Safe from any thread."""

    def __init__(self, files: Files, options: Options, changed: Callable[[], None]) -> None:
        """Create the store. Raises Busy if somebody has it, and NoRoom. `changed` is called when a value was put."""
        self._files, self._options, self._changed = files, options, changed
        self._mu = threading.Lock()
        self._claiming = threading.Lock()  # one lock of a slot at a time: they all are of one description
        self._values: dict[tuple[Edge, str], _Value] = {}
        self._waiters: set[Bell] = set()  # for room
        self._bell = 0
        self._users = 0
        self._ended = False
        self._head: Head = files.claim()
        self._opened = ExitStack()
        self._opened.callback(self._head.close)
        try:
            self._build()
        except BaseException:
            self._unlink()
            self._opened.close()
            raise
        self._sweeper = Sweeper(self._sweep)

    def _build(self) -> None:
        """Make all that belongs to the store, and then say so."""
        files, readers = self._files, self._options.readers
        files.remove()  # without a first file they are nobody's
        files.check_room(self._options.size)
        self._room = Room(files, self._opened, self._options.size, readers)
        slots = self._room.slots
        index = files.make("index", index_cells(slots) * WORD_BYTES)
        self._opened.callback(index.close)
        self._index = OwnIndex(index, slots)
        files.make("room", 0).close()
        self._marks = []
        for place in range(1, readers + 1):
            marks = files.make(f"marks-{place}", entry_at(slots))
            self._opened.callback(marks.close)
            self._marks.append(marks)
        self.record = Record(readers, os.getpid(), self._room.store, secrets.randbits(64), slots)
        fence()
        self._head.write(self.record.encode(), 0)
        self._head.ring(0)

    # Uses, which the end waits for.

    def __enter__(self) -> Owner:
        with self._mu:
            if self._ended:
                raise OmnibusError("the connector is closed")
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._mu:
            self._users -= 1
            last = self._ended and not self._users
        if last:
            self._opened.close()

    # Putting.

    def put(self, edge: Edge, key: str, payload: Encoded, bell: Bell) -> dict[str, Any]:
        """Store a value. `bell` is of this thread."""
        label = label_of(edge, key)
        total, most = payload.size + len(label), self._options.size // PER_ARENA
        if total > most:
            raise NoRoom(
                f"the store takes {most} bytes with edge and key, half of its memory, and this has {total}: raise "
                f"ring_bytes to {total * PER_ARENA}"
            )
        placed = self._place(total) or self._await_room(total, bell)
        try:
            pieces: list[Buffer] = [*payload.pieces, label]
            self._room.fill(placed, pieces)
        except BaseException:
            with self._mu:
                self._room.abort(placed)
            raise
        generation = self._publish(edge, key, placed, payload.size)
        self._tell()
        self._sweeper.begin(self._options.ttl)
        return {"entry": f"{self.record.number(generation):x}", "store": self._options.name}

    def _place(self, total: int) -> Placed | None:
        with self._mu:
            self._reap(_REAPED_A_PUT)
            return self._room.place(total)

    def _await_room(self, total: int, bell: Bell) -> Placed:
        """Room for a value, once readers have released others."""
        deadline = time.monotonic() + self._options.timeout
        bell.file(os.path.join(self._files.path, self._files.name("room")))
        self._wait_for_room(bell, True)
        try:
            while True:
                bell.clear()
                with self._mu:
                    if self._ended:
                        raise OmnibusError("the connector is closed")
                    self._give_back()
                    placed = self._room.place(total)
                    lying = len(self._values), self._room.leaving
                if placed is not None:
                    return placed
                now = time.monotonic()
                if now >= deadline:
                    raise NoRoom(
                        f"no room for {total} bytes in {self._options.timeout:g} s: {lying[0]} values that nobody has "
                        f"got, {lying[1]} that are being read, in {self._options.size} bytes"
                    )
                bell.wait(min(deadline, now + _LOOK_SECONDS), "")
        finally:
            self._wait_for_room(bell, False)

    def _wait_for_room(self, bell: Bell, begins: bool) -> None:
        with self._mu:
            (self._waiters.add if begins else self._waiters.discard)(bell)
            self._room.want(bool(self._waiters))

    def _publish(self, edge: Edge, key: str, placed: Placed, size: int) -> int:
        """Put a value where it belongs, in place of what lay there."""
        address_hash = hash_of(edge, key)
        with self._mu:
            if self._ended:
                self._room.abort(placed)
                raise OmnibusError("the connector is closed")
            o = self._room.commit(placed)
            old = self._values.pop((edge, key), None)
            if old is None:
                cell = self._index.add(address_hash, placed.slot)
            else:
                cell = old.cell
                self._index.replace(cell, address_hash, placed.slot)
            self._values[edge, key] = _Value(edge, key, address_hash, o, size, cell, time.monotonic())
            fence()
            if old is not None:
                self._leave([old])
        return o.generation

    def _tell(self) -> None:
        """Have those look again who wait for a value, here and elsewhere. Whoever waits has said so before it looked."""
        self._changed()
        if any(m.word(WAITING_AT) for m in self._marks):
            with self._mu:
                self._bell += 1
                self._head.ring(self._bell)

    # Getting.

    def take(self, edge: Edge, key: str, number: int) -> bytes:
        """The bytes of a value, which is got by that. Raises Missing."""
        with self._claiming:
            while True:
                with self._mu:
                    v = self._look(edge, key, number)
                at = LOCK_SLOTS + v.object.placed.slot
                self._head.lock_soon(at, SLOT_SECONDS, TAKING)
                try:
                    # Nobody can mark it any more, so if it is there now, it stays until it is removed.
                    with self._mu:
                        mine = self._look(edge, key, number) is v
                        if mine:
                            self._drop(v)
                finally:
                    self._head.unlock(at)
                if mine:
                    break
        try:
            return self._room.read(v.object, v.size)
        finally:
            with self._mu:
                self._leave([v])

    def _look(self, edge: Edge, key: str, number: int) -> _Value:
        """The value that lies at an address, and that no reader has got."""
        v = self._values.get((edge, key))
        if (
            v is None
            or (number and number != self.record.number(v.object.generation))
            or is_marked(self._marks, v.object.placed.slot, v.object.generation)
        ):
            raise Missing(key)
        return v

    # Giving back.

    def _drop(self, v: _Value) -> None:
        """Take a value out that is there."""
        del self._values[v.edge, v.key]
        self._index.remove(v.cell)

    def _leave(self, gone: list[_Value]) -> None:
        """Free what was taken out, and wake those who wait for room."""
        if gone:
            fence()
            self._room.leave(v.object for v in gone)
            for bell in self._waiters:
                bell.nudge()

    def _reclaim(self, gone: list[_Value]) -> None:
        for v in gone:
            self._drop(v)
        self._leave(gone)

    def _got(self, values: list[_Value]) -> list[_Value]:
        """Those of some values that readers have got."""
        if not values:
            return []
        slots = [v.object.placed.slot for v in values]
        first, last = min(slots), max(slots)
        marks = [words(m, first, last) for m in self._marks]
        return [v for v in values if any(m[v.object.placed.slot - first] == v.object.generation for m in marks)]

    def _reap(self, most: int) -> None:
        """Free what readers have got of the values that lie longest."""
        for address in list(self._oldest(most)):
            v = self._values.pop(address)
            self._values[address] = v  # the others' turn comes first
            self._reclaim(self._got([v]))
        self._room.settle()

    def _oldest(self, most: int) -> list[tuple[Edge, str]]:
        return [address for address, _ in zip(self._values, range(most))]

    def _give_back(self) -> None:
        """Free what readers have got, and what the dead held."""
        self._reclaim(self._got(list(self._values.values())))
        for place in range(1, len(self._marks) + 1):
            self._evacuate(place)
        self._room.settle()

    def _evacuate(self, place: int) -> None:
        """Free the place of a reader that died: it has said who it is, and the kernel has given its lock up."""
        marks = self._marks[place - 1]
        pid = marks.word(PID_AT)
        if not pid or not self._head.try_lock(place):
            return
        try:
            self._room.forget(place)
            marks.write(bytes(WORD_BYTES), WAITING_AT)
            marks.write(bytes(WORD_BYTES), PID_AT)
        finally:
            self._head.unlock(place)
        log.info("a reader of the store %s has died: process %d", self._options.name, pid)

    def reap(self) -> None:
        """Free what others have got meanwhile."""
        with self._mu:
            self._give_back()

    def cleanup(self, key: str) -> None:
        """Take back the values under a key, and of a request."""
        with self._mu:
            self._reclaim([v for v in self._values.values() if key in (v.key, request_of(v.edge, v.key))])
            self._give_back()

    def _sweep(self) -> float | None:
        """Take back what nobody came for in its time, and say when to look again; None: nothing lies here."""
        with self._mu:
            if self._ended:
                return None
            self._give_back()
            now = time.monotonic()
            late = [v for v in self._values.values() if now - v.at >= self._options.ttl]
            self._reclaim(late)
            left = [self._options.ttl - (now - v.at) for v in self._values.values()]
        for v in late:
            log.warning(
                "nobody came for a value of %d bytes, edge %s -> %s, key %s, in the store %s",
                v.size, *v.edge, v.key, self._options.name,
            )  # fmt: skip
        return min(left, default=None)

    @property
    def pending(self) -> int:
        """How many values nobody is known to have got."""
        return len(self._values)

    def close(self) -> None:
        """End the store: nobody finds anything in it any more, and its files are gone."""
        self._sweeper.stop()
        with self._mu:
            if self._ended:
                return
            self._ended = True
            for v in list(self._values.values()):
                self._drop(v)
            self._unlink()
            for bell in self._waiters:
                bell.nudge()
            last = not self._users
        if last:
            self._opened.close()

    def _unlink(self) -> None:
        """Remove the files, the first one last: as long as it is there, nobody else makes files of these names."""
        try:
            self._files.remove_made()
        except (OSError, OmnibusError) as e:
            log.warning("files of the store %s stay: %s", self._options.name, e)
        with contextlib.suppress(OSError):
            self._head.unlock(LOCK_CREATOR)

    def forget(self) -> None:
        """Close the descriptors of what is another process's, in a forked child."""
        self._opened.close()
