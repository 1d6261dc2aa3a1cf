"""The side of a store with a name that gets: in one of its places, in any process but the creator's."""

from __future__ import annotations

import enum
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ...fence import fence
from ..contract import Busy, Damaged, Edge, Missing, NoRoom
from ..files import Nap
from .files import File, Files, NoStore
from .index import Candidate, Index
from .layout import (
    CLOSING, ENTRY_BYTES, LINE_BYTES, LIVE, LOCK_CREATOR, LOCK_SLOTS, PAGE, PID_AT, WAITING_AT, WANT_ROOM_AT,
    WORD_BYTES, Line, Superblock, directory_bytes, entry_at, hash_of, index_cells, label_of, ledger_bytes, line_at,
    word_of,
)  # fmt: skip

_PLACE_SECONDS = 0.1  # the creator may look into a place for so long
SLOT_SECONDS = 1.0  # taking a value needs microseconds, unless its process was stopped
_CLOSING_SECONDS = 5.0  # as a look at the pins does, unless the creator has died
_MAX_LOOKS = 1 << 16
TAKING = "a process is taking this value, and was stopped at that"


class _Verdict(enum.Enum):
    GOOD, GONE, MOVED = range(3)


class Reader:
    """A store as one that gets has it, in the place of one reader. Safe from any thread."""

    def __init__(self, files: Files) -> None:
        """Open the store. Raises NoStore where there is none, and Busy when all places are taken."""
        with ExitStack() as opened:
            self._open(files, opened)
            self._opened = opened.pop_all()
        self._mu = threading.Lock()  # of the pins, and one lock of a slot at a time: they all are of one description
        self._pins: Counter[int] = Counter()
        self._waiting = 0
        self._users = 0
        self._ending = False

    def _open(self, files: Files, opened: ExitStack) -> None:
        try:
            self._head = files.open_head()
        except FileNotFoundError:
            raise NoStore("there is no store of this name") from None
        opened.callback(self._head.close)
        if not self.alive:
            raise NoStore("the store's creator is gone")
        self.record = self._head.record()
        self.place = self._take_place(files)
        try:
            self._open_parts(files, opened)
        except (FileNotFoundError, Damaged):
            if self.alive:
                raise
            raise NoStore("the store ends at this moment") from None
        if not self.alive:
            raise NoStore("the store's creator is gone")

    def _take_place(self, files: Files) -> int:
        nap = Nap(time.monotonic() + _PLACE_SECONDS)
        while True:
            for place in range(1, self.record.readers + 1):
                if self._head.try_lock(place):
                    return place
            if not nap.take():
                raise Busy(self._crowded(files))

    def _crowded(self, files: Files) -> str:
        who = []
        for place in range(1, self.record.readers + 1):
            try:
                marks = files.open(f"marks-{place}", os.O_RDONLY, None)
            except (OSError, NoRoom):
                continue
            who.append(str(marks.word(PID_AT)))
            marks.close()
        return (
            f"all {self.record.readers} places for readers are taken, by the processes {', '.join(who)}: raise readers "
            "where the store is created, or end one"
        )

    def _open_parts(self, files: Files, opened: ExitStack) -> None:
        """Open all files but the first. As long as the creator lives they are its own."""

        def part(name: str, how: int, size: int | None) -> File:
            f = files.open(name, how, size)
            opened.callback(f.close)
            return f

        slots = self.record.slots
        self._directory = part("directory", os.O_RDONLY, directory_bytes(slots))
        self._ledger = part(f"ledger-{self.place}", os.O_RDWR, ledger_bytes(slots))
        of = Superblock.parse(b"D", self._directory.read(64, 0))
        mine = Superblock.parse(b"L", self._ledger.read(64, 0))
        if of != mine._replace(reader=0) or mine.reader != self.place or (of.store, of.slots) != self.record[2::2]:
            raise Damaged("its files are of several stores")
        self._geometry = of
        self._arena = part("arena", os.O_RDONLY, of.arena)
        self._index = Index(part("index", os.O_RDONLY, index_cells(slots) * WORD_BYTES), slots)
        self._marks = [
            part(f"marks-{place}", os.O_RDWR if place == self.place else os.O_RDONLY, entry_at(slots))
            for place in range(1, self.record.readers + 1)
        ]
        self._own = self._marks[self.place - 1]
        self._room = part("room", os.O_WRONLY, None)
        self._ledger.write(bytes(slots * ENTRY_BYTES), PAGE)  # what an earlier reader held is forgotten
        self._own.write(bytes(WORD_BYTES), WAITING_AT)
        self._own.write(os.getpid().to_bytes(WORD_BYTES, "little"), PID_AT)

    @property
    def alive(self) -> bool:
        """Whether the creator is."""
        return self._head.held(LOCK_CREATOR)

    # Uses, which a close waits for.

    def __enter__(self) -> Reader:
        with self._mu:
            if self._ending:
                raise NoStore("the store was left")
            self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._mu:
            self._users -= 1
            last = self._ending and not self._users
        if last:
            self._release()

    def finish(self) -> None:
        """Leave the place, when nobody here uses it any more. Idempotent."""
        with self._mu:
            last = not self._ending and not self._users
            self._ending = True
        if last:
            self._release()

    def _release(self) -> None:
        try:
            self._own.write(bytes(WORD_BYTES), WAITING_AT)
            self._own.write(bytes(WORD_BYTES), PID_AT)
        finally:
            self._opened.close()  # and with the first file the place's lock

    def forget(self) -> None:
        """Close the descriptors of what is another process's, in a forked child."""
        self._opened.close()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Say that somebody waits for a value here, before he looks."""
        self._wait(1)
        fence()
        try:
            yield
        finally:
            self._wait(-1)

    def _wait(self, more: int) -> None:
        with self._mu:
            self._waiting += more
            self._own.write(bytes([self._waiting > 0]), WAITING_AT)

    # Getting.

    def take(self, edge: Edge, key: str, number: int) -> bytes:
        """The bytes of a value, which is got by that. Raises Missing."""
        label, address_hash = label_of(edge, key), hash_of(edge, key)
        for _ in range(_MAX_LOOKS):
            again = False
            for c in self._index.find(address_hash):
                found, changed = self._look(c, number)
                if found is not None:
                    value, verdict = self._try(c, found, label)
                    if value is not None:
                        return value
                    changed = verdict is _Verdict.MOVED
                again = again or changed
            if not again:
                break
        raise Missing(key)

    def _look(self, c: Candidate, number: int) -> tuple[Line | None, bool]:
        """The line of a candidate, and otherwise whether it is to be looked for again.

        A cell names a slot once its value is there: where there is none, it was replaced meanwhile.
        """
        if not 0 <= c.slot < self.record.slots:
            return None, True
        fence()
        line = self._line(c.slot)
        if not line.present:
            return None, True
        if number and number != self.record.number(line.generation):
            return None, not self._index.has(c)
        if line.offset > self._geometry.arena or line.size > self._geometry.arena - line.offset:
            return None, not self._index.has(c)  # nothing that a creator writes
        return line, False

    def _line(self, slot: int) -> Line:
        return Line.parse(self._directory.settled(LINE_BYTES, line_at(slot)))

    def _try(self, c: Candidate, found: Line, label: bytes) -> tuple[bytes | None, _Verdict]:
        """Pin what was found, and take it if it is the value."""
        slot, size = c.slot, found.size - len(label)
        self._pin(slot)
        try:
            verdict = self._stays(slot, found)
            if verdict is not _Verdict.GOOD:
                return None, verdict
            if size < 0 or self._arena.read(len(label), found.offset + size) != label:
                return None, _Verdict.GONE
            verdict = self._claim(c, found)
            if verdict is not _Verdict.GOOD:
                return None, verdict
            return self._arena.read(size, found.offset), verdict
        finally:
            self._unpin(slot)

    def _stays(self, slot: int, found: Line) -> _Verdict:
        """Whether a slot that is pinned holds an object.

        If its word is live, it stays so; if it is closing, the creator finds the pin and lets it live, or has rightly
        overlooked it.
        """
        live, closing = word_of(found.generation, LIVE), word_of(found.generation, CLOSING)
        nap = Nap(time.monotonic() + _CLOSING_SECONDS)
        while True:
            now = self._line(slot)
            fence()
            if now.word == live:
                return _Verdict.GOOD if now[1:] == found[1:] else _Verdict.GONE  # nothing that a creator writes
            if now.word != closing or not self.alive:
                return _Verdict.MOVED
            if not nap.take():
                raise Busy("the store's creator was stopped while it freed this value")

    def _claim(self, c: Candidate, found: Line) -> _Verdict:
        """Mark a value as got by this reader, if nobody else has."""
        with self._mu:
            self._head.lock_soon(LOCK_SLOTS + c.slot, SLOT_SECONDS, TAKING)
            try:
                if not self._index.has(c):
                    return _Verdict.MOVED
                if is_marked(self._marks, c.slot, found.generation):
                    return _Verdict.GONE
                self._own.write(found.generation.to_bytes(WORD_BYTES, "little"), entry_at(c.slot))
                return _Verdict.GOOD
            finally:
                self._head.unlock(LOCK_SLOTS + c.slot)

    def _pin(self, slot: int) -> None:
        """Hold what lies in a slot. All threads have one pin together: what is shared is one byte, 0 or 1."""
        with self._mu:
            self._pins[slot] += 1
            if self._pins[slot] == 1:
                self._ledger.write(b"\1", entry_at(slot))
        fence()

    def _unpin(self, slot: int) -> None:
        fence()
        with self._mu:
            self._pins[slot] -= 1
            if not self._pins[slot]:
                del self._pins[slot]
                self._ledger.write(b"\0", entry_at(slot))
        fence()
        if self._directory.read(1, WANT_ROOM_AT)[0] % 2:
            self._room.write(b"\1", 0)


def is_marked(marks: list[File], slot: int, generation: int) -> bool:
    """Whether a reader has got the value of a generation."""
    return any(int.from_bytes(m.read(WORD_BYTES, entry_at(slot)), "little") == generation for m in marks)
