"""Sending payloads: up to 32 KiB in a message, larger ones written in place in the client's own segments.

The messages to the host and the counting of windows are in `puts`. The functions are work of a session, run by a
thread or by an event loop. An emission waits for credit in the windows of its edges, so consumers slow a fast
producer down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from . import bundle, codec, tensor, wire
from .buffer import Buffer, Envelope
from .deadlines import to_epoch, wait_limit
from .errors import OmnibusError, PayloadError
from .puts import Puts
from .scoreboard import HandlerEntry
from .session import OutOfTime, Session, Work
from .tensor import Tensor

_T = TypeVar("_T")


class Emitter:
    """A source that emits payloads to its edges. The base of tasks and requests."""

    __slots__ = ()
    _session: Session
    number: int
    _deadline: float | None  # an instant of time.monotonic()
    over: Any  # truthy when the request is over
    _puts: Puts

    @property
    def deadline(self) -> float | None:
        """The request's deadline, in seconds since 1970 by the wall clock as it stands; None: it has none."""
        return to_epoch(self._deadline)

    def _run_rest(self, rest: Work[None] | None) -> None:
        """Run the rest of an emission, if there is any."""
        if rest is not None:
            self._run(rest)

    def _run(self, work: Work[_T]) -> _T:
        """Run work of this source. It waits for the host, which may be stopped, until `wait_limit` of the deadline."""
        try:
            return self._session.run(work, wait_limit(self._deadline))
        except OutOfTime:
            raise self._no_answer() from None

    def _no_answer(self) -> OmnibusError:
        """The error for a host that does not answer, though the deadline has passed."""
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

    _handler_entry: HandlerEntry | None = None  # of the stage's handler that emits; None outside of handlers

    def _count_emission(self, edge: int) -> None:
        """Count an emission: its put is posted. The lock is held."""

    def _next_seq(self, edge: int) -> int | None:
        """The sequence number of the next emission on an edge, for errors; None if unknown here. The lock is held."""
        return None

    def _envelope(
        self, delivery: int, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> Envelope:
        attrs = attrs or {}
        if key or attrs:
            wire.check_labels(key, attrs)
        return Envelope(delivery, wire.ALL_EDGES if to is None else self._edge(to), key, attrs, last)

    def _emit(self, value: Any, e: Envelope, codec_: int | None = None) -> Work[None] | None:
        """Emit a value. Returns None if done, or the work that remains: waiting for credit, or writing."""
        if codec_ in (None, codec.BUNDLE) and self._puts.uses_gpu_transport:
            return self._emit_gpu_work(value, e, codec_)
        return self._emit_from_host(value, e, codec_)

    def _emit_from_host(self, value: Any, e: Envelope, codec_: int | None) -> Work[None] | None:
        """_emit, for a value without tensors on a GPU."""
        way = codec.plan(value, codec_)
        if way.payload is not None and way.size <= self._session.inline_bytes:
            return self._puts.put_small(e, way.codec, wire.INLINE, way.payload)
        return self._emit_written(way.size, way.write, way.codec, e)

    def _emit_work(self, value: Any, e: Envelope, codec_: int | None = None) -> Work[None]:
        rest = self._emit(value, e, codec_)
        if rest is not None:
            yield from rest

    def _emit_gpu_work(self, value: Any, e: Envelope, codec_: int | None) -> Work[None]:
        """Emit a value that may contain tensors on a GPU."""
        from .gpu import emission, sender  # loaded only where an edge carries GPU tensors

        of = sender.for_session(self._session)
        way = emission.Emission(self._puts, of, bundle.Plan(value, of.source_for), e)
        rest = way.work() if way.tensors else self._emit_from_host(value, e, codec_)
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
        return self._puts.put_small(e, number, wire.INLINE, payload)

    def _written_work(self, size: int, write: Callable[[memoryview], object], number: int, e: Envelope) -> Work[None]:
        b = yield from self._reserve_work(size, number, e)
        with b:
            write(b.view)
            b.send()

    def _forward(self, e: Envelope) -> Work[None] | None:
        """Forward the payload of a delivery by reference."""
        return self._puts.put_small(e, 0, wire.FORWARD, b"")

    def _reserve_work(self, size: int, number: int, e: Envelope) -> Work[Buffer]:
        if size < 0:
            raise PayloadError(f"size {size} is negative")
        return (yield from self._puts.reserve_work(size, number, e, size <= self._session.inline_bytes))


def tensor_in(b: Buffer, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor laid out in a buffer, to be filled in place."""
    return Tensor(dtype, shape, tensor.write_header(b.view, dtype, shape))
