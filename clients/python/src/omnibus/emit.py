"""Sending payloads: small ones in a message, large ones written in place, in room that the host grants.

Where edges may carry tensors on a GPU, it is room of the client's own: see `puts`.
The functions are work for a session, run by a thread or by an event loop. An
emission waits until it has its place in the windows of its edges: that is
how consumers hold a fast producer back.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from . import bundle, codec, sources, tensor, wire
from .ahead import Ahead, Room
from .answers import Answer
from .deadlines import limit_of
from .errors import Finished, HostError, OmnibusError, PayloadError
from .segments import to_fill
from .session import OutOfTime, Session, Work
from .tensor import Tensor

if TYPE_CHECKING:
    from .puts import Puts

_T = TypeVar("_T")


class Envelope(NamedTuple):
    """What travels beside an emission's payload, where it goes, and the delivery that it is for."""

    delivery: int
    edge: int
    key: str
    attrs: wire.Attrs
    last: bool

    @property
    def flags(self) -> int:
        return wire.LAST if self.last else 0


class Emitter:
    """Where payloads go out: a source and its edges. The base of tasks and requests."""

    __slots__ = ()
    _session: Session
    number: int
    deadline: float | None
    over: Any  # true when the request is
    _ahead: Ahead | None
    _puts: Puts | None  # where all goes out from room of the client's own

    def _run(self, work: Work[_T]) -> _T:
        """Do work of this source's, and wait for the host, which may be stopped, no longer than its deadline allows."""
        try:
            return self._session.run(work, limit_of(self.deadline))
        except OutOfTime:
            raise self._silence() from None

    def _silence(self) -> OmnibusError:
        """What is raised when the host does not answer, though the deadline is past."""
        raise NotImplementedError

    def _ask_emission(self, question: Callable[[int], wire.Message], edge: int) -> Answer:
        s, ahead = self._session, self._ahead
        answer = Answer(wire.Emitted, lambda _m, _fd: self._went_out(edge))
        with s.locked:
            if ahead is None:
                return s.questions.ask_locked(answer, question)
            ahead.drop(s, for_good=True)
            return ahead.asked(s.questions.ask_locked(answer, question))

    def _ask_room(self, room: Room, delivery: int) -> Answer:
        s, ahead = self._session, self._ahead
        with s.locked:
            if ahead is None:
                return self._reserve(room, delivery)
            return ahead.asked(ahead.take(s, room) or self._reserve(room, delivery))

    def _reserve(self, room: Room, delivery: int) -> Answer:
        """Ask for room. The lock is held."""
        s, source = self._session, self.number

        def orphan(granted: tuple[wire.Grant, int | None]) -> None:
            s.drop(granted[1])
            s.post(wire.Abort(granted[0].grant))

        return s.questions.ask_locked(
            Answer(wire.Grant, _with_descriptor, orphan),
            lambda token: wire.Reserve(token, source, delivery, room.edge, room.codec, room.size),
        )

    def _out_edges(self) -> list[wire.Edge]:
        raise NotImplementedError

    def _edge(self, to: str | None) -> int:
        if to is None:
            return wire.ALL_EDGES
        edges = self._out_edges()
        for i, e in enumerate(edges):
            if e.peer == to:
                return i
        known = ", ".join(repr(e.peer) for e in edges) or "none"
        raise LookupError(f"no edge goes to {to!r}; edges go to {known} ('' is the caller)")

    # Which emission it was, for errors.

    def _went_out(self, edge: int) -> None:
        """An emission has its place in the stream. The lock is held."""

    def _next_seq(self, edge: int) -> int | None:
        """The place of the next emission on an edge, if that is known here. The lock is held."""
        return None

    def _ask_work(self, ask: Callable[[], Answer], edge: int, key: str) -> Work[Any]:
        """Ask for an emission. An error says which one it was."""
        try:
            return (yield ask())
        except HostError as e:
            e.source = self.number
            e.key = wire.cut_utf8(str(key).encode(errors="replace"), wire.MAX_NAME_BYTES).decode()
            edges = self._out_edges()
            if edge == wire.ALL_EDGES and len(edges) == 1:
                edge = 0
            if edge < len(edges):
                with self._session.locked:
                    seq = self._next_seq(edge)
                if seq is not None:  # or the edge would be read with the sequence 0
                    e.edge, e.seq = edges[edge].name, seq
            raise

    def _envelope(
        self, delivery: int, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> Envelope:
        attrs = attrs or {}
        if key or attrs:
            wire.check_labels(key, attrs)
        return Envelope(delivery, self._edge(to), key, attrs, last)

    def _emit_work(self, value: Any, e: Envelope, codec_: int | None = None) -> Work[None]:
        if self._puts is not None and codec_ in (None, codec.BUNDLE):
            sent = yield from self._on_gpu_work(value, e)
            if sent:
                return
        t = sources.of(value) if codec_ in (None, codec.TENSOR) else None
        if t is not None:
            yield from self._tensor_work(t, e)
            return
        number = codec_ or codec.MSGPACK
        if codec_ in (None, codec.BUNDLE):
            plan = bundle.Plan(value)
            if plan.tensors or codec_ == codec.BUNDLE:
                yield from self._written_work(plan.size(), plan.write, codec.BUNDLE, e)
                return
            payload: bytes | bytearray | memoryview = plan.tree
        else:
            payload = codec.encode(value, number)
        if len(payload) <= self._session.welcome.inline_bytes:
            yield from self._small_work(payload, number, e)
            return
        b = yield from self._reserve_work(len(payload), number, e)
        with b:
            b.view[:] = payload
            b.send()

    def _on_gpu_work(self, value: Any, e: Envelope) -> Work[bool]:
        """Emit a value that has tensors on a GPU. False: it has none."""
        from .gpu import emission, sender  # for those alone whose edges may carry such

        of = sender.of(self._session)
        way = emission.Emission(self, of, bundle.Plan(value, of.of), e)
        if way.tensors:
            yield from way.work()
        return bool(way.tensors)

    def _tensor_work(self, t: sources.Source, e: Envelope) -> Work[None]:
        def write(buf: memoryview) -> None:
            data = tensor.write_header(buf, t.dtype, t.shape)
            if t.fill is not None:
                t.fill(data)

        yield from self._written_work(tensor.payload_bytes(t.dtype, t.shape), write, codec.TENSOR, e)

    def _written_work(self, size: int, write: Callable[[memoryview], None], number: int, e: Envelope) -> Work[None]:
        """Send a payload that is written in place."""
        if size <= self._session.welcome.inline_bytes:
            payload = bytearray(size)
            write(memoryview(payload))
            yield from self._small_work(payload, number, e)
            return
        b = yield from self._reserve_work(size, number, e)
        with b:
            write(b.view)
            b.send()

    def _small_work(self, payload: bytes | bytearray | memoryview, number: int, e: Envelope) -> Work[None]:
        """Send a payload in a message."""
        if self._puts is not None:
            yield from self._puts.small_work(self._puts.message(e, number, wire.INLINE, payload))
            return
        yield from self._emission_work(e, number, 0, payload)

    def _forward_work(self, e: Envelope) -> Work[None]:
        """Pass the payload of a delivery on by reference."""
        if self._puts is not None:
            yield from self._puts.small_work(self._puts.message(e, 0, wire.FORWARD))
            return
        yield from self._emission_work(e, 0, wire.FORWARD, b"")

    def _emission_work(
        self, e: Envelope, number: int, flags: int, payload: bytes | bytearray | memoryview
    ) -> Work[None]:
        source, flags = self.number, flags | e.flags

        def question(token: int) -> wire.Message:
            return wire.Emit(token, source, e.delivery, e.edge, flags, number, e.key, e.attrs, payload)

        yield from self._ask_work(lambda: self._ask_emission(question, e.edge), e.edge, e.key)

    def _reserve_work(self, size: int, number: int, e: Envelope) -> Work[Buffer]:
        if size < 0:
            raise PayloadError(f"size {size} is negative")
        if self._puts is not None:
            return (yield from self._puts.reserve_work(size, number, e))
        s, room = self._session, Room(e.edge, number, size)
        arena = s.segments.arena or (yield from s.segments.arena_work())
        m, fd = yield from self._ask_work(lambda: self._ask_room(room, e.delivery), e.edge, e.key)
        try:
            if fd is not None:
                own = to_fill(m.segment, fd, None)
                s.tell(wire.Sealed(m.segment))
                view = own.view(m.offset, m.size)
            elif m.segment == arena.segment:
                view = arena.view(m.offset, m.size)
            else:
                raise s.broken(f"grant {m.grant} is in segment {m.segment}, which is not the arena")
            if m.size < size:
                raise s.broken(f"grant {m.grant} has {m.size} bytes, {size} were asked for")
        except BaseException:
            s.tell_quietly(wire.Abort(m.grant))
            raise
        return Buffer(s, _Granted(s, m.grant, lambda: self._went_out(e.edge)), view[:size], e)


def _with_descriptor(m: wire.Grant, fd: int | None) -> tuple[wire.Grant, int | None]:
    return m, fd


class _Way(Protocol):
    """How a buffer is sent, and given back."""

    def send(self, n: int, flags: int, key: str, attrs: wire.Attrs) -> None: ...

    def abort(self) -> None: ...


class _Granted:
    """In room that the host has granted."""

    __slots__ = ("_session", "_grant", "_went_out")

    def __init__(self, s: Session, grant: int, went_out: Callable[[], None]) -> None:
        self._session, self._grant, self._went_out = s, grant, went_out

    def send(self, n: int, flags: int, key: str, attrs: wire.Attrs) -> None:
        self._session.tell(wire.Send(self._grant, n, flags, key, attrs), self._went_out)

    def abort(self) -> None:
        self._session.tell_quietly(wire.Abort(self._grant))


class Buffer:
    """Room for one payload, to be filled in place and sent.

    A context manager: what was not sent by its end is aborted. It belongs to
    one thread. Arrays made of `view` must not be written to after `send`: readers
    would see it.
    """

    __slots__ = ("view", "size", "_session", "_way", "_envelope")

    def __init__(self, s: Session, way: _Way, view: memoryview, e: Envelope) -> None:
        self.view = view  #: the memory to fill, writable
        self.size = len(view)
        self._session = s
        self._way: _Way | None = way
        self._envelope = e

    def send(self, n: int | None = None, *, key: str = "", attrs: wire.Attrs | None = None, last: bool = False) -> None:
        """Send the first n bytes, or all. Does not wait. A `ValueError` leaves the buffer to be sent otherwise."""
        n = self.size if n is None else n
        if not 0 <= n <= self.size:
            raise ValueError(f"send of {n} bytes from a buffer of {self.size}")
        if key or attrs:
            wire.check_labels(key, attrs or {})
        way = self._take()
        e = self._envelope
        try:
            way.send(n, wire.LAST if last else e.flags, key or e.key, attrs or e.attrs)
        except BaseException:
            way.abort()
            raise

    def abort(self) -> None:
        """Give the room back. After `send` it does nothing."""
        if self._way is not None:
            self._session.check_process()
            self._take().abort()

    def _take(self) -> _Way:
        way, self._way = self._way, None
        if way is None:
            raise Finished("the buffer was sent or aborted before")
        try:
            self.view.release()
        except BufferError:
            pass  # somebody's array keeps the memory mapped, no more
        return way

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def tensor_in(b: Buffer, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor laid out in a buffer, to be filled in place."""
    return Tensor(dtype, shape, tensor.write_header(b.view, dtype, shape))
