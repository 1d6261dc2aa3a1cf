"""Deliveries: payloads as they arrive, and the views of them."""

from __future__ import annotations

import time
import weakref
from typing import Any, Protocol

from . import bundle, codec, deadlines, tensor, wire
from .errors import Code, DeadlineExceeded, Finished, PayloadError
from .memory import Mapping, View
from .session import OutOfTime, Session
from .tensor import Tensor


class DeliveryOwner(Protocol):
    """A task or a request, as its deliveries use it."""

    @property
    def over(self) -> Any: ...  # truthy when the request is over

    @property
    def request(self) -> int: ...

    @property
    def _deadline(self) -> float | None: ...  # an instant of time.monotonic()

    def _on_finished(self, d: Delivery, code: int, /) -> None:
        """A delivery is finished. The lock is held."""


class Delivery:
    """One message of a stream: a payload, or only the end of the stream.

    The methods may be called from any thread. After `finish` the payload
    cannot be reached through the delivery; views that were made before stay valid.
    """

    __slots__ = (
        "key", "attrs", "seq", "attempt", "dropped", "codec", "size", "edge", "task", "number", "last", "bare",
        "more_parts", "_session", "_payload", "_mapping", "_offset", "_view_refs", "_is_finished", "_kept", "_owner",
        "__weakref__",
    )  # fmt: skip

    def __init__(self, session: Session, m: wire.Deliver, edge: wire.Edge, owner: DeliveryOwner, task: Any) -> None:
        self.key = m.key  #: the producer's name for the payload, or empty
        self.attrs = m.attrs  #: small attributes that travel with it
        self.seq = m.seq  #: position in the stream, from 0
        self.attempt = m.attempt  #: 0, or more for a repeat
        self.dropped = m.dropped  #: deliveries dropped directly before this one
        self.codec = m.codec  #: how the payload is encoded
        self.size = m.size  #: size of the payload in bytes
        self.edge = edge  #: where it comes from: `edge.peer` is the stage
        self.task = task  #: the request at this stage, a Task or an AsyncTask; None for results
        self.number = m.delivery
        self.last = m.flags & wire.LAST != 0  #: whether it is the last of its stream
        self.bare = m.flags & wire.BARE != 0  #: whether it has no payload and only ends its stream
        self.more_parts = m.flags & wire.MORE_PARTS != 0  #: at a stage that joins: more deliveries belong to this one
        self._session = session
        self._owner = owner  # `_on_finished` is called with the lock held
        self._view_refs: list[weakref.ref[Any]] = []
        self._is_finished = False  # True: finished
        self._kept = False
        self._payload: bytes | None = None
        self._mapping: Mapping | None = None
        self._offset = m.offset
        if m.flags & wire.INLINE:
            self._payload = m.payload
            self.size = len(m.payload)
        elif not m.flags & wire.BARE:
            self._mapping = session.host_segments.of(m)

    @property
    def request(self) -> int:
        """The id of the request."""
        return self._owner.request

    @property
    def deadline(self) -> float | None:
        """The request's deadline, in seconds since 1970 by the wall clock as it stands; None: it has none."""
        return deadlines.to_epoch(self._owner._deadline)

    @property
    def finished(self) -> bool:
        """Whether `finish` was called."""
        return self._is_finished

    @property
    def bytes(self) -> bytes:
        """A copy of the payload's bytes."""
        if self._payload is not None and not self._is_finished:
            return self._payload
        return bytes(self._data()[0])

    def view(self) -> View:
        """A read-only view of the payload in shared memory, without a copy."""
        return View(*self._data())

    def tensor(self) -> Tensor:
        """The payload as a tensor that views it. Raises PayloadError if the payload is no tensor."""
        return tensor.view(self._data()[0])

    def value(self, timeout: float | None = None) -> Any:
        """The payload decoded: a copy, but for tensors, which view it. None if the delivery is bare.

        Tensors on a GPU are `gpu.DeviceTensor`, and may not be complete yet. For GPU memory that this process has not
        mapped yet, it asks the host, and waits until the request's deadline or for `timeout` seconds. Then it raises
        DeadlineExceeded or TimeoutError, and may be called again.
        """
        try:
            return self._value(self._limit(timeout) if self.codec == codec.BUNDLE else None)
        except OutOfTime:
            pass  # the traceback, which refers to the payload, ends here
        late = "the host does not say where its tensors lie"
        if timeout is not None and not deadlines.has_passed(self._owner._deadline):
            raise TimeoutError(f"{late}: {timeout} s have passed")
        raise DeadlineExceeded("" if self.task is None else self.task.stage, self.edge.name, self.key, self.seq, late)

    def _limit(self, timeout: float | None) -> float | None:
        """Until when `value` waits, by time.monotonic."""
        limits = [] if timeout is None else [time.monotonic() + timeout]
        if self._owner._deadline is not None and not self._owner.over:
            limits.append(self._owner._deadline)
        return min(limits, default=None)

    def _value(self, limit: float | None) -> Any:
        """value, with a limit by time.monotonic. Raises OutOfTime if the memory of another process is not found by
        then."""
        if self.bare and not self._is_finished:
            return None
        data, window = self._data()
        if self.codec == codec.BUNDLE and (b := bundle.Bundle(data)).places:
            from .gpu import lane  # loaded only for tensors on a GPU

            if window is None:
                raise PayloadError("bundle: places outside a payload that is not in shared memory: nothing keeps them")
            return lane.for_session(self._session).decode(b, data, limit)
        return codec.decode(data, self.codec)

    def keep(self) -> Delivery:
        """Keep the delivery beyond the handler or the loop step: only `finish` finishes it."""
        self._kept = True
        return self

    def finish(self, error: str | BaseException | None = None) -> None:
        """End the work on the delivery, which returns its credit and its payload.

        An error fails the request. While views of the payload live, the
        payload stays; it is returned when the last view is gone. Raises Finished the second time.
        """
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error or ""
        with self._session.locked:
            if self._is_finished:
                raise Finished(f"delivery {self.number} was finished before")
            self._finish(Code.OK if error is None else Code.INTERNAL, text)

    def emit(self, value: Any, **options: Any) -> Any:
        """Emit for this delivery; see `Task.emit`. At an asynchronous stage the result is awaited."""
        if self.task is None:
            raise TypeError("a result has no stage to emit from")
        return self.task._emit_for(self.number, value, **options)

    def _check_unfinished(self) -> None:
        if self._is_finished:
            raise Finished(f"delivery {self.number} is finished: its payload is returned")

    def _finish(self, code: int = 0, text: str = "", flags: int = 0) -> None:
        """finish, with the lock held; idempotent. The flag HANDLED promises that no emission for it follows."""
        if self._is_finished:
            return
        self._is_finished = True
        s = self._session
        alive = self._view_refs and [exporter for w in self._view_refs if (exporter := w()) is not None]
        if alive and s.error is None:
            s.viewed_payloads.track(wire.Release(self.number), [w for w in self._view_refs if w() is not None])
        s.connection.post(wire.Finish(self.number, flags | (wire.KEEP_PAYLOAD if alive else 0), code, text))
        self._payload = self._mapping = None
        self._view_refs = []
        if alive:
            s.call_unlocked(alive.clear)  # their destructors must not run under the lock
        self._owner._on_finished(self, code)

    def _data(self) -> tuple[memoryview, weakref.ref[Any] | None]:
        s, payload = self._session, self._payload
        if payload is not None:  # bytes of this process, without a lease
            self._check_unfinished()
            return memoryview(payload), None
        with s.locked:
            self._check_unfinished()
            if self._mapping is None:
                return memoryview(b""), None
            view, window = self._mapping.tracked_view(self._offset, self.size, s.viewed_payloads.on_view_gone)
            if self._view_refs:
                self._view_refs = [w for w in self._view_refs if w() is not None]
            self._view_refs.append(window)
            return view, window

    def __repr__(self) -> str:
        what = "finished" if self._is_finished else "bare" if self.bare else f"{self.size} bytes"
        return f"<Delivery {self.edge.name} seq {self.seq}: {what}>"
