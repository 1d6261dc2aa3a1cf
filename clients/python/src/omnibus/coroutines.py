"""Stages whose handlers are coroutines, and the event loop that runs them.

A handler is cancelled when its request is over. The arguments of handlers are in `handlers`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from .aio import AsyncTask
from .delivery import Delivery
from .errors import HostGone
from .handlers import INPUTS_ENDED, SUCCESS, UNHANDLED, StageConsumer, Verdict
from .session import Session
from .stages import StageFunction
from .task import BaseTask


class EventLoop:
    """An event loop in the thread that calls `run`, until `stop`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = asyncio.Event()

    def run(self, begin: Callable[[], None]) -> None:
        """Call `begin`, and run the loop until `stop`."""
        asyncio.run(self._main(begin))

    async def _main(self, begin: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        begin()
        await self._stopped.wait()
        jobs = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for t in jobs:
            t.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    def stop(self) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._stopped.set)
            except RuntimeError:
                pass  # the loop has ended already

    def call_soon(self, f: Callable[..., object], *arguments: Any) -> None:
        """Call f in the loop's thread. Raises RuntimeError if the loop has ended."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(f, *arguments)


class Coroutines(StageConsumer):
    """A stage whose handlers are coroutines. `on_failure` is called with exceptions that are not errors of a handler.
    """

    task_type = AsyncTask

    def __init__(
        self, s: Session, function: StageFunction, loop: EventLoop, on_failure: Callable[[BaseException], None]
    ) -> None:
        super().__init__(s, function)
        self.loop = loop
        self.on_failure = on_failure

    def schedule(self, task: BaseTask | None) -> None:
        self.session.call_unlocked(lambda: self.loop.call_soon(self.start, task))

    def over(self, task: BaseTask) -> None:
        super().over(task)
        job = task._job
        if job is not None:
            self.session.call_unlocked(lambda: self.loop.call_soon(job.cancel))

    def start(self, task: BaseTask | None) -> None:
        job = asyncio.ensure_future(self.arun_batches() if task is None else self.arun_inbox(task))
        job.add_done_callback(self.job_done)

    def job_done(self, job: asyncio.Future[Any]) -> None:
        if not job.cancelled() and (e := job.exception()) is not None and not isinstance(e, HostGone):
            self.on_failure(e)

    async def arun_inbox(self, task: BaseTask) -> None:
        done: list[Delivery] = []
        verdict = SUCCESS
        while True:
            with self.session.locked:
                self.finish_locked(done, verdict)
                task._busy = bool(task._inbox)
                if not task._busy:
                    task._say_ended_unasked()
                    return
                item = task._inbox.popleft()
            done, verdict = [], SUCCESS
            if item is INPUTS_ENDED:
                self.answer_end(task, await self.arun_handler(task, self.ahandle_end(task)))
                continue
            if not all(d.bare for d in item.parts):
                task._current_delivery = item.parts[-1].number
                verdict = await self.arun_handler(task, self.ahandle(task, *item))
                task._current_delivery = 0
            done = item.parts

    async def arun_handler(self, task: BaseTask, work: Any) -> Verdict:
        """Run a handler in a job of its own, which the end of its request cancels."""
        job = asyncio.ensure_future(work)
        with self.session.locked:
            task._job = job
            if task.aborted and not task._ending:
                job.cancel()
        try:
            await result_of(job)
        except _Cancelled as e:
            if not task.aborted:
                return self.verdict(task, e)
        except Exception as e:
            return self.verdict(task, e)
        finally:
            with self.session.locked:
                task._job = None
            del job  # its exception refers to this frame, and so to the inputs
        return SUCCESS

    async def ahandle(self, task: BaseTask, parts: list[Delivery], out: Any) -> None:
        task._begin_handler()
        try:
            call, end = self.function.callables(task)
            if out is UNHANDLED:
                out = call(*self.arguments(task, parts))
            await self.aemit_all(task, out, parts[-1].last and end is None)
        except SystemExit as e:
            self.log_exit(e, task)
            raise
        finally:
            task._end_handler()

    async def ahandle_end(self, task: BaseTask) -> None:
        task._begin_handler()
        try:
            _, end = self.function.callables(task)
            if end is not None and not task.aborted:
                await self.aemit_all(task, end(task), False)
        except SystemExit as e:
            self.log_exit(e, task)
            raise
        finally:
            task._end_handler()

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

    async def arun_batches(self) -> None:
        while True:
            batch = self.take_batch()
            try:
                if batch:
                    job = asyncio.ensure_future(self.ahandle_batch(batch))
                    self.enqueue_outputs(batch, await result_of(job))
            except Exception as e:
                self.fail_batch(batch, e)
            finally:
                batch = job = None  # the job's exception refers to this frame
            with self.session.locked:
                self.batching = bool(self.queued)
                if not self.batching:
                    return


    async def ahandle_batch(self, batch: list[tuple[BaseTask, list[Delivery]]]) -> Any:
        running = batch[0][0]._add_handler_entry()  # one entry for the batch
        try:
            return await self.function.function(*self.batch_arguments(batch))
        except SystemExit as e:
            self.log_exit(e, *(task for task, _ in batch))
            raise
        finally:
            if running is not None:
                running.remove()


class _Cancelled(RuntimeError):
    """A handler was cancelled, or raised the cancellation of something that it awaited."""


async def result_of(job: asyncio.Future[Any]) -> Any:
    """The result of a job, or its error. The job's cancellation becomes an ordinary error, not the caller's
    cancellation."""
    try:
        await asyncio.wait([job])
    except asyncio.CancelledError:  # the caller is cancelled
        job.cancel()
        await asyncio.wait([job])
        raise
    try:
        return job.result()
    except asyncio.CancelledError as e:
        raise _Cancelled("the handler was cancelled, or something that it waited for was") from e
    finally:
        del job  # its exception refers to this frame
