"""Threads for plain functions, and whose turn it is.

A thread runs a function when it has a turn, and there are so many turns. While
the function waits for the host, the thread is away: its turn is another's, for what
it waits for may depend on what that other one has to say. So there may be
more threads than turns, though not more than jobs. They are started when they are
needed, and stay. Where none can be started any more, a job waits for one that has done its own, but not for
ever: those that there are may wait, through the host, for that very job. See `give_up`.

One of the threads that have nothing to do watches the socket, so that whoever reads a
delivery is the one who handles it: to hand it to another thread takes longer than all the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

log = logging.getLogger("omnibus")

_here = threading.local()

#: How long jobs that no thread can be started for wait while all threads wait for the host.
_PATIENCE_SECONDS = 10.0


class Watched(Protocol):
    """What a thread without a job watches: a session."""

    def watch_for(self, done: Callable[[], bool]) -> bool:
        """Return when `done()`; False: there is nothing to watch any more."""
        ...

    def poke(self) -> None:
        """Have whoever watches look at `done`."""
        ...

    def relieve(self) -> None:
        """Have somebody watch in place of a thread that has got a job."""
        ...


class _Want(NamedTuple):
    """Somebody who wants a turn: a job, or a thread that comes back."""

    begin: Callable[[], bool]  # False: there is no thread for the job
    refuse: Callable[[], None] | None = None  # the job


class Crew:
    """The threads of one session. Jobs begin in the order in which they came."""

    def __init__(
        self, turns: int, callers: int, watched: Watched | None = None, on_stranded: Callable[[], None] | None = None
    ) -> None:
        """`callers` is how many threads will call `work`, apart from the crew's own. `on_stranded` is called when
        `stranded` turns true otherwise than in `put`."""
        self._lock = threading.Lock()
        self._turns = turns  # that nobody has
        self._most = turns  # that there are
        self._wanting: deque[_Want] = deque()
        #: Since when jobs wait for a thread, while all threads wait for the host; by time.monotonic. None: they do not.
        self.stranded: float | None = None
        self._on_stranded = on_stranded
        self._begun: deque[Callable[[], None]] = deque()  # jobs with a turn, each with a thread that is to come
        self._callers = callers
        self._idle = callers  # threads that nothing is to come for
        self._parked: list[threading.Lock] = []  # of those, the ones that sleep
        self._watched = watched
        self._watcher = 0  # the thread that watches; 0: none
        self._called = False  # and it is to take a job
        self._threads: list[threading.Thread] = []
        self._short = False  # a thread could not be started, when it was last tried
        self._warned = False  # of that
        self._stopped = False

    def put(self, job: Callable[[], None], refuse: Callable[[], None] | None = None) -> None:
        """Have a job done, or `refuse` be called, by `give_up`. Does not wait."""
        with self._lock:
            self._wanting.append(_Want(partial(self._begin, job), refuse))
            self._pass_on()

    def patience(self) -> float | None:
        """For how many seconds jobs wait before `give_up` refuses them; None: as long as it takes."""
        since = self.stranded
        return None if since is None else max(since + _PATIENCE_SECONDS - time.monotonic(), 0)

    def give_up(self) -> None:
        """Refuse the jobs that wait, if that has been in vain for long enough, and still is."""
        with self._lock:
            self._pass_on()
            if self.patience() != 0:
                return
            refused = [w.refuse for w in self._wanting if w.refuse is not None]
            self._wanting = deque(w for w in self._wanting if w.refuse is None)
            self.stranded = None
        for refuse in refused:
            refuse()

    def work(self) -> None:
        """Be one of the threads, until `stop`."""
        _here.crew = self
        try:
            while (job := self._next()) is not None:
                try:
                    job()
                finally:
                    with self._lock:
                        self._idle += 1
                        self._turns += 1
                        self._pass_on()
        finally:
            _here.crew = None

    def stop(self) -> None:
        """Send everybody home once nothing is to be done. Idempotent."""
        with self._lock:
            self._stopped = True
            self._wake_all()

    def join(self) -> None:
        """Wait until the crew's own threads have ended."""
        while self._threads:
            self._threads.pop().join()

    def _next(self) -> Callable[[], None] | None:
        """Wait for a job with a turn; None: there will be none."""
        watched = False  # by this thread, until it was called
        while True:
            with self._lock:
                if watched:
                    self._watcher, self._called = 0, False
                if self._begun:
                    job = self._begun.popleft()
                    watched = watched and self._turns > 0  # another job could run beside it
                    break
                if self._stopped:
                    self._idle -= 1
                    return None
                watching = self._watched is not None and not self._watcher
                if watching:
                    self._watcher = threading.get_ident()
                else:
                    gate = threading.Lock()
                    gate.acquire()
                    self._parked.append(gate)
            if watching:
                watched = self._watch()
            else:
                watched = False
                gate.acquire()
        if watched and self._watched is not None:
            self._watched.relieve()
        return job

    def _watch(self) -> bool:
        assert self._watched is not None
        if not self._watched.watch_for(lambda: self._called):
            with self._lock:
                self._watched = None
        return True

    def _leave(self) -> None:
        with self._lock:
            before = self.stranded
            self._turns += 1
            self._pass_on()
            stranded = self.stranded is not None and self.stranded != before
        if stranded and self._on_stranded is not None:
            self._on_stranded()

    def _come_back(self) -> None:
        with self._lock:
            if self._turns and not self._wanting:
                self._turns -= 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._wanting.append(_Want(partial(_open, gate)))
            self._pass_on()
        gate.acquire()

    def _pass_on(self) -> None:
        """Give the turns that are free to those who have wanted one longest. The lock is held."""
        waiting: list[_Want] = []  # jobs, which whoever comes back passes by
        self._short = False
        while self._turns and self._wanting:
            want = self._wanting.popleft()
            if want.begin():
                self._turns -= 1
            else:
                waiting.append(want)
        if waiting:
            self._wanting.extendleft(reversed(waiting))
        if not waiting or self._turns < self._most:
            self.stranded = None
        elif self.stranded is None:
            self.stranded = time.monotonic()
        if self._stopped:
            self._wake_all()

    def _begin(self, job: Callable[[], None]) -> bool:
        if not self._idle:
            if not self._hire():
                return False
            self._begun.append(job)
            return True
        self._idle -= 1
        self._begun.append(job)
        if self._watcher and not self._called:
            self._call()
        elif self._parked:
            self._parked.pop().release()
        return True

    def _hire(self) -> bool:
        """Start a thread. False: none can be, and those there are have to do."""
        if self._short:
            return False  # and the job waits behind those that came before
        t = threading.Thread(target=self.work, name=f"omnibus-{len(self._threads)}", daemon=True)
        try:
            t.start()
        except (RuntimeError, MemoryError) as e:
            if not self._callers and not self._threads:
                raise
            self._short = True
            if not self._warned:
                log.warning(
                    "%s: what comes waits for one of the %d there are; raise this process's limits (ulimit -u, ulimit -v)",
                    e, self._callers + len(self._threads),
                )
                self._warned = True
            return False
        self._threads.append(t)
        return True

    def _call(self) -> None:
        """Have the thread that watches come and look."""
        self._called = True
        if self._watched is not None and self._watcher != threading.get_ident():
            self._watched.poke()

    def _wake_all(self) -> None:
        while self._parked:
            self._parked.pop().release()
        if self._watcher and not self._called:
            self._call()


def _open(gate: threading.Lock) -> bool:
    gate.release()
    return True


def in_crew() -> bool:
    """Whether this thread has turns."""
    return getattr(_here, "crew", None) is not None


@contextmanager
def away() -> Iterator[None]:
    """Give up the turn that this thread has, if it has one, for as long as it waits."""
    crew: Crew | None = getattr(_here, "crew", None)
    if crew is None:
        yield
        return
    crew._leave()
    try:
        yield
    finally:
        crew._come_back()
