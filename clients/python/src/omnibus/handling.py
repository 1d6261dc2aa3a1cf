"""What a stage's handlers are called with, and what becomes of what they return or raise.

Deliveries are queued for each task, and for batches, as they arrive; those of one task are handled one after the other
and in order. `Functions` has plain functions called, in threads; `coroutines` has its like for an event loop.
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

END = object()  #: in a task's inbox: its inputs have ended
UNHANDLED = object()  #: in place of an output: the function has not been called yet


class Verdict(NamedTuple):
    """What the host is told of a handler: what went wrong, and at which emission, if it was one."""

    code: int = Code.OK
    text: str = ""
    edge: str = ""
    key: str = ""
    seq: int = 0


WELL = Verdict()  # of a handler that raised nothing


class Item(NamedTuple):
    """What is to be done for a task: deliveries, and what a batch's function has made of them."""

    parts: list[Delivery]
    out: Any = UNHANDLED


class Served:
    """The consumer of one stage: queues what arrives and has it handled in turn."""

    task_type: ClassVar[type[BaseTask]]

    def __init__(self, s: Session, function: StageFunction) -> None:
        self.session = s
        self.function = function
        self.ends_unasked = not function.has_end
        self.queued: deque[tuple[BaseTask, list[Delivery]]] = deque()  # of a batch
        self.batching = False
        self.order: list[int] | None = None  # of a join: which part each value of the function is

    def serves(self, stage: Stage) -> None:
        """Learn what the stage is like, before it has work. ValueError: the function is not made for it."""
        if stage.join and self.function.batch == 1:
            self.order = self.function.arguments.order([e.peer for e in stage.inputs])

    def schedule(self, task: BaseTask | None) -> None:
        """Have what a task has in its inbox handled, or a batch. The lock is held."""
        raise NotImplementedError

    # As a consumer; called with the lock held.

    def delivered(self, task: BaseTask, parts: list[Delivery]) -> None:
        if self.function.batch > 1:
            self.queued.append((task, parts))
            if not self.batching:
                self.batching = True
                self.schedule(None)
            return
        self.put(task, Item(parts))

    def ended(self, task: BaseTask) -> None:
        self.put(task, END)

    def over(self, task: BaseTask) -> None:
        drop = [item.parts for item in task._inbox if item is not END]
        task._inbox = deque(item for item in task._inbox if item is END)
        drop += [parts for t, parts in self.queued if t is task]
        self.queued = deque(q for q in self.queued if q[0] is not task)
        for parts in drop:
            for d in parts:
                d._finish(Code.OVER)

    def news(self) -> None:
        self.session.notify()

    def put(self, task: BaseTask, item: Any) -> None:
        task._inbox.append(item)
        if not task._busy:
            task._busy = True
            self.schedule(task)

    # For those who handle.

    def take_batch(self) -> list[tuple[BaseTask, list[Delivery]]]:
        with self.session.locked:
            n = min(self.function.batch, len(self.queued))
            return [self.queued.popleft() for _ in range(n)]

    def arguments(self, task: BaseTask, parts: list[Delivery]) -> list[Any]:
        a = self.function.arguments
        ordered = parts if self.order is None else [parts[i] for i in self.order]
        values = [a.decode(d, i) for i, d in enumerate(ordered)] if a.values or a.rest is not None else []
        return a.bind(task, parts if len(parts) > 1 else parts[0], values)

    def batch_arguments(self, batch: list[tuple[BaseTask, list[Delivery]]]) -> list[Any]:
        a = self.function.arguments
        values = [v[0] if len(v := [d.value() for d in parts]) == 1 else tuple(v) for _, parts in batch]
        deliveries = [parts[0] if len(parts) == 1 else parts for _, parts in batch]
        return a.bind([task for task, _ in batch], deliveries, [values] if a.values else [])

    def give_out(self, batch: list[tuple[BaseTask, list[Delivery]]], out: Iterable[Any] | None) -> None:
        """Have the outputs of a batch emitted, each request's by itself: one that waits holds up no other."""
        outputs = [None] * len(batch) if out is None else list(out)
        if len(outputs) != len(batch):
            raise ValueError(f"stage {self.function.name}: {len(outputs)} outputs for a batch of {len(batch)}")
        with self.session.locked:
            for (task, parts), value in zip(batch, outputs):
                self.put(task, Item(parts, None if task.aborted else value))

    def fail_batch(self, batch: list[tuple[BaseTask, list[Delivery]]], e: Exception) -> None:
        for task, parts in batch:
            self.finish(parts, self.verdict(task, e))

    def finish(self, parts: list[Delivery], v: Verdict) -> None:
        with self.session.locked:
            self.finish_locked(parts, v)

    def finish_locked(self, parts: list[Delivery], v: Verdict) -> None:
        for d in parts:
            if not d._kept or v.code != Code.OK:
                d._finish(v.code, v.text, wire.HANDLED)  # the host knows the delivery

    def answer_end(self, task: BaseTask, v: Verdict) -> None:
        with self.session.locked:
            task._answer_end(*v)

    def tell_exit(self, e: SystemExit, *tasks: BaseTask) -> None:
        """The last lines of this process, which the host quotes to whoever waits for the requests."""
        for t in tasks:
            log.error("stage %s, request %016x: the handler raised %r, which ends this process", t.stage, t.request, e)

    def verdict(self, task: BaseTask, failure: Exception) -> Verdict:
        """What a handler's error means for the request."""
        if isinstance(failure, HostGone) and self.session.error is not None:
            return Verdict(Code.CLOSING, str(failure))
        if task.aborted or (isinstance(failure, RequestOver) and failure.source == task.number):  # and not another
            return Verdict(Code.OVER, str(failure))
        log.error("stage %s, request %016x", task.stage, task.request, exc_info=failure)  # as omnibus status has it
        where = (failure.edge, failure.key, failure.seq) if isinstance(failure, HostError) else ("", "", 0)
        late = deadlines.over(task._deadline)  # by this process's clock: the host's decides
        return Verdict(Code.OVER if late else Code.INTERNAL, error_text(failure), *where)


class Functions(Served):
    """A stage whose handlers are plain functions. `do` has a job done in some thread, or else the other one called."""

    task_type = Task

    def __init__(
        self, s: Session, function: StageFunction, do: Callable[[Callable[[], None], Callable[[], None]], None]
    ) -> None:
        super().__init__(s, function)
        self.do = do

    def schedule(self, task: BaseTask | None) -> None:
        self.do(partial(self.turn, task), partial(self.no_turn, task))

    def no_turn(self, task: BaseTask | None) -> None:
        """There is no thread for a task's next delivery, or the next batch, nor will there be: what waits fails."""
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
            if item is END:
                self.answer_end(t, v)
            else:
                self.finish(item.parts, v)

    def turn(self, task: BaseTask | None) -> None:
        """One delivery of a task, or one batch; then it is the next one's turn."""
        if task is None:
            batch = self.take_batch()
            if batch:
                self.handle_batch(batch)
            with self.session.locked:
                self.batching = bool(self.queued)
                if self.batching:
                    self.schedule(None)
            return
        item, verdict = self.take(task), WELL
        if item is END:
            self.handle_end(task)
        elif item is not None:
            verdict = self.handle(task, *item)
        with self.session.locked:
            if item is not None and item is not END:
                self.finish_locked(item.parts, verdict)
            task._busy = bool(task._inbox)
            if task._busy:
                self.schedule(task)
            else:
                task._end_unasked()

    def take(self, task: BaseTask) -> Any:
        with self.session.locked:
            return task._inbox.popleft() if task._inbox else None

    def handle(self, task: BaseTask, parts: list[Delivery], out: Any) -> Verdict:
        if all(d.bare for d in parts):
            return WELL
        task._current = parts[-1].number
        task._begin_handler()
        try:
            call, end = self.function.callables(task)
            if out is UNHANDLED:
                out = call(*self.arguments(task, parts))
            self.emit_all(task, out, parts[-1].last and end is None)
        except Exception as e:
            return self.verdict(task, e)
        except SystemExit as e:
            self.tell_exit(e, task)
            raise
        finally:
            task._current = 0
            task._end_handler()
        return WELL

    def handle_end(self, task: BaseTask) -> None:
        verdict = WELL
        task._begin_handler()
        try:
            _, end = self.function.callables(task)
            if end is not None and not task.aborted:
                self.emit_all(task, end(task), False)
        except Exception as e:
            verdict = self.verdict(task, e)
        except SystemExit as e:
            self.tell_exit(e, task)
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
            self.session.more = threading.get_ident()  # the delivery is finished next
            try:
                task.emit(out, last=last and len(task._stage.inputs) == 1)
            finally:
                self.session.more = 0

    def handle_batch(self, batch: list[tuple[BaseTask, list[Delivery]]]) -> None:
        running = batch[0][0]._handler()  # of all of them
        try:
            self.give_out(batch, self.function.function(*self.batch_arguments(batch)))
        except Exception as e:
            self.fail_batch(batch, e)
        except SystemExit as e:
            self.tell_exit(e, *(task for task, _ in batch))
            raise
        finally:
            if running is not None:
                running.end()


def error_text(e: BaseException) -> str:
    """An error for the caller of the request: what, and the innermost lines of where, those of this package apart."""
    what = "".join(traceback.format_exception_only(type(e), e)).strip()
    here = os.path.dirname(__file__)
    frames = [f for f in traceback.extract_tb(e.__traceback__) if os.path.dirname(f.filename) != here][-3:]
    where = [f"  {os.path.basename(f.filename)}:{f.lineno} in {f.name}: {f.line or ''}".rstrip() for f in frames]
    # The error itself comes first: the wire cuts what is too long at its end.
    text = "\n".join([wire.cut_utf8(what.encode(errors="replace"), 3072).decode(), *where])
    return wire.cut_utf8(text.encode(errors="replace"), wire.MAX_TEXT_BYTES).decode()
