"""Sending payloads: those of up to 32 KiB in a message, larger ones written in place, in room of the client's own.

How that is said to the host, and how windows are counted, is in `puts`. The functions are work for a session, run by
a thread or by an event loop. An emission waits until it has its place in the windows of its edges: that is
how consumers hold a fast producer back.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from . import bundle, codec, sources, tensor, wire
from .answers import Answer
from .deadlines import limit_of
from .errors import Finished, HostError, OmnibusError, PayloadError
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
    _puts: Puts

    def _finish_emission(self, rest: Work[None] | None) -> None:
        """Wait for what is left of an emission."""
        if rest is not None:
            self._run(rest)

    def _run(self, work: Work[_T]) -> _T:
        """Do work of this source's, and wait for the host, which may be stopped, no longer than its deadline allows."""
        try:
            return self._session.run(work, limit_of(self.deadline))
        except OutOfTime:
            raise self._silence() from None

    def _silence(self) -> OmnibusError:
        """What is raised when the host does not answer, though the deadline is past."""
        raise NotImplementedError

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
            raise self._named(e, edge, key)

    def _named(self, e: HostError, edge: int, key: str) -> HostError:
        """The error of an emission, which says which one it was. The lock is not held."""
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
        return e

    def _envelope(
        self, delivery: int, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> Envelope:
        attrs = attrs or {}
        if key or attrs:
            wire.check_labels(key, attrs)
        return Envelope(delivery, wire.ALL_EDGES if to is None else self._edge(to), key, attrs, last)

    def _emit(self, value: Any, e: Envelope, codec_: int | None = None) -> Work[None] | None:
        """Emit a value. None: it is done; else it has to wait, or is still to be written."""
        if codec_ in (None, codec.BUNDLE) and self._puts.on_gpu:
            return self._emit_gpu_work(value, e, codec_)
        return self._emit_here(value, e, codec_)

    def _emit_here(self, value: Any, e: Envelope, codec_: int | None) -> Work[None] | None:
        """_emit, for a value that has nothing on a GPU."""
        t = sources.of(value) if codec_ in (None, codec.TENSOR) else None
        if t is not None:
            return self._emit_tensor(t, e)
        number = codec_ or codec.MSGPACK
        if codec_ in (None, codec.BUNDLE):
            plan = bundle.Plan(value)
            if plan.tensors or codec_ == codec.BUNDLE:
                return self._emit_written(plan.size(), plan.write, codec.BUNDLE, e)
            payload: bytes | bytearray | memoryview = plan.tree
        else:
            payload = codec.encode(value, number)
        if len(payload) <= self._session.inline_bytes:
            return self._puts.small(e, number, wire.INLINE, payload)

        def copy(view: memoryview) -> None:
            view[:] = payload

        return self._written_work(len(payload), copy, number, e)

    def _emit_work(self, value: Any, e: Envelope, codec_: int | None = None) -> Work[None]:
        rest = self._emit(value, e, codec_)
        if rest is not None:
            yield from rest

    def _emit_gpu_work(self, value: Any, e: Envelope, codec_: int | None) -> Work[None]:
        """Emit a value that may have tensors on a GPU."""
        from .gpu import emission, sender  # for those alone whose edges may carry such

        of = sender.of(self._session)
        way = emission.Emission(self, of, bundle.Plan(value, of.of), e)
        rest = way.work() if way.tensors else self._emit_here(value, e, codec_)
        if rest is not None:
            yield from rest

    def _emit_tensor(self, t: sources.Source, e: Envelope) -> Work[None] | None:
        def write(buf: memoryview) -> None:
            data = tensor.write_header(buf, t.dtype, t.shape)
            if t.fill is not None:
                t.fill(data)

        return self._emit_written(tensor.payload_bytes(t.dtype, t.shape), write, codec.TENSOR, e)

    def _emit_written(
        self, size: int, write: Callable[[memoryview], None], number: int, e: Envelope
    ) -> Work[None] | None:
        """Send a payload that is written in place."""
        if size > self._session.inline_bytes:
            return self._written_work(size, write, number, e)
        payload = bytearray(size)
        write(memoryview(payload))
        return self._puts.small(e, number, wire.INLINE, payload)

    def _written_work(self, size: int, write: Callable[[memoryview], None], number: int, e: Envelope) -> Work[None]:
        b = yield from self._reserve_work(size, number, e)
        with b:
            write(b.view)
            b.send()

    def _forward(self, e: Envelope) -> Work[None] | None:
        """Pass the payload of a delivery on by reference."""
        return self._puts.small(e, 0, wire.FORWARD, b"")

    def _reserve_work(self, size: int, number: int, e: Envelope) -> Work[Buffer]:
        if size < 0:
            raise PayloadError(f"size {size} is negative")
        return (yield from self._puts.reserve_work(size, number, e, size <= self._session.inline_bytes))


class _Way(Protocol):
    """How a buffer is sent, and given back."""

    def send(self, n: int, e: Envelope) -> None: ...

    def abort(self) -> None: ...


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
        e = self._envelope
        if key or attrs or last:
            e = e._replace(key=key or e.key, attrs=attrs or e.attrs, last=last or e.last)
        way = self._untaken()
        try:
            way.send(n, e)
        except BaseException:
            way.abort()
            raise
        finally:
            self._way = None
            self._release()

    def abort(self) -> None:
        """Give the room back. After `send` it does nothing."""
        if self._way is not None:
            self._session.check_process()
            way, self._way = self._way, None
            self._release()
            way.abort()

    def _untaken(self) -> _Way:
        if self._way is None:
            raise Finished("the buffer was sent or aborted before")
        return self._way

    def _release(self) -> None:
        try:
            self.view.release()
        except BufferError:
            pass  # somebody's array keeps the memory mapped, no more

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def tensor_in(b: Buffer, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor laid out in a buffer, to be filled in place."""
    return Tensor(dtype, shape, tensor.write_header(b.view, dtype, shape))
