"""The types of messages' fields, and how each is written and read. Open it to add one, or to see what a type bounds.

A type is that of Python with, as its annotation, how it is written: a code of `struct`, whose ``x`` are reserved
bytes behind the number, or a `Part`, for what has a length of its own. Reading
raises nothing but `ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

from ..errors import LabelError, ProtocolError
from .limits import (
    INLINE,
    MAX_ATTR_NAME_BYTES,
    MAX_ATTR_VALUE_BYTES,
    MAX_ATTRS,
    MAX_INLINE_BYTES,
    MAX_NAME_BYTES,
    MAX_PIECE_BYTES,
    MAX_TEXT_BYTES,
    MAX_TRACE_STATE_BYTES,
)
from .values import Attrs, Edge, Tensors, Trace

_u16 = struct.Struct("<H")
_u32 = struct.Struct("<I")
_edge_tail = struct.Struct("<IQB")
_tensors = struct.Struct("<BQ")
_trace_head = struct.Struct("<16s8sB")


class Reader:
    """A position in a message. Every read is checked against its end."""

    __slots__ = ("buf", "pos", "end")

    def __init__(self, buf: bytes, pos: int, end: int) -> None:
        self.buf, self.pos, self.end = buf, pos, end

    def numbers(self, s: struct.Struct) -> tuple[Any, ...]:
        at = self.pos
        if at + s.size > self.end:
            raise ProtocolError(f"the message is cut short: {self.end - at} bytes left, {s.size} needed")
        self.pos = at + s.size
        return s.unpack_from(self.buf, at)

    def count(self) -> int:
        """A number of 16 bits."""
        at, buf = self.pos, self.buf
        if at + 2 > self.end:
            raise ProtocolError(f"the message is cut short: {self.end - at} bytes left, 2 needed")
        self.pos = at + 2
        return buf[at] | buf[at + 1] << 8

    def take(self, size: int) -> bytes:
        at = self.pos
        if size > self.end - at:
            raise ProtocolError(f"a field of {size} bytes is cut short: {self.end - at} bytes left")
        self.pos = at + size
        return self.buf[at : self.pos]


class Part(Protocol):
    """How one field is written and read that is not a plain number."""

    #: What is written for nothing; None: nothing is no value of it.
    empty: bytes | None

    def put(self, out: bytearray, value: Any) -> None: ...

    def get(self, r: Reader) -> Any: ...


class _Number:
    __slots__ = ("_struct",)
    empty = None

    def __init__(self, code: str) -> None:
        self._struct = struct.Struct("<" + code)

    def put(self, out: bytearray, value: int) -> None:
        out += self._struct.pack(value)

    def get(self, r: Reader) -> int:
        (value,) = r.numbers(self._struct)
        return int(value)


class _Str:
    __slots__ = ("_bound", "_cut")
    empty = b"\0\0"

    def __init__(self, bound: int, cut: bool = False) -> None:
        self._bound, self._cut = bound, cut

    def put(self, out: bytearray, value: str) -> None:
        b = value.encode(errors="replace") if self._cut else _utf8(value)  # what is for people says what it can
        if len(b) > self._bound:
            if not self._cut:
                raise ProtocolError(f"text of {len(b)} bytes, at most {self._bound} are allowed: {value[:40]!r}…")
            b = cut_utf8(b, self._bound)
        out += _u16.pack(len(b))
        out += b

    def get(self, r: Reader) -> str:
        n = r.count()
        if n == 0:
            return ""
        if n > self._bound:
            raise ProtocolError(f"text of {n} bytes, at most {self._bound} are allowed")
        try:
            return r.take(n).decode()
        except UnicodeDecodeError as e:
            raise ProtocolError(f"text is not UTF-8: {e}") from None


class _Bytes:
    __slots__ = ("_bound",)
    empty = b"\0\0\0\0"

    def __init__(self, bound: int) -> None:
        self._bound = bound

    def put(self, out: bytearray, value: bytes | bytearray | memoryview) -> None:
        if len(value) > self._bound:
            raise ProtocolError(f"{len(value)} bytes, at most {self._bound} are allowed in a message")
        out += _u32.pack(len(value))
        out += value

    def get(self, r: Reader) -> bytes:
        (n,) = r.numbers(_u32)
        if n > self._bound:
            raise ProtocolError(f"{n} bytes, at most {self._bound} are allowed in a message")
        return r.take(n)


class _List:
    """A count, and so many items. Each takes at least a byte, so the message bounds the loop that reads them."""

    __slots__ = ("_item",)
    empty = b"\0\0"

    def __init__(self, item: Part) -> None:
        self._item = item

    def put(self, out: bytearray, value: Sequence[Any]) -> None:
        out += _u16.pack(len(value))
        for v in value:
            self._item.put(out, v)

    def get(self, r: Reader) -> list[Any]:
        (n,) = r.numbers(_u16)
        return [self._item.get(r) for _ in range(n)]


class _Attrs:
    __slots__ = ()
    empty = b"\0\0"

    def put(self, out: bytearray, value: Attrs | None) -> None:
        if not value:
            out += b"\0\0"
            return
        if len(value) > MAX_ATTRS:
            raise ProtocolError(f"{len(value)} attributes, at most {MAX_ATTRS} are allowed")
        out += _u16.pack(len(value))
        for k in sorted(value, key=str.encode):  # one form for one message
            if not k:
                raise ProtocolError("an attribute without a name")
            _attr_name.put(out, k)
            _attr_value.put(out, value[k])

    def get(self, r: Reader) -> Attrs:
        n = r.count()
        if n > MAX_ATTRS:
            raise ProtocolError(f"{n} attributes, at most {MAX_ATTRS} are allowed")
        attrs: Attrs = {}
        for _ in range(n):
            k = _attr_name.get(r)
            if not k or k in attrs:
                raise ProtocolError("an attribute without a name, or two with one name")
            attrs[k] = _attr_value.get(r)
        return attrs


class _Edge:
    __slots__ = ()
    empty = None

    def put(self, out: bytearray, value: Edge) -> None:
        _name.put(out, value.name)
        _name.put(out, value.peer)
        out += _edge_tail.pack(value.window, value.window_bytes, value.policy)

    def get(self, r: Reader) -> Edge:
        e = Edge(_name.get(r), _name.get(r), *r.numbers(_edge_tail))
        if e.policy > 2:
            raise ProtocolError(f"edge {e.name}: no policy has the number {e.policy}")
        return e


class _Tensors:
    __slots__ = ()
    empty = None

    def put(self, out: bytearray, value: Tensors) -> None:
        out += _tensors.pack(value.transport, value.min_bytes)

    def get(self, r: Reader) -> Tensors:
        t = Tensors(*r.numbers(_tensors))
        if t.transport > 2:
            raise ProtocolError(f"no transport of tensors has the number {t.transport}")
        return t


class _Trace:
    __slots__ = ()
    empty = None

    def put(self, out: bytearray, value: Trace) -> None:
        out += _trace_head.pack(value.trace_id, value.span_id, value.flags)
        _trace_state.put(out, value.state)

    def get(self, r: Reader) -> Trace:
        trace_id, span_id, flags = r.numbers(_trace_head)
        return Trace(trace_id, span_id, flags, _trace_state.get(r))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise ProtocolError(f"text is not Unicode: {e}") from None


def cut_utf8(b: bytes, bound: int) -> bytes:
    """At most `bound` bytes of UTF-8, cut between characters."""
    return b[:bound].decode(errors="ignore").encode() if len(b) > bound else b


def check_inline(flags: int, size: int, payload: bytes | bytearray | memoryview) -> None:
    """Check what three fields say of one payload."""
    if flags & INLINE == 0 and payload:
        raise ProtocolError(f"a payload of {len(payload)} bytes, without the flag that says so")
    if flags & INLINE and size != len(payload):
        raise ProtocolError(f"a payload of {len(payload)} bytes, and the size says {size}")


def check_labels(key: str, attrs: Attrs) -> None:
    """Check what an emission says of its payload, before anything is done for it."""
    labels: tuple[tuple[str, Part, Any], ...] = ("key", _name, key), ("attributes", _attrs, attrs)
    for what, part, value in labels:
        if value:
            try:
                part.put(bytearray(), value)
            except ProtocolError as e:
                raise LabelError(f"{what}: {e}") from None


_attrs = _Attrs()
_name = _Str(MAX_NAME_BYTES)
_attr_name = _Str(MAX_ATTR_NAME_BYTES)
_attr_value = _Str(MAX_ATTR_VALUE_BYTES)
_trace_state = _Str(MAX_TRACE_STATE_BYTES)
_payload = _Bytes(MAX_INLINE_BYTES)

U8: TypeAlias = Annotated[int, "B"]
U8_x: TypeAlias = Annotated[int, "Bx"]
U8_3x: TypeAlias = Annotated[int, "B3x"]
U16: TypeAlias = Annotated[int, "H"]
U16_2x: TypeAlias = Annotated[int, "H2x"]
U32: TypeAlias = Annotated[int, "I"]
U32_4x: TypeAlias = Annotated[int, "I4x"]
U64: TypeAlias = Annotated[int, "Q"]
I64: TypeAlias = Annotated[int, "q"]
Pool: TypeAlias = Annotated[bytes, "16s"]

Name: TypeAlias = Annotated[str, _name]
Text: TypeAlias = Annotated[str, _Str(MAX_TEXT_BYTES, cut=True)]
Attributes: TypeAlias = Annotated[Attrs, _attrs]
Payload: TypeAlias = Annotated[bytes, _payload]
Data: TypeAlias = Annotated[bytes | bytearray | memoryview, _payload]  #: a payload that is only sent
Piece: TypeAlias = Annotated[bytes, _Bytes(MAX_PIECE_BYTES)]
Edges: TypeAlias = Annotated[list[Edge], _List(_Edge())]
Numbers: TypeAlias = Annotated[Sequence[int], _List(_Number("I"))]

TensorsList: TypeAlias = Annotated[list[Tensors], _List(_Tensors())]
TraceContext: TypeAlias = Annotated[Trace, _Trace()]
