"""Tasks: one request at one stage, and what a handler does with it. For handlers that are coroutines: `aio`."""

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
from .deadlines import limit_of, of_wire
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
from .scoreboard import Running
from .session import Session, Work
from .tensor import Tensor

if TYPE_CHECKING:
    from .gpu import Sender


class Consumer(Protocol):
    """Who works on a stage's tasks. Called with the session's lock held; must not wait."""

    def delivered(self, task: Any, parts: list[Delivery]) -> None: ...

    def ended(self, task: Any) -> None: ...

    def over(self, task: Any) -> None: ...

    def news(self) -> None: ...


class Stage:
    """A stage as the host lets this client serve it."""

    def __init__(
        self, s: Session, m: wire.Serving, name: str, task_type: type[BaseTask], consumer: Consumer, ends_unasked: bool
    ) -> None:
        self.name = name
        self.number = m.stage  #: on this connection
        self.replica = m.replica
        self.max_inflight = m.max_inflight
        self.per_request = m.state == wire.STATE_REQUEST  #: whether all of a request comes here
        self.join = bool(m.join)
        self.batch = m.batch
        self.inputs = m.inputs
        self.outputs = m.outputs
        self.tensors = tensors_of(m.outputs, m.tensors)
        self.tasks: set[BaseTask] = set()
        self._session = s
        self._task_type = task_type
        self._consumer = consumer
        self._ends_unasked = ends_unasked  # as it does nothing at the end of a task

    def _open(self, m: wire.Open) -> BaseTask:
        task = self._task_type(self._session, self, m)
        self.tasks.add(task)
        return task

    def _end(self, task: BaseTask) -> None:
        task._ending = True
        self._consumer.ended(task)

    def _news(self) -> None:
        self._consumer.news()


class BaseTask(Emitter):
    """What `Task` and `AsyncTask` have in common."""

    __slots__ = (
        "number", "request", "attempt", "_deadline", "trace", "state", "over",
        "_session", "_stage", "_parts", "_held", "_lasts", "_unasked", "_current", "_sent", "_ending",
        "_inbox", "_busy", "_job", "_made", "_running", "_puts", "__weakref__",
    )  # fmt: skip

    def __init__(self, s: Session, stage: Stage, m: wire.Open) -> None:
        self.number = m.task
        self.request = m.request  #: the id of the request
        self.attempt = m.attempt  #: 0, or more when the request is run again at this stage
        self._deadline = of_wire(m.time_left)
        self.trace = m.trace  #: where the request belongs in a distributed trace
        self.state: dict[Any, Any] = {}  #: the stage's own, kept from delivery to delivery
        self.over: RequestEnded | None = None  #: how the request ended otherwise than well
        self._session = s
        self._stage = stage
        self._parts: list[Delivery] = []
        self._held = 0  # deliveries not finished
        self._lasts = 0  # inputs that have come to their end
        self._unasked = stage._ends_unasked  # the end is to be said, unless the host asks for it
        self._current = 0  # the delivery that is being handled
        self._sent = [0] * len(stage.outputs)  # how much went out, by edge
        self._ending = False
        self._puts = Puts(self, s, stage.tensors)
        # The consumer's own:
        self._inbox: deque[Any] = deque()
        self._busy = False
        self._job: Any = None
        self._made: Any = None
        self._running: Running | None = None

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
        """Whether the request is over, for whatever reason: stop working on it."""
        return self.over is not None

    def _out_edges(self) -> list[wire.Edge]:
        return self._stage.outputs

    def _handler(self) -> Running | None:
        """A handler begins to run for the task, and the host sees it."""
        board = self._session.scoreboard
        return board.begin(self._stage.number, self.request) if board is not None else None

    def _begin_handler(self) -> None:
        """_handler, for one whose waits for windows the host is to see, too."""
        self._running = self._handler()

    def _end_handler(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def _silence(self) -> OmnibusError:
        e = RequestOver(Code.OVER, "the request is past its deadline, and the host does not answer")
        e.source = self.number
        return e

    def _went_out(self, edge: int) -> None:
        for i in range(len(self._sent)) if edge == wire.ALL_EDGES else (edge,):
            self._sent[i] += 1

    def _next_seq(self, edge: int) -> int | None:
        # Of a stage without state other replicas may emit for the request, too.
        return self._sent[edge] if self._stage.per_request else None

    def _emit_for(self, delivery: int, value: Any, **options: Any) -> Any:
        raise NotImplementedError

    # As a source; called with the lock held.

    def _deliver(self, m: wire.Deliver) -> None:
        edges = self._stage.inputs
        if m.edge >= len(edges):
            raise ProtocolError(f"delivery {m.delivery} is on edge {m.edge} of {len(edges)}")
        d = Delivery(self._session, m, edges[m.edge], self, self)
        self._held += 1
        self._lasts += d.last
        self._parts.append(d)
        if not d.more_parts:
            parts, self._parts = self._parts, []
            self._stage._consumer.delivered(self, parts)

    def _over(self, m: wire.Over) -> None:
        self._stop(ended(m) or RequestAborted(m.stage, m.edge, m.key, m.seq, "the request is complete"))

    def _gone(self, error: OmnibusError) -> None:
        self._stop(RequestAborted(self.stage, "", "", 0, str(error)))

    def _stop(self, how: RequestEnded) -> None:
        self.over = how
        for d in self._parts:
            d._finish(Code.OVER)
        self._parts = []
        self._stage._consumer.over(self)
        self._session.notify()
        self._forget_if_done()

    def _finished(self, d: Delivery, code: int) -> None:
        self._held -= 1
        if code != Code.OK:  # the request fails, or it comes again: then the host asks for the end
            self._unasked = False
        self._end_unasked()
        self._forget_if_done()

    def _end_unasked(self) -> None:
        """Say that the task has ended if it has, at a stage that does nothing at the end."""
        done = not (self._held or self._busy or self._ending or self.over) and self._lasts == len(self._stage.inputs)
        if self._unasked and done:
            self._unasked = False
            self._answer_end(Code.OK, "")

    def _forget_if_done(self) -> None:
        if self.over is not None and self._held == 0 and not self._ending:
            self._forget()

    def _forget(self) -> None:
        self._session.sources.pop(self.number, None)
        self._stage.tasks.discard(self)
        self._stage._consumer.news()
        self._session.notify()

    def _answer_end(self, code: int, text: str, edge: str = "", key: str = "", seq: int = 0) -> None:
        """Answer `end`. The lock is held."""
        self._ending = False
        self._session.post(wire.Ended(self.number, code, text, edge, key, seq))
        self._forget()

    @property
    def _holds(self) -> bool:
        return self._held > 0


def unused(room: Work[Buffer]) -> Work[Buffer]:
    """The work, unless it was done already: what is filled is sent, and filled once."""
    if inspect.getgeneratorstate(room) == inspect.GEN_CLOSED:
        raise Finished("the room was filled or given back before: ask for it anew")
    return room


class FilledTensor:
    """`emit_tensor` without a function that fills: a context manager."""

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
        return self._enter(self._task._run(unused(self._work)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind)


class Task(BaseTask):
    """One request at one stage, for handlers that are plain functions.

    The options of the emissions: `to`, the stage that alone gets it; `key`, a
    name for it in errors; `attrs`, small strings that travel with it; `last`, that
    nothing follows. Emissions wait for room, without the interpreter lock.

    Errors: RequestOver when the request is over, or a second past its deadline, TooLarge, WindowFull,
    LookupError for a `to` without an edge, HostGone.
    """

    __slots__ = ()

    @property
    def gpu(self) -> Sender:
        """Memory of a GPU to fill in place where the next stage reads it, and what was sent how."""
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
        """Emit a value: tensors and arrays as tensors, values with such in them as bundles, all else as msgpack."""
        self._finish_emission(self._emit(value, self._envelope(self._current, to, key, attrs, last), codec))

    def emit_bytes(
        self, data: Any, *, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> None:
        """Emit raw bytes: any contiguous buffer, copied once."""
        self._finish_emission(self._emit(data, self._envelope(self._current, to, key, attrs, last), codecs.RAW))

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

        With `fill`, call it with the tensor and send. Without, return a context
        manager that gives the tensor and sends it at the end of the block; an
        error there aborts it.
        """
        size = tensor.payload_bytes(dtype, shape)
        work = self._reserve_work(size, codecs.TENSOR, self._envelope(self._current, to, key, attrs, last))
        filling = FilledTensor(self, dtype, tuple(shape), work)
        if fill is not None:
            with filling as t:
                fill(t)
        return filling

    def reserve(self, size: int, *, codec: int = codecs.RAW, to: str | None = None) -> Buffer:
        """Room for a payload of up to `size` bytes, to be filled in place and sent."""
        return self._run(self._reserve_work(size, codec, self._envelope(self._current, to)))

    def forward(
        self,
        delivery: Delivery,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
    ) -> None:
        """Pass the payload of a delivery that is not finished on by reference, without a copy."""
        delivery._check_unfinished()
        self._finish_emission(self._forward(self._envelope(delivery.number, to, key, attrs, last)))

    def wait_aborted(self, timeout: float | None = None) -> bool:
        """Wait until the request is over, as it is a second after its deadline; False: the time is up."""
        limit = limit_of(self._deadline)
        left = None if limit is None else limit - time.monotonic()
        soonest = min((t for t in (timeout, left) if t is not None), default=None)
        try:
            return self._session.wait(lambda: self.over is not None, soonest) or soonest != timeout
        except HostGone:
            return True

    def _emit_for(self, delivery: int, value: Any, *, codec: int | None = None, **options: Any) -> None:
        self._finish_emission(self._emit(value, self._envelope(delivery, **options), codec))


def sender_of(s: Session) -> Sender:
    """What sends tensors on a GPU."""
    from .gpu import sender  # for those alone who have one

    return sender.of(s)


def ended(m: wire.Over) -> RequestEnded | None:
    """How a request ended; None: it completed."""
    kinds = {wire.OUTCOME_FAILED: RequestFailed, wire.OUTCOME_ABORTED: RequestAborted, wire.OUTCOME_DEADLINE: DeadlineExceeded}
    kind = kinds.get(m.outcome)
    return kind(m.stage, m.edge, m.key, m.seq, m.text) if kind else None
