"""Takes back what nobody came for in its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Sweeper:
    """Calls a function when values are over, in a thread that there is while any lie. Safe from any thread."""

    def __init__(self, ttl: float, sweep: Callable[[], float | None]) -> None:
        """`sweep` returns the time in seconds until it is to be called again; None: nothing lies. A `ttl` of 0: never."""
        self._ttl = ttl
        self._sweep = sweep
        self._mu = threading.Condition()
        self._begun = 0  # how often something was put
        self._runs = False
        self._stopped = False

    def begin(self) -> None:
        """Something was put."""
        if not self._ttl:
            return
        with self._mu:
            self._begun += 1
            if self._runs or self._stopped:
                return
            self._runs = True
        threading.Thread(target=self._run, name="omnibus sweeper", daemon=True).start()

    def _run(self) -> None:
        wait: float = self._ttl
        while True:
            with self._mu:
                until = time.monotonic() + wait
                while not self._stopped and (left := until - time.monotonic()) > 0:
                    self._mu.wait(left)
                if self._stopped:
                    return
                begun = self._begun
            later = self._sweep()
            with self._mu:
                if later is None and begun == self._begun:
                    self._runs = False
                    return
            wait = self._ttl if later is None else max(later, 1e-3)

    def stop(self) -> None:
        """Sweep no more."""
        with self._mu:
            self._stopped = True
            self._mu.notify_all()
