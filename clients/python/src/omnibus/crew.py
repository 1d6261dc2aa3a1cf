"""Threads for plain functions, and whose turn it is.

A thread runs a function when it has a turn, and there are so many turns. While
the function waits for the host, the thread is away: its turn is another's, for what
it waits for may depend on what that other one has to say. So there may be
more threads than turns, though not more than jobs. They are started when they are
needed, and stay.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_here = threading.local()


class Crew:
    """The threads of one session. Jobs begin in the order in which they came."""

    def __init__(self, turns: int, callers: int) -> None:
        """`callers` is how many threads will call `work`, apart from the crew's own."""
        self._lock = threading.Lock()
        self._turns = turns  # that nobody has
        self._wanting: deque[Callable[[], None]] = deque()  # what to do with a turn: begin a job, or come back
        self._begun: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # jobs with a turn
        self._idle = callers
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def put(self, job: Callable[[], None]) -> None:
        """Have a job done. Does not wait."""
        with self._lock:
            self._wanting.append(lambda: self._begin(job))
            self._pass_on()

    def work(self) -> None:
        """Be one of the threads, until `stop`."""
        _here.crew = self
        try:
            while (job := self._begun.get()) is not None:
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
            self._pass_on()

    def join(self) -> None:
        """Wait until the crew's own threads have ended."""
        while self._threads:
            self._threads.pop().join()

    def _leave(self) -> None:
        with self._lock:
            self._turns += 1
            self._pass_on()

    def _come_back(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            self._wanting.append(gate.release)
            self._pass_on()
        gate.acquire()

    def _pass_on(self) -> None:
        """Give the turns that are free to those who have wanted one longest. The lock is held."""
        while self._turns and self._wanting:
            self._turns -= 1
            self._wanting.popleft()()
        while self._stopped and self._idle:
            self._idle -= 1
            self._begun.put(None)

    def _begin(self, job: Callable[[], None]) -> None:
        if not self._idle:
            t = threading.Thread(target=self.work, name=f"omnibus-{len(self._threads)}", daemon=True)
            t.start()
            self._threads.append(t)
            self._idle += 1
        self._idle -= 1
        self._begun.put(job)


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
