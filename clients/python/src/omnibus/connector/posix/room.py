"""The room of a store with a name: the arena and the directory, as their creator has them.

What is here is the owner's part of package shmstore, as far as stores with names need it: readers pin, and owe nothing.
"""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from ...fence import fence
from ...gaps import Gaps
from ..encoder import Buffer
from .files import File, Files
from .layout import (
    CLOSING, CODEC, FREE, LIVE, PAGE, WANT_ROOM_AT, WORD_BYTES, Line, Superblock, directory_bytes, entry_at,
    ledger_bytes, line_at, word_of,
)  # fmt: skip

_BYTES_PER_SLOT, _LEAST_SLOTS = 1 << 10, 64
_ALIGN = 64
PER_ARENA = 2  # a value may take half of the memory


class Placed(NamedTuple):
    """Room for an object."""

    slot: int
    offset: int
    size: int  # of the object

    @property
    def room(self) -> int:
        return -(-max(self.size, 1) // _ALIGN) * _ALIGN


class Object(NamedTuple):
    """An object that readers may pin."""

    generation: int
    placed: Placed


class Room:
    """The arena and the directory. Called with the creator's lock held, but for `fill`."""

    def __init__(self, files: Files, opened: ExitStack, size: int, readers: int) -> None:
        """Make their files, which `opened` closes."""

        def make(part: str, size: int) -> File:
            f = files.make(part, size)
            opened.callback(f.close)
            return f

        self.slots = max(size // _BYTES_PER_SLOT, _LEAST_SLOTS)
        self.store = secrets.randbits(64) or 1
        of = Superblock(self.slots, self.store, size, size // PER_ARENA, CODEC, 0)
        self._arena = make("arena", size)
        self._directory = make("directory", directory_bytes(self.slots))
        self._directory.write(of.encode(b"D"), 0)
        self._ledgers = []
        for place in range(1, readers + 1):
            ledger = make(f"ledger-{place}", ledger_bytes(self.slots))
            ledger.write(of._replace(reader=place).encode(b"L"), 0)
            self._ledgers.append(ledger)
        self._gaps = Gaps(size // _ALIGN * _ALIGN)
        self._free: list[int] = []  # slots below _fresh
        self._fresh = 0
        self._generation = 0
        self._leaving: list[Object] = []

    def place(self, size: int) -> Placed | None:
        """Room for an object; None: there is none."""
        if not self._free and self._fresh == self.slots:
            return None
        placed = Placed(-1, 0, size)
        offset = self._gaps.take(placed.room)
        if offset is None:
            return None
        if self._free:
            return Placed(heapq.heappop(self._free), offset, size)
        self._fresh += 1
        return Placed(self._fresh - 1, offset, size)

    def abort(self, placed: Placed) -> None:
        """Give room back that no object was made in."""
        self._gaps.give(placed.offset, placed.room)
        heapq.heappush(self._free, placed.slot)

    def fill(self, placed: Placed, pieces: Sequence[Buffer]) -> None:
        """Write an object."""
        self._arena.write_pieces(pieces, placed.offset)

    def commit(self, placed: Placed) -> Object:
        """Let readers have an object that is written."""
        self._generation += 1
        line = Line(word_of(self._generation, FREE), placed.offset, placed.size, CODEC)
        # The state lets nobody in, and is in the lowest byte: that one is written last, and alone.
        self._directory.write(line.encode(), line_at(placed.slot))
        fence()
        o = Object(self._generation, placed)
        self._set(o, LIVE)
        fence()
        return o

    def _set(self, o: Object, state: int) -> None:
        word = word_of(o.generation, state)
        self._directory.write(bytes([word & 0xFF]), line_at(o.placed.slot))

    def read(self, o: Object, size: int) -> bytes:
        """The first bytes of an object that is there."""
        return self._arena.read(size, o.placed.offset)

    def leave(self, gone: Iterable[Object]) -> None:
        """Free objects, as soon as no reader has them pinned."""
        self._leaving += gone
        self.settle()

    def settle(self) -> None:
        """Free what is leaving and nobody has pinned.

        The owner's half of a protocol: closing first, and then the pins. A reader raises its pin first, and looks for
        closing then.
        """
        leaving = self._leaving
        if not leaving:
            return
        for o in leaving:
            self._set(o, CLOSING)
        fence()
        pinned = self._pinned(leaving)
        fence()
        self._leaving = []
        for o in leaving:
            if o.placed.slot in pinned:
                self._set(o, LIVE)
                self._leaving.append(o)
                continue
            self._set(o, FREE)
            self._directory.write(bytes(WORD_BYTES), line_at(o.placed.slot))
            self.abort(o.placed)
        fence()

    def _pinned(self, objects: list[Object]) -> set[int]:
        """The slots that some reader has pinned, of these."""
        slots = [o.placed.slot for o in objects]
        first, last = min(slots), max(slots)
        pinned: set[int] = set()
        for ledger in self._ledgers:
            for _ in range(2):  # a count that is carried over while it is read may look like none, once
                counts = words(ledger, first, last).cast("B").cast("I")  # pins, and beside them what is none here
                pinned.update(slot for slot in slots if counts[2 * (slot - first)])
        return pinned

    def forget(self, place: int) -> None:
        """Forget what the reader in a place holds, which is dead."""
        self._ledgers[place - 1].write(bytes(entry_at(self.slots) - PAGE), PAGE)

    def want(self, wanted: bool) -> None:
        """Have readers ring when they release something, or no more."""
        self._directory.write(bytes([wanted]), WANT_ROOM_AT)
        fence()

    @property
    def leaving(self) -> int:
        """How many objects are free when their readers release them."""
        return len(self._leaving)


def words(file: File, first: int, last: int) -> memoryview:
    """What a ledger or marks say of the slots from one to another, 8 bytes each."""
    return memoryview(file.read(entry_at(last + 1) - entry_at(first), entry_at(first))).cast("Q")
