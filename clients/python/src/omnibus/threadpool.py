"""The thread pool of plain functions, with a bounded number of running functions.

A thread needs a run permit to run a function, and the number of permits is fixed. While a function waits for the
host, its thread releases the permit, since the host's answer may depend on another function's output. So the pool may
have more threads than permits, but not more than jobs. The pool starts a thread when a job needs one, and keeps it.
If the process cannot start another thread, jobs wait for a pool thread to become idle. That wait is bounded, because
all pool threads may wait, through the host, for that very job: see `reject_stranded`.

One idle thread watches the socket, so that the thread that reads a delivery also handles it. Handing a delivery to
another thread takes longer than the rest of its handling.
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

#: How long jobs wait that no thread can be started for, while all threads wait for the host.
_STRANDED_SECONDS = 10.0


class WatchedSession(Protocol):
    """The session whose socket an idle thread watches."""

    def read_until(self, done: Callable[[], bool]) -> bool:
        """Read the socket until `done()`. Returns False once the session has ended."""
        ...

    def wake(self) -> None:
        """Make the thread in `read_until` check `done`."""
        ...

    def request_reader(self) -> None:
        """Make the standby thread read the socket in place of a thread that has a job."""
        ...


class _Waiter(NamedTuple):
    """A job, or a thread at the end of `blocking`, that waits for a permit."""

    start: Callable[[], bool]  # returns False if there is no thread for the job
    refuse: Callable[[], None] | None = None  # refuses the job; None for a thread


class ThreadPool:
    """The threads of one session. Jobs start in the order of `submit`."""

    def __init__(
        self,
        permits: int,
        outside_threads: int,
        session: WatchedSession | None = None,
        on_stranded: Callable[[], None] | None = None,
    ) -> None:
        """`outside_threads` is the number of threads that will call `run_worker` besides the pool's own. `on_stranded` is
        called, without the lock, when a thread entering `blocking` sets `stranded_since`."""
        self._lock = threading.Lock()
        self._free_permits = permits
        self._permits = permits  # their total
        self._waiters: deque[_Waiter] = deque()
        #: Since when jobs have waited for a thread while all threads wait for the host, by time.monotonic; None: not now.
        self.stranded_since: float | None = None
        self._on_stranded = on_stranded
        self._started_jobs: deque[Callable[[], None]] = deque()  # jobs with a permit and a thread, not yet taken
        self._outside_threads = outside_threads
        self._idle_threads = outside_threads  # threads without a job in _started_jobs
        self._parked: list[threading.Lock] = []  # the gates of idle threads that sleep
        self._session = session
        self._watcher = 0  # the thread that watches the socket; 0: none
        self._watcher_recalled = False  # the watcher has to return from read_until
        self._threads: list[threading.Thread] = []
        self._start_failed = False  # the last attempt to start a thread failed
        self._warned = False  # a failed start was logged
        self._stopped = False

    def submit(self, job: Callable[[], None], refuse: Callable[[], None] | None = None) -> None:
        """Run a job in a pool thread. `reject_stranded` may call `refuse` instead. Does not wait."""
        with self._lock:
            self._waiters.append(_Waiter(partial(self._start_job, job), refuse))
            self._grant_permits()

    def rejection_delay(self) -> float | None:
        """The seconds until `reject_stranded` refuses the waiting jobs; None: it does not."""
        since = self.stranded_since
        return None if since is None else max(since + _STRANDED_SECONDS - time.monotonic(), 0)

    def reject_stranded(self) -> None:
        """Refuse the waiting jobs if no thread can be started for them and `rejection_delay` is 0."""
        with self._lock:
            self._grant_permits()
            if self.rejection_delay() != 0:
                return
            refused = [w.refuse for w in self._waiters if w.refuse is not None]
            self._waiters = deque(w for w in self._waiters if w.refuse is None)
            self.stranded_since = None
        for refuse in refused:
            refuse()

    def run_worker(self) -> None:
        """Run jobs in the calling thread until `stop`."""
        _here.pool = self
        try:
            while (job := self._next_job()) is not None:
                try:
                    job()
                finally:
                    with self._lock:
                        self._idle_threads += 1
                        self._free_permits += 1
                        self._grant_permits()
        finally:
            _here.pool = None

    def stop(self) -> None:
        """End the threads once no started job is left. Idempotent."""
        with self._lock:
            self._stopped = True
            self._wake_all()

    def join(self) -> None:
        """Wait until the pool's own threads have ended."""
        while self._threads:
            self._threads.pop().join()

    def _next_job(self) -> Callable[[], None] | None:
        """Wait for a job with a permit; None: the pool has stopped."""
        watched = False  # this thread has watched the socket until now
        while True:
            with self._lock:
                if watched:
                    self._watcher, self._watcher_recalled = 0, False
                if self._started_jobs:
                    job = self._started_jobs.popleft()
                    # A permit is left, so another thread may run beside this one.
                    watched = watched and self._free_permits > 0
                    break
                if self._stopped:
                    self._idle_threads -= 1
                    return None
                watching = self._session is not None and not self._watcher
                if watching:
                    self._watcher = threading.get_ident()
                else:
                    gate = threading.Lock()
                    gate.acquire()
                    self._parked.append(gate)
            if watching:
                watched = self._watch_session()
            else:
                watched = False
                gate.acquire()
        if watched and self._session is not None:
            self._session.request_reader()
        return job

    def _watch_session(self) -> bool:
        assert self._session is not None
        if not self._session.read_until(lambda: self._watcher_recalled):
            with self._lock:
                self._session = None
        return True

    def _release_permit(self) -> None:
        with self._lock:
            before = self.stranded_since
            self._free_permits += 1
            self._grant_permits()
            stranded = self.stranded_since is not None and self.stranded_since != before
        if stranded and self._on_stranded is not None:
            self._on_stranded()

    def _acquire_permit(self) -> None:
        with self._lock:
            if self._free_permits and not self._waiters:
                self._free_permits -= 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiters.append(_Waiter(partial(_release_gate, gate)))
            self._grant_permits()
        gate.acquire()

    def _grant_permits(self) -> None:
        """Give free permits to the longest waiters. The lock is held."""
        waiting: list[_Waiter] = []  # jobs without a thread; a thread of _acquire_permit overtakes them
        self._start_failed = False
        while self._free_permits and self._waiters:
            want = self._waiters.popleft()
            if want.start():
                self._free_permits -= 1
            else:
                waiting.append(want)
        if waiting:
            self._waiters.extendleft(reversed(waiting))
        if not waiting or self._free_permits < self._permits:
            self.stranded_since = None
        elif self.stranded_since is None:
            self.stranded_since = time.monotonic()
        if self._stopped:
            self._wake_all()

    def _start_job(self, job: Callable[[], None]) -> bool:
        if not self._idle_threads:
            if not self._start_thread():
                return False
            self._started_jobs.append(job)
            return True
        self._idle_threads -= 1
        self._started_jobs.append(job)
        if self._watcher and not self._watcher_recalled:
            self._recall_watcher()
        elif self._parked:
            self._parked.pop().release()
        return True

    def _start_thread(self) -> bool:
        """Start a thread. Returns False if the process cannot start one while the pool has others."""
        if self._start_failed:
            return False  # the job waits behind earlier ones
        t = threading.Thread(target=self.run_worker, name=f"omnibus-{len(self._threads)}", daemon=True)
        try:
            t.start()
        except (RuntimeError, MemoryError) as e:
            if not self._outside_threads and not self._threads:
                raise
            self._start_failed = True
            if not self._warned:
                log.warning(
                    "%s: deliveries wait for the %d running threads; raise this process's limits (ulimit -u, ulimit -v)",
                    e, self._outside_threads + len(self._threads),
                )
                self._warned = True
            return False
        self._threads.append(t)
        return True

    def _recall_watcher(self) -> None:
        """Make the watcher return from `read_until` and take a job."""
        self._watcher_recalled = True
        if self._session is not None and self._watcher != threading.get_ident():
            self._session.wake()

    def _wake_all(self) -> None:
        while self._parked:
            self._parked.pop().release()
        if self._watcher and not self._watcher_recalled:
            self._recall_watcher()


def _release_gate(gate: threading.Lock) -> bool:
    gate.release()
    return True


def in_pool() -> bool:
    """Whether the calling thread is in `run_worker`."""
    return getattr(_here, "pool", None) is not None


@contextmanager
def blocking() -> Iterator[None]:
    """Release the calling thread's permit, if it has one, and acquire one again at the end."""
    pool: ThreadPool | None = getattr(_here, "pool", None)
    if pool is None:
        yield
        return
    pool._release_permit()
    try:
        yield
    finally:
        pool._acquire_permit()
