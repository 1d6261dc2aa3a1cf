"""The encoding of variable-length fields, and their bounds. `messages` calls it.

Reading raises only `ProtocolError` and, for text, `UnicodeDecodeError`, which `packet` converts. Writing raises
`ProtocolError` for a value that breaks a bound, and Python's own errors for values of another type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, pack, unpack_from
from typing import Any, TypeAlias

from ..errors import LabelError, ProtocolError
from .limits import INLINE, MAX_ATTR_NAME_BYTES, MAX_ATTR_VALUE_BYTES, MAX_ATTRS, MAX_NAME_BYTES, MAX_TEXT_BYTES

Attrs: TypeAlias = dict[str, str]
Data: TypeAlias = bytes | bytearray | memoryview  #: a payload that is only sent

EMPTY = b"\0\0"  #: empty text, attributes or list

_u16 = Struct("<H").pack
_u32 = Struct("<I").pack


def cut(left: int, needed: int) -> ProtocolError:
    return ProtocolError(f"the message is cut short: {left} bytes left, {needed} needed")


def bad_str(size: int, bound: int, left: int) -> ProtocolError:
    """The error for text or bytes whose size exceeds the bound or the rest of the message."""
    return cut(left, size) if size <= bound else ProtocolError(f"a field of {size} bytes, at most {bound} are allowed")


def bad_enum(field: str, value: int) -> ProtocolError:
    return ProtocolError(f"{field}: {value} means nothing")


def bad_magic(value: int) -> ProtocolError:
    return ProtocolError(f"hello with the magic {value:#x}: this is no client of a bus")


def put_str(value: str, bound: int) -> bytes:
    try:
        b = value.encode()
    except UnicodeEncodeError as e:
        raise ProtocolError(f"text is not Unicode: {e}") from None
    if len(b) > bound:
        raise ProtocolError(f"text of {len(b)} bytes, at most {bound} are allowed: {value[:40]!r}…")
    return _u16(len(b)) + b


def put_text(value: str) -> bytes:
    """The text of an error, cut to its bound."""
    b = cut_utf8(value.encode(errors="replace"), MAX_TEXT_BYTES)
    return _u16(len(b)) + b


def cut_utf8(b: bytes, bound: int) -> bytes:
    """At most `bound` bytes of UTF-8, cut between characters."""
    return b[:bound].decode(errors="ignore").encode() if len(b) > bound else b


def count_bytes(value: Data, bound: int) -> bytes:
    if len(value) > bound:
        raise ProtocolError(f"{len(value)} bytes, at most {bound} are allowed in a message")
    return _u32(len(value))


def check_inline(flags: int, size: int, payload: Data) -> None:
    """Check that flags, size and payload of a message agree."""
    if flags & INLINE == 0 and payload:
        raise ProtocolError(f"a payload of {len(payload)} bytes, without the flag that says so")
    if flags & INLINE and size != len(payload):
        raise ProtocolError(f"a payload of {len(payload)} bytes, and the size says {size}")


def put_list(items: Sequence[Any], put: Callable[[Any], bytes]) -> bytes:
    return _u16(len(items)) + b"".join(map(put, items))


def put_numbers(numbers: Sequence[int]) -> bytes:
    return pack(f"<H{len(numbers)}I", len(numbers), *numbers)


def get_numbers(b: bytes, at: int, end: int, n: int) -> tuple[list[int], int]:
    if 4 * n > end - at:
        raise cut(end - at, 4 * n)
    return list(unpack_from(f"<{n}I", b, at)), at + 4 * n


def put_attrs(attrs: Attrs) -> bytes:
    if len(attrs) > MAX_ATTRS:
        raise ProtocolError(f"{len(attrs)} attributes, at most {MAX_ATTRS} are allowed")
    pieces = [_u16(len(attrs))]
    for k in sorted(attrs, key=str.encode):  # each message has one encoding
        if not k:
            raise ProtocolError("an attribute without a name")
        pieces += put_str(k, MAX_ATTR_NAME_BYTES), put_str(attrs[k], MAX_ATTR_VALUE_BYTES)
    return b"".join(pieces)


def get_attrs(b: bytes, at: int, end: int, n: int) -> tuple[Attrs, int]:
    if n > MAX_ATTRS:
        raise ProtocolError(f"{n} attributes, at most {MAX_ATTRS} are allowed")
    attrs: Attrs = {}
    for _ in range(n):
        k, at = _get_str(b, at, end, MAX_ATTR_NAME_BYTES)
        if not k or k in attrs:
            raise ProtocolError("an attribute without a name, or two with one name")
        attrs[k], at = _get_str(b, at, end, MAX_ATTR_VALUE_BYTES)
    return attrs, at


def _get_str(b: bytes, at: int, end: int, bound: int) -> tuple[str, int]:
    if at + 2 > end:
        raise cut(end - at, 2)
    n = b[at] | b[at + 1] << 8
    at += 2
    if n > bound or n > end - at:
        raise bad_str(n, bound, end - at)
    return b[at : at + n].decode(), at + n


def check_labels(key: str, attrs: Attrs) -> None:
    """Check the key and the attributes of an emission. Raises LabelError."""
    labels = ("key", key, lambda: put_str(key, MAX_NAME_BYTES)), ("attributes", attrs, lambda: put_attrs(attrs))
    for what, value, put in labels:
        if value:
            try:
                put()
            except ProtocolError as e:
                raise LabelError(f"{what}: {e}") from None
