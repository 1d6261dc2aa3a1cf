"""Sending payloads: those of up to 32 KiB in a message, larger ones written in place, in room of the client's own.

How that is said to the host, and how windows are counted, is in `puts`. The functions are work for a session, run by
a thread or by an event loop. An emission waits until it has its place in the windows of its edges: that is
how consumers hold a fast producer back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from . import bundle, codec, tensor, wire
from .buffer import Buffer, Envelope
from .deadlines import limit_of, seconds
from .errors import OmnibusError, PayloadError
from .puts import Puts
from .scoreboard import Running
from .session import OutOfTime, Session, Work
from .tensor import Tensor

_T = TypeVar("_T")


class Emitter:
    """Where payloads go out: a source and its edges. The base of tasks and requests."""

    __slots__ = ()
    _session: Session
    number: int
    _deadline: float | None  # an instant of time.monotonic()
    over: Any  # true when the request is
    _puts: Puts

    @property
    def deadline(self) -> float | None:
        """The request's deadline, in seconds since 1970 by the wall clock as it stands; None: it has none."""
        return seconds(self._deadline)

    def _finish_emission(self, rest: Work[None] | None) -> None:
        """Wait for what is left of an emission."""
        if rest is not None:
            self._run(rest)

    def _run(self, work: Work[_T]) -> _T:
        """Do work of this source's, and wait for the host, which may be stopped, no longer than its deadline allows."""
        try:
            return self._session.run(work, limit_of(self._deadline))
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

    _running: Running | None = None  # the handler that emits; None: no handler of a stage does

    def _went_out(self, edge: int) -> None:
        """An emission has its place in the stream. The lock is held."""

    def _next_seq(self, edge: int) -> int | None:
        """The place of the next emission on an edge, if that is known here, for errors. The lock is held."""
        return None

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
        way = codec.plan(value, codec_)
        if way.payload is not None and way.size <= self._session.inline_bytes:
            return self._puts.small(e, way.codec, wire.INLINE, way.payload)
        return self._emit_written(way.size, way.write, way.codec, e)

    def _emit_work(self, value: Any, e: Envelope, codec_: int | None = None) -> Work[None]:
        rest = self._emit(value, e, codec_)
        if rest is not None:
            yield from rest

    def _emit_gpu_work(self, value: Any, e: Envelope, codec_: int | None) -> Work[None]:
        """Emit a value that may have tensors on a GPU."""
        from .gpu import emission, sender  # for those alone whose edges may carry such

        of = sender.of(self._session)
        way = emission.Emission(self._puts, of, bundle.Plan(value, of.of), e)
        rest = way.work() if way.tensors else self._emit_here(value, e, codec_)
        if rest is not None:
            yield from rest

    def _emit_written(
        self, size: int, write: Callable[[memoryview], object], number: int, e: Envelope
    ) -> Work[None] | None:
        """Send a payload that is written in place."""
        if size > self._session.inline_bytes:
            return self._written_work(size, write, number, e)
        payload = bytearray(size)
        write(memoryview(payload))
        return self._puts.small(e, number, wire.INLINE, payload)

    def _written_work(self, size: int, write: Callable[[memoryview], object], number: int, e: Envelope) -> Work[None]:
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


def tensor_in(b: Buffer, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor laid out in a buffer, to be filled in place."""
    return Tensor(dtype, shape, tensor.write_header(b.view, dtype, shape))
