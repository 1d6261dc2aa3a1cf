"""The consumers of stages: they call a stage's handler, emit its outputs, and report its errors.

Arriving deliveries are queued for each task, or for batches. Deliveries of one task are handled one after the other
and in order. `Functions` calls plain functions in threads; `coroutines` has the consumer for event loops.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from . import deadlines, wire
from .delivery import Delivery
from .errors import Code, HostError, HostGone, RequestOver
from .session import Session
from .stages import StageFunction
from .task import BaseTask, Stage, Task

log = logging.getLogger("omnibus")

INPUTS_ENDED = object()  #: in a task's inbox: the inputs of the task have ended
UNHANDLED = object()  #: in place of an output: the function has not been called yet


class Verdict(NamedTuple):
    """The outcome of a handler for the host: a code, a text and, for an error of an emission, which one it was."""

    code: int = Code.OK
    text: str = ""
    edge: str = ""
    key: str = ""
    seq: int = 0


SUCCESS = Verdict()


class Item(NamedTuple):
    """An entry of a task's inbox: deliveries to handle, and their output if a batch's function has made it."""

    parts: list[Delivery]
    out: Any = UNHANDLED


class StageConsumer:
    """The consumer of one stage: queues arriving deliveries, and schedules their handling."""

    task_type: ClassVar[type[BaseTask]]

    def __init__(self, s: Session, function: StageFunction) -> None:
        self.session = s
        self.function = function
        self.ends_unasked = not function.has_end
        self.queued: deque[tuple[BaseTask, list[Delivery]]] = deque()  # deliveries that wait for a batch
        self.batching = False
        self.value_order: list[int] | None = None  # at a join: the index of the part for each argument

    def check_stage(self, stage: Stage) -> None:
        """Adapt to the stage before it has tasks. Raises ValueError if the function's parameters do not fit it."""
        if stage.join and self.function.batch == 1:
            self.value_order = self.function.arguments.order([e.peer for e in stage.inputs])

    def schedule(self, task: BaseTask | None) -> None:
        """Schedule the handling of a task's inbox or, for None, of a batch. The lock is held."""
        raise NotImplementedError

    # As a consumer; called with the lock held.

    def delivered(self, task: BaseTask, parts: list[Delivery]) -> None:
        if self.function.batch > 1:
            self.queued.append((task, parts))
            if not self.batching:
                self.batching = True
                self.schedule(None)
            return
        self.enqueue(task, Item(parts))

    def ended(self, task: BaseTask) -> None:
        self.enqueue(task, INPUTS_ENDED)

    def over(self, task: BaseTask) -> None:
        drop = [item.parts for item in task._inbox if item is not INPUTS_ENDED]
        task._inbox = deque(item for item in task._inbox if item is INPUTS_ENDED)
        drop += [parts for t, parts in self.queued if t is task]
        self.queued = deque(q for q in self.queued if q[0] is not task)
        for parts in drop:
            for d in parts:
                d._finish(Code.OVER)

    def news(self) -> None:
        self.session.notify()

    def enqueue(self, task: BaseTask, item: Any) -> None:
        task._inbox.append(item)
        if not task._busy:
            task._busy = True
            self.schedule(task)

    # For the threads and coroutines that handle.

    def take_batch(self) -> list[tuple[BaseTask, list[Delivery]]]:
        with self.session.locked:
            n = min(self.function.batch, len(self.queued))
            return [self.queued.popleft() for _ in range(n)]

    def arguments(self, task: BaseTask, parts: list[Delivery]) -> list[Any]:
        a = self.function.arguments
        ordered = parts if self.value_order is None else [parts[i] for i in self.value_order]
        values = [a.decode(d, i) for i, d in enumerate(ordered)] if a.values or a.rest is not None else []
        return a.bind(task, parts if len(parts) > 1 else parts[0], values)

    def batch_arguments(self, batch: list[tuple[BaseTask, list[Delivery]]]) -> list[Any]:
        a = self.function.arguments
        values = [v[0] if len(v := [d.value() for d in parts]) == 1 else tuple(v) for _, parts in batch]
        deliveries = [parts[0] if len(parts) == 1 else parts for _, parts in batch]
        return a.bind([task for task, _ in batch], deliveries, [values] if a.values else [])

    def enqueue_outputs(self, batch: list[tuple[BaseTask, list[Delivery]]], out: Iterable[Any] | None) -> None:
        """Queue the outputs of a batch, each in its task's inbox, so that a waiting emission delays no other request.
        """
        outputs = [None] * len(batch) if out is None else list(out)
        if len(outputs) != len(batch):
            raise ValueError(f"stage {self.function.name}: {len(outputs)} outputs for a batch of {len(batch)}")
        with self.session.locked:
            for (task, parts), value in zip(batch, outputs):
                self.enqueue(task, Item(parts, None if task.aborted else value))

    def fail_batch(self, batch: list[tuple[BaseTask, list[Delivery]]], e: Exception) -> None:
        for task, parts in batch:
            self.finish(parts, self.verdict(task, e))

    def finish(self, parts: list[Delivery], v: Verdict) -> None:
        with self.session.locked:
            self.finish_locked(parts, v)

    def finish_locked(self, parts: list[Delivery], v: Verdict) -> None:
        for d in parts:
            if not d._kept or v.code != Code.OK:
                d._finish(v.code, v.text, wire.HANDLED)  # also for kept deliveries if the handler failed

    def answer_end(self, task: BaseTask, v: Verdict) -> None:
        with self.session.locked:
            task._answer_end(*v)

    def log_exit(self, e: SystemExit, *tasks: BaseTask) -> None:
        """Log the last lines of this process, which the host quotes in the requests' errors."""
        for t in tasks:
            log.error("stage %s, request %016x: the handler raised %r, which ends this process", t.stage, t.request, e)

    def verdict(self, task: BaseTask, failure: Exception) -> Verdict:
        """The verdict for a handler's error."""
        if isinstance(failure, HostGone) and self.session.error is not None:
            return Verdict(Code.CLOSING, str(failure))
        if task.aborted or (isinstance(failure, RequestOver) and failure.source == task.number):  # of this task
            return Verdict(Code.OVER, str(failure))
        log.error("stage %s, request %016x", task.stage, task.request, exc_info=failure)  # as `omnibus status` shows it
        where = (failure.edge, failure.key, failure.seq) if isinstance(failure, HostError) else ("", "", 0)
        late = deadlines.has_passed(task._deadline)  # by this process's clock; the host's clock decides
        return Verdict(Code.OVER if late else Code.INTERNAL, error_text(failure), *where)


class Functions(StageConsumer):
    """A stage whose handlers are plain functions. `submit` runs its first argument in a thread, or calls its second."""

    task_type = Task

    def __init__(
        self, s: Session, function: StageFunction, submit: Callable[[Callable[[], None], Callable[[], None]], None]
    ) -> None:
        super().__init__(s, function)
        self.submit = submit

    def schedule(self, task: BaseTask | None) -> None:
        self.submit(partial(self.handle_next, task), partial(self.reject_next, task))

    def reject_next(self, task: BaseTask | None) -> None:
        """Fail the waiting deliveries of a task, or of the batches: no thread can be started for them."""
        with self.session.locked:
            if task is None:
                items: list[tuple[BaseTask, Any]] = [(t, Item(parts)) for t, parts in self.queued]
                self.queued.clear()
                self.batching = False
            else:
                items = [(task, item) for item in task._inbox]
                task._inbox.clear()
                task._busy = False
        for t, item in items:
            text = f"stage {t.stage}: no thread can be started for the handler; raise this process's limits (ulimit -u, ulimit -v)"
            v = Verdict(Code.OVER if t.aborted else Code.MEMORY, text)
            log.error("request %016x: %s", t.request, text)
            if item is INPUTS_ENDED:
                self.answer_end(t, v)
            else:
                self.finish(item.parts, v)

    def handle_next(self, task: BaseTask | None) -> None:
        """Handle one delivery of a task, or one batch, and schedule the next."""
        if task is None:
            batch = self.take_batch()
            if batch:
                self.handle_batch(batch)
            with self.session.locked:
                self.batching = bool(self.queued)
                if self.batching:
                    self.schedule(None)
            return
        item, verdict = self.pop_item(task), SUCCESS
        if item is INPUTS_ENDED:
            self.handle_end(task)
        elif item is not None:
            verdict = self.handle(task, *item)
        with self.session.locked:
            if item is not None and item is not INPUTS_ENDED:
                self.finish_locked(item.parts, verdict)
            task._busy = bool(task._inbox)
            if task._busy:
                self.schedule(task)
            else:
                task._say_ended_unasked()

    def pop_item(self, task: BaseTask) -> Any:
        with self.session.locked:
            return task._inbox.popleft() if task._inbox else None

    def handle(self, task: BaseTask, parts: list[Delivery], out: Any) -> Verdict:
        if all(d.bare for d in parts):
            return SUCCESS
        task._current_delivery = parts[-1].number
        task._begin_handler()
        try:
            call, end = self.function.callables(task)
            if out is UNHANDLED:
                out = call(*self.arguments(task, parts))
            self.emit_all(task, out, parts[-1].last and end is None)
        except Exception as e:
            return self.verdict(task, e)
        except SystemExit as e:
            self.log_exit(e, task)
            raise
        finally:
            task._current_delivery = 0
            task._end_handler()
        return SUCCESS

    def handle_end(self, task: BaseTask) -> None:
        verdict = SUCCESS
        task._begin_handler()
        try:
            _, end = self.function.callables(task)
            if end is not None and not task.aborted:
                self.emit_all(task, end(task), False)
        except Exception as e:
            verdict = self.verdict(task, e)
        except SystemExit as e:
            self.log_exit(e, task)
            raise
        finally:
            task._end_handler()
        self.answer_end(task, verdict)

    def emit_all(self, task: Any, out: Any, last: bool) -> None:
        if out is None:
            return
        if inspect.isgenerator(out):
            try:
                for value in out:
                    if task.aborted:
                        return
                    task.emit(value)
            finally:
                out.close()
        else:
            # Corks the emission: the delivery's `finish` is sent with it.
            self.session.corking_thread = threading.get_ident()
            try:
                task.emit(out, last=last and len(task._stage.inputs) == 1)
            finally:
                self.session.corking_thread = 0

    def handle_batch(self, batch: list[tuple[BaseTask, list[Delivery]]]) -> None:
        running = batch[0][0]._add_handler_entry()  # one entry for the batch
        try:
            self.enqueue_outputs(batch, self.function.function(*self.batch_arguments(batch)))
        except Exception as e:
            self.fail_batch(batch, e)
        except SystemExit as e:
            self.log_exit(e, *(task for task, _ in batch))
            raise
        finally:
            if running is not None:
                running.remove()


def error_text(e: BaseException) -> str:
    """The text of an error for the request's caller: the exception, and its innermost lines outside this package."""
    what = "".join(traceback.format_exception_only(type(e), e)).strip()
    here = os.path.dirname(__file__)
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != here][-3:]
    where = [f"  {os.path.basename(f.filename)}:{f.lineno} in {f.name}: {f.line or ''}".rstrip() for f in frames]
    # The exception comes first: the wire cuts long text at its end.
    text = "\n".join([wire.cut_utf8(what.encode(errors="replace"), 3072).decode(), *where])
    return wire.cut_utf8(text.encode(errors="replace"), wire.MAX_TEXT_BYTES).decode()
