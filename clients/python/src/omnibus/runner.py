"""`run`: serve stages until the host is done with them.

Plain functions run in the calling thread and those of a crew, `threads` of them at a
time; one that has nothing to do reads the socket, and handles what it has read.
Coroutines run on an event loop in the calling thread. One more thread reads when nobody
else does, so that aborts reach handlers that are busy. The deliveries of one
request at one stage are handled one after the other, in order; requests take turns.
No request waits until another has room for what it emits: see `crew`.
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
from .crew import Crew
from .errors import Code, HostGone, OmnibusError, Refused, Untrusted
from .handling import Functions, Served
from .stages import StageFunction, choose

if TYPE_CHECKING:
    from .coroutines import EventLoop
    from .gpu import Options

log = logging.getLogger("omnibus")

#: The exit status when the host is gone: EX_UNAVAILABLE.
HOST_GONE_STATUS = 69

#: Which replica of its stage a process is that a host has started, and that ends with it.
_REPLICA = "OMNIBUS_REPLICA"
_REJOIN_FIRST_SECONDS, _REJOIN_MOST_SECONDS = 0.05, 2.0


#: Why a host refuses a client for good.
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

    Of plain functions, `threads` run at a time; one that waits for the host does not count,
    and another request's runs meanwhile, if need be in a thread of its own. `gpu` is for
    stages that send tensors of one, `allow_uids` for a host of another user: see `connect`.

    Returns when the host drains or says goodbye, and after SIGTERM, once what was open
    here is finished. When the host is gone, or there is none, exits with status 69. With
    `rejoin` it returns after SIGTERM alone: however a host ended, or if there is none yet, it
    waits for the next one and starts afresh, unless that host has started this process. Call it from the main thread.
    """
    _check_not_imported()
    chosen = choose(stages)
    leaving = _Leaving()
    current: list[_Runner] = []
    pid = os.getpid()

    def on_sigterm(_signal: int, _frame: Any) -> None:
        if os.getpid() != pid:  # a child that a handler has forked: nothing of the parent's is its own
            signal.signal(signal.SIGTERM, before)
            signal.raise_signal(signal.SIGTERM)
            return
        leaving.tell()
        for r in current:
            r.session.poke()

    _stacks_on_quit()
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, on_sigterm) if in_main else None
    try:
        with _signals(in_main and not any(s.is_async for _, s in chosen)) as wake:
            _serve(chosen, partial(connect, path, bus, gpu=gpu, allow_uids=tuple(allow_uids)), threads, rejoin, leaving, current, wake)
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
        leaving.close()


def _check_not_imported() -> None:
    """Raise where a child of multiprocessing imports the main file, as spawn and forkserver do: the child would serve in
    place of its work, and its parent would wait for ever."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and getattr(process.current_process(), "_inheriting", False):
        raise RuntimeError(
            "run() in a child process of multiprocessing, which imports the file of the stage: "
            'put it behind `if __name__ == "__main__":` there'
        )


def _stacks_on_quit() -> None:
    """Have SIGQUIT write the stacks of all threads to standard error, as the host asks for where a handler hangs: also
    where that has the interpreter lock. A program that handles SIGQUIT itself goes on to."""
    if signal.getsignal(signal.SIGQUIT) != signal.SIG_DFL:
        return
    try:
        faulthandler.register(signal.SIGQUIT, all_threads=True)
    except (OSError, ValueError, RuntimeError, AttributeError) as e:  # there is no standard error
        log.debug("no stacks on SIGQUIT: %s", e)


class _Leaving:
    """Whether the process was told to leave. A handler of signals says so in the middle of anything, even of itself:
    there is no lock in here, as there is in a threading.Event."""

    __slots__ = ("told", "_fd")

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.told = False

    def tell(self) -> None:
        self.told = True
        os.eventfd_write(self._fd, 1)

    def wait(self, timeout: float) -> bool:
        """Wait until it was, at most so many seconds."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.poll(1000 * timeout)
        return self.told

    def close(self) -> None:
        os.close(self._fd)


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
    leaving: _Leaving,
    current: list[_Runner],
    wake: int,
) -> None:
    pause, said = _REJOIN_FIRST_SECONDS, ""
    while True:
        try:
            with connect(name=f"{chosen[0][0]} (python {os.getpid()})") as client:
                pause, said = _REJOIN_FIRST_SECONDS, ""
                if wake >= 0:
                    client._session.wake_on(wake)
                runner = _Runner(client, chosen, threads, leaving, rejoin)
                current[:] = [runner]
                ended = runner.serve()
                if leaving.told or (ended and (not rejoin or _REPLICA in os.environ)):
                    return
                raise HostGone("the host has gone")
        except HostGone as e:
            current.clear()
            if leaving.told:
                return
            if not rejoin or isinstance(e, Untrusted) or (isinstance(e, Refused) and e.code in _FINAL):
                log.error("%s", e)
                sys.exit(HOST_GONE_STATUS)
            if str(e) != said:  # once each: it may last
                said = str(e)
                log.warning("%s; trying again", e)
        if leaving.wait(pause):
            return
        pause = min(2 * pause, _REJOIN_MOST_SECONDS)


class _Runner:
    """One session's work."""

    def __init__(
        self, client: Client, chosen: list[tuple[str, StageFunction]], threads: int, leaving: _Leaving, rejoin: bool
    ) -> None:
        self.client = client
        self.session = client._session
        self.leaving = leaving
        self.rejoin = rejoin
        self.has_async = any(s.is_async for _, s in chosen)
        self.crew = Crew(
            max(threads, 1), 0 if self.has_async else 1, None if self.has_async else self.session, self.stranded
        )
        self.loop: EventLoop | None = None
        self.clean = False
        self.crash: BaseException | None = None
        self.chosen = chosen

    def serve(self) -> bool:
        """Work until the end of the session. True: it was a good end."""
        reader = threading.Thread(target=self.read, name="omnibus-reader", daemon=True)
        try:
            if self.has_async:
                from .coroutines import EventLoop  # and asyncio, for those alone who have some

                self.loop = EventLoop()
                self.loop.run(lambda: self.begin(reader))
            else:
                self.begin(reader)
                self.crew.work()
        finally:
            self.stop()  # also when it was not the reading thread that ended
        self.crew.join()
        if self.crash is not None:
            raise self.crash
        return self.clean

    def begin(self, reader: threading.Thread) -> None:
        for name, function in self.chosen:
            served = self.consumer(function)
            stage = self.session.run(self.client._serve_work(name, served.task_type, served))
            try:
                served.serves(stage)
            except ValueError as e:
                raise ValueError(f"stage {name}: {e}") from None
            log.info("serving stage %s as replica %d", name, stage.replica)
        reader.start()

    def consumer(self, function: StageFunction) -> Served:
        if not function.is_async:
            return Functions(self.session, function, lambda job, no: self.crew.put(partial(self.work, job), no))
        from .coroutines import Coroutines

        assert self.loop is not None
        return Coroutines(self.session, function, self.loop, self.fail)

    def read(self) -> None:
        """The thread that reads or stands by: leave when told to, and end when all is done."""
        s = self.session
        try:
            self.wait(lambda: self.leaving.told or s.draining)
            if not s.draining:
                self.client.leave()
            self.wait(self.idle)
            if self.rejoin and _REPLICA not in os.environ:  # the next host is there when this one has ended
                self.wait(lambda: self.leaving.told)
            self.clean = True
        except HostGone:
            self.clean = s.said_bye or s.draining
        except OmnibusError as e:
            log.error("%s", e)
        except BaseException as e:
            self.crash = e
        finally:
            self.stop()

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`, and meanwhile for whether the crew gets on."""
        s, crew = self.session, self.crew
        wait = s.wait if self.has_async else s.stand_by
        over = False

        def news() -> bool:
            nonlocal over
            over = done()
            return over or crew.stranded != since

        while not over:
            since = crew.stranded
            if not wait(news, crew.patience()):
                crew.give_up()

    def stranded(self) -> None:
        """The thread that reads or stands by is to see what becomes of that."""
        with self.session.locked:
            self.session.reading.notify()

    def idle(self) -> bool:
        s = self.session
        busy = any(stage.tasks for stage in s.stages.values())  # type: ignore[attr-defined]
        return not busy and not s.room.keeping  # others are still to find what it is in

    def stop(self) -> None:
        self.crew.stop()
        if self.loop is not None:
            self.loop.stop()

    def work(self, job: Callable[[], None]) -> None:
        """Do a job in a thread of the crew. What it raises is no handler's error, and ends everything."""
        try:
            job()
        except HostGone:
            pass  # the reading thread knows, and stops us
        except BaseException as e:
            if threading.current_thread() is threading.main_thread():
                raise
            self.fail(e)

    def fail(self, e: BaseException) -> None:
        """End everything because of what is no handler's error."""
        self.crash = e
        self.session.close()
