"""The index of a store with a name: which slots may have the value of an address.

A hash table whose writer is the creator. Cells are looked along from where the hash points to until the first that is
empty. No cell ever moves, and none becomes empty that something lies behind. What a cell names is a hint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .files import File
from .layout import EMPTY, FIRST_SLOT, REMOVED, WORD_BYTES, cell_of, index_cells

_BEYOND = b"\xff"  # as the highest byte of a slot: no store has so many


class Candidate(NamedTuple):
    """A cell whose slot may have the value."""

    at: int
    cell: int

    @property
    def slot(self) -> int:
        """Below 0, or beyond the slots of the store, for a cell that is being changed."""
        return (self.cell & 0xFFFFFFFF) - FIRST_SLOT


class Index:
    """The index as those see it who look for values."""

    __slots__ = ("_file", "_mask")

    def __init__(self, file: File, slots: int) -> None:
        self._file = file
        self._mask = index_cells(slots) - 1

    def find(self, address_hash: int) -> Iterator[Candidate]:
        """The candidates for a hash."""
        for i in range(self._mask + 1):
            at = (address_hash + i) & self._mask
            cell = self._file.word(at * WORD_BYTES)
            if cell == EMPTY:
                return
            if cell != REMOVED and cell >> 32 == address_hash >> 32:
                yield Candidate(at, cell)

    def has(self, c: Candidate) -> bool:
        """Whether a candidate is there still."""
        return self._file.word(c.at * WORD_BYTES) == c.cell

    def close(self) -> None:
        self._file.close()


class OwnIndex:
    """The index as its writer has it, in the creator's memory and in the file.

    Each change is decided by one byte, the last that is written, so that whoever reads a cell half changed goes on, or
    looks again: he finds no empty cell where none is.
    """

    __slots__ = ("_file", "_mask", "_cells")

    def __init__(self, file: File, slots: int) -> None:
        self._file = file
        self._mask = index_cells(slots) - 1
        self._cells: dict[int, int] = {}  # those that are not empty

    def add(self, address_hash: int, slot: int) -> int:
        """Add a slot, in the first cell that is not in use, and say where. Half of them never are."""
        at = address_hash & self._mask
        while self._cells.get(at, EMPTY) > REMOVED:
            at = (at + 1) & self._mask
        cell = self._cells[at] = cell_of(address_hash, slot)
        # The lowest byte of a removed cell stays 1 until the others say that it is not empty.
        self._write(at, 1, cell.to_bytes(WORD_BYTES, "little")[1:])
        self._write(at, 0, cell.to_bytes(WORD_BYTES, "little")[:1])
        return at

    def replace(self, at: int, address_hash: int, slot: int) -> None:
        """Have a cell name another slot, for a value that replaces one."""
        cell = self._cells[at] = cell_of(address_hash, slot)
        # In between it names a slot that there is not: whoever reads that looks again.
        self._write(at, 3, _BEYOND)
        self._write(at, 0, cell.to_bytes(WORD_BYTES, "little")[:3])
        self._write(at, 3, cell.to_bytes(WORD_BYTES, "little")[3:4])

    def remove(self, at: int) -> None:
        """Take a cell out of use. Removed cells before an empty one have nothing behind them, and become empty."""
        self._cells[at] = REMOVED
        self._write(at, 0, bytes([REMOVED]))
        self._write(at, 1, bytes(WORD_BYTES - 1))
        if self._cells.get((at + 1) & self._mask, EMPTY) != EMPTY:
            return
        while self._cells.get(at) == REMOVED:
            del self._cells[at]
            self._write(at, 0, bytes([EMPTY]))
            at = (at - 1) & self._mask

    def _write(self, at: int, byte: int, data: bytes) -> None:
        self._file.write(data, at * WORD_BYTES + byte)

    def close(self) -> None:
        self._file.close()
