"""The thread that reads the socket when nobody else does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import again

if TYPE_CHECKING:
    from .session import Session

#: How long the socket may be left alone before whoever stands by reads it.
_STANDBY_SECONDS = 0.005


class Standby:
    """The thread that stands by, while others come and go at the socket.

    It is not told when they go, for that would cost two switches of threads for every
    delivery: it looks after a moment whether somebody has read meanwhile. Where nobody
    comes or goes it sleeps without an end, until the next one goes.
    """

    __slots__ = ("_s", "_awake", "_done", "_asleep", "_urgent")

    def __init__(self, s: Session) -> None:
        self._s = s
        self._awake = threading.Condition(s._lock)
        self._done: Callable[[], bool] | None = None  # None: nobody stands by
        self._asleep = False  # without an end
        self._urgent = False

    # The lock is held.

    def left(self) -> None:
        """Somebody does not read any more."""
        if self._asleep:
            self._awake.notify()

    def called(self) -> None:
        if self._done is not None and not self._s._reading:
            self._urgent = True
            self._awake.notify()

    def news(self) -> None:
        if self._done is not None and (self._s.error is not None or self._done()):
            self._awake.notify()

    # It is not.

    def wait(self, done: Callable[[], bool]) -> None:
        s = self._s
        seen, yielded = -1, False
        while True:
            with s.locked:
                self._done = None
                if done():
                    s._relieve()
                    return
                if s.error is not None:
                    raise again(s.error)
                self._done = done
                idle, seen = s._readings == seen, s._readings
                if s._reading:
                    self._asleep = idle
                    self._awake.wait(None if idle else _STANDBY_SECONDS)
                    if self._asleep:
                        self._asleep, seen = False, -1
                    yielded = False
                    continue
                if s._sleepers and not yielded:
                    s._sleepers[0][1].notify()
                    yielded = True
                    idle = False
                if not idle and not self._urgent:
                    self._awake.wait(_STANDBY_SECONDS)
                    continue
                self._urgent = yielded = False
                s._reading = True
            s._read(done, None)
