"""The framing of messages in packets.

The layout of each message is in `messages`. For bytes from outside the only error is
`ProtocolError`. Nothing here touches a socket or a descriptor.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from ..errors import ProtocolError
from .limits import HEADER_BYTES, MAX_PACKET_BYTES, SKIPPABLE
from .messages import TABLE

Message: TypeAlias = Any  # an object of a class of `messages`


class _Layout(NamedTuple):
    kind: int
    cls: Any
    descriptors: int
    put: Callable[..., bytearray]  # called with a message and the number of its descriptors
    get: Callable[[bytes, int, int], Message]  # called with a packet, and the start and end of the fields


by_kind: dict[int, _Layout] = {row[0]: _Layout(*row) for row in TABLE}
by_class: dict[type, _Layout] = {layout.cls: layout for layout in by_kind.values()}

_put = {layout.cls: layout.put for layout in by_kind.values()}
_unpack_header = struct.Struct("<IHBB").unpack_from


def encode(m: Message, descriptors: int = 0) -> bytearray:
    """The bytes of a message that carries `descriptors` descriptors.

    Raises ProtocolError if a field breaks a bound. Error texts are cut to theirs.
    """
    try:
        out = _put[type(m)](m, descriptors)
    except (struct.error, TypeError, AttributeError, UnicodeError) as e:
        raise ProtocolError(f"{type(m).__name__.lower()}: a field does not fit: {e}") from None
    if len(out) > MAX_PACKET_BYTES:
        raise ProtocolError(f"a message of {len(out)} bytes, a packet takes {MAX_PACKET_BYTES}")
    return out


def decode(packet: bytes, descriptors: int) -> Iterator[tuple[Message, int]]:
    """The messages of a packet, each with the number of its descriptors. None represents a message of an unknown kind
    that its sender has marked as skippable.

    A generator: the caller may handle a message before the next is decoded.
    Raises ProtocolError, also if descriptors are left over or missing.
    """
    at, left, end = 0, descriptors, len(packet)
    if end > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of {end} bytes, at most {MAX_PACKET_BYTES} are allowed")
    if not packet:
        raise ProtocolError("an empty packet")
    while at < end:
        if end - at < HEADER_BYTES:
            raise ProtocolError(f"{end - at} bytes are no header of a message")
        size, kind, fds, flags = _unpack_header(packet, at)
        if size < HEADER_BYTES or size > end - at:
            raise ProtocolError(f"a message of {size} bytes, {end - at} are left in the packet")
        if flags > SKIPPABLE:
            raise ProtocolError(f"byte 7 of a header is {flags}: only 0 and 1 mean something")
        layout = by_kind.get(kind)
        if layout is None and flags == SKIPPABLE and fds <= left:
            left -= fds
            yield None, fds
            at += size
            continue
        if layout is None:
            raise ProtocolError(f"no message has the kind {kind}")
        _, cls, takes, _, get = layout
        if fds != takes or fds > left:
            raise ProtocolError(f"{cls.__name__.lower()} with {fds} descriptors, {left} are left in the packet")
        left -= fds
        try:
            m = get(packet, at + HEADER_BYTES, at + size)
        except UnicodeDecodeError as e:
            raise ProtocolError(f"text is not UTF-8: {e}") from None
        yield m, fds
        at += size
    if left:
        raise ProtocolError(f"{left} descriptors belong to no message of the packet")


def kind_of(m: Message) -> int:
    """The number of a message's kind."""
    return by_class[type(m)].kind
