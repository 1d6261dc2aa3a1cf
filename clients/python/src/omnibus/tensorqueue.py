"""A queue of items with tensors in them, between processes.

The Go package `bus/tensorqueue` owns queues, and documents their protocol: each put and each get is a request to the
bus of the queue's name.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from .client import Client, connect
from .codec import BUNDLE
from .delivery import Delivery
from .errors import Closing, Code, Overloaded, PayloadError, ProtocolError, RequestAborted, RequestOver, again
from .futures import Future
from .puts import MODES
from .request import Request, submit_early, submit_work
from .session import OutOfTime
from .wire import CloseSend, Tensors

if TYPE_CHECKING:
    from .gpu import Options, Sender

_GET, _BACK, _QUEUED, _FULL, _CLOSED, _BUSY = "get", "back", "queued", "full", "closed", "busy"

#: The default of Go programs, too. It is allocated as items fill it.
ARENA_BYTES = 1 << 30

#: `_reap` scans the puts of this end only from this number on.
_REAP_MIN = 16

#: The least timeout of a get, so that an item of the queue can travel from its owner.
_MIN_GET_SECONDS = 0.25

#: How long a put waits, after its timeout, for the owner's answer whether the item is in the queue.
_WITHDRAW_SECONDS = 1.0

#: How long `close` waits until the owner has counted the items that were got.
_CLOSE_SECONDS = 1.0


Item: TypeAlias = "tuple[str, str, dict[str, Any] | None]"


class TensorQueue:
    """An end of a queue that another process owns. Safe from any thread.

    `put` waits while the queue is full, and `get` while it is empty. With a timeout they raise
    `queue.Full` and `queue.Empty`, as the queues of the standard library do. The owner sets the
    maximum size. Each putter chooses the transport of its GPU tensors.
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
        """Join a queue by its name, "queue" by default, or by the path of its socket. Raises HostGone if there is none.

        `transport_mode` is the transport of GPU tensors that are put here: "default" copies them to host
        memory, "cuda_ipc" leaves them in place, and "cuda_ipc_pool" copies them into a pool of
        GPU memory, which `gpu` describes. `arena_bytes` bounds the memory that the items put here
        share; it is allocated as they fill it. When it is full, each further item has a segment of its own.
        `allow_uids` are users whose queue may be joined, besides this process's own user.
        """
        if transport_mode not in MODES:
            raise ValueError(f"transport_mode {transport_mode!r}: use one of {', '.join(MODES)}")
        self._mode = MODES.index(transport_mode)
        self._client: Client = connect(path, name or (None if path else "queue"), "queue", gpu, allow_uids)
        s = self._client._session
        s.arena_bytes = arena_bytes
        s.allocator.keep_bytes = max(s.allocator.keep_bytes, arena_bytes)
        self._lock = threading.Lock()
        self._puts: list[Request] = []  # whose items are not done; some are done, but not yet reaped
        self._reap_at = _REAP_MIN
        self._gets: list[Request] = []  # that the owner has not ended yet
        # Of the request that was submitted ahead; guarded by the session's lock.
        self._next_request: Future | None = None

    def put(
        self,
        rid: str,
        shm_name: str,
        mm_inputs: dict[str, Any] | None,
        block: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Put an item: its tensors are copied once, into shared memory, or stay on their GPU as `transport_mode` says.

        The item is withdrawn if this process ends, or closes the queue, before the item is got: see `drain`.
        Raises queue.Full if the queue, its windows or the memory have no space within the timeout, and Closing if the queue
        is closed. If the owner has the item at the timeout, `put` waits up to a second more for the owner's answer.
        Raises TypeError for an item that an end in Go could not get, and OutOfMemory if `arena_bytes` are full and the
        machine has no memory left, or 3,072 items have a segment each. After an error the item is not in the queue.
        """
        _check(rid, shm_name, mm_inputs)
        self._reap()
        limit = _limit(0 if not block else timeout)
        item = {"rid": rid, "shm_name": shm_name, "inputs": mm_inputs}
        try:
            r = self._begin_request(limit)
        except OutOfTime:
            raise queue.Full from None
        try:
            self._send_item(r, item, limit)
            word = self._put_answer(r, limit) or self._withdraw(r)
            if word == _QUEUED:
                with self._lock:
                    self._puts.append(r)
                return
        except OutOfTime:
            word = None  # it was not sent, or the owner does not answer
        except BaseException:
            r.close()  # which withdraws it
            raise
        r.close()
        if word in (None, _FULL):
            raise queue.Full
        raise _refusal_error(word)

    def _send_item(self, r: Request, item: dict[str, Any], limit: float | None) -> None:
        if self._mode:
            edges = self._client.inputs
            r._puts.set_transports([Tensors(self._mode)] * len(edges))
        self._send(r, item, False, BUNDLE, limit)

    def _withdraw(self, r: Request) -> str | None:
        """Withdraw an item after the timeout. Returns the owner's answer, since the item may be in the queue by now; None:
        no answer."""
        limit = time.monotonic() + _WITHDRAW_SECONDS
        self._send(r, _BACK, True, None, limit)
        return self._put_answer(r, limit)

    def _send(self, r: Request, value: Any, last: bool, codec: int | None, limit: float | None) -> None:
        try:
            self._client._session.run(r._send_work(value, None, "", None, last, codec), limit)
        except RequestOver:
            pass  # the request's result says why

    @property
    def gpu(self) -> Sender:
        """GPU memory to fill in place where an item's getter reads it, and counters of sent tensors by transport."""
        return self._client.gpu

    def get(self, block: bool | float | None = True, timeout: float | None = None) -> Item:
        """Get the oldest item: (rid, shm_name, inputs). Its tensors are views, and keep its memory: see `unwrap`.

        The item is done when this returns, or raises PayloadError for an invalid item. An item that this process cannot
        open for another reason stays in the queue, and so does one with tensors in another process's memory that
        is not found in time. Raises queue.Empty if there is no item in time, and Closing if the queue is closed. A
        number as the only argument is the timeout.
        """
        if not isinstance(block, bool):
            block, timeout = True, block
        self._reap()
        limit = _limit(0 if not block else timeout)
        try:
            if (not block or (timeout is not None and timeout <= 0)) and self._size("size", limit) == 0:
                raise queue.Empty
            r = self._begin_request(limit)
        except OutOfTime:
            raise queue.Empty from None
        try:
            self._send(r, _GET, False, None, limit)
            d = self._result(r, limit)
            if d is None:  # an item that arrives now is put back at its position
                self._send(r, _BACK, True, None, time.monotonic() + _WITHDRAW_SECONDS)
        except OutOfTime:
            r.close()
            raise queue.Empty from None
        except BaseException:
            r.close()
            raise
        if d is not None:
            return self._open_item(r, d, limit)
        with self._lock:
            self._gets.append(r)
        raise queue.Empty

    def unwrap(self, mm_inputs: dict[str, Any] | None, device: Any = None) -> dict[str, Any] | None:
        """The inputs of an item with all of their tensors copied onto a device: see `omnibus.gpu.unwrap`.

        Without a device it is that of the first tensor on a GPU, or the device of the queue's `gpu.Options`. The item's
        memory is returned when its own inputs are dropped.
        """
        from .gpu.unwrap import unwrap

        options = self._client._session.gpu_options
        inputs: dict[str, Any] | None = unwrap(mm_inputs, device, 0 if options is None else options.device)
        return inputs

    def _open_item(self, r: Request, d: Delivery, limit: float | None) -> Item:
        """The item of a result. An invalid item is done. An item that cannot be opened here is put back for another
        getter."""
        try:
            item = _item(d, limit)
        except PayloadError:
            self._finish_request(r, d)
            raise
        except (Closing, Overloaded, ProtocolError):  # the owner's answer in place of an item
            d.finish()
            r.close()
            raise
        except OutOfTime:
            pass  # the item is put back below, when the traceback no longer refers to the payload
        except BaseException:
            self._return_item(r, d)
            raise
        else:
            self._finish_request(r, d)  # its views keep the payload
            return item
        finally:
            with self._lock:
                self._gets.append(r)
        self._return_item(r, d)
        raise queue.Empty

    def _return_item(self, r: Request, d: Delivery) -> None:
        """Put an item back at its position in the queue."""
        try:
            self._send(r, _BACK, True, None, time.monotonic() + _WITHDRAW_SECONDS)
        except OutOfTime:
            r.close()  # this puts it back, too
        d.finish()

    def _begin_request(self, limit: float | None) -> Request:
        """A request: the one that was submitted ahead, or a new one."""
        s = self._client._session
        with s.locked:
            a, self._next_request = self._next_request, None
        if a is not None:
            try:
                if not s.wait(lambda: a.done, _time_left(limit)):
                    raise OutOfTime
            except BaseException:
                s.questions.abandon(a)
                raise
            if a.error is None and not a.value.over:
                r: Request = a.value
                return r
        return s.run(submit_work(Request, s, None, False, None), limit)

    def _finish_request(self, r: Request, d: Delivery) -> None:
        """End a request. The same packet submits the next request ahead."""
        s = r._session
        with s.locked:
            d._finish()
            if r._inputs_open:
                r._inputs_open = False
                s.post(CloseSend(r.number))
            if self._next_request is None and s.error is None:
                self._next_request = submit_early(s)

    def qsize(self) -> int:
        """The number of items that no getter has taken."""
        return self._size("size")

    @property
    def maxsize(self) -> int:
        """The bound of `qsize`."""
        return self._size("max_size")

    def empty(self) -> bool:
        """Whether `qsize` is 0."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether `qsize` has reached `maxsize`."""
        size = self._client.call("size")
        return bool(size["size"] >= size["max_size"])

    def _size(self, what: str, limit: float | None = None) -> int:
        n = self._client._session.run(self._client._call_work("size", None), limit)[what]
        if not isinstance(n, int):
            raise ProtocolError(f"the size of the queue is {n!r}")
        return n

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all items put here are done. Returns False after the timeout, in seconds. Raises HostGone if the owner
        is gone before."""
        s = self._client._session
        with self._lock:
            left = list(self._puts)
        well = s.wait(lambda: all(r.over for r in left), timeout)
        if s.error is not None and any(r._error is s.error for r in left):
            raise again(s.error)
        return well

    def close(self) -> None:
        """Leave the queue. Items put here that no getter has taken are withdrawn. Idempotent."""
        with self._lock:
            gets = list(self._gets)
        if gets and not self._client.closed:
            # The owner must count the items that were got as done first.
            self._client._session.wait(lambda: all(r.over or r._results for r in gets), _CLOSE_SECONDS)
        self._client.close()

    def __enter__(self) -> TensorQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put_answer(self, r: Request, limit: float | None) -> str | None:
        """The owner's answer to a put; None if there is none by the limit."""
        d = self._result(r, limit)
        if d is None:
            return None
        word = d.value()
        self._finish_request(r, d)
        if not isinstance(word, str):
            raise ProtocolError("the owner of the queue answers a put with a value")
        return word

    def _result(self, r: Request, limit: float | None) -> Delivery | None:
        """The result of a request; None if there is none by the limit."""
        s = self._client._session
        if not s.wait(r._result_ready, _time_left(limit)):
            return None
        with s.locked:
            d = r._take_result()
        if d is None:
            raise RequestAborted("", "", "", 0, "it has no result")
        return d.keep()

    def _reap(self) -> None:
        """Forget the requests that are over."""
        self._client.process()
        with self._lock:
            for r in self._gets:
                _drop_results(r)
            if len(self._puts) >= self._reap_at:  # not at each call: an unbounded queue has many puts
                self._puts = [r for r in self._puts if not r.over]
                self._reap_at = 2 * len(self._puts) + _REAP_MIN
            self._gets = [r for r in self._gets if not r.over]


def _drop_results(r: Request) -> None:
    """Finish the results of a get that has timed out."""
    with r._session.locked:
        while r._results:
            r._results.popleft()._finish()


def _item(d: Delivery, limit: float | None) -> Item:
    v = d._value(limit)
    if isinstance(v, str):
        raise _refusal_error(v)
    try:
        return v["rid"], v["shm_name"], v.get("inputs")
    except (TypeError, KeyError, AttributeError):
        raise PayloadError("an item without rid, shm_name and inputs") from None


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + max(timeout, _MIN_GET_SECONDS if timeout <= 0 else 0)


def _time_left(limit: float | None) -> float | None:
    return None if limit is None else max(limit - time.monotonic(), 0)


def _refusal_error(word: str) -> Exception:
    if word == _CLOSED:
        return Closing(Code.CLOSING, "the queue is closed")
    if word == _BUSY:
        return Overloaded(Code.OVERLOADED, "too many clients wait for the queue, or hold items of it")
    return ProtocolError(f"the owner of the queue says {word[:40]!r}")


def _check(rid: object, shm_name: object, inputs: object) -> None:
    """Raise TypeError for an item of the wrong types: an end in Go would take it out of the queue and drop it."""
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
