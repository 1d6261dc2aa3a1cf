"""Messages of the node protocol, to bytes and back.

A message is a dataclass; `encode` makes bytes of it, `decode` reads one
packet. Bytes from outside never raise anything but `ProtocolError`. Nothing
here touches a socket or a descriptor, and the functions share no state.

Each class is registered with the layout of its body: `struct` formats for
runs of numbers, and parts for what has a length of its own, or is not there in
every version. The fields of the class take the values in order; reserved bytes
(``x``) have no field.

The messages of lanes between clients (64 to 77) are not here: this client does
not say `lanes`, so for it they are kinds like any that there are none of.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeAlias, TypeVar

from .errors import ProtocolError

VERSION_MIN = 1
VERSION_MAX = 5
MAGIC = 0x53554249_4E4D4F01

MAX_PACKET_BYTES = 65_536
MAX_DESCRIPTORS = 8
MAX_QUESTIONS = 1_024
MAX_NAME_BYTES = 200
MAX_TEXT_BYTES = 4_096
MAX_INLINE_BYTES = 32_768
MAX_PIECE_BYTES = 60_000
MAX_ATTRS = 32
MAX_ATTR_NAME_BYTES = 64
MAX_ATTR_VALUE_BYTES = 512
MAX_TRACE_STATE_BYTES = 512

HEADER_BYTES = 8
ALL_EDGES = 0xFFFF

# Flags of deliveries, and of what is emitted.
LAST = 1
BARE = 2
INLINE = 4
MORE_PARTS = 8
FORWARD = 16
OWN_SEGMENT = 32

KEEP_PAYLOAD, UNREAD = 1, 2  # of finish
WAIT = 1  # of fetch
SPENT_BYTES = 1  # of spent
FAIL_FAST = 1  # of submit
MORE_PIECES = 1  # of reply

COMPLETED, FAILED, ABORTED, PAST_DEADLINE = 1, 2, 3, 4  # outcomes

_header = struct.Struct("<IHBB")
_u16 = struct.Struct("<H")
_u32 = struct.Struct("<I")
_u64 = struct.Struct("<Q")
_edge_tail = struct.Struct("<IQB")
_tensors = struct.Struct("<BQ")
_trace_head = struct.Struct("<16s8sB")

Attrs: TypeAlias = dict[str, str]


@dataclass(slots=True)
class Edge:
    """An edge as the host describes it. A window of 0 has no bound."""

    name: str
    peer: str = ""
    window: int = 0
    window_bytes: int = 0
    policy: int = 0

    def _check(self) -> None:
        if self.policy > 2:
            raise ProtocolError(f"edge {self.name}: no policy has the number {self.policy}")


@dataclass(slots=True)
class Tensors:
    """How the tensors of an edge travel that lie in memory of a GPU: 0 default, 1 cuda_ipc, 2 cuda_ipc_pool."""

    transport: int = 0
    min_bytes: int = 0


@dataclass(slots=True)
class Trace:
    """Where a request belongs in a distributed trace; all zero: nowhere."""

    trace_id: bytes = bytes(16)
    span_id: bytes = bytes(8)
    flags: int = 0
    state: str = ""


class _Reader:
    """A position in a message. Every read is checked against its end."""

    __slots__ = ("buf", "pos", "end", "version")

    def __init__(self, buf: bytes, pos: int, end: int, version: int) -> None:
        self.buf, self.pos, self.end, self.version = buf, pos, end, version

    def numbers(self, s: struct.Struct) -> tuple[Any, ...]:
        at = self.pos
        if at + s.size > self.end:
            raise ProtocolError(f"the message is cut short: {self.end - at} bytes left, {s.size} needed")
        self.pos = at + s.size
        return s.unpack_from(self.buf, at)

    def take(self, size: int) -> bytes:
        at = self.pos
        if size > self.end - at:
            raise ProtocolError(f"a field of {size} bytes is cut short: {self.end - at} bytes left")
        self.pos = at + size
        return self.buf[at : self.pos]


class _Part(Protocol):
    """One field of a body that is not a plain number."""

    def put(self, out: bytearray, value: Any, version: int) -> None: ...

    def get(self, r: _Reader) -> Any: ...


class _Str:
    __slots__ = ("bound", "cut")

    def __init__(self, bound: int, cut: bool = False) -> None:
        self.bound, self.cut = bound, cut

    def put(self, out: bytearray, value: str, version: int) -> None:
        b = _utf8(value)
        if len(b) > self.bound:
            if not self.cut:
                raise ProtocolError(f"text of {len(b)} bytes, at most {self.bound} are allowed: {value[:40]!r}…")
            b = cut_utf8(b, self.bound)
        out += _u16.pack(len(b))
        out += b

    def get(self, r: _Reader) -> str:
        (n,) = r.numbers(_u16)
        if n == 0:
            return ""
        if n > self.bound:
            raise ProtocolError(f"text of {n} bytes, at most {self.bound} are allowed")
        try:
            return r.take(n).decode()
        except UnicodeDecodeError as e:
            raise ProtocolError(f"text is not UTF-8: {e}") from None


class _Bytes:
    __slots__ = ("bound",)

    def __init__(self, bound: int) -> None:
        self.bound = bound

    def put(self, out: bytearray, value: bytes | bytearray | memoryview, version: int) -> None:
        if len(value) > self.bound:
            raise ProtocolError(f"{len(value)} bytes, at most {self.bound} are allowed in a message")
        out += _u32.pack(len(value))
        out += value

    def get(self, r: _Reader) -> bytes:
        (n,) = r.numbers(_u32)
        if n > self.bound:
            raise ProtocolError(f"{n} bytes, at most {self.bound} are allowed in a message")
        return r.take(n)


class _AttrsPart:
    __slots__ = ()

    def put(self, out: bytearray, value: Attrs | None, version: int) -> None:
        if not value:
            out += b"\0\0"
            return
        if len(value) > MAX_ATTRS:
            raise ProtocolError(f"{len(value)} attributes, at most {MAX_ATTRS} are allowed")
        out += _u16.pack(len(value))
        for k in sorted(value, key=str.encode):  # one form for one message
            if not k:
                raise ProtocolError("an attribute without a name")
            _attr_name.put(out, k, version)
            _attr_value.put(out, value[k], version)

    def get(self, r: _Reader) -> Attrs:
        (n,) = r.numbers(_u16)
        if n > MAX_ATTRS:
            raise ProtocolError(f"{n} attributes, at most {MAX_ATTRS} are allowed")
        attrs: Attrs = {}
        for _ in range(n):
            k = _attr_name.get(r)
            if not k or k in attrs:
                raise ProtocolError("an attribute without a name, or two with one name")
            attrs[k] = _attr_value.get(r)
        return attrs


class _Edges:
    __slots__ = ()

    def put(self, out: bytearray, value: list[Edge], version: int) -> None:
        out += _u16.pack(len(value))
        for e in value:
            _name.put(out, e.name, version)
            _name.put(out, e.peer, version)
            out += _edge_tail.pack(e.window, e.window_bytes, e.policy)

    def get(self, r: _Reader) -> list[Edge]:
        (n,) = r.numbers(_u16)
        # Each takes 17 bytes at least, so the message bounds the loop.
        edges = [Edge(_name.get(r), _name.get(r), *r.numbers(_edge_tail)) for _ in range(n)]
        for e in edges:
            e._check()
        return edges


class _TensorsPart:
    __slots__ = ()

    def put(self, out: bytearray, value: list[Tensors], version: int) -> None:
        out += _u16.pack(len(value))
        for t in value:
            out += _tensors.pack(t.transport, t.min_bytes)

    def get(self, r: _Reader) -> list[Tensors]:
        (n,) = r.numbers(_u16)
        tensors = [Tensors(*r.numbers(_tensors)) for _ in range(n)]
        for t in tensors:
            if t.transport > 2:
                raise ProtocolError(f"no transport of tensors has the number {t.transport}")
        return tensors


class _TracePart:
    __slots__ = ()

    def put(self, out: bytearray, value: Trace, version: int) -> None:
        out += _trace_head.pack(value.trace_id, value.span_id, value.flags)
        _trace_state.put(out, value.state, version)

    def get(self, r: _Reader) -> Trace:
        trace_id, span_id, flags = r.numbers(_trace_head)
        return Trace(trace_id, span_id, flags, _trace_state.get(r))


class _U64:
    __slots__ = ()

    def put(self, out: bytearray, value: int, version: int) -> None:
        out += _u64.pack(value)

    def get(self, r: _Reader) -> int:
        (value,) = r.numbers(_u64)
        return int(value)


class _Since:
    """A part that is there from a version on. Before it is `absent()`, whatever was meant."""

    __slots__ = ("version", "part", "absent")

    def __init__(self, version: int, part: _Part, absent: Callable[[], Any]) -> None:
        self.version, self.part, self.absent = version, part, absent

    def put(self, out: bytearray, value: Any, version: int) -> None:
        if version >= self.version:
            self.part.put(out, value, version)

    def get(self, r: _Reader) -> Any:
        return self.part.get(r) if r.version >= self.version else self.absent()


class _Puts:
    __slots__ = ()

    def put(self, out: bytearray, value: list[int], version: int) -> None:
        out += struct.pack(f"<H{len(value)}I", len(value), *value)

    def get(self, r: _Reader) -> list[int]:
        (n,) = r.numbers(_u16)
        return list(struct.unpack(f"<{n}I", r.take(4 * n)))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise ProtocolError(f"text is not Unicode: {e}") from None


def cut_utf8(b: bytes, bound: int) -> bytes:
    """At most `bound` bytes of UTF-8, cut between characters."""
    return b[:bound].decode(errors="ignore").encode() if len(b) > bound else b


_name = _Str(MAX_NAME_BYTES)
_text = _Str(MAX_TEXT_BYTES, cut=True)
_attr_name = _Str(MAX_ATTR_NAME_BYTES)
_attr_value = _Str(MAX_ATTR_VALUE_BYTES)
_trace_state = _Str(MAX_TRACE_STATE_BYTES)
_payload = _Bytes(MAX_INLINE_BYTES)
_piece = _Bytes(MAX_PIECE_BYTES)
_attrs = _AttrsPart()
_edges = _Edges()
_trace = _Since(2, _TracePart(), Trace)
_edge_tensors = _Since(5, _TensorsPart(), list)
_puts = _Puts()


@dataclass(slots=True, frozen=True)
class _Layout:
    kind: int
    cls: type
    parts: tuple[tuple[struct.Struct | None, _Part | None, tuple[str, ...]], ...]
    min_descriptors: int
    max_descriptors: int
    checked: bool
    since: int


_by_kind: dict[int, _Layout] = {}
_by_class: dict[type, _Layout] = {}
_M = TypeVar("_M")


def _message(
    kind: int, *layout: str | _Part, fds: tuple[int, int] = (0, 0), since: int = 1
) -> Callable[[type[_M]], type[_M]]:
    def register(cls: type[_M]) -> type[_M]:
        names = iter([f.name for f in fields(cls)])  # type: ignore[arg-type]
        parts: list[tuple[struct.Struct | None, _Part | None, tuple[str, ...]]] = []
        for p in layout:
            if isinstance(p, str):
                s = struct.Struct("<" + p)
                count = len(s.unpack(bytes(s.size)))
                parts.append((s, None, tuple(next(names) for _ in range(count))))
            else:
                parts.append((None, p, (next(names),)))
        assert next(names, None) is None, cls
        _by_kind[kind] = _by_class[cls] = _Layout(kind, cls, tuple(parts), *fds, hasattr(cls, "_check"), since)
        return cls

    return register


# Opening.


@_message(1, "QHHI", _name, _name)
@dataclass(slots=True)
class Hello:
    magic: int
    version_min: int
    version_max: int
    pid: int
    bus: str
    name: str

    def _check(self) -> None:
        if self.magic != MAGIC:
            raise ProtocolError(f"hello with the magic {self.magic:#x}: this is no client of a bus")


@_message(2, "H2xIQI4x", _name, _edges, _edges, _edge_tensors)
@dataclass(slots=True)
class Welcome:
    version: int
    node: int
    epoch: int
    inline_bytes: int
    bus: str
    inputs: list[Edge]
    results: list[Edge]
    tensors: list[Tensors] = field(default_factory=list)


@_message(3, "H", _text)
@dataclass(slots=True)
class Refuse:
    code: int
    text: str


@_message(4, "IH", _text)
@dataclass(slots=True)
class Failed:
    token: int
    code: int
    text: str


# Serving a stage.


@_message(10, "I", _name)
@dataclass(slots=True)
class Serve:
    token: int
    stage: str


@_message(11, "IIIIBBI", _edges, _edges, _edge_tensors)
@dataclass(slots=True)
class Serving:
    token: int
    stage: int
    replica: int
    max_inflight: int
    state: int
    join: int
    batch: int
    inputs: list[Edge]
    outputs: list[Edge]
    tensors: list[Tensors] = field(default_factory=list)

    def _check(self) -> None:
        if self.state > 1 or self.join > 1:
            raise ProtocolError(f"serving: state {self.state}, join {self.join}: both are 0 or 1")


@_message(12, "IIQIq", _trace)
@dataclass(slots=True)
class Open:
    task: int
    stage: int
    request: int
    attempt: int
    deadline: int
    trace: Trace = field(default_factory=Trace)


@_message(13, "IIHBxIIQQIQQ", _name, _attrs, _payload)
@dataclass(slots=True)
class Deliver:
    source: int
    delivery: int
    edge: int
    flags: int
    codec: int
    attempt: int
    seq: int
    dropped: int
    segment: int
    offset: int
    size: int
    key: str
    attrs: Attrs
    payload: bytes

    def _check(self) -> None:
        _check_inline(self.flags, self.size, self.payload)


@_message(14, "IBH", _text)
@dataclass(slots=True)
class Finish:
    delivery: int
    flags: int = 0
    code: int = 0
    text: str = ""


@_message(15, "I")
@dataclass(slots=True)
class Release:
    delivery: int


@_message(16, "I")
@dataclass(slots=True)
class End:
    task: int


@_message(17, "IH", _text, _Since(3, _name, str), _Since(3, _name, str), _Since(3, _U64(), int))
@dataclass(slots=True)
class Ended:
    task: int
    code: int = 0
    text: str = ""
    edge: str = ""
    key: str = ""
    seq: int = 0


@_message(18, "IB", _name, _name, _name, "Q", _text)
@dataclass(slots=True)
class Over:
    source: int
    outcome: int
    stage: str
    edge: str
    key: str
    seq: int
    text: str

    def _check(self) -> None:
        if not COMPLETED <= self.outcome <= PAST_DEADLINE:
            raise ProtocolError(f"over: no outcome has the number {self.outcome}")


@_message(19)
@dataclass(slots=True)
class Leave:
    pass


@_message(20)
@dataclass(slots=True)
class Drain:
    pass


# Segments.


@_message(24, "IQ", fds=(1, 1))
@dataclass(slots=True)
class Segment:
    segment: int
    bytes: int


@_message(25, "I")
@dataclass(slots=True)
class Forget:
    segment: int


# Emitting.


@_message(32, "IIIHBxI", _name, _attrs, _payload)
@dataclass(slots=True)
class Emit:
    token: int
    source: int
    delivery: int
    edge: int
    flags: int
    codec: int
    key: str
    attrs: Attrs
    payload: bytes | bytearray | memoryview


@_message(33, "I")
@dataclass(slots=True)
class Emitted:
    token: int


@_message(34, "IQ")
@dataclass(slots=True)
class Arena:
    token: int
    bytes: int


@_message(35, "IIQ", fds=(1, 1))
@dataclass(slots=True)
class ArenaAt:
    token: int
    segment: int
    bytes: int


@_message(36, "I")
@dataclass(slots=True)
class Sealed:
    segment: int


@_message(37, "IIIH2xIQ")
@dataclass(slots=True)
class Reserve:
    token: int
    source: int
    delivery: int
    edge: int
    codec: int
    size: int


@_message(38, "IIIQQ", fds=(0, 1))
@dataclass(slots=True)
class Grant:
    token: int
    grant: int
    segment: int
    offset: int
    size: int


@_message(39, "IQB", _name, _attrs)
@dataclass(slots=True)
class Send:
    grant: int
    size: int
    flags: int
    key: str
    attrs: Attrs


@_message(40, "I")
@dataclass(slots=True)
class Abort:
    grant: int


@_message(41, "IQ", fds=(1, 1))
@dataclass(slots=True)
class Offer:
    segment: int
    bytes: int


@_message(42, "IIIHBxIIIQQ", _name, _attrs, _payload)
@dataclass(slots=True)
class Put:
    put: int
    source: int
    delivery: int
    edge: int
    flags: int
    codec: int
    attempt: int
    segment: int
    offset: int
    size: int
    key: str
    attrs: Attrs
    payload: bytes

    def _check(self) -> None:
        _check_inline(self.flags, self.size, self.payload)


@_message(43, _puts)
@dataclass(slots=True)
class Returned:
    puts: list[int]


@_message(44, "IB")
@dataclass(slots=True)
class Spent:
    put: int
    flags: int


# Submitting requests.


@_message(48, "IqB", _trace)
@dataclass(slots=True)
class Submit:
    token: int
    deadline: int
    flags: int
    trace: Trace = field(default_factory=Trace)


@_message(49, "IIQ")
@dataclass(slots=True)
class Submitted:
    token: int
    source: int
    request: int


@_message(50, "I")
@dataclass(slots=True)
class CloseSend:
    source: int


@_message(51, "I", _text)
@dataclass(slots=True)
class AbortRequest:
    source: int
    text: str


@_message(52, "I")
@dataclass(slots=True)
class Close:
    source: int


# The exchange.


@_message(80, "IIIIB3xIQQ", _name, _name, _name, _payload, since=4)
@dataclass(slots=True)
class Place:
    token: int
    owner: int
    grant: int
    put: int
    flags: int
    segment: int
    offset: int
    size: int
    from_: str
    to: str
    key: str
    payload: bytes | bytearray | memoryview

    def _check(self) -> None:
        _check_inline(self.flags, self.size, self.payload)


@_message(81, "I4xQ", since=4)
@dataclass(slots=True)
class Placed:
    token: int
    entry: int  #: the payload's number, which is never another's


@_message(82, "IB3xQ", _name, _name, _name, since=4)
@dataclass(slots=True)
class Fetch:
    token: int
    flags: int
    entry: int  #: 0: any
    from_: str
    to: str
    key: str


@_message(83, "IIB3xIQQ", _payload, since=4)
@dataclass(slots=True)
class Fetched:
    token: int
    delivery: int
    flags: int
    segment: int
    offset: int
    size: int
    payload: bytes

    def _check(self) -> None:
        _check_inline(self.flags, self.size, self.payload)


@_message(84, "I", since=4)
@dataclass(slots=True)
class Cancel:
    token: int


@_message(85, "II", _name, since=4)
@dataclass(slots=True)
class Cleanup:
    token: int
    owner: int
    key: str = ""


@_message(86, "II", since=4)
@dataclass(slots=True)
class Cleaned:
    token: int
    count: int


# The directory.


@_message(88, "II16sQ", fds=(1, 1), since=5)
@dataclass(slots=True)
class Publish:
    token: int
    number: int
    pool: bytes
    size: int


@_message(89, "I", since=5)
@dataclass(slots=True)
class Published:
    token: int


@_message(90, "I16s", since=5)
@dataclass(slots=True)
class Withdraw:
    number: int
    pool: bytes


@_message(91, "II16s", since=5)
@dataclass(slots=True)
class Find:
    token: int
    number: int
    pool: bytes


@_message(92, "III4xQ", fds=(2, 2), since=5)
@dataclass(slots=True)
class Found:
    token: int
    owner: int  #: who published it: the same number for the same process
    pid: int
    size: int


# Asking about the bus, and leaving.


@_message(56, "I", _name, _piece)
@dataclass(slots=True)
class Call:
    token: int
    method: str
    arguments: bytes


@_message(57, "IB", _piece)
@dataclass(slots=True)
class Reply:
    token: int
    flags: int
    piece: bytes


@_message(60)
@dataclass(slots=True)
class Bye:
    pass


def _check_inline(flags: int, size: int, payload: bytes | bytearray | memoryview) -> None:
    if flags & INLINE == 0 and payload:
        raise ProtocolError(f"a payload of {len(payload)} bytes, without the flag that says so")
    if flags & INLINE and size != len(payload):
        raise ProtocolError(f"a payload of {len(payload)} bytes, and the size says {size}")


Message: TypeAlias = Any  # one of the classes above


def encode(m: Message, version: int = VERSION_MAX, descriptors: int = 0) -> bytearray:
    """The bytes of a message that takes `descriptors` of its packet's.

    Raises ProtocolError when a field breaks a bound. Error texts are cut.
    """
    layout = _by_class[type(m)]
    out = bytearray(HEADER_BYTES)
    try:
        for s, part, names in layout.parts:
            if s is not None:
                out += s.pack(*[getattr(m, n) for n in names])
            else:
                part.put(out, getattr(m, names[0]), version)  # type: ignore[union-attr]
    except (struct.error, TypeError, AttributeError, UnicodeError) as e:
        raise ProtocolError(f"{type(m).__name__.lower()}: a field does not fit: {e}") from None
    if len(out) > MAX_PACKET_BYTES:
        raise ProtocolError(f"a message of {len(out)} bytes, a packet takes {MAX_PACKET_BYTES}")
    _header.pack_into(out, 0, len(out), layout.kind, descriptors, 0)
    return out


def decode(packet: bytes, descriptors: int, version: int = VERSION_MAX) -> Iterator[tuple[Message, int]]:
    """The messages of a packet, each with the number of descriptors it takes.

    A generator: the caller may act on a message before the next is read.
    Raises ProtocolError, also when descriptors are left over or missing.
    """
    at, left = 0, descriptors
    if len(packet) > MAX_PACKET_BYTES:
        raise ProtocolError(f"a packet of {len(packet)} bytes, at most {MAX_PACKET_BYTES} are allowed")
    if not packet:
        raise ProtocolError("an empty packet")
    while at < len(packet):
        if len(packet) - at < HEADER_BYTES:
            raise ProtocolError(f"{len(packet) - at} bytes are no header of a message")
        size, kind, fds, _ = _header.unpack_from(packet, at)
        if size < HEADER_BYTES or size > len(packet) - at:
            raise ProtocolError(f"a message of {size} bytes, {len(packet) - at} are left in the packet")
        layout = _by_kind.get(kind)
        if layout is None or layout.since > version:
            raise ProtocolError(f"no message has the kind {kind} in version {version}")
        if not layout.min_descriptors <= fds <= layout.max_descriptors or fds > left:
            raise ProtocolError(f"{layout.cls.__name__.lower()} with {fds} descriptors, {left} are left in the packet")
        left -= fds
        r = _Reader(packet, at + HEADER_BYTES, at + size, version)
        values: list[Any] = []
        for s, part, _names in layout.parts:
            if s is not None:
                values += r.numbers(s)
            else:
                values.append(part.get(r))  # type: ignore[union-attr]
        m = layout.cls(*values)
        if layout.checked:
            m._check()
        yield m, fds
        at += size
    if left:
        raise ProtocolError(f"{left} descriptors belong to no message of the packet")


def kind_of(m: Message) -> int:
    """The number of a message's kind."""
    return _by_class[type(m)].kind
