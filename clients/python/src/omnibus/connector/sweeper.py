"""Takes back what nobody came for in its time, and lets go of what is used no more."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

log = logging.getLogger("omnibus")


class Sweeper:
    """Calls a function when its time has come, in a thread that there is while one is to come. Safe from any thread."""

    def __init__(self, sweep: Callable[[], float | None]) -> None:
        """`sweep` returns the time in seconds until it is to be called again; None: nothing lies."""
        self._sweep = sweep
        self._mu = threading.Condition()
        self._until = math.inf  # of time.monotonic
        self._wait = 0.0  # the last that was asked for
        self._thread: threading.Thread | None = None
        self._sweeping = False
        self._stopped = False

    def begin(self, wait: float) -> None:
        """Something was put, which is to be looked at in so many seconds; 0: never."""
        if not wait:
            return
        until = time.monotonic() + wait
        if until >= self._until:
            return  # as mostly: it looks before that, and finds what is in the books by now
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
            except RuntimeError as e:  # too many, or the interpreter ends: what was put is there all the same
                self._until = math.inf
                log.debug("nobody sweeps until something else is put: %s", e)
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
            wait = self._look()
            with self._mu:
                self._sweeping = False
                self._mu.notify_all()
                if wait is not None:
                    self._until = min(self._until, time.monotonic() + wait)
                if self._until == math.inf:
                    self._thread = None
                    return

    def _look(self) -> float | None:
        try:
            return self._sweep()
        except Exception:
            log.exception("values that nobody came for stay")
            return self._wait

    def stop(self) -> None:
        """Sweep no more. It waits for a sweep to end, but for one that calls it."""
        with self._mu:
            self._stopped = True
            self._mu.notify_all()
            while self._sweeping and self._thread is not threading.current_thread():
                self._mu.wait()
