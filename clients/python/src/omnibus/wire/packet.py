"""Messages to bytes, and packets to messages. Open it for how a message is framed, and what a packet may hold.

The layout of a message is that of its class's fields, in their order: see `message`. Bytes from outside never
raise anything but `ProtocolError`. Nothing here touches a socket or a descriptor.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..errors import ProtocolError
from .fields import Part, Reader
from .limits import HEADER_BYTES, MAX_PACKET_BYTES

Message: TypeAlias = Any  # an object of a class that `message` has registered

_M = TypeVar("_M")

_header = struct.Struct("<IHBB")


class _Layout(NamedTuple):
    kind: int
    cls: Any
    parts: list[tuple[struct.Struct | None, Part | None, int, int]]  # numbers in a row, or a part; and their fields
    min_descriptors: int
    max_descriptors: int
    checked: bool


by_kind: dict[int, _Layout] = {}
by_class: dict[type, _Layout] = {}


def message(kind: int, fds: tuple[int, int] = (0, 0)) -> Callable[[type[_M]], type[_M]]:
    """Register a class of messages: a named tuple whose fields have types of `fields`.

    If it has a method `check`, that is called when one was read.
    """

    def register(cls: type[_M]) -> type[_M]:
        how = [hint.__metadata__[0] for hint in cls.__annotations__.values()]
        by_kind[kind] = by_class[cls] = _Layout(kind, cls, _parts(how), *fds, hasattr(cls, "check"))
        return cls

    return register


def _parts(how: list[Any]) -> list[tuple[struct.Struct | None, Part | None, int, int]]:
    parts: list[tuple[struct.Struct | None, Part | None, int, int]] = []
    at = 0
    while at < len(how):
        to, codes = at, "<"
        while to < len(how) and isinstance(how[to], str):
            codes += how[to]
            to += 1
        if to > at:
            parts.append((struct.Struct(codes), None, at, to))
        else:
            to += 1
            parts.append((None, how[at], at, to))
        at = to
    return parts


def encode(m: Message, descriptors: int = 0) -> bytearray:
    """The bytes of a message that takes `descriptors` of its packet's.

    Raises ProtocolError when a field breaks a bound. Error texts are cut.
    """
    layout = by_class[type(m)]
    out = bytearray(HEADER_BYTES)
    try:
        for s, part, at, to in layout.parts:
            if s is not None:
                out += s.pack(*m[at:to])
                continue
            value, empty = m[at], part.empty  # type: ignore[union-attr]
            if empty is not None and not value:
                out += empty
            else:
                part.put(out, value)  # type: ignore[union-attr]
    except (struct.error, TypeError, AttributeError, UnicodeError) as e:
        raise ProtocolError(f"{type(m).__name__.lower()}: a field does not fit: {e}") from None
    if len(out) > MAX_PACKET_BYTES:
        raise ProtocolError(f"a message of {len(out)} bytes, a packet takes {MAX_PACKET_BYTES}")
    _header.pack_into(out, 0, len(out), layout.kind, descriptors, 0)
    return out


def decode(packet: bytes, descriptors: int) -> Iterator[tuple[Message, int]]:
    """The messages of a packet, each with the number of descriptors it takes.

    A generator: the caller may act on a message before the next is read.
    Raises ProtocolError, also when descriptors are left over or missing.
    """
    at, left, end = 0, descriptors, len(packet)
    if end > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of {end} bytes, at most {MAX_PACKET_BYTES} are allowed")
    if not packet:
        raise ProtocolError("an empty packet")
    while at < end:
        if end - at < HEADER_BYTES:
            raise ProtocolError(f"{end - at} bytes are no header of a message")
        size, kind, fds, _ = _header.unpack_from(packet, at)
        if size < HEADER_BYTES or size > end - at:
            raise ProtocolError(f"a message of {size} bytes, {end - at} are left in the packet")
        layout = by_kind.get(kind)
        if layout is None:
            raise ProtocolError(f"no message has the kind {kind}")
        if not layout.min_descriptors <= fds <= layout.max_descriptors or fds > left:
            raise ProtocolError(f"{layout.cls.__name__.lower()} with {fds} descriptors, {left} are left in the packet")
        left -= fds
        yield _read(layout, Reader(packet, at + HEADER_BYTES, at + size)), fds
        at += size
    if left:
        raise ProtocolError(f"{left} descriptors belong to no message of the packet")


def _read(layout: _Layout, r: Reader) -> Message:
    values: list[Any] = []
    for s, part, _, _ in layout.parts:
        if s is not None:
            at = r.pos
            r.pos = at + s.size
            if r.pos > r.end:
                r.pos = at
                r.numbers(s)  # which says what is missing
            values += s.unpack_from(r.buf, at)
        else:
            values.append(part.get(r))  # type: ignore[union-attr]
    m = tuple.__new__(layout.cls, values)  # as many as the layout has, which is made of the class
    if layout.checked:
        m.check()
    return m


def kind_of(m: Message) -> int:
    """The number of a message's kind."""
    return by_class[type(m)].kind
