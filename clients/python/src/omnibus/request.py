"""Requests that this client submits, and their results. Those of event loops are in `aio`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from . import deadlines, wire
from .deadlines import deadline_of, to_wire, wait_limit
from .delivery import Delivery
from .emit import Emitter
from .errors import Code, DeadlineExceeded, Finished, OmnibusError, ProtocolError, RequestOver, again, host_error
from .futures import Future, PolledFuture, resolve
from .puts import Puts, tensors_of
from .session import OutOfTime, Session, Work
from .task import end_error

log = logging.getLogger("omnibus")

#: A submit that waits for this many seconds is logged.
_WARN_SECONDS = 1.0

_R = TypeVar("_R", bound="BaseRequest")


class BaseRequest(Emitter):
    """The common base of `Request` and `AsyncRequest`."""

    __slots__ = ("number", "request", "_deadline", "_session", "_results", "_ended", "_error", "_inputs_open", "_closed",
                 "_unfinished", "_current_result", "_previous_result", "_on_change", "_puts", "_begin_future", "__weakref__")  # fmt: skip

    def __init__(self, s: Session, number: int, deadline: float | None, tell: bool) -> None:
        self.number = wire.OWN_SOURCE | number
        self.request = s.welcome.node << 32 | number  #: the id of the request
        self._deadline = deadline
        self._session = s
        self._puts = Puts(self, s, tensors_of(s.welcome.inputs, s.welcome.tensors))
        self._results: deque[Delivery] = deque()
        self._ended = False
        self._error: OmnibusError | None = None
        self._inputs_open = True  # inputs may still be sent
        self._closed = False  # no more results are wanted
        self._unfinished = 0  # results not finished
        self._current_result: Delivery | None = None  # the result that the loop works on
        self._previous_result: Delivery | None = None  # the one before, which the loop no longer uses
        self._on_change: set[Callable[[], object]] = set()  # changed by waiting loops, without a lock
        self._begin_future = BeginFuture(self) if tell else None  # done once the host has begun or refused the request

    @property
    def over(self) -> bool:
        """Whether the request has ended; there may still be results to read."""
        return self._ended or self._error is not None

    def close_send(self) -> None:
        """End the inputs. Idempotent."""
        if self._inputs_open:
            self._inputs_open = False
            self._session.tell(wire.CloseSend(self.number))

    def abort(self, reason: str = "") -> None:
        """Abort the request. Its results end with RequestAborted."""
        self._session.tell(wire.AbortRequest(self.number, 0, reason))

    def close(self) -> None:
        """Discard further results, and abort the request if it is not over. Idempotent.

        Kept results stay until they are finished.
        """
        with self._session.locked:
            self._close()

    def _close(self) -> None:
        """close, with the lock held."""
        if self._closed:
            return
        self._closed, self._inputs_open = True, False
        for d in (*self._results, self._current_result, self._previous_result):
            if d is not None and not d._kept:
                d._finish()
        self._results.clear()
        self._current_result = self._previous_result = None
        if not self.over:
            if deadlines.has_passed(self._deadline):  # otherwise a host that read the submit late would record an abort
                self._session.post(wire.AbortRequest(self.number, Code.OVER, ""))
            self._session.post(wire.Close(self.number))
            self._notify_waiters()
            self._session.notify()  # wakes a thread that waits for a result

    def _out_edges(self) -> list[wire.Edge]:
        return self._session.welcome.inputs

    def _send_work(self, value: Any, to: str | None, key: str, attrs: wire.Attrs | None, last: bool,
                   codec: int | None) -> Work[None]:  # fmt: skip
        if self._ended and not self._closed:  # the error that the host would answer
            raise RequestOver(Code.OVER, "the request is complete" if self._error is None else str(self._error))
        if not self._inputs_open:
            raise Finished("the inputs of the request have ended")
        ends = last and to is None
        if ends:
            self._inputs_open = False
        try:
            yield from self._emit_work(value, self._envelope(0, to, key, attrs, last), codec)
        except BaseException:
            if ends:  # the input was not sent, or its outcome is unknown: the caller may still end the inputs
                self._inputs_open = not (self._closed or self.over)
            raise

    def _take_result(self) -> Delivery | None:
        """The next result; None at the end. The lock is held, and `_result_ready` is true."""
        if self._results:
            self._current_result = self._results.popleft()
            return self._current_result
        if self._error is not None:
            raise again(self._error)
        if self._closed:
            raise Finished("the request was closed")
        return None

    def _result_ready(self) -> bool:
        return bool(self._results) or self.over or self._closed

    def _wait_seconds(self) -> float | None:
        """How many seconds to wait for a result; None: no limit."""
        soonest = wait_limit(self._deadline)
        return None if soonest is None else soonest - time.monotonic()

    def _no_answer(self) -> DeadlineExceeded:
        return no_answer()

    def _unknown_end(self) -> DeadlineExceeded:
        return DeadlineExceeded("", "", "", 0, "the host does not say how it ended")

    def _advance(self) -> bool:
        """Finish the previous result and take the next. Returns whether there is one, or none will come. The lock is
        held."""
        spent, self._previous_result = self._previous_result, None
        if spent is not None and not spent._kept:
            spent._finish()
        if self._current_result is None and self._results:
            self._current_result = self._results.popleft()
        return self._current_result is not None or self.over or self._closed

    def _finish_last(self) -> None:
        d, self._current_result = self._current_result, None
        if d is not None and not d._kept and not d.finished:
            with self._session.locked:
                d._finish()

    # As a source; called with the lock held.

    def _receive_delivery(self, m: wire.Deliver) -> None:
        edges = self._session.welcome.results
        if m.edge >= len(edges):
            raise ProtocolError(f"result {m.delivery} is on edge {m.edge} of {len(edges)}")
        d = Delivery(self._session, m, edges[m.edge], self, None)
        self._session.pending_submits.discard(self.number)
        self._unfinished += 1
        if self._closed or d.bare:
            d._finish()
            return
        self._results.append(d)
        self._notify_waiters()

    def _receive_over(self, m: wire.Over) -> None:
        self._ended, self._error = True, refusal(m) if m.outcome == wire.OUTCOME_REFUSED else end_error(m)
        self._inputs_open = False
        self._session.sources.pop(self.number, None)
        self._resolve_begin(self._error if m.outcome == wire.OUTCOME_REFUSED else None)
        self._notify_waiters()

    def _session_ended(self, error: OmnibusError) -> None:
        if not self._ended:
            self._error = error
            self._resolve_begin(error)
        self._notify_waiters()

    def _resolve_begin(self, error: OmnibusError | None = None) -> None:
        """Resolve the begin future: the host has begun the request or, with an error, has not."""
        self._session.pending_submits.discard(self.number)
        a, self._begin_future = self._begin_future, None
        if a is not None:
            resolve(self._session, a, None if error else self, error)

    def _on_finished(self, _d: Delivery, _code: int) -> None:
        self._unfinished -= 1

    @property
    def _holds_deliveries(self) -> bool:
        return self._unfinished > 0

    def _notify_waiters(self) -> None:
        for f in self._on_change.copy():
            self._session.call_unlocked(f)


class BeginFuture(Future):
    """The future of a request that the host begins. Abandoning it closes the request."""

    __slots__ = ("request",)

    def __init__(self, request: BaseRequest) -> None:
        super().__init__(BeginFuture)
        self.request = request

    def abandon(self) -> None:
        super().abandon()
        self.request._close()


def refusal(m: wire.Over) -> OmnibusError:
    """The error of a request that did not begin."""
    e = host_error(m.code, m.text)
    # The host had no permit for it before its deadline.
    return DeadlineExceeded("", "", "", 0, m.text) if isinstance(e, RequestOver) else e


class Request(BaseRequest):
    """A request of this client: an iterator of results, and a context manager that closes it.

    Each result is finished when the next is asked for, unless it was kept. If
    the request does not complete, the iterator raises RequestFailed,
    RequestAborted or DeadlineExceeded behind the last result. One thread iterates;
    other threads may send.
    """

    __slots__ = ()

    def send(
        self,
        value: Any,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
        codec: int | None = None,
    ) -> None:
        """Send an input; waits for credit and space. `to` names the only stage that gets it. Raises RequestOver if the
        request has ended."""
        if last or not self._inputs_open or self._ended:
            self._run(self._send_work(value, to, key, attrs, last, codec))
        else:
            self._run_rest(self._emit(value, self._envelope(0, to, key, attrs), codec))

    def values(self) -> list[Any]:
        """All results, decoded, once the request is complete. Tensors keep their payloads."""
        return [d.value() for d in self]

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> Delivery:
        self._previous_result, self._current_result = self._current_result, None
        if not self._session.wait(self._advance, None if self._deadline is None else self._wait_seconds()):
            raise self._unknown_end()
        d = self._current_result
        if d is None:
            with self._session.locked:
                d = self._take_result()
            if d is None:
                raise StopIteration
        return d

    def __enter__(self) -> Request:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def deadline_errors() -> Iterator[None]:
    """Convert OutOfTime into DeadlineExceeded."""
    try:
        yield
    except OutOfTime:
        raise no_answer() from None


def no_answer() -> DeadlineExceeded:
    """The error for a host that does not answer within the limit."""
    return DeadlineExceeded("", "", "", 0, "the host does not answer")


def submit_unconfirmed_work(kind: type[_R], s: Session, deadline: float | None, flags: int, trace: wire.Trace | None) -> Work[_R]:
    """Submit a request, once fewer than MAX_QUESTIONS requests are unanswered. With TELL the message is sent at once, else
    with the first input."""

    def submit_now() -> _R | None:
        return _submit(kind, s, deadline, flags, trace) if len(s.pending_submits) < wire.MAX_QUESTIONS else None

    with s.locked:
        r = submit_now()
    if r is None:
        a = PolledFuture(submit_now, _submit, BaseRequest._close)
        a.limit = time.monotonic() + _WARN_SECONDS
        r = yield s.polled.add(a)
    if r is None:
        _warn_submit_waits(s)
        r = yield s.polled.add(PolledFuture(submit_now, _submit, BaseRequest._close))
    assert r is not None
    return r


def _warn_submit_waits(s: Session) -> None:
    """Log why a submit waits. Repeated only after the number of unanswered requests has fallen to half."""
    with s.locked:
        warned, s.warned_submit_waits = s.warned_submit_waits, True
    if not warned:
        log.warning(
            "submit waits: %d requests of this client wait for permits of the host. Read the results of earlier"
            " requests to their ends, or close them, in another thread or task: they hold the permits",
            wire.MAX_QUESTIONS,
        )


def _submit(kind: type[_R], s: Session, deadline: float | None, flags: int, trace: wire.Trace | None) -> _R:
    """Submit a request. The lock is held."""
    if s.error is not None:
        raise again(s.error)
    number, wanted = s.requests + 1, flags & wire.TELL != 0
    r = kind(s, number, deadline, wanted)
    if len(s.pending_submits) >= wire.MAX_QUESTIONS // 2:
        flags |= wire.TELL  # the host answers at once, so quiet requests do not fill `pending_submits`
    else:
        s.warned_submit_waits = False
    m = wire.Submit(to_wire(deadline), flags, trace or wire.Trace(), r.number)
    if wanted:
        s.post(m)
    else:
        s.connection.defer(m)
    s.requests = number
    s.pending_submits.add(r.number)
    s.sources[r.number] = r
    return r


def submit_work(
    kind: type[_R], s: Session, deadline: float | None, fail_fast: bool, trace: wire.Trace | None
) -> Work[_R]:
    """Submit a request, and wait until the host has begun it."""
    r = yield from submit_unconfirmed_work(kind, s, deadline, wire.TELL | (wire.FAIL_FAST if fail_fast else 0), trace)
    if r._begin_future is not None:
        yield r._begin_future
    return r


def submit_early(s: Session) -> Future | None:
    """Submit a request ahead of its use, unless MAX_QUESTIONS are unanswered. The lock is held."""
    if len(s.pending_submits) >= wire.MAX_QUESTIONS:
        return None
    return _submit(Request, s, None, wire.TELL | wire.FAIL_FAST, None)._begin_future


def submit_stream_work(
    kind: type[_R], s: Session, timeout: float | None, deadline: float | None, fail_fast: bool, trace: wire.Trace | None
) -> tuple[Work[_R], float | None]:
    """The work that submits a request, and its limit by time.monotonic: see `deadline_errors`."""
    at = deadline_of(timeout, deadline)
    return submit_work(kind, s, at, fail_fast, trace), wait_limit(at)


def submit_value_work(
    kind: type[_R], s: Session, timeout: float | None, deadline: float | None, fail_fast: bool, trace: wire.Trace | None,
    value: Any, to: str | None, key: str, attrs: wire.Attrs | None, codec: int | None,
) -> tuple[Work[_R], float | None]:  # fmt: skip
    """submit_stream_work, for a request with one input. Without `fail_fast` the input is sent together with the
    request."""
    at = deadline_of(timeout, deadline)
    opened = submit_work(kind, s, at, True, trace) if fail_fast else submit_unconfirmed_work(kind, s, at, 0, trace)
    return _send_only_input(opened, value, to, key, attrs, codec), wait_limit(at)


def _send_only_input(
    opened: Work[_R], value: Any, to: str | None, key: str, attrs: wire.Attrs | None, codec: int | None
) -> Work[_R]:
    """Send the only input of a request. On an error the request is closed."""
    r = yield from opened
    try:
        yield from r._send_work(value, to, key, attrs, True, codec)
        r.close_send()  # other edges stay open if `to` names one
    except RequestOver:
        pass  # the results say how it ended
    except BaseException:
        r.close()
        raise
    return r
