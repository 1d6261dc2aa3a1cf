"""Takes back what nobody came for in its time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("omnibus")


class Sweeper:
    """Calls a function when values are over, in a thread that there is while any lie. Safe from any thread."""

    def __init__(self, ttl: float, sweep: Callable[[], float | None]) -> None:
        """`sweep` returns the time in seconds until it is to be called again; None: nothing lies. A `ttl` of 0: never."""
        self._ttl = ttl
        self._sweep = sweep
        self._mu = threading.Condition()
        self._begun = 0  # how often something was put
        self._thread: threading.Thread | None = None
        self._sweeping = False
        self._stopped = False

    def begin(self) -> None:
        """Something was put."""
        if not self._ttl:
            return
        with self._mu:
            self._begun += 1
            if self._thread is not None or self._stopped:
                return
            thread = threading.Thread(target=self._run, name="omnibus sweeper", daemon=True)
            try:
                thread.start()
            except RuntimeError as e:  # too many, or the interpreter ends: what was put is there all the same
                log.debug("nobody sweeps until something else is put: %s", e)
            else:
                self._thread = thread

    def _run(self) -> None:
        wait: float | None = self._ttl
        while wait is not None:
            with self._mu:
                until = time.monotonic() + wait
                while not self._stopped and (left := until - time.monotonic()) > 0:
                    self._mu.wait(left)
                if self._stopped:
                    return
                begun, self._sweeping = self._begun, True
            wait = self._look()
            with self._mu:
                self._sweeping = False
                self._mu.notify_all()
                if wait is None and begun != self._begun:
                    wait = self._ttl  # it came just now
                if wait is None:
                    self._thread = None

    def _look(self) -> float | None:
        try:
            return self._sweep()
        except Exception:
            log.exception("values that nobody came for stay")
            return self._ttl

    def stop(self) -> None:
        """Sweep no more. It waits for a sweep to end, but for one that calls it."""
        with self._mu:
            self._stopped = True
            self._mu.notify_all()
            while self._sweeping and self._thread is not threading.current_thread():
                self._mu.wait()
