"""Bundles: one nested value that contains tensors, in one payload.

The data of each tensor lies at a multiple of 64 in the payload, or in a *place* outside it, such
as a chunk of GPU memory. All numbers are little endian, except in the tree, which is MessagePack::

    offset  size      field
         0  4         magic "OBDL"
         4  1         version, 1
         5  3         reserved, 0
         8  4         places
        12  4         tensors
        16  8         size of the table of tensors in bytes
        24  8         size of the tree in bytes
        32  128*n     table of places
         …            table of tensors
         …            tree, with tensors as extensions of type 7: their numbers, 4 bytes
         …            data: each tensor's at the next multiple of 64, zeros between

    place:  kind, arena, slot and generation, 4 bytes each; device and pool, 16 bytes each;
            offset and size, 8 bytes each; handle, 64 bytes
    tensor: dtype, ndim, whether there are strides, 0, a byte each; place, 4 bytes; offset and
            size, 8 bytes each; shape and strides, 8 bytes a dimension

The Go package `codec/bundle` has the rules, and its `testdata/vectors.json` examples. This module writes the same
bytes, except that maps have the order of the dicts here. Errors are `PayloadError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import sources
from .dtypes import DTYPES, MAX_DIMS, NAMES, data_bytes
from .errors import PayloadError
from .msgpack import Ext, _Packer, _Unpacker, scalar, timestamp
from .tensor import Tensor

MAX_PLACES = 1 << 12
MAX_TENSORS = 1 << 16

#: The kinds of places.
POOL, HANDLE = 1, 2

MAGIC = b"OBDL"  #: the first bytes of a bundle
_VERSION = 1
_MAX = (1 << 63) - 1
_EXT = 7
_TIMESTAMP = -1
_header = struct.Struct("<4sB3sIIQQ")
_place = struct.Struct("<IIII16s16sQQ64s")
_tensor = struct.Struct("<BBBBIQQ")


@dataclass(slots=True)
class Place:
    """Memory outside the payload that contains tensors."""

    kind: int
    nbytes: int
    offset: int = 0  #: in the arena, or from the base of the handle's allocation
    device: bytes = bytes(16)  #: the GPU's UUID
    pool: bytes = bytes(16)
    slot: int = 0
    generation: int = 0
    arena: int = 0
    handle: bytes = bytes(64)

    def _check(self) -> str:
        """The reason why the place is invalid; empty if it is valid."""
        if self.kind not in (POOL, HANDLE):
            return f"kind {self.kind}"
        if not (0 <= self.offset <= _MAX - self.nbytes and self.nbytes >= 0):
            return f"{self.nbytes} bytes at {self.offset}"
        if self.kind == POOL and any(self.handle):
            return "a chunk of a pool with a handle"
        if self.kind == HANDLE and self.arena:
            return "a handle with an arena"
        return ""


@dataclass(slots=True)
class Placed:
    """A tensor in a place: its position, without its data."""

    dtype: str
    shape: tuple[int, ...]
    place: int  #: from 1
    offset: int  #: in the place
    strides: tuple[int, ...] | None = None  #: in elements; None: contiguous, in row-major order
    nbytes: int = field(default=-1)  #: from the first element to the end of the last

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            self.nbytes = _extent(self.dtype, self.shape, self.strides)


@dataclass(slots=True)
class Planned:
    """A tensor of a plan. The caller may set its place, and its offset and strides there."""

    source: sources.Source | Placed
    place: int = 0
    offset: int = 0
    strides: tuple[int, ...] | None = None
    nbytes: int = 0
    data: memoryview | None = None  #: after `write`, its part of the payload, if it lies in the payload

    @property
    def dtype(self) -> str:
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.source.shape


class Plan:
    """A value that is about to be encoded: `tensors`, in the order of the tree, and `tree`, which is encoded already.
    """

    __slots__ = ("tensors", "places", "min_bytes", "tree", "_of")

    def __init__(
        self, value: Any, of: Callable[[Any], sources.Source | None] = sources.of, *, extensions: bool = True
    ) -> None:
        """Walk through a value, without reading the data of tensors. `of` returns the source of a tensor, else None. With
        `extensions`, a value without tensors may contain extensions; it is then no bundle."""
        self._of = of
        self.tensors: list[Planned] = []
        self.places: list[Place] = []
        self.min_bytes = 0  #: a bundle with places is padded with zeros to this size
        tree = _Tree(self._substitute, extensions)
        tree.whole(value)
        self.tree = tree.out  #: plain msgpack if there are no tensors

    def _substitute(self, value: Any) -> Any:
        """The substitute in the tree for a value that msgpack does not know: a tensor's number, or a scalar."""
        source = value if isinstance(value, Placed) else self._of(value)
        if source is None:
            return scalar(value)
        if len(self.tensors) == MAX_TENSORS:
            raise PayloadError(f"bundle: more than {MAX_TENSORS} tensors")
        t = Planned(source)
        if isinstance(source, Placed):
            t.place, t.offset, t.strides = source.place, source.offset, source.strides
        self.tensors.append(t)
        return _Number(len(self.tensors) - 1)

    def size(self) -> int:
        """The size of the payload, with the tensors at their current places."""
        if len(self.places) > MAX_PLACES:
            raise PayloadError(f"bundle: {len(self.places)} places, at most {MAX_PLACES}")
        end = _header.size + _place.size * len(self.places) + self._table_bytes() + len(self.tree)
        for i, t in enumerate(self.tensors):
            if not 0 <= t.place <= len(self.places):
                raise PayloadError(f"bundle: tensor {i} is in place {t.place} of {len(self.places)}")
            t.nbytes = _extent(t.dtype, t.shape, t.strides)
            if t.place == 0:
                t.offset = 0
                if t.nbytes:
                    t.offset = _aligned(end)
                    end = t.offset + t.nbytes
        return max(end, self.min_bytes) if self.places else end

    def _table_bytes(self) -> int:
        size = 0
        for t in self.tensors:
            if t.strides is not None and (t.place == 0 or _is_contiguous(t.shape, t.strides)):
                t.strides = None
            size += _tensor.size + 8 * len(t.shape) * (1 if t.strides is None else 2)
        return size

    def write(self, buf: memoryview) -> None:
        """Fill `buf`, of exactly `size` bytes. Data is copied once, straight into it. The caller copies
        the data of sources without `fill`."""
        if buf.nbytes != (want := self.size()):
            raise PayloadError(f"bundle: a buffer of {buf.nbytes} bytes, want {want}")
        head = bytearray(_header.pack(
            MAGIC, _VERSION, b"", len(self.places), len(self.tensors), self._table_bytes(), len(self.tree)
        ))  # fmt: skip
        for i, p in enumerate(self.places):
            if wrong := p._check():
                raise PayloadError(f"bundle: place {i + 1}: {wrong}")
            head += _place.pack(
                p.kind, p.arena, p.slot, p.generation, p.device, p.pool, p.offset, p.nbytes, p.handle
            )  # fmt: skip
        for i, t in enumerate(self.tensors):
            if t.place and (wrong := _misplaced(t, self.places)):
                raise PayloadError(f"bundle: tensor {i}: {wrong}")
            sizes = (*t.shape, *(t.strides or ()))
            flags = int(t.strides is not None)
            head += _tensor.pack(DTYPES[t.dtype][0], len(t.shape), flags, 0, t.place, t.offset, t.nbytes)
            head += struct.pack(f"<{len(sizes)}Q", *sizes)
        head += self.tree
        at = len(head)
        buf[:at] = head
        for t in self.tensors:
            if t.place == 0 and t.nbytes:
                buf[at : t.offset] = bytes(t.offset - at)  # reserved memory holds old bytes
                at = t.offset + t.nbytes
                t.data = buf[t.offset : at]
                if isinstance(t.source, sources.Source) and t.source.fill is not None:
                    t.source.fill(t.data)
        buf[at:] = bytes(len(buf) - at)


class _Number:
    """The number of a tensor, for the tree."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class _Tree(_Packer):
    """Packs a value that has tensors or extensions, not both."""

    __slots__ = ("extensions", "tensors")

    def __init__(self, default: Callable[[Any], Any], extensions: bool) -> None:
        super().__init__(default)
        self.extensions, self.tensors = extensions, True  # which of the two are allowed

    def other(self, v: Any, depth: int) -> None:
        if not isinstance(v, _Number):
            return super().other(v, depth)
        if self.in_key or not self.tensors:
            raise PayloadError(f"bundle: a tensor {'in the key of a dict' if self.in_key else 'beside an extension'}")
        self.extensions = False
        super().extension(Ext(_EXT, v.number.to_bytes(4, "little")))

    def extension(self, v: Ext) -> None:
        if v.type != _TIMESTAMP:
            if not self.extensions:
                raise PayloadError(f"bundle: an extension of type {v.type}: bundles and values with tensors have none")
            self.tensors = False
        super().extension(v)


def encode(value: Any) -> bytearray:
    """The bundle of a value."""
    plan = Plan(value, extensions=False)
    out = bytearray(plan.size())
    plan.write(memoryview(out))
    return out


class Bundle:
    """A payload whose tables have been read. Tensors in the payload are views of it."""

    __slots__ = ("places", "tensors", "_tree")

    def __init__(self, payload: bytes | bytearray | memoryview) -> None:
        """Read the tables, and check all parts except the tree."""
        self.places: list[Place] = []
        self.tensors: list[Tensor | Placed] = []
        self._tree = _Tables(self, memoryview(payload).cast("B")).read()

    def value(self, tensor: Callable[[Tensor | Placed], Any] | None = None) -> Any:
        """The value. `tensor` returns the substitute for each tensor; it is called in the order of the tree."""
        u = _TreeReader(self._tree, self.tensors, tensor)
        try:
            v = u.value(0)
        except TypeError as e:  # a tensor, or its substitute, is not hashable as a dict key
            if u.asking:
                raise
            raise PayloadError(f"bundle: {e}") from None
        if u.pos != len(u.src):
            raise u.fail(u.pos, f"{len(u.src) - u.pos} bytes after the value")
        if u.next != len(self.tensors):
            raise PayloadError(f"bundle: {u.next} tensors in the tree, {len(self.tensors)} in the table")
        return v


def decode(payload: bytes | bytearray | memoryview, tensor: Callable[[Tensor | Placed], Any] | None = None) -> Any:
    """The value of a bundle, in which tensors are views of it, or `Placed`; see `Bundle.value`."""
    return Bundle(payload).value(tensor)


class _TreeReader(_Unpacker):
    __slots__ = ("tensors", "tensor", "next", "asking")

    def __init__(
        self, src: bytes, tensors: list[Tensor | Placed], tensor: Callable[[Tensor | Placed], Any] | None
    ) -> None:
        super().__init__(src)
        self.tensors = tensors
        self.tensor = tensor
        self.next = 0
        self.asking = False

    def extension(self, n: int, start: int) -> Any:
        v = super().extension(n, start)
        if v.type == _TIMESTAMP:
            timestamp(v.data)
            return v
        if v.type != _EXT or len(v.data) != 4:
            raise self.fail(start, f"an extension of type {v.type} and {len(v.data)} bytes")
        number = int.from_bytes(v.data, "little")
        if number != self.next or number >= len(self.tensors):
            raise self.fail(start, f"tensor {number} of {len(self.tensors)} where {self.next} is due")
        self.next += 1
        t = self.tensors[number]
        if self.tensor is None:
            return t
        self.asking = True
        v = self.tensor(t)
        self.asking = False
        return v


class _Tables:
    """Reads the tables, in one pass."""

    __slots__ = ("bundle", "buf", "head", "at", "end")

    def __init__(self, bundle: Bundle, buf: memoryview) -> None:
        self.bundle = bundle
        self.buf = buf
        self.head = b""  # a private copy of the bytes before the data
        self.at = 0
        self.end = 0  # of the parts read so far: the tree, then data

    def read(self) -> bytes:
        """Check the tables, and return the tree."""
        if len(self.buf) < _header.size:
            raise PayloadError(f"bundle: {len(self.buf)} bytes end within the header")
        magic, version, reserved, places, tensors, table, tree = _header.unpack_from(self.buf)
        if magic != MAGIC or version != _VERSION or any(reserved):
            raise PayloadError(f"bundle: magic {magic!r}, version {version}, reserved {reserved!r}")
        if places > MAX_PLACES or tensors > MAX_TENSORS:
            raise PayloadError(f"bundle: {places} places, at most {MAX_PLACES}; {tensors} tensors, at most {MAX_TENSORS}")
        self.at = _header.size
        tables = self.at + _place.size * places + table
        self.end = tables + tree
        if self.end > len(self.buf) or table < tensors * _tensor.size or table % 8:
            raise PayloadError(
                f"bundle: {places} places, {tensors} tensors in a table of {table} bytes, and a tree of {tree}"
                f" in {len(self.buf)} bytes"
            )
        self.head = bytes(self.buf[:tables])
        text = bytes(self.buf[tables : self.end])
        for i in range(places):
            self.place(i + 1)
        for i in range(tensors):
            if wrong := self.tensor():
                raise PayloadError(f"bundle: tensor {i}: {wrong}")
        if self.at != tables:
            raise PayloadError(f"bundle: {tables - self.at} bytes behind the last tensor of the table")
        if len(self.buf) > self.end and (not places or any(self.buf[self.end :])):
            raise PayloadError(f"bundle: {len(self.buf) - self.end} bytes behind the bundle")
        return text

    def place(self, number: int) -> None:
        kind, arena, slot, generation, device, pool, offset, size, handle = _place.unpack_from(self.head, self.at)
        self.at += _place.size
        p = Place(kind, size, offset, device, pool, slot, generation, arena, handle)
        if wrong := p._check():
            raise PayloadError(f"bundle: place {number}: {wrong}")
        self.bundle.places.append(p)

    def tensor(self) -> str:
        """Read a record. Returns what is wrong with it; empty if it is valid."""
        if len(self.head) - self.at < _tensor.size:
            return "it is not in the table"
        number, ndim, flags, reserved, place, offset, size = _tensor.unpack_from(self.head, self.at)
        self.at += _tensor.size
        if ndim > MAX_DIMS or flags > 1 or reserved or number not in NAMES:
            return f"dtype {number}, {ndim} dimensions, flags {flags}, reserved {reserved}"
        if len(self.head) - self.at < 8 * ndim * (1 + flags):
            return f"its {ndim} dimensions are not in the table"
        if place > len(self.bundle.places):
            return f"it lies in place {place} of {len(self.bundle.places)}"
        shape = self.sizes(ndim)
        strides = self.sizes(ndim) if flags else None
        dtype = NAMES[number]
        want = _extent(dtype, shape, strides)
        if size != want:
            return f"{size} bytes, its shape needs {want}"
        if strides is not None and (place == 0 or _is_contiguous(shape, strides)):
            return "strides of a contiguous tensor"
        if place:
            t = Placed(dtype, shape, place, offset, strides, size)
            self.bundle.tensors.append(t)
            return _misplaced(t, self.bundle.places)
        return self.data(dtype, shape, offset, size)

    def data(self, dtype: str, shape: tuple[int, ...], offset: int, size: int) -> str:
        """Check the position of a tensor in the payload. Returns what is wrong; empty if it is valid."""
        want = _aligned(self.end) if size else 0
        if offset != want:
            return f"it lies at {offset}, not at {want}"
        if want + size > len(self.buf):
            return f"{size} bytes at {want} of {len(self.buf)}"
        if size and any(self.buf[self.end : want]):
            return "what is before its data is not zero"
        if size:
            self.end = want + size
        self.bundle.tensors.append(Tensor(dtype, shape, self.buf[want : want + size]))
        return ""

    def sizes(self, n: int) -> tuple[int, ...]:
        sizes = struct.unpack_from(f"<{n}Q", self.head, self.at)
        self.at += 8 * n
        if any(s > _MAX for s in sizes):
            raise PayloadError(f"bundle: a dimension or stride beyond 63 bits in {list(sizes)}")
        return sizes


def _aligned(offset: int) -> int:
    return (offset + 63) & ~63


def _extent(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """The number of bytes from a tensor's first element to the end of its last."""
    packed = data_bytes(dtype, shape)
    if strides is None:
        return packed
    if len(strides) != len(shape) or any(s < 0 for s in strides):
        raise PayloadError(f"tensor {dtype}{list(shape)}: strides {list(strides)}")
    if packed == 0:
        return 0
    span = (1 + sum((n - 1) * s for n, s in zip(shape, strides))) * DTYPES[dtype][1]
    if span > _MAX:
        raise PayloadError(f"tensor {dtype}{list(shape)}: strides {list(strides)} overflow")
    return span


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if 0 in shape:
        return True
    step = 1
    for n, s in zip(reversed(shape), reversed(strides)):
        if n > 1 and s != step:
            return False
        step *= n
    return True


def _misplaced(t: Planned | Placed, places: list[Place]) -> str:
    """The reason why a tensor cannot lie in its place; empty if it can."""
    p = places[t.place - 1]
    if t.offset < 0 or t.offset > p.nbytes - t.nbytes:
        return f"{t.nbytes} bytes at {t.offset} in a place of {p.nbytes}"
    if (p.offset + t.offset) % DTYPES[t.dtype][1]:
        return f"{t.dtype} elements at {t.offset} in a place at {p.offset}"
    return ""
