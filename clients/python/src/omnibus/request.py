"""Requests that this client submits, and their results. With an event loop: `aio`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from . import deadlines, wire
from .answers import Answer, Attempt, answered
from .deadlines import deadline_of, limit_of, time_left
from .delivery import Delivery
from .emit import Emitter
from .errors import Code, DeadlineExceeded, Finished, OmnibusError, ProtocolError, RequestOver, again, host_error
from .puts import Puts, tensors_of
from .session import OutOfTime, Session, Work
from .task import ended

log = logging.getLogger("omnibus")

#: For how many seconds a submit waits before the log says so.
_PATIENCE = 1.0

_R = TypeVar("_R", bound="BaseRequest")


class BaseRequest(Emitter):
    """What `Request` and `AsyncRequest` have in common."""

    __slots__ = ("number", "request", "_deadline", "_session", "_results", "_ended", "_error", "_open", "_closed",
                 "_held", "_last", "_spent", "_on_news", "_puts", "_begun", "__weakref__")  # fmt: skip

    def __init__(self, s: Session, number: int, deadline: float | None, tell: bool) -> None:
        self.number = wire.OWN_SOURCE | number
        self.request = s.welcome.node << 32 | number  #: the id of the request
        self._deadline = deadline
        self._session = s
        self._puts = Puts(self, s, tensors_of(s.welcome.inputs, s.welcome.tensors))
        self._results: deque[Delivery] = deque()
        self._ended = False
        self._error: OmnibusError | None = None
        self._open = True  # inputs may still be sent
        self._closed = False  # no more results are wanted
        self._held = 0  # results not finished
        self._last: Delivery | None = None  # the result in the hands of the loop
        self._spent: Delivery | None = None  # the one before, which the loop has done with
        self._on_news: set[Callable[[], object]] = set()  # changed by whoever waits, without a lock
        self._begun = Begun(self) if tell else None  # done once the host has begun it, or has refused it

    @property
    def over(self) -> bool:
        """Whether the request has ended; results may still be there to be read."""
        return self._ended or self._error is not None

    def close_send(self) -> None:
        """The inputs end here. Idempotent."""
        if self._open:
            self._open = False
            self._session.tell(wire.CloseSend(self.number))

    def abort(self, reason: str = "") -> None:
        """Abort the request. Its results end with RequestAborted."""
        self._session.tell(wire.AbortRequest(self.number, 0, reason))

    def close(self) -> None:
        """No more results are wanted; aborts the request if it is open. Idempotent.

        Results that were kept stay until they are finished.
        """
        with self._session.locked:
            self._close()

    def _close(self) -> None:
        """close, with the lock held."""
        if self._closed:
            return
        self._closed, self._open = True, False
        for d in (*self._results, self._last, self._spent):
            if d is not None and not d._kept:
                d._finish()
        self._results.clear()
        self._last = self._spent = None
        if not self.over:
            if deadlines.over(self._deadline):  # or the host, which may have read the submit late, takes it for aborted
                self._session.post(wire.AbortRequest(self.number, Code.OVER, ""))
            self._session.post(wire.Close(self.number))
            self._tell()
            self._session.notify()  # for a thread that waits for a result

    def _out_edges(self) -> list[wire.Edge]:
        return self._session.welcome.inputs

    def _send_work(self, value: Any, to: str | None, key: str, attrs: wire.Attrs | None, last: bool,
                   codec: int | None) -> Work[None]:  # fmt: skip
        if self._ended and not self._closed:  # which the host says, too, to who asks it
            raise RequestOver(Code.OVER, "the request is complete" if self._error is None else str(self._error))
        if not self._open:
            raise Finished("the inputs of the request have ended")
        ends = last and to is None
        if ends:
            self._open = False
        try:
            yield from self._emit_work(value, self._envelope(0, to, key, attrs, last), codec)
        except BaseException:
            if ends:  # it ended nothing, or nobody waited to hear whether it did: that is still the caller's to do
                self._open = not (self._closed or self.over)
            raise

    def _next(self) -> Delivery | None:
        """The next result, None at the end. The lock is held, and there is one or it is over."""
        if self._results:
            self._last = self._results.popleft()
            return self._last
        if self._error is not None:
            raise again(self._error)
        if self._closed:
            raise Finished("the request was closed")
        return None

    def _ready(self) -> bool:
        return bool(self._results) or self.over or self._closed

    def _patience(self) -> float | None:
        """For how many seconds a result is waited for."""
        soonest = limit_of(self._deadline)
        return None if soonest is None else soonest - time.monotonic()

    def _silence(self) -> DeadlineExceeded:
        return silent()

    def _unended(self) -> DeadlineExceeded:
        return DeadlineExceeded("", "", "", 0, "the host does not say how it ended")

    def _come(self) -> bool:
        """Finish the last result, and take the next. True: there is one, or none comes. The lock is held."""
        spent, self._spent = self._spent, None
        if spent is not None and not spent._kept:
            spent._finish()
        if self._last is None and self._results:
            self._last = self._results.popleft()
        return self._last is not None or self.over or self._closed

    def _finish_last(self) -> None:
        d, self._last = self._last, None
        if d is not None and not d._kept and not d.finished:
            with self._session.locked:
                d._finish()

    # As a source; called with the lock held.

    def _deliver(self, m: wire.Deliver) -> None:
        edges = self._session.welcome.results
        if m.edge >= len(edges):
            raise ProtocolError(f"result {m.delivery} is on edge {m.edge} of {len(edges)}")
        d = Delivery(self._session, m, edges[m.edge], self, None)
        self._session.opening.discard(self.number)
        self._held += 1
        if self._closed or d.bare:
            d._finish()
            return
        self._results.append(d)
        self._tell()

    def _over(self, m: wire.Over) -> None:
        self._ended, self._error = True, refusal(m) if m.outcome == wire.OUTCOME_REFUSED else ended(m)
        self._open = False
        self._session.sources.pop(self.number, None)
        self._has_begun(self._error if m.outcome == wire.OUTCOME_REFUSED else None)
        self._tell()

    def _gone(self, error: OmnibusError) -> None:
        if not self._ended:
            self._error = error
            self._has_begun(error)
        self._tell()

    def _has_begun(self, error: OmnibusError | None = None) -> None:
        """The host has begun it, or an error says why it has not."""
        self._session.opening.discard(self.number)
        a, self._begun = self._begun, None
        if a is not None:
            answered(self._session, a, None if error else self, error)

    def _finished(self, _d: Delivery, _code: int) -> None:
        self._held -= 1

    @property
    def _holds(self) -> bool:
        return self._held > 0

    def _tell(self) -> None:
        for f in self._on_news.copy():
            self._session.call_later(f)


class Begun(Answer):
    """That the host has begun a request. Whoever waits no longer for it closes the request."""

    __slots__ = ("request",)

    def __init__(self, request: BaseRequest) -> None:
        super().__init__(Begun)
        self.request = request

    def abandon(self) -> None:
        super().abandon()
        self.request._close()


def refusal(m: wire.Over) -> OmnibusError:
    """Why a request did not begin."""
    e = host_error(m.code, m.text)
    # At its deadline the host has had no place for it.
    return DeadlineExceeded("", "", "", 0, m.text) if isinstance(e, RequestOver) else e


class Request(BaseRequest):
    """A request of this client: an iterator of results, and a context manager that closes it.

    Each result is finished when the next is asked for, unless it was kept. When
    the request ends otherwise than well, the iterator raises RequestFailed,
    RequestAborted or DeadlineExceeded behind the last result. One thread iterates;
    others may send.
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
        """Send an input; waits for room. `to` names the one stage that gets it. RequestOver: the request has ended."""
        if last or not self._open or self._ended:
            self._run(self._send_work(value, to, key, attrs, last, codec))
        else:
            self._finish_emission(self._emit(value, self._envelope(0, to, key, attrs), codec))

    def values(self) -> list[Any]:
        """All results decoded, once the request is complete. Tensors among them hold their payloads."""
        return [d.value() for d in self]

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> Delivery:
        self._spent, self._last = self._last, None
        if not self._session.wait(self._come, None if self._deadline is None else self._patience()):
            raise self._unended()
        d = self._last
        if d is None:
            with self._session.locked:
                d = self._next()
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
def in_time() -> Iterator[None]:
    """Have work that has such a limit raise what requests do."""
    try:
        yield
    except OutOfTime:
        raise silent() from None


def silent() -> DeadlineExceeded:
    """The host was waited for as long as it may be."""
    return DeadlineExceeded("", "", "", 0, "the host does not answer")


def open_work(kind: type[_R], s: Session, deadline: float | None, flags: int, trace: wire.Trace | None) -> Work[_R]:
    """Submit a request, when there are not too many of which the host has not been heard. With TELL the host is told at once, and else with the first input."""

    def try_() -> _R | None:
        return _open(kind, s, deadline, flags, trace) if len(s.opening) < wire.MAX_QUESTIONS else None

    with s.locked:
        r = try_()
    if r is None:
        a = Attempt(try_, _open, BaseRequest._close)
        a.limit = time.monotonic() + _PATIENCE
        r = yield s.attempts.make(a)
    if r is None:
        _say_full(s)
        r = yield s.attempts.make(Attempt(try_, _open, BaseRequest._close))
    assert r is not None
    return r


def _say_full(s: Session) -> None:
    """Log why a submit waits, once until there are fewer that wait."""
    with s.locked:
        said, s.said_full = s.said_full, True
    if not said:
        log.warning(
            "submit waits: %d requests of this client wait for their places at the host. Read the results of earlier"
            " requests to their ends, or close them, in another thread or task: they have the places",
            wire.MAX_QUESTIONS,
        )


def _open(kind: type[_R], s: Session, deadline: float | None, flags: int, trace: wire.Trace | None) -> _R:
    """Submit a request. The lock is held."""
    if s.error is not None:
        raise again(s.error)
    number, wanted = s.requests + 1, flags & wire.TELL != 0
    r = kind(s, number, deadline, wanted)
    if len(s.opening) >= wire.MAX_QUESTIONS // 2:
        flags |= wire.TELL  # so that those of which nothing is heard for long do not fill the places of all
    else:
        s.said_full = False
    m = wire.Submit(time_left(deadline), flags, trace or wire.Trace(), r.number)
    if wanted:
        s.post(m)
    else:
        s.connection.hold(m)
    s.requests = number
    s.opening.add(r.number)
    s.sources[r.number] = r
    return r


def submit_work(
    kind: type[_R], s: Session, deadline: float | None, fail_fast: bool, trace: wire.Trace | None
) -> Work[_R]:
    """Submit a request, and wait until the host has begun it."""
    r = yield from open_work(kind, s, deadline, wire.TELL | (wire.FAIL_FAST if fail_fast else 0), trace)
    if r._begun is not None:
        yield r._begun
    return r


def submit_ahead(s: Session) -> Answer | None:
    """Submit a request that nobody waits for yet, if there is a place for it. The lock is held."""
    if len(s.opening) >= wire.MAX_QUESTIONS:
        return None
    return _open(Request, s, None, wire.TELL | wire.FAIL_FAST, None)._begun


def stream_work(
    kind: type[_R], s: Session, timeout: float | None, deadline: float | None, fail_fast: bool, trace: wire.Trace | None
) -> tuple[Work[_R], float | None]:
    """Submit a request; and until when the host is waited for, by time.monotonic: see `in_time`."""
    at = deadline_of(timeout, deadline)
    return submit_work(kind, s, at, fail_fast, trace), limit_of(at)


def first_work(
    kind: type[_R], s: Session, timeout: float | None, deadline: float | None, fail_fast: bool, trace: wire.Trace | None,
    value: Any, to: str | None, key: str, attrs: wire.Attrs | None, codec: int | None,
) -> tuple[Work[_R], float | None]:  # fmt: skip
    """stream_work, for a request with one input, which leaves with the request unless there is to be an answer first."""
    at = deadline_of(timeout, deadline)
    opened = submit_work(kind, s, at, True, trace) if fail_fast else open_work(kind, s, at, 0, trace)
    return _send_first(opened, value, to, key, attrs, codec), limit_of(at)


def _send_first(
    opened: Work[_R], value: Any, to: str | None, key: str, attrs: wire.Attrs | None, codec: int | None
) -> Work[_R]:
    """Send the only input of a request; close the request if that fails."""
    r = yield from opened
    try:
        yield from r._send_work(value, to, key, attrs, True, codec)
        r.close_send()  # for a `to` that left other edges open
    except RequestOver:
        pass  # the results say how it ended
    except BaseException:
        r.close()
        raise
    return r
