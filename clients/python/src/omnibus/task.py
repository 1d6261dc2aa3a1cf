"""Tasks: one request at one stage, as its handler uses it. The tasks of coroutines are in `aio`."""

from __future__ import annotations

import inspect
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from . import codec as codecs
from . import tensor, wire
from .buffer import Buffer
from .deadlines import from_wire, wait_limit
from .delivery import Delivery
from .emit import Emitter, tensor_in
from .errors import (
    Code,
    DeadlineExceeded,
    Finished,
    HostGone,
    OmnibusError,
    ProtocolError,
    RequestAborted,
    RequestEnded,
    RequestFailed,
    RequestOver,
)
from .puts import Puts, tensors_of
from .scoreboard import HandlerEntry
from .session import Session, Work
from .tensor import Tensor

if TYPE_CHECKING:
    from .gpu import Sender


class Consumer(Protocol):
    """The consumer of a stage's tasks. Called with the session's lock held; must not wait."""

    def delivered(self, task: Any, parts: list[Delivery]) -> None: ...

    def ended(self, task: Any) -> None: ...

    def over(self, task: Any) -> None: ...

    def news(self) -> None: ...


class Stage:
    """A stage that this client serves, with the settings that the host stated."""

    def __init__(
        self, s: Session, m: wire.Serving, name: str, task_type: type[BaseTask], consumer: Consumer, ends_unasked: bool
    ) -> None:
        self.name = name
        self.number = m.stage  #: on this connection
        self.replica = m.replica
        self.max_inflight = m.max_inflight
        self.per_request = m.state == wire.STATE_REQUEST  #: whether this replica gets all deliveries of a request
        self.join = bool(m.join)
        self.batch = m.batch
        self.inputs = m.inputs
        self.outputs = m.outputs
        self.tensors = tensors_of(m.outputs, m.tensors)
        self.tasks: set[BaseTask] = set()
        self._session = s
        self._task_type = task_type
        self._consumer = consumer
        self._ends_unasked = ends_unasked  # tasks end without the host's `end`, since no handler runs then

    def _open_task(self, m: wire.Open) -> BaseTask:
        task = self._task_type(self._session, self, m)
        self.tasks.add(task)
        return task

    def _end_inputs(self, task: BaseTask) -> None:
        task._ending = True
        self._consumer.ended(task)

    def _on_change(self) -> None:
        self._consumer.news()


class BaseTask(Emitter):
    """The common base of `Task` and `AsyncTask`."""

    __slots__ = (
        "number", "request", "attempt", "_deadline", "trace", "state", "over",
        "_session", "_stage", "_parts", "_unfinished", "_ended_inputs", "_owes_ended", "_current_delivery", "_sent", "_ending",
        "_inbox", "_busy", "_job", "_handler_object", "_handler_entry", "_puts", "__weakref__",
    )  # fmt: skip

    def __init__(self, s: Session, stage: Stage, m: wire.Open) -> None:
        self.number = m.task
        self.request = m.request  #: the id of the request
        self.attempt = m.attempt  #: 0, or more when the request is run again at this stage
        self._deadline = from_wire(m.time_left)
        self.trace = m.trace  #: where the request belongs in a distributed trace
        self.state: dict[Any, Any] = {}  #: the stage's own, kept from delivery to delivery
        self.over: RequestEnded | None = None  #: how the request ended, other than by completing
        self._session = s
        self._stage = stage
        self._parts: list[Delivery] = []
        self._unfinished = 0  # number of unfinished deliveries
        self._ended_inputs = 0  # number of inputs that have ended
        self._owes_ended = stage._ends_unasked  # `ended` is to be sent without the host's `end`
        self._current_delivery = 0  # number of the delivery that is being handled
        self._sent = [0] * len(stage.outputs)  # number of emissions, by edge
        self._ending = False
        self._puts = Puts(self, s, stage.tensors)
        # Used by the consumer:
        self._inbox: deque[Any] = deque()
        self._busy = False
        self._job: Any = None
        self._handler_object: Any = None
        self._handler_entry: HandlerEntry | None = None

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return self._stage.name

    @property
    def replica(self) -> int:
        """Which of the stage's replicas this process is, from 0."""
        return self._stage.replica

    @property
    def aborted(self) -> bool:
        """Whether the request is over, for any reason: stop working on it."""
        return self.over is not None

    def _out_edges(self) -> list[wire.Edge]:
        return self._stage.outputs

    def _add_handler_entry(self) -> HandlerEntry | None:
        """Add a scoreboard entry for a handler of the task, which the host reads."""
        board = self._session.scoreboard
        return board.add(self._stage.number, self.request) if board is not None else None

    def _begin_handler(self) -> None:
        """_add_handler_entry, for a handler whose waits for windows the entry shows, too."""
        self._handler_entry = self._add_handler_entry()

    def _end_handler(self) -> None:
        running, self._handler_entry = self._handler_entry, None
        if running is not None:
            running.remove()

    def _no_answer(self) -> OmnibusError:
        e = RequestOver(Code.OVER, "the request is past its deadline, and the host does not answer")
        e.source = self.number
        return e

    def _count_emission(self, edge: int) -> None:
        for i in range(len(self._sent)) if edge == wire.ALL_EDGES else (edge,):
            self._sent[i] += 1

    def _next_seq(self, edge: int) -> int | None:
        # At a stage without state other replicas may emit for the request, too.
        return self._sent[edge] if self._stage.per_request else None

    def _emit_for(self, delivery: int, value: Any, **options: Any) -> Any:
        raise NotImplementedError

    # As a source; called with the lock held.

    def _receive_delivery(self, m: wire.Deliver) -> None:
        edges = self._stage.inputs
        if m.edge >= len(edges):
            raise ProtocolError(f"delivery {m.delivery} is on edge {m.edge} of {len(edges)}")
        d = Delivery(self._session, m, edges[m.edge], self, self)
        self._unfinished += 1
        self._ended_inputs += d.last
        self._parts.append(d)
        if not d.more_parts:
            parts, self._parts = self._parts, []
            self._stage._consumer.delivered(self, parts)

    def _receive_over(self, m: wire.Over) -> None:
        self._end_request(end_error(m) or RequestAborted(m.stage, m.edge, m.key, m.seq, "the request is complete"))

    def _session_ended(self, error: OmnibusError) -> None:
        self._end_request(RequestAborted(self.stage, "", "", 0, str(error)))

    def _end_request(self, how: RequestEnded) -> None:
        self.over = how
        for d in self._parts:
            d._finish(Code.OVER)
        self._parts = []
        self._stage._consumer.over(self)
        self._session.notify()
        self._forget_if_done()

    def _on_finished(self, d: Delivery, code: int) -> None:
        self._unfinished -= 1
        if code != Code.OK:  # the request fails or the delivery is repeated; the host sends `end` then
            self._owes_ended = False
        self._say_ended_unasked()
        self._forget_if_done()

    def _say_ended_unasked(self) -> None:
        """Send `ended` if the task has ended, at a stage without an end handler. The lock is held."""
        done = not (self._unfinished or self._busy or self._ending or self.over) and self._ended_inputs == len(self._stage.inputs)
        if self._owes_ended and done:
            self._owes_ended = False
            self._answer_end(Code.OK, "")

    def _forget_if_done(self) -> None:
        if self.over is not None and self._unfinished == 0 and not self._ending:
            self._forget()

    def _forget(self) -> None:
        self._session.sources.pop(self.number, None)
        self._stage.tasks.discard(self)
        self._stage._consumer.news()
        self._session.notify()

    def _answer_end(self, code: int, text: str, edge: str = "", key: str = "", seq: int = 0) -> None:
        """Send `ended`. The lock is held."""
        self._ending = False
        self._session.post(wire.Ended(self.number, code, text, edge, key, seq))
        self._forget()

    @property
    def _holds_deliveries(self) -> bool:
        return self._unfinished > 0


def check_unused(work: Work[Buffer]) -> Work[Buffer]:
    """The work. Raises Finished if it was run already: a buffer is filled and sent once."""
    if inspect.getgeneratorstate(work) == inspect.GEN_CLOSED:
        raise Finished("the buffer was sent or aborted before: reserve a new one")
    return work


class FilledTensor:
    """The context manager of `emit_tensor`, which sends the tensor at its end."""

    __slots__ = ("_task", "_work", "_dtype", "_shape", "_buffer")

    def __init__(self, task: BaseTask, dtype: str, shape: tuple[int, ...], work: Work[Buffer]) -> None:
        self._task, self._work, self._dtype, self._shape = task, work, dtype, shape
        self._buffer: Buffer | None = None

    def _enter(self, b: Buffer) -> Tensor:
        self._buffer = b
        return tensor_in(b, self._dtype, self._shape)

    def _exit(self, kind: type[BaseException] | None) -> None:
        b = self._buffer
        assert b is not None
        if kind is None:
            b.send()
        else:
            b.abort()

    def __enter__(self) -> Tensor:
        return self._enter(self._task._run(check_unused(self._work)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind)


class Task(BaseTask):
    """One request at one stage, for handlers that are plain functions.

    Options of emissions: `to`, the only stage that gets it; `key`, a name for it
    in errors; `attrs`, small strings that travel with it; `last`, that no emission
    follows. Emissions wait for credit and space, without the interpreter lock.

    Errors: RequestOver when the request is over, or a second past its deadline, TooLarge, WindowFull,
    LookupError for a `to` without an edge, HostGone.
    """

    __slots__ = ()

    @property
    def gpu(self) -> Sender:
        """GPU memory to fill in place where the next stage reads it, and counters of sent tensors by transport."""
        return sender_of(self._session)

    def emit(
        self,
        value: Any,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
        codec: int | None = None,
    ) -> None:
        """Emit a value: tensors and arrays as tensors, values that contain them as bundles, others as msgpack."""
        self._run_rest(self._emit(value, self._envelope(self._current_delivery, to, key, attrs, last), codec))

    def emit_bytes(
        self, data: Any, *, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> None:
        """Emit raw bytes: any contiguous buffer, copied once."""
        self._run_rest(self._emit(data, self._envelope(self._current_delivery, to, key, attrs, last), codecs.RAW))

    def emit_tensor(
        self,
        dtype: str,
        shape: tuple[int, ...],
        fill: Callable[[Tensor], object] | None = None,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
    ) -> FilledTensor:
        """Emit a tensor that is filled in place.

        With `fill`, call it with the tensor, and send. Without, return a context
        manager that yields the tensor and sends it at the end of the block; an
        error in the block aborts it.
        """
        size = tensor.payload_bytes(dtype, shape)
        work = self._reserve_work(size, codecs.TENSOR, self._envelope(self._current_delivery, to, key, attrs, last))
        filling = FilledTensor(self, dtype, tuple(shape), work)
        if fill is not None:
            with filling as t:
                fill(t)
        return filling

    def reserve(self, size: int, *, codec: int = codecs.RAW, to: str | None = None) -> Buffer:
        """A buffer for a payload of up to `size` bytes, to be filled in place and sent."""
        return self._run(self._reserve_work(size, codec, self._envelope(self._current_delivery, to)))

    def forward(
        self,
        delivery: Delivery,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
    ) -> None:
        """Forward the payload of an unfinished delivery by reference, without a copy."""
        delivery._check_unfinished()
        self._run_rest(self._forward(self._envelope(delivery.number, to, key, attrs, last)))

    def wait_aborted(self, timeout: float | None = None) -> bool:
        """Wait until the request is over, at the latest a second after its deadline. Returns False after the timeout.
        """
        limit = wait_limit(self._deadline)
        left = None if limit is None else limit - time.monotonic()
        soonest = min((t for t in (timeout, left) if t is not None), default=None)
        try:
            return self._session.wait(lambda: self.over is not None, soonest) or soonest != timeout
        except HostGone:
            return True

    def _emit_for(self, delivery: int, value: Any, *, codec: int | None = None, **options: Any) -> None:
        self._run_rest(self._emit(value, self._envelope(delivery, **options), codec))


def sender_of(s: Session) -> Sender:
    """The sender of GPU tensors of a session."""
    from .gpu import sender  # loaded only where a GPU is used

    return sender.for_session(s)


def end_error(m: wire.Over) -> RequestEnded | None:
    """The error of a request that ended; None if it completed."""
    kinds = {wire.OUTCOME_FAILED: RequestFailed, wire.OUTCOME_ABORTED: RequestAborted, wire.OUTCOME_DEADLINE: DeadlineExceeded}
    kind = kinds.get(m.outcome)
    return kind(m.stage, m.edge, m.key, m.seq, m.text) if kind else None
