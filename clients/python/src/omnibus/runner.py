"""`run`: serve stages until the host drains, says bye or dies.

At most `threads` plain functions run at a time, in the calling thread and in pool threads. An idle one of these
threads reads the socket, and handles what it has read. Coroutines run on an event loop in the calling thread. One
standby thread reads the socket when no other thread does, so that aborts reach busy handlers. Deliveries of one
request at one stage are handled one after the other, in order; requests take turns. A request that waits for credit
delays no other request: see `threadpool`.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from .client import Client, connect
from .errors import Code, HostGone, OmnibusError, Refused, Untrusted
from .handlers import Functions, StageConsumer
from .stages import StageFunction, choose
from .threadpool import ThreadPool

if TYPE_CHECKING:
    from .coroutines import EventLoop
    from .gpu import Options

log = logging.getLogger("omnibus")

#: The exit status when the host is gone: EX_UNAVAILABLE.
HOST_GONE_STATUS = 69

#: The environment variable that a host sets in a process it starts: the index of its replica.
_REPLICA = "OMNIBUS_REPLICA"
_REJOIN_FIRST_SECONDS, _REJOIN_MOST_SECONDS = 0.05, 2.0


#: The codes of refusals after which `rejoin` does not try again.
_FINAL = (Code.VERSION, Code.BUS, Code.DENIED)


def run(
    *stages: StageFunction,
    path: str | None = None,
    bus: str | None = None,
    threads: int = 1,
    rejoin: bool = False,
    gpu: Options | None = None,
    allow_uids: Iterable[int] = (),
) -> None:
    """Serve the stages given, or all that were decorated.

    At most `threads` plain functions run at a time. A function that waits for the host does not count, so
    another request's may run meanwhile, in a further thread if needed. `gpu` is for
    stages that send GPU tensors, `allow_uids` for a host of another user: see `connect`.

    Returns when the host drains or says bye, and after SIGTERM, once all open tasks are finished. Exits with
    status 69 if the host dies, or there is none. With `rejoin` it returns only after SIGTERM: it waits for
    the next host however the last one ended, or if there is none yet, unless the host has started this process.
    Call it from the main thread.
    """
    _check_not_imported()
    chosen = choose(stages)
    stop_request = _StopRequest()
    current: list[_Runner] = []
    pid = os.getpid()

    def on_sigterm(_signal: int, _frame: Any) -> None:
        if os.getpid() != pid:  # in a forked child of a handler, which uses nothing of the parent
            signal.signal(signal.SIGTERM, before)
            signal.raise_signal(signal.SIGTERM)
            return
        stop_request.set()
        for r in current:
            r.session.wake()

    _stacks_on_quit()
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, on_sigterm) if in_main else None
    try:
        with _signals(in_main and not any(s.is_async for _, s in chosen)) as wake:
            _serve(chosen, partial(connect, path, bus, gpu=gpu, allow_uids=tuple(allow_uids)), threads, rejoin, stop_request, current, wake)
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
        stop_request.close()


def _check_not_imported() -> None:
    """Raise RuntimeError if a child of multiprocessing imports the main file, as spawn and forkserver do: the child would
    serve instead of doing its work, and its parent would wait for ever."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            "run() in a child process of multiprocessing, which imports the file of the stage: "
            'put it behind `if __name__ == "__main__":` there'
        )


def _stacks_on_quit() -> None:
    """Make SIGQUIT write the stacks of all threads to standard error, even if a handler holds the interpreter lock. The
    host sends it when a handler hangs. A program's own handler of SIGQUIT stays."""
    if signal.getsignal(signal.SIGQUIT) != signal.SIG_DFL:
        return
    try:
        faulthandler.register(signal.SIGQUIT, all_threads=True)
    except (OSError, ValueError, RuntimeError, AttributeError) as e:  # there is no standard error
        log.debug("no stacks on SIGQUIT: %s", e)


class _StopRequest:
    """A flag that SIGTERM sets. A signal handler may run at any point, even inside another one, so this has no lock,
    unlike threading.Event."""

    __slots__ = ("is_set", "_fd")

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float) -> bool:
        """Wait until it is set, or for the timeout in seconds. Returns whether it is set."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(1000 * timeout)
        return self.is_set

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def _signals(wanted: bool) -> Iterator[int]:
    """A descriptor that is readable once a signal has come; -1 unless `wanted`.

    A signal just before the main thread sleeps does not interrupt the sleep, and
    would be handled only behind it.
    """
    if not wanted:
        yield -1
        return
    r, w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(w, warn_on_full_buffer=False)
    if before >= 0:  # the program has its own wakeup descriptor
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
    stop_request: _StopRequest,
    current: list[_Runner],
    wake: int,
) -> None:
    pause, last_logged = _REJOIN_FIRST_SECONDS, ""
    while True:
        try:
            with connect(name=f"{chosen[0][0]} (python {os.getpid()})") as client:
                pause, last_logged = _REJOIN_FIRST_SECONDS, ""
                if wake >= 0:
                    client._session.wake_when_readable(wake)
                runner = _Runner(client, chosen, threads, stop_request, rejoin)
                current[:] = [runner]
                ended = runner.serve()
                if stop_request.is_set or (ended and (not rejoin or _REPLICA in os.environ)):
                    return
                raise HostGone("the host has gone")
        except HostGone as e:
            current.clear()
            if stop_request.is_set:
                return
            if not rejoin or isinstance(e, Untrusted) or (isinstance(e, Refused) and e.code in _FINAL):
                log.error("%s", e)
                sys.exit(HOST_GONE_STATUS)
            if str(e) != last_logged:  # each text once: the state may last
                last_logged = str(e)
                log.warning("%s; trying again", e)
        if stop_request.wait(pause):
            return
        pause = min(2 * pause, _REJOIN_MOST_SECONDS)


class _Runner:
    """Serves the stages of one session."""

    def __init__(
        self, client: Client, chosen: list[tuple[str, StageFunction]], threads: int, stop_request: _StopRequest, rejoin: bool
    ) -> None:
        self.client = client
        self.session = client._session
        self.stop_request = stop_request
        self.rejoin = rejoin
        self.has_async = any(s.is_async for _, s in chosen)
        self.pool = ThreadPool(
            max(threads, 1), 0 if self.has_async else 1, None if self.has_async else self.session, self.on_stranded
        )
        self.loop: EventLoop | None = None
        self.ended_cleanly = False
        self.crash: BaseException | None = None
        self.chosen = chosen

    def serve(self) -> bool:
        """Serve until the end of the session. Returns whether the session ended cleanly."""
        reader = threading.Thread(target=self.run_reader, name="omnibus-reader", daemon=True)
        try:
            if self.has_async:
                from .coroutines import EventLoop  # loads asyncio, only for stages of coroutines

                self.loop = EventLoop()
                self.loop.run(lambda: self.start(reader))
            else:
                self.start(reader)
                self.pool.run_worker()
        finally:
            self.stop()  # also when the calling thread ended first
        self.pool.join()
        if self.crash is not None:
            raise self.crash
        return self.ended_cleanly

    def start(self, reader: threading.Thread) -> None:
        for name, function in self.chosen:
            served = self.make_consumer(function)
            stage = self.session.run(self.client._serve_work(name, served.task_type, served))
            try:
                served.check_stage(stage)
            except ValueError as e:
                raise ValueError(f"stage {name}: {e}") from None
            log.info("serving stage %s as replica %d", name, stage.replica)
        reader.start()

    def make_consumer(self, function: StageFunction) -> StageConsumer:
        if not function.is_async:
            return Functions(self.session, function, lambda job, no: self.pool.submit(partial(self.run_job, job), no))
        from .coroutines import Coroutines

        assert self.loop is not None
        return Coroutines(self.session, function, self.loop, self.fail)

    def run_reader(self) -> None:
        """The standby thread, or the reader of an event loop: leaves on a stop request, and ends when all tasks are
        done."""
        s = self.session
        try:
            self.wait(lambda: self.stop_request.is_set or s.draining)
            if not s.draining:
                self.client.leave()
            self.wait(self.is_idle)
            if self.rejoin and _REPLICA not in os.environ:  # the next host can listen only when this one has ended
                self.wait(lambda: self.stop_request.is_set)
            self.ended_cleanly = True
        except HostGone:
            self.ended_cleanly = s.host_said_bye or s.draining
        except OmnibusError as e:
            log.error("%s", e)
        except BaseException as e:
            self.crash = e
        finally:
            self.stop()

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`. Meanwhile, reject the pool's stranded jobs in time."""
        s, pool = self.session, self.pool
        wait = s.wait if self.has_async else s.wait_as_standby
        over = False

        def news() -> bool:
            nonlocal over
            over = done()
            return over or pool.stranded_since != since

        while not over:
            since = pool.stranded_since
            if not wait(news, pool.rejection_delay()):
                pool.reject_stranded()

    def on_stranded(self) -> None:
        """Wake the thread of `wait`: the pool's jobs are stranded."""
        with self.session.locked:
            self.session.reader.notify()

    def is_idle(self) -> bool:
        s = self.session
        busy = any(stage.tasks for stage in s.stages.values())  # type: ignore[attr-defined]
        return not busy and not s.allocator.retains_memory  # other processes may still have to find it

    def stop(self) -> None:
        self.pool.stop()
        if self.loop is not None:
            self.loop.stop()

    def run_job(self, job: Callable[[], None]) -> None:
        """Run a job in a pool thread. An exception that it raises is no handler's error, and ends the session."""
        try:
            job()
        except HostGone:
            pass  # the reading thread stops the pool
        except BaseException as e:
            if threading.current_thread() is threading.main_thread():
                raise
            self.fail(e)

    def fail(self, e: BaseException) -> None:
        """End the session because of an exception that is no handler's error."""
        self.crash = e
        self.session.close()
