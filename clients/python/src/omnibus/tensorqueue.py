"""A queue of items with tensors in them, between processes.

The Go package `bus/tensorqueue` owns queues, and says how clients talk to one: an item is a request to the bus of
the queue's name, and so is a getter.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from .answers import Answer
from .client import Client, connect
from .codec import BUNDLE
from .delivery import Delivery
from .errors import Closing, Code, Overloaded, PayloadError, ProtocolError, RequestAborted, RequestOver, again
from .puts import MODES
from .request import Request, submit_ahead, submit_work
from .session import OutOfTime
from .wire import CloseSend, Tensors

if TYPE_CHECKING:
    from .gpu import Options, Sender

_GET, _BACK, _QUEUED, _FULL, _CLOSED, _BUSY = "get", "back", "queued", "full", "closed", "busy"

#: As much as a Go program's has. It is taken as items fill it.
ARENA_BYTES = 1 << 30

#: How many items of this end are at least there when it looks which are done.
_REAP = 16

#: How long a get without patience waits for an item that the queue has: it takes the way to the owner and back.
_AT_LEAST = 0.25

#: How long the owner may take to say what became of an item for which there was no room in time.
_GIVING_UP = 1.0

#: How long `close` waits for the owner to have heard of what was got.
_GOODBYE = 1.0


Item: TypeAlias = "tuple[str, str, dict[str, Any] | None]"


class TensorQueue:
    """An end of a queue that another process owns. Safe from any thread.

    `put` waits while the queue is full, and `get` while it is empty: with a timeout they raise
    `queue.Full` and `queue.Empty`, as the queues of the standard library do. How many items it
    holds is for its owner to say. How tensors on a GPU travel is for each putter to say.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        path: str | None = None,
        transport_mode: str = "default",
        arena_bytes: int = ARENA_BYTES,
        gpu: Options | None = None,
        allow_uids: Iterable[int] = (),
    ) -> None:
        """Join a queue by its name, "queue" by default, or by the path of its socket. Raises HostGone without one.

        `transport_mode` is how tensors on a GPU travel that are put here: by "default" they are copied to the host's
        memory, by "cuda_ipc" they stay where they are, and by "cuda_ipc_pool" they are copied into a pool of
        the GPU's memory, which `gpu` describes. `arena_bytes` is the memory that the items that are put
        here lie in side by side, taken as they fill it; when it is full, each has a segment of its own. `allow_uids` are users whose queue may be joined, besides this
        process's own.
        """
        if transport_mode not in MODES:
            raise ValueError(f"transport_mode {transport_mode!r}: use one of {', '.join(MODES)}")
        self._mode = MODES.index(transport_mode)
        self._client: Client = connect(path, name or (None if path else "queue"), "queue", gpu, allow_uids)
        s = self._client._session
        s.arena_bytes = arena_bytes
        s.room.keep_bytes = max(s.room.keep_bytes, arena_bytes)
        self._lock = threading.Lock()
        self._puts: list[Request] = []  # whose items are not done, and some that are
        self._reap_at = _REAP
        self._gets: list[Request] = []  # whose end the owner has yet to hear of
        self._ahead: Answer | None = None  # to the question for the next request; the session's lock

    def put(
        self,
        rid: str,
        shm_name: str,
        mm_inputs: dict[str, Any] | None,
        block: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Put an item: its tensors are copied once, into shared memory, or stay on their GPU as `transport_mode` says.

        It is withdrawn when this process ends, or closes the queue, before somebody has got it: see `drain`.
        Raises queue.Full when there is no room in time, of whatever kind, and Closing when the queue is closed. An owner
        that has the item by then, and is silent, is asked for a second more what became of it. TypeError: an end in Go
        could not get it. OutOfMemory: `arena_bytes` are full, and the machine has no memory for it, or 3,072 items have
        a segment each; the item is not in the queue.
        """
        _check(rid, shm_name, mm_inputs)
        self._reap()
        limit = _limit(0 if not block else timeout)
        item = {"rid": rid, "shm_name": shm_name, "inputs": mm_inputs}
        try:
            r = self._begin(limit)
        except OutOfTime:
            raise queue.Full from None
        try:
            self._sent(r, item, limit)
            word = self._word(r, limit) or self._given_up(r)
            if word == _QUEUED:
                with self._lock:
                    self._puts.append(r)
                return
        except OutOfTime:
            word = None  # it was not sent, or the owner says nothing
        except BaseException:
            r.close()  # which withdraws it
            raise
        r.close()
        if word in (None, _FULL):
            raise queue.Full
        raise _refused(word)

    def _sent(self, r: Request, item: dict[str, Any], limit: float | None) -> None:
        if self._mode:
            edges = self._client.inputs
            r._puts.travel([Tensors(self._mode)] * len(edges))
        self._said(r, item, False, BUNDLE, limit)

    def _given_up(self, r: Request) -> str | None:
        """What the owner says of an item that waits no longer: it may be in the queue by now. None: it says nothing."""
        limit = time.monotonic() + _GIVING_UP
        self._said(r, _BACK, True, None, limit)
        return self._word(r, limit)

    def _said(self, r: Request, value: Any, last: bool, codec: int | None, limit: float | None) -> None:
        try:
            self._client._session.run(r._send_work(value, None, "", None, last, codec), limit)
        except RequestOver:
            pass  # its end says why

    @property
    def gpu(self) -> Sender:
        """Memory of a GPU to fill in place where an item's getter reads it, and what was sent how."""
        return self._client.gpu

    def get(self, block: bool | float | None = True, timeout: float | None = None) -> Item:
        """Get the oldest item: (rid, shm_name, inputs). Its tensors are views, and keep its memory: see `unwrap`.

        It counts as done when this returns, or raises PayloadError: it is invalid. One that this process cannot
        open for other reasons stays in the queue, and so does one whose tensors lie in another process's memory that
        is not found in time. Raises queue.Empty when there is none in time, and Closing when the queue is closed. A
        number as the only argument is the timeout.
        """
        if not isinstance(block, bool):
            block, timeout = True, block
        self._reap()
        limit = _limit(0 if not block else timeout)
        try:
            if (not block or (timeout is not None and timeout <= 0)) and self._size("size", limit) == 0:
                raise queue.Empty
            r = self._begin(limit)
        except OutOfTime:
            raise queue.Empty from None
        try:
            self._said(r, _GET, False, None, limit)
            d = self._result(r, limit)
            if d is None:  # if an item comes now, it goes back to its place
                self._said(r, _BACK, True, None, time.monotonic() + _GIVING_UP)
        except OutOfTime:
            r.close()
            raise queue.Empty from None
        except BaseException:
            r.close()
            raise
        if d is not None:
            return self._taken(r, d, limit)
        with self._lock:
            self._gets.append(r)
        raise queue.Empty

    def unwrap(self, mm_inputs: dict[str, Any] | None, device: Any = None) -> dict[str, Any] | None:
        """The inputs of an item with all of their tensors copied onto a device: see `omnibus.gpu.unwrap`.

        Without a device it is that of the first tensor on a GPU, or the one that `gpu` names. The item's memory goes
        back when its own inputs are dropped.
        """
        from .gpu.unwrap import unwrap

        options = self._client._session.gpu_options
        inputs: dict[str, Any] | None = unwrap(mm_inputs, device, 0 if options is None else options.device)
        return inputs

    def _taken(self, r: Request, d: Delivery, limit: float | None) -> Item:
        """The item of a result. One that is none is done; one that cannot be opened here may do for another getter."""
        try:
            item = _item(d, limit)
        except PayloadError:
            self._done(r, d)
            raise
        except (Closing, Overloaded, ProtocolError):  # the owner's word, in place of one
            d.finish()
            r.close()
            raise
        except OutOfTime:
            pass  # the item goes back below, when the error is gone, and its hold on the payload
        except BaseException:
            self._back(r, d)
            raise
        else:
            self._done(r, d)  # what views it keeps it
            return item
        finally:
            with self._lock:
                self._gets.append(r)
        self._back(r, d)
        raise queue.Empty

    def _back(self, r: Request, d: Delivery) -> None:
        """An item goes back to its place."""
        try:
            self._said(r, _BACK, True, None, time.monotonic() + _GIVING_UP)
        except OutOfTime:
            r.close()  # which gives it back too
        d.finish()

    def _begin(self, limit: float | None) -> Request:
        """A request: the one that was submitted ahead, or another."""
        s = self._client._session
        with s.locked:
            a, self._ahead = self._ahead, None
        if a is not None:
            try:
                if not s.wait(lambda: a.done, _left(limit)):
                    raise OutOfTime
            except BaseException:
                s.questions.abandon(a)
                raise
            if a.error is None and not a.value.over:
                r: Request = a.value
                return r
        return s.run(submit_work(Request, s, None, False, None), limit)

    def _done(self, r: Request, d: Delivery) -> None:
        """A request has come to its end. What says so brings along the question for the next one."""
        s = r._session
        with s.locked:
            d._finish()
            if r._open:
                r._open = False
                s.post(CloseSend(r.number))
            if self._ahead is None and s.error is None:
                self._ahead = submit_ahead(s)

    def qsize(self) -> int:
        """How many items nobody has taken."""
        return self._size("size")

    @property
    def maxsize(self) -> int:
        """How many of those there may be."""
        return self._size("max_size")

    def empty(self) -> bool:
        """Whether there are none."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether there may be no more."""
        size = self._client.call("size")
        return bool(size["size"] >= size["max_size"])

    def _size(self, what: str, limit: float | None = None) -> int:
        n = self._client._session.run(self._client._call_work("size", None), limit)[what]
        if not isinstance(n, int):
            raise ProtocolError(f"the size of the queue is {n!r}")
        return n

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all that was put here is done. False: the time, in seconds, is up. Raises HostGone when the owner
        is gone before."""
        s = self._client._session
        with self._lock:
            left = list(self._puts)
        well = s.wait(lambda: all(r.over for r in left), timeout)
        if s.error is not None and any(r._error is s.error for r in left):
            raise again(s.error)
        return well

    def close(self) -> None:
        """Leave the queue. Items that were put here and that nobody has taken are withdrawn. Idempotent."""
        with self._lock:
            gets = list(self._gets)
        if gets and not self._client.closed:
            # What was got is done: the owner is to hear of it first.
            self._client._session.wait(lambda: all(r.over or r._results for r in gets), _GOODBYE)
        self._client.close()

    def __enter__(self) -> TensorQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _word(self, r: Request, limit: float | None) -> str | None:
        """What the owner says of a put. None: nothing yet."""
        d = self._result(r, limit)
        if d is None:
            return None
        word = d.value()
        self._done(r, d)
        if not isinstance(word, str):
            raise ProtocolError("the owner of the queue answers a put with a value")
        return word

    def _result(self, r: Request, limit: float | None) -> Delivery | None:
        """The result of a request. None: the time is up."""
        s = self._client._session
        if not s.wait(r._ready, _left(limit)):
            return None
        with s.locked:
            d = r._next()
        if d is None:
            raise RequestAborted("", "", "", 0, "it has no result")
        return d.keep()

    def _reap(self) -> None:
        """Forget what is over."""
        self._client.process()
        with self._lock:
            for r in self._gets:
                _drop_results(r)
            if len(self._puts) >= self._reap_at:  # not each time: an unbounded queue has many
                self._puts = [r for r in self._puts if not r.over]
                self._reap_at = 2 * len(self._puts) + _REAP
            self._gets = [r for r in self._gets if not r.over]


def _drop_results(r: Request) -> None:
    """Finish what came for a get that is over."""
    with r._session.locked:
        while r._results:
            r._results.popleft()._finish()


def _item(d: Delivery, limit: float | None) -> Item:
    v = d._value(limit)
    if isinstance(v, str):
        raise _refused(v)
    try:
        return v["rid"], v["shm_name"], v.get("inputs")
    except (TypeError, KeyError, AttributeError):
        raise PayloadError("an item without rid, shm_name and inputs") from None


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + max(timeout, _AT_LEAST if timeout <= 0 else 0)


def _left(limit: float | None) -> float | None:
    return None if limit is None else max(limit - time.monotonic(), 0)


def _refused(word: str) -> Exception:
    if word == _CLOSED:
        return Closing(Code.CLOSING, "the queue is closed")
    if word == _BUSY:
        return Overloaded(Code.OVERLOADED, "too many wait for the queue, or have items of it")
    return ProtocolError(f"the owner of the queue says {word[:40]!r}")


def _check(rid: object, shm_name: object, inputs: object) -> None:
    """Refuse what would be lost: an end in Go takes what is no item out of the queue, and nobody gets it."""
    for name, text in (("rid", rid), ("shm_name", shm_name)):
        if not isinstance(text, str):
            raise TypeError(f"{name} must be text, not {text!r}")
    if inputs is None:
        return
    if not isinstance(inputs, dict):
        raise TypeError(f"mm_inputs must be a dict or None, not of type {type(inputs).__name__}")
    for key in inputs:
        if not isinstance(key, str):
            raise TypeError(f"the keys of mm_inputs must be text, not {key!r}")
