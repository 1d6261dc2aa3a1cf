"""MessagePack, small and strict.

The format is that of the Go package `codec`: one value, at most 64 containers deep,
at most 2**22 values, integers in the fewest bytes. Text is `str` and must be UTF-8,
bytes are `bytes`. Extensions stay opaque, as `Ext`; type -128, which the Go library
uses for interned strings, is refused.

Errors are `PayloadError`. The functions share no state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .errors import PayloadError

MAX_DEPTH = 64
MAX_VALUES = 1 << 22

_INTERNED = -128
_TIMESTAMP = -1
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799

_f32 = struct.Struct(">f")
_f64 = struct.Struct(">d")
_u8_1 = struct.Struct(">BB")
_u8_2 = struct.Struct(">BH")
_u8_4 = struct.Struct(">BI")
_u8_8 = struct.Struct(">BQ")
_i8_1 = struct.Struct(">Bb")
_i8_2 = struct.Struct(">Bh")
_i8_4 = struct.Struct(">Bi")
_i8_8 = struct.Struct(">Bq")
_BINARY = (0xC4, 0xC5, 0xC6)  # with lengths of one, two and four bytes


@dataclass(frozen=True, slots=True)
class Ext:
    """An extension: its type, -128 to 127, and its data."""

    type: int
    data: bytes


def no_encoding(value: Any) -> PayloadError:
    takes = "None, bool, int, float, str, bytes, lists, tuples, dicts, or tensors"
    return PayloadError(f"msgpack: no encoding for a value of type {type(value).__name__}: send {takes}")


def scalar(value: Any) -> Any:
    """The Python value of a NumPy scalar. Raises PayloadError if Python has none."""
    item = getattr(value, "item", None)
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if not callable(item) or getattr(value, "shape", None) != () or kind is None or kind in "mMV":
        raise no_encoding(value)  # dates and spans of time have a unit, and records have names, which would be lost
    v = item()
    if type(v) is type(value):  # a long double
        raise no_encoding(value)
    return v


def packb(value: Any, default: Callable[[Any], Any] | None = None) -> bytearray:
    """Encode a value.

    Takes None, bool, int of 64 bits, float (always 64 bits), str, bytes-like
    objects, lists, tuples, dicts and Ext. `default` is called for anything
    else and returns something to encode instead.
    """
    p = _Packer(default)
    p.whole(value)
    return p.out


def binary_head(size: int) -> bytes:
    """The header of a binary value of `size` bytes."""
    if size <= 0xFF:
        return _u8_1.pack(_BINARY[0], size)
    if size <= 0xFFFF:
        return _u8_2.pack(_BINARY[1], size)
    if size <= 0xFFFFFFFF:
        return _u8_4.pack(_BINARY[2], size)
    raise PayloadError(f"msgpack: a length of {size} does not fit 32 bits")


def binary_head_bytes(data: memoryview) -> int:
    """The size of the header if `data` is one binary value; 0 if it is another value."""
    if not data or data[0] not in _BINARY:
        return 0
    head = 1 + (1 << _BINARY.index(data[0]))
    return head if int.from_bytes(data[1:head], "big") == len(data) - head else 0


def _shown(key: Any) -> str:
    """A part of a path for an error text, or the name of its type if its repr fails."""
    try:
        return f"{key!r:.40}"
    except Exception:
        return f"of type {type(key).__name__}"


class _Packer:
    __slots__ = ("out", "values", "default", "path", "in_key")

    def __init__(self, default: Callable[[Any], Any] | None) -> None:
        self.out = bytearray()
        self.values = 0
        self.default = default
        self.path: list[Any] = []  # to the value that cannot be encoded, innermost part first
        self.in_key = False

    def whole(self, v: Any) -> None:
        """Encode a value. An error names the path to the part that cannot be encoded."""
        try:
            self.pack(v, 0)
        except PayloadError as e:
            if not self.path:
                raise
            raise PayloadError(f"{e}{self.where()}") from e

    def where(self) -> str:
        """The path to the part that cannot be encoded, as the end of an error text."""
        return f", at {''.join(f'[{_shown(k)}]' for k in reversed(self.path))}" if self.path else ""

    def pack(self, v: Any, depth: int) -> None:
        self.count(1)
        out = self.out
        if v is None:
            out.append(0xC0)
        elif v is True:
            out.append(0xC3)
        elif v is False:
            out.append(0xC2)
        elif isinstance(v, int):
            self.integer(v)
        elif isinstance(v, str):
            self.text(v)
        elif isinstance(v, float):
            out.append(0xCB)
            out += _f64.pack(v)
        elif isinstance(v, (bytes, bytearray, memoryview)):
            self.binary(v)
        elif isinstance(v, (list, tuple)):
            self.head(len(v), 0x90, 16, (0, 0xDC, 0xDD))
            self.enter(len(v), depth)
            at = 0
            try:
                for item in v:
                    self.pack(item, depth + 1)
                    at += 1
            except Exception:
                self.path.append(at)
                raise
        elif isinstance(v, dict):
            self.dictionary(v, depth)
        elif isinstance(v, Ext):
            self.extension(v)
        else:
            self.other(v, depth)

    def dictionary(self, v: dict[Any, Any], depth: int) -> None:
        self.head(len(v), 0x80, 16, (0, 0xDE, 0xDF))
        self.enter(len(v), depth)
        arrived: set[Any] | None = None
        key = None
        try:
            for key, item in v.items():
                if type(key) in _PLAIN_KEYS:
                    self.pack(key, depth + 1)
                else:
                    if arrived is None:
                        arrived = {k for k in v if type(k) in _PLAIN_KEYS}
                    self.key(key, depth + 1, arrived)
                self.pack(item, depth + 1)
        except Exception:
            self.path.append(key)
            raise

    def key(self, v: Any, depth: int, arrived: set[Any]) -> None:
        """Encode a dict key that is decoded as another key. Raises PayloadError if `arrived` has that key already."""
        outer, self.in_key = self.in_key, True
        out, self.out = self.out, bytearray()
        path, self.path = self.path, []  # in the path to a part of the key, the key stands as a whole
        try:
            self.pack(v, depth)
            encoded = self.out
        finally:
            self.in_key, self.out, self.path = outer, out, path
        try:
            u = _Unpacker(bytes(encoded))
            key = u.key(u.value(0), 0)
        except PayloadError:
            what = f"a value of type {type(v).__name__}"
            raise PayloadError(f"msgpack: {what} is the key of a dict, and would arrive as none") from None
        if key in arrived:
            raise PayloadError(f"msgpack: two keys of a dict arrive as {_shown(key)}")
        arrived.add(key)
        self.out += encoded

    def count(self, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise PayloadError(f"msgpack: more than {MAX_VALUES} values")

    def enter(self, length: int, depth: int) -> None:
        if length and depth >= MAX_DEPTH:
            raise PayloadError(f"msgpack: nested deeper than {MAX_DEPTH}")

    def head(self, n: int, fix: int, below: int, codes: tuple[int, int, int]) -> None:
        """Encode the first byte of a value with a length, and the length."""
        one, two, four = codes
        if n < below:
            self.out.append(fix | n)
        elif one and n <= 0xFF:
            self.out += _u8_1.pack(one, n)
        elif n <= 0xFFFF:
            self.out += _u8_2.pack(two, n)
        elif n <= 0xFFFFFFFF:
            self.out += _u8_4.pack(four, n)
        else:
            raise PayloadError(f"msgpack: a length of {n} does not fit 32 bits")

    def integer(self, v: int) -> None:
        out = self.out
        if 0 <= v < 0x80:
            out.append(v)
        elif v >= 0:
            if v <= 0xFF:
                out += _u8_1.pack(0xCC, v)
            elif v <= 0xFFFF:
                out += _u8_2.pack(0xCD, v)
            elif v <= 0xFFFFFFFF:
                out += _u8_4.pack(0xCE, v)
            elif v < 1 << 64:
                out += _u8_8.pack(0xCF, v)
            else:
                raise PayloadError(f"msgpack: an integer of {v.bit_length()} bits does not fit 64 bits")
        elif v >= -0x20:
            out.append(v & 0xFF)
        elif v >= -0x80:
            out += _i8_1.pack(0xD0, v)
        elif v >= -0x8000:
            out += _i8_2.pack(0xD1, v)
        elif v >= -0x80000000:
            out += _i8_4.pack(0xD2, v)
        elif v >= -1 << 63:
            out += _i8_8.pack(0xD3, v)
        else:
            raise PayloadError(f"msgpack: a negative integer of {v.bit_length()} bits does not fit 64 bits")

    def text(self, v: str) -> None:
        try:
            b = v.encode()
        except UnicodeEncodeError as e:
            raise PayloadError(f"msgpack: text is not Unicode: {e}") from None
        self.head(len(b), 0xA0, 32, (0xD9, 0xDA, 0xDB))
        self.out += b

    def binary(self, v: bytes | bytearray | memoryview) -> None:
        if isinstance(v, memoryview):
            v = v.cast("B") if v.c_contiguous and v.nbytes else v.tobytes()
        self.head(len(v), 0, 0, _BINARY)
        self.out += v

    def extension(self, v: Ext) -> None:
        if not -128 < v.type <= 127:
            raise PayloadError(f"msgpack: extension type {v.type}, want -127 to 127")
        if v.type == _TIMESTAMP:
            timestamp(v.data)
        n = len(v.data)
        if n in _FIXEXT:
            self.out.append(_FIXEXT[n])
        else:
            self.head(n, 0, 0, (0xC7, 0xC8, 0xC9))
        self.out.append(v.type & 0xFF)
        self.out += v.data

    def other(self, v: Any, depth: int) -> None:
        if self.default is None or depth > MAX_DEPTH:
            raise no_encoding(v)
        self.values -= 1
        default, self.default = self.default, None  # not called for its own result
        try:
            self.pack(default(v), depth)
        finally:
            self.default = default


_PLAIN_KEYS = frozenset({str, int, bool, float, bytes, type(None)})  # types of keys that are decoded as the same key
_FIXEXT = {1: 0xD4, 2: 0xD5, 4: 0xD6, 8: 0xD7, 16: 0xD8}


def unpackb(data: bytes | bytearray | memoryview) -> Any:
    """Decode exactly one value. Nothing in the result shares memory with `data`."""
    # A private copy: a concurrent writer of the payload cannot change it
    # between a check and a use. Slices of bytes are bytes.
    u = _Unpacker(data if isinstance(data, bytes) else bytes(data))
    v = u.value(0)
    if u.pos != len(u.src):
        raise u.fail(u.pos, f"{len(u.src) - u.pos} bytes after the value")
    return v


def _tuples(v: Any) -> Any:
    return tuple(map(_tuples, v)) if isinstance(v, list) else v


def timestamp(data: bytes) -> tuple[int, int]:
    """The seconds and nanoseconds of a point in time, from the data of an extension of type -1.

    Raises PayloadError for one outside the years 1 to 9999, which are those of a datetime.
    """
    if len(data) == 4:
        nanos, seconds = 0, int.from_bytes(data, "big")
    elif len(data) == 8:
        both = int.from_bytes(data, "big")
        nanos, seconds = both >> 34, both & (1 << 34) - 1
    elif len(data) == 12:
        nanos, seconds = struct.unpack(">Iq", data)
    else:
        raise PayloadError(f"a timestamp of {len(data)} bytes")
    if nanos >= 1_000_000_000:
        raise PayloadError(f"a timestamp with {nanos} nanoseconds")
    if not _FIRST_SECOND <= seconds <= _LAST_SECOND:
        raise PayloadError(f"a timestamp of {seconds} seconds, out of the years 1 to 9999")
    return seconds, nanos


class _Unpacker:
    __slots__ = ("src", "pos", "values")

    def __init__(self, src: bytes | memoryview) -> None:
        self.src = src
        self.pos = 0
        self.values = 0

    def fail(self, at: int, reason: str) -> PayloadError:
        return PayloadError(f"msgpack: byte {at}: {reason}")

    def take(self, n: int) -> bytes:
        """The next n bytes, a copy."""
        at = self.pos
        if n > len(self.src) - at:
            raise self.fail(at, f"{n} bytes declared, {len(self.src) - at} left")
        self.pos = at + n
        return bytes(self.src[at : self.pos])

    def number(self, n: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(n), "big", signed=signed)

    def value(self, depth: int) -> Any:
        start = self.pos
        self.values += 1
        if self.values > MAX_VALUES:
            raise self.fail(start, f"more than {MAX_VALUES} values")
        if start == len(self.src):
            raise self.fail(start, "a value is missing")
        code = self.src[start]
        self.pos = start + 1
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code >= 0xC0:
            return self.coded(code, start, depth)
        if code >= 0xA0:
            return self.text(code & 0x1F)
        if code >= 0x90:
            return self.array(code & 0x0F, start, depth)
        return self.map(code & 0x0F, start, depth)

    def coded(self, code: int, start: int, depth: int) -> Any:
        """A value whose first byte is 0xc0 to 0xdf."""
        if code == 0xC0:
            return None
        if code == 0xC2:
            return False
        if code == 0xC3:
            return True
        if 0xC4 <= code <= 0xC6:
            return self.binary(self.number(1 << (code - 0xC4)))
        if 0xC7 <= code <= 0xC9:
            return self.extension(self.number(1 << (code - 0xC7)), start)
        if code == 0xCA:
            return _f32.unpack(self.take(4))[0]
        if code == 0xCB:
            return _f64.unpack(self.take(8))[0]
        if 0xCC <= code <= 0xCF:
            return self.number(1 << (code - 0xCC))
        if 0xD0 <= code <= 0xD3:
            return self.number(1 << (code - 0xD0), signed=True)
        if 0xD4 <= code <= 0xD8:
            return self.extension(1 << (code - 0xD4), start)
        if 0xD9 <= code <= 0xDB:
            return self.text(self.number(1 << (code - 0xD9)))
        if 0xDC <= code <= 0xDD:
            return self.array(self.number(2 << (code - 0xDC)), start, depth)
        if 0xDE <= code <= 0xDF:
            return self.map(self.number(2 << (code - 0xDE)), start, depth)
        raise self.fail(start, f"no value begins with {code:#x}")

    def text(self, n: int) -> str:
        at = self.pos
        try:
            return self.take(n).decode()
        except UnicodeDecodeError as e:
            raise self.fail(at, f"text is not UTF-8: {e}") from None

    def binary(self, n: int) -> bytes | memoryview:
        return self.take(n)

    def enter(self, values: int, start: int, depth: int) -> None:
        # Each value takes at least one byte, so a larger count is invalid.
        left = len(self.src) - self.pos
        if values > left:
            raise self.fail(start, f"{values} values declared, {left} bytes left")
        if values and depth == MAX_DEPTH:
            raise self.fail(start, f"nested deeper than {MAX_DEPTH}")

    def array(self, n: int, start: int, depth: int) -> list[Any]:
        self.enter(n, start, depth)
        return [self.value(depth + 1) for _ in range(n)]

    def map(self, n: int, start: int, depth: int) -> dict[Any, Any]:
        self.enter(2 * n, start, depth)
        m: dict[Any, Any] = {}
        for _ in range(n):
            at = self.pos
            key = self.key(self.value(depth + 1), at)
            m[key] = self.value(depth + 1)
        return m

    def key(self, v: Any, at: int) -> Any:
        """A value as a dict key: lists become tuples. Raises PayloadError for a value that is not hashable."""
        key = _tuples(v)
        try:
            hash(key)
        except TypeError:
            raise self.fail(at, f"a value of type {type(v).__name__} as the key of a map, or in one") from None
        return key

    def extension(self, n: int, start: int) -> Any:
        kind = self.number(1, signed=True)
        if kind == _INTERNED:
            raise self.fail(start, "interned strings are not supported")
        return Ext(kind, self.take(n))
