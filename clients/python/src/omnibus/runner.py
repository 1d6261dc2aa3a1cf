"""`run`: serve stages until the host is done with them.

Plain functions run in the calling thread and those of a crew, `threads` of them at a
time; one that has nothing to do reads the socket, and handles what it has read.
Coroutines run on an event loop in the calling thread. One more thread reads when nobody
else does, so that aborts reach handlers that are busy. The deliveries of one
request at one stage are handled one after the other, in order; requests take turns.
No request waits until another has room for what it emits: see `crew`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from . import wire
from .client import Client, connect
from .crew import Crew
from .delivery import Delivery
from .errors import Code, HostError, HostGone, OmnibusError, RequestOver
from .stages import StageFunction, choose, task_type
from .task import BaseTask

if TYPE_CHECKING:
    from .gpu import Options

log = logging.getLogger("omnibus")

#: The exit status when the host is gone: EX_UNAVAILABLE.
HOST_GONE_STATUS = 69

_END = object()  # in a task's inbox: its inputs have ended
_UNHANDLED = object()  # in place of an output: the function has not been called yet
_REJOIN_FIRST_SECONDS, _REJOIN_MOST_SECONDS = 0.05, 2.0


def run(
    *stages: StageFunction,
    path: str | None = None,
    bus: str | None = None,
    threads: int = 1,
    rejoin: bool = False,
    gpu: Options | None = None,
) -> None:
    """Serve the stages given, or all that were decorated.

    Of plain functions, `threads` run at a time; one that waits for the host does not count,
    and another request's runs meanwhile, if need be in a thread of its own. `gpu` is for
    stages that send tensors of one.

    Returns when the host drains or says goodbye, and after SIGTERM, once what was open
    here is finished. When the host is gone, exits with status 69, or, with `rejoin`, waits
    for its socket to be back and starts afresh. Call it from the main thread.
    """
    chosen = choose(stages)
    leaving = threading.Event()
    current: list[_Runner] = []

    def on_sigterm(_signal: int, _frame: Any) -> None:
        leaving.set()
        for r in current:
            r.session.poke()

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, on_sigterm) if in_main else None
    try:
        with _signals(in_main and not any(s.is_async for _, s in chosen)) as wake:
            _serve(chosen, partial(connect, path, bus, gpu=gpu), threads, rejoin, leaving, current, wake)
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _signals(wanted: bool) -> Iterator[int]:
    """A descriptor that is readable once a signal has come; -1: none is to be had.

    A signal that comes just before the main thread sleeps does not interrupt the sleep,
    and is handled only behind it.
    """
    if not wanted:
        yield -1
        return
    r, w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(w, warn_on_full_buffer=False)
    if before >= 0:  # the program has one of its own
        signal.set_wakeup_fd(before)
    try:
        yield r
    finally:
        if before < 0:
            signal.set_wakeup_fd(-1)
        os.close(r)
        os.close(w)


def _serve(
    chosen: list[tuple[str, StageFunction]],
    connect: Callable[..., Client],
    threads: int,
    rejoin: bool,
    leaving: threading.Event,
    current: list[_Runner],
    wake: int,
) -> None:
    pause = _REJOIN_FIRST_SECONDS
    while True:
        try:
            with connect(name=f"{chosen[0][0]} (python {os.getpid()})") as client:
                pause = _REJOIN_FIRST_SECONDS
                if wake >= 0:
                    client._session.wake_on(wake)
                runner = _Runner(client, chosen, threads, leaving)
                current[:] = [runner]
                if runner.serve() or leaving.is_set():
                    return
                raise HostGone("the host has gone")
        except HostGone as e:
            current.clear()
            if leaving.is_set():
                return
            if not rejoin:
                log.error("%s", e)
                sys.exit(HOST_GONE_STATUS)
            log.warning("%s; trying again", e)
        if leaving.wait(pause):
            return
        pause = min(2 * pause, _REJOIN_MOST_SECONDS)


class _Runner:
    """One session's work."""

    def __init__(
        self, client: Client, chosen: list[tuple[str, StageFunction]], threads: int, leaving: threading.Event
    ) -> None:
        self.client = client
        self.session = client._session
        self.leaving = leaving
        self.has_async = any(s.is_async for _, s in chosen)
        self.crew = Crew(
            max(threads, 1), callers=0 if self.has_async else 1, watched=None if self.has_async else self.session
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        self.stopped = asyncio.Event()
        self.clean = False
        self.crash: BaseException | None = None
        self.chosen = chosen
        self.served: list[_Served] = []

    def serve(self) -> bool:
        """Work until the end of the session. True: it was a good end."""
        reader = threading.Thread(target=self.read, name="omnibus-reader", daemon=True)
        try:
            if self.has_async:
                asyncio.run(self.amain(reader))
            else:
                self.join_stages()
                reader.start()
                self.crew.work()
        finally:
            self.stop()  # also when it was not the reading thread that ended
        self.crew.join()
        if self.crash is not None:
            raise self.crash
        return self.clean

    def join_stages(self) -> None:
        for name, function in self.chosen:
            served = _Served(self, function)
            self.served.append(served)
            work = self.client._serve_work(name, task_type(function), served)
            stage = self.session.run(work)
            log.info("serving stage %s as replica %d", name, stage.replica)

    def read(self) -> None:
        """The thread that reads or stands by: leave when told to, and end when all is done."""
        s = self.session
        try:
            wait = s.wait if self.has_async else s.stand_by
            wait(lambda: self.leaving.is_set() or s.draining)
            if not s.draining:
                self.client.leave()
            wait(self.idle)
            self.clean = True
        except HostGone:
            self.clean = s.said_bye or s.draining
        except OmnibusError as e:
            log.error("%s", e)
        except BaseException as e:
            self.crash = e
        finally:
            self.stop()

    def idle(self) -> bool:
        s = self.session
        busy = any(stage.tasks for stage in s.stages.values())  # type: ignore[attr-defined]
        return not busy and not s.room.keeping  # others are still to find what it is in

    def stop(self) -> None:
        self.crew.stop()
        if self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(self.stopped.set)
            except RuntimeError:
                pass  # it has ended on its own

    def work(self, turn: Callable[[BaseTask | None], None], task: BaseTask | None) -> None:
        """Do a job in a thread of the crew. What it raises is no handler's error, and ends everything."""
        try:
            turn(task)
        except HostGone:
            pass  # the reading thread knows, and stops us
        except BaseException as e:
            if threading.current_thread() is threading.main_thread():
                raise
            self.crash = e
            self.session.close()

    async def amain(self, reader: threading.Thread) -> None:
        self.loop = asyncio.get_running_loop()
        self.stopped = asyncio.Event()
        self.join_stages()
        reader.start()
        await self.stopped.wait()
        jobs = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for t in jobs:
            t.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


class _Verdict(NamedTuple):
    """What the host is told of a handler: what went wrong, and at which emission, if it was one."""

    code: int = Code.OK
    text: str = ""
    edge: str = ""
    key: str = ""
    seq: int = 0


_WELL = _Verdict()  # of a handler that raised nothing


class _Item(NamedTuple):
    """What is to be done for a task: deliveries, and what a batch's function has made of them."""

    parts: list[Delivery]
    out: Any = _UNHANDLED


class _Served:
    """The consumer of one stage: queues what arrives and has it handled in turn."""

    def __init__(self, runner: _Runner, function: StageFunction) -> None:
        self.runner = runner
        self.session = runner.session
        self.function = function
        self.queued: deque[tuple[BaseTask, list[Delivery]]] = deque()  # of a batch
        self.batching = False

    # As a consumer; called with the lock held.

    def delivered(self, task: BaseTask, parts: list[Delivery]) -> None:
        if self.function.batch > 1:
            self.queued.append((task, parts))
            if not self.batching:
                self.batching = True
                self.schedule(None)
            return
        self.put(task, _Item(parts))

    def ended(self, task: BaseTask) -> None:
        self.put(task, _END)

    def over(self, task: BaseTask) -> None:
        drop = [item.parts for item in task._inbox if item is not _END]
        task._inbox = deque(item for item in task._inbox if item is _END)
        drop += [parts for t, parts in self.queued if t is task]
        self.queued = deque(q for q in self.queued if q[0] is not task)
        for parts in drop:
            for d in parts:
                d._finish(Code.OVER)
        job = task._job
        if job is not None and self.runner.loop is not None:
            loop = self.runner.loop
            self.session.call_later(lambda: loop.call_soon_threadsafe(job.cancel))

    def news(self) -> None:
        self.session.notify()

    def put(self, task: BaseTask, item: Any) -> None:
        task._inbox.append(item)
        if not task._busy:
            task._busy = True
            self.schedule(task)

    def schedule(self, task: BaseTask | None) -> None:
        if self.function.is_async:
            loop = self.runner.loop
            assert loop is not None
            self.session.call_later(lambda: loop.call_soon_threadsafe(self.start, task))
        else:
            self.runner.crew.put(partial(self.runner.work, self.turn, task))

    # Plain functions, in a thread of the crew.

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
        item = self.take(task)
        if item is _END:
            self.handle_end(task)
        elif item is not None:
            self.handle(task, *item)
        with self.session.locked:
            task._busy = bool(task._inbox)
            if task._busy:
                self.schedule(task)

    def take(self, task: BaseTask) -> Any:
        with self.session.locked:
            return task._inbox.popleft() if task._inbox else None

    def take_batch(self) -> list[tuple[BaseTask, list[Delivery]]]:
        with self.session.locked:
            n = min(self.function.batch, len(self.queued))
            return [self.queued.popleft() for _ in range(n)]

    def handle(self, task: BaseTask, parts: list[Delivery], out: Any) -> None:
        verdict = _WELL
        if not all(d.bare for d in parts):
            task._current = parts[-1].number
            try:
                call, end = self.function.callables(task)
                if out is _UNHANDLED:
                    out = call(*self.arguments(task, parts))
                self.emit_all(task, out, parts[-1].last and end is None)
            except Exception as e:
                verdict = self.verdict(task, e)
            finally:
                task._current = 0
        self.finish(parts, verdict)

    def handle_end(self, task: BaseTask) -> None:
        verdict = _WELL
        try:
            _, end = self.function.callables(task)
            if end is not None and not task.aborted:
                self.emit_all(task, end(task), False)
        except Exception as e:
            verdict = self.verdict(task, e)
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
            task.emit(out, last=last and len(task._stage.inputs) == 1)

    def handle_batch(self, batch: list[tuple[BaseTask, list[Delivery]]]) -> None:
        try:
            self.give_out(batch, self.function.function(*self.batch_arguments(batch)))
        except Exception as e:
            self.fail_batch(batch, e)

    # Coroutines, on the loop.

    def start(self, task: BaseTask | None) -> None:
        job = asyncio.ensure_future(self.abatches() if task is None else self.aturns(task))
        job.add_done_callback(self.job_done)

    def job_done(self, job: asyncio.Future[Any]) -> None:
        if not job.cancelled() and (e := job.exception()) is not None and not isinstance(e, HostGone):
            self.runner.crash = e
            self.session.close()

    async def aturns(self, task: BaseTask) -> None:
        while True:
            with self.session.locked:
                task._busy = bool(task._inbox)
                if not task._busy:
                    return
                item = task._inbox.popleft()
            if item is _END:
                self.answer_end(task, await self.attempt(task, self.ahandle_end(task)))
                continue
            verdict = _WELL
            if not all(d.bare for d in item.parts):
                task._current = item.parts[-1].number
                verdict = await self.attempt(task, self.ahandle(task, *item))
                task._current = 0
            self.finish(item.parts, verdict)

    async def attempt(self, task: BaseTask, work: Any) -> _Verdict:
        """Run a handler so that the end of its request cancels it, and no more."""
        job = asyncio.ensure_future(work)
        with self.session.locked:
            task._job = job
            if task.aborted and not task._ending:
                job.cancel()
        try:
            await job
        except asyncio.CancelledError:
            if not task.aborted:
                job.cancel()
                raise  # we are the ones who are cancelled
        except Exception as e:
            return self.verdict(task, e)
        finally:
            with self.session.locked:
                task._job = None
        return _WELL

    async def ahandle(self, task: BaseTask, parts: list[Delivery], out: Any) -> None:
        call, end = self.function.callables(task)
        if out is _UNHANDLED:
            out = call(*self.arguments(task, parts))
        await self.aemit_all(task, out, parts[-1].last and end is None)

    async def ahandle_end(self, task: BaseTask) -> None:
        _, end = self.function.callables(task)
        if end is not None and not task.aborted:
            await self.aemit_all(task, end(task), False)

    async def aemit_all(self, task: Any, out: Any, last: bool) -> None:
        if inspect.isasyncgen(out):
            try:
                async for value in out:
                    await task.emit(value)
            finally:
                await out.aclose()
            return
        value = await out if inspect.isawaitable(out) else out
        if value is not None:
            await task.emit(value, last=last and len(task._stage.inputs) == 1)

    async def abatches(self) -> None:
        while True:
            batch = self.take_batch()
            try:
                if batch:
                    self.give_out(batch, await self.function.function(*self.batch_arguments(batch)))
            except Exception as e:
                self.fail_batch(batch, e)
            with self.session.locked:
                self.batching = bool(self.queued)
                if not self.batching:
                    return

    # Both.

    def arguments(self, task: BaseTask, parts: list[Delivery]) -> list[Any]:
        a = self.function.arguments
        values = [a.decode(d, i) for i, d in enumerate(parts)] if a.values or a.rest is not None else []
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
                self.put(task, _Item(parts, None if task.aborted else value))

    def fail_batch(self, batch: list[tuple[BaseTask, list[Delivery]]], e: Exception) -> None:
        for task, parts in batch:
            self.finish(parts, self.verdict(task, e))

    def finish(self, parts: list[Delivery], v: _Verdict) -> None:
        with self.session.locked:
            for d in parts:
                if not d._kept or v.code != Code.OK:
                    d._finish(v.code, v.text)  # the host knows the delivery

    def answer_end(self, task: BaseTask, v: _Verdict) -> None:
        with self.session.locked:
            task._answer_end(*v)

    def verdict(self, task: BaseTask, failure: Exception) -> _Verdict:
        """What a handler's error means for the request."""
        if isinstance(failure, HostGone) and self.session.error is not None:
            return _Verdict(Code.CLOSING, str(failure))
        if task.aborted or isinstance(failure, RequestOver):
            return _Verdict(Code.OVER, str(failure))
        log.error("stage %s, request %d", task.stage, task.request, exc_info=failure)
        where = (failure.edge, failure.key, failure.seq) if isinstance(failure, HostError) else ("", "", 0)
        return _Verdict(Code.INTERNAL, error_text(failure), *where)


def error_text(e: BaseException) -> str:
    """An error for the caller of the request: what, and the innermost lines of where."""
    what = "".join(traceback.format_exception_only(type(e), e)).strip()
    frames = [f for f in traceback.extract_tb(e.__traceback__) if f.filename != __file__][-3:]
    where = [f"  {os.path.basename(f.filename)}:{f.lineno} in {f.name}: {f.line or ''}".rstrip() for f in frames]
    # The error itself comes first: the wire cuts what is too long at its end.
    text = "\n".join([wire.cut_utf8(what.encode(errors="replace"), 3072).decode(), *where])
    return wire.cut_utf8(text.encode(errors="replace"), wire.MAX_TEXT_BYTES).decode()
