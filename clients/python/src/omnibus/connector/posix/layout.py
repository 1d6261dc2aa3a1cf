"""The bytes of a store with a name. The Go packages connector/posix and shmstore draw them, and say why.

All numbers are little-endian, and words of 8 bytes lie at multiples of 8.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from typing import NamedTuple

from ..contract import MAX_READERS, Damaged, Edge, Unavailable

HEAD_VERSION, LAYOUT_VERSION = 1, 2
MAX_NAME_BYTES = 100
MAX_SLOTS, MIN_ARENA_BYTES, MAX_ARENA_BYTES = 1 << 28, 4 << 10, 1 << 46
SAME_RELEASE = "use the same release on both sides"

PAGE = 4096

# The first file.
HEAD_BYTES, BELL_AT, RECORD_BYTES = 72, 64, 48
LOCK_CREATOR, LOCK_SLOTS = 0, PAGE  # a place's lock is on the byte of its number
_MAGIC = b"OMNIBUSN"
_record = struct.Struct("<8sIIQQQI")
_crc = struct.Struct("<I")

# The directory, a ledger, marks.
WANT_ROOM_AT = 64
LINE_BYTES, ENTRY_BYTES, WORD_BYTES = 64, 8, 8
WAITING_AT, PID_AT = 0, 8
_superblock = struct.Struct("<8sIIQQQII16x")
_line = struct.Struct("<QQQI")

#: What payloads are encoded with, as far as package shmstore is to know: nothing that it decodes.
CODEC = 1

# States of a directory word, beside a generation.
FREE, LIVE, CLOSING = 0, 1, 2
STATE_BITS, MAX_GENERATION = 2, (1 << 62) - 1

# Cells of the index.
EMPTY, REMOVED = 0, 1
FIRST_SLOT = 2
_PER_SLOT = 2

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_U64 = (1 << 64) - 1


def check_name(name: str) -> str:
    """The name, if it can be a store's. Raises ValueError otherwise."""
    if not isinstance(name, str) or len(name) > MAX_NAME_BYTES or not _NAME.fullmatch(name):
        raise ValueError(
            f"store: {name!r:.64} is no name of a store: it takes 1 to {MAX_NAME_BYTES} letters, digits, - and _"
        )
    return name


class Record(NamedTuple):
    """What the first file says."""

    readers: int
    pid: int
    store: int
    base: int
    slots: int

    def encode(self) -> bytes:
        b = _record.pack(_MAGIC, HEAD_VERSION, *self)
        return b + _crc.pack(zlib.crc32(b))

    @classmethod
    def parse(cls, b: bytes) -> Record | None:
        """None: it is not complete, or is being written. Raises Unavailable for another version's."""
        if len(b) >= 12 and b[:8] == _MAGIC and (version := int.from_bytes(b[8:12], "little")) != HEAD_VERSION:
            raise Unavailable(f"a store of version {version}, this is {HEAD_VERSION}: {SAME_RELEASE}")
        if len(b) != RECORD_BYTES:
            return None
        r = cls(*_record.unpack_from(b)[2:])
        whole = r.encode() == b and 0 < r.readers <= MAX_READERS and 0 < r.slots <= MAX_SLOTS
        return r if whole else None

    def number(self, generation: int) -> int:
        """What metadata call a value."""
        return (self.base + generation) & _U64 or self.base  # no generation is 0


class Superblock(NamedTuple):
    """What the directory and ledgers begin with."""

    slots: int
    store: int
    arena: int
    most: int  # bytes of an object
    serializer: int
    reader: int

    def encode(self, kind: bytes) -> bytes:
        return _superblock.pack(b"OMNIBUS" + kind, LAYOUT_VERSION, *self)

    @classmethod
    def parse(cls, kind: bytes, b: bytes) -> Superblock:
        """Raises Damaged for what is none, and Unavailable for another version's."""
        if len(b) < _superblock.size or b[:8] != b"OMNIBUS" + kind:
            raise Damaged(f"a file of kind {kind.decode()} that belongs to no store")
        if (version := int.from_bytes(b[8:12], "little")) != LAYOUT_VERSION:
            raise Unavailable(f"a store of layout version {version}, this is {LAYOUT_VERSION}: {SAME_RELEASE}")
        sb = cls(*_superblock.unpack_from(b)[2:])
        if (
            sb.encode(kind) != b[: _superblock.size]
            or not sb.store
            or not 0 < sb.slots <= MAX_SLOTS
            or not MIN_ARENA_BYTES <= sb.arena <= MAX_ARENA_BYTES
            or not 0 < sb.most <= MAX_ARENA_BYTES
            or not 0 <= sb.reader <= MAX_READERS
        ):
            raise Damaged(f"a file of kind {kind.decode()} that no store begins with: {sb}")
        return sb


class Line(NamedTuple):
    """A slot of the directory: its word, and where the object of that generation lies."""

    word: int
    offset: int
    size: int
    codec: int

    @classmethod
    def parse(cls, b: bytes) -> Line:
        return cls(*_line.unpack_from(b))

    def encode(self) -> bytes:
        return _line.pack(*self)

    @property
    def generation(self) -> int:
        return self.word >> STATE_BITS

    @property
    def present(self) -> bool:
        """Whether an object is there, be it only looked at by an eviction."""
        return self.generation > 0 and self.word & 3 in (LIVE, CLOSING)


def word_of(generation: int, state: int) -> int:
    return generation << STATE_BITS | state


def line_at(slot: int) -> int:
    return PAGE + slot * LINE_BYTES


def entry_at(slot: int) -> int:
    """Of a ledger; marks lie as they do."""
    return PAGE + slot * ENTRY_BYTES


def directory_bytes(slots: int) -> int:
    return line_at(slots)


def ledger_bytes(slots: int) -> int:
    return entry_at(slots)


def index_cells(slots: int) -> int:
    return 1 << (slots * _PER_SLOT - 1).bit_length()


def cell_of(address_hash: int, slot: int) -> int:
    return address_hash >> 32 << 32 | slot + FIRST_SLOT


def label_of(edge: Edge, key: str) -> bytes:
    """The address of a value, which lies behind it."""
    parts = [text.encode() for text in (*edge, key)]
    return b"".join(parts) + struct.pack("<HHH", *map(len, parts))


def hash_of(edge: Edge, key: str) -> int:
    """Of an address, the same in all processes: FNV-1a, and then mixed."""
    h = _hash_text(_hash_edge(edge), key)
    h = ((h ^ h >> 33) * 0xFF51AFD7ED558CCD) & _U64
    h = ((h ^ h >> 33) * 0xC4CEB9FE1A85EC53) & _U64
    return h ^ h >> 33


@functools.lru_cache(256)
def _hash_edge(edge: Edge) -> int:
    return _hash_text(_hash_text(14695981039346656037, edge.source), edge.target)


def _hash_text(h: int, text: str) -> int:
    for byte in (*text.encode(), 0xFF):  # no name has that byte
        h = ((h ^ byte) * 1099511628211) & _U64
    return h
