"""Calls a cleanup function at the time that it asks for."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

log = logging.getLogger("omnibus")


class Sweeper:
    """Calls a function when it is due, in a thread that runs while a call is scheduled. Safe from any thread."""

    def __init__(self, sweep: Callable[[], float | None]) -> None:
        """`sweep` returns the seconds until its next call; None: there is nothing to clean up."""
        self._sweep = sweep
        self._mu = threading.Condition()
        self._until = math.inf  # of time.monotonic
        self._wait = 0.0  # the last that was passed to schedule
        self._thread: threading.Thread | None = None
        self._sweeping = False
        self._stopped = False

    def schedule(self, wait: float) -> None:
        """Schedule a call in so many seconds; 0: never."""
        if not wait:
            return
        until = time.monotonic() + wait
        if until >= self._until:
            return  # the common case: an earlier call is scheduled, and reschedules
        with self._mu:
            self._wait = wait
            if until >= self._until or self._stopped:
                return
            self._until = until
            if self._thread is not None:
                self._mu.notify_all()
                return
            thread = threading.Thread(target=self._run, name="omnibus sweeper", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:  # too many threads, or the interpreter ends: the put succeeded all the same
                self._until = math.inf
                log.debug("no sweeper runs until the next put: %s", e)
            else:
                self._thread = thread

    def _run(self) -> None:
        while True:
            with self._mu:
                while not self._stopped and (left := self._until - time.monotonic()) > 0:
                    self._mu.wait(left)
                if self._stopped:
                    return
                self._until, self._sweeping = math.inf, True
            wait = self._run_sweep()
            with self._mu:
                self._sweeping = False
                self._mu.notify_all()
                if wait is not None:
                    self._until = min(self._until, time.monotonic() + wait)
                if self._until == math.inf:
                    self._thread = None
                    return

    def _run_sweep(self) -> float | None:
        try:
            return self._sweep()
        except Exception:
            log.exception("a sweep failed, and expired values stay")
            return self._wait

    def stop(self) -> None:
        """Call the function no more. Waits for a running call, unless this is called from it."""
        with self._mu:
            self._stopped = True
            self._mu.notify_all()
            while self._sweeping and self._thread is not threading.current_thread():
                self._mu.wait()
