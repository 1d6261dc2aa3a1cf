"""Sending payloads: small ones in a message, large ones written in place, in room that the host grants.

Where edges may carry tensors on a GPU, it is room of the client's own: see `puts`.
The functions are work for a session, run by a thread or by an event loop. An
emission waits until it has its place in the windows of its edges: that is
how consumers hold a fast producer back.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from . import bundle, codec, sources, tensor, wire
from .ahead import Ahead, Room
from .answers import Answer
from .errors import Finished, HostError, PayloadError
from .segments import to_fill
from .session import Session, Work
from .tensor import Tensor

if TYPE_CHECKING:
    from .puts import Puts


class Emitter:
    """Where payloads go out: a source and its edges. The base of tasks and requests."""

    __slots__ = ()
    _session: Session
    number: int
    over: Any  # true when the request is
    _ahead: Ahead | None
    _puts: Puts | None  # where all goes out from room of the client's own

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

    def _emit_work(
        self,
        value: Any,
        delivery: int,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
        codec_: int | None = None,
    ) -> Work[None]:
        if self._puts is not None and codec_ in (None, codec.BUNDLE):
            sent = yield from self._on_gpu_work(value, delivery, to, key, attrs, last)
            if sent:
                return
        t = sources.of(value) if codec_ in (None, codec.TENSOR) else None
        if t is not None:
            yield from self._tensor_work(t, delivery, to, key, attrs, last)
            return
        number = codec_ or codec.MSGPACK
        if codec_ in (None, codec.BUNDLE):
            plan = bundle.Plan(value)
            if plan.tensors or codec_ == codec.BUNDLE:
                yield from self._bundle_work(plan, delivery, to, key, attrs, last)
                return
            payload: bytes | bytearray | memoryview = plan.tree
        else:
            payload = codec.encode(value, number)
        if len(payload) <= self._session.welcome.inline_bytes:
            yield from self._small(payload, number, delivery, to, key, attrs, last)
            return
        b = yield from self._reserve_work(len(payload), number, delivery, to, key, attrs, last)
        with b:
            b.view[:] = payload
            b.send()

    def _on_gpu_work(
        self, value: Any, delivery: int, to: str | None, key: str, attrs: wire.Attrs | None, last: bool
    ) -> Work[bool]:
        """Emit a value that has tensors on a GPU. False: it has none."""
        from .gpu import emission, sender  # for those alone whose edges may carry such

        of = sender.of(self._session)
        e = emission.Emission(self, of, bundle.Plan(value, of.of), delivery, self._edge(to), key, attrs, last)
        if e.tensors:
            yield from e.work()
        return bool(e.tensors)

    def _small(
        self,
        payload: bytes | bytearray | memoryview,
        number: int,
        delivery: int,
        to: str | None,
        key: str,
        attrs: wire.Attrs | None,
        last: bool,
    ) -> Work[None]:
        edge, flags, source = self._edge(to), wire.LAST if last else 0, self.number
        if self._puts is not None:
            m = self._puts.message(delivery, edge, number, flags | wire.INLINE, key, attrs, payload)
            yield from self._puts.small_work(m)
            return

        def question(token: int) -> wire.Message:
            return wire.Emit(token, source, delivery, edge, flags, number, key, attrs or {}, payload)

        yield from self._ask_work(lambda: self._ask_emission(question, edge), edge, key)

    def _forward_work(
        self, delivery: int, to: str | None, key: str, attrs: wire.Attrs | None, last: bool
    ) -> Work[None]:
        """Pass the payload of a delivery on by reference."""
        edge, source = self._edge(to), self.number
        flags = wire.FORWARD | (wire.LAST if last else 0)
        if self._puts is not None:
            yield from self._puts.small_work(self._puts.message(delivery, edge, 0, flags, key, attrs))
            return

        def question(token: int) -> wire.Message:
            return wire.Emit(token, source, delivery, edge, flags, 0, key, attrs or {}, b"")

        yield from self._ask_work(lambda: self._ask_emission(question, edge), edge, key)

    def _tensor_work(
        self, t: sources.Source, delivery: int, to: str | None, key: str, attrs: wire.Attrs | None, last: bool
    ) -> Work[None]:
        def write(buf: memoryview) -> None:
            data = tensor.write_header(buf, t.dtype, t.shape)
            if t.fill is not None:
                t.fill(data)

        size = tensor.payload_bytes(t.dtype, t.shape)
        yield from self._written_work(size, write, codec.TENSOR, delivery, to, key, attrs, last)

    def _bundle_work(
        self, plan: bundle.Plan, delivery: int, to: str | None, key: str, attrs: wire.Attrs | None, last: bool
    ) -> Work[None]:
        yield from self._written_work(plan.size(), plan.write, codec.BUNDLE, delivery, to, key, attrs, last)

    def _written_work(
        self,
        size: int,
        write: Callable[[memoryview], None],
        number: int,
        delivery: int,
        to: str | None,
        key: str,
        attrs: wire.Attrs | None,
        last: bool,
    ) -> Work[None]:
        """Send a payload that is written in place."""
        if size <= self._session.welcome.inline_bytes:
            payload = bytearray(size)
            write(memoryview(payload))
            yield from self._small(payload, number, delivery, to, key, attrs, last)
            return
        b = yield from self._reserve_work(size, number, delivery, to, key, attrs, last)
        with b:
            write(b.view)
            b.send()

    def _reserve_work(
        self,
        size: int,
        number: int,
        delivery: int,
        to: str | None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
    ) -> Work[Buffer]:
        if size < 0:
            raise PayloadError(f"size {size} is negative")
        s = self._session
        room = Room(self._edge(to), number, size)
        if self._puts is not None:
            return (yield from self._puts.reserve_work(size, number, delivery, room.edge, key, attrs, last))
        arena = s.segments.arena or (yield from s.segments.arena_work())
        m, fd = yield from self._ask_work(lambda: self._ask_room(room, delivery), room.edge, key)
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
        return Buffer(s, _Granted(s, m.grant, lambda: self._went_out(room.edge)), view[:size], key, attrs, last)


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

    __slots__ = ("view", "size", "_session", "_way", "_options")

    def __init__(
        self, s: Session, way: _Way, view: memoryview, key: str, attrs: wire.Attrs | None, last: bool
    ) -> None:
        self.view = view  #: the memory to fill, writable
        self.size = len(view)
        self._session = s
        self._way: _Way | None = way
        self._options = (key, attrs, last)

    def send(
        self, n: int | None = None, *, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> None:
        """Send the first n bytes, or all. Does not wait."""
        n = self.size if n is None else n
        if not 0 <= n <= self.size:
            raise ValueError(f"send of {n} bytes from a buffer of {self.size}")
        way = self._take()
        k, a, end = self._options
        try:
            way.send(n, wire.LAST if last or end else 0, key or k, attrs or a or {})
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
