"""Who reads the socket: whoever waits for something, and while others wait, too, one of them.

There is no thread behind a session. Of those who wait one reads, and the others sleep until there is news for them, or
nobody reads any more. A thread may stand by, for when nobody who waits has read for a moment. Open it for what
wakes whom. Everything here is behind the session's lock, which is not held while anybody sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .errors import again
from .locked import Core

#: The longest wait of one call, for what takes no longer ones. Whoever waits looks again.
LONGEST_SECONDS = 3600.0

#: How long the socket may be left alone before whoever stands by reads it.
_STANDBY_SECONDS = 0.005


class Reading:
    """The one place at a session's socket."""

    __slots__ = ("taken", "times", "sleepers", "standby", "_s", "_lock")

    def __init__(self, s: Core, lock: threading.RLock) -> None:
        self.taken = 0  #: the thread that reads; 0: none does
        self.times = 0  #: how often somebody who waits has begun to read
        self.sleepers: list[tuple[Callable[[], bool], threading.Condition]] = []  #: wait while another reads
        self.standby = Standby(self, s, lock)
        self._s = s
        self._lock = lock

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `done()`, which is called with the lock held. False: the time is up. The lock is not held.

        Raises the session's error if it ends first.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        s, well, told, me = self._s, False, False, threading.get_ident()
        try:
            while True:
                left = None if limit is None else min(limit - time.monotonic(), LONGEST_SECONDS)
                interrupt = None
                with s.locked:
                    if done():
                        well = True
                        self.relieve()
                        return True
                    if s.error is not None:
                        raise again(s.error)
                    if left is not None and left <= 0:
                        return False
                    if asleep := bool(self.taken):
                        if not told and s.unsaid:
                            told = True
                            continue  # letting go of the lock says it, and sleeping would not
                        interrupt = self._sleep(done, left)
                    else:
                        self.taken = me
                        self.times += 1
                if interrupt is not None:
                    try:
                        raise interrupt
                    finally:
                        interrupt = None  # which refers to this frame
                if not asleep and self.read(done, left):
                    well = True
                    return True
        finally:
            if not well:
                with s.locked:
                    if self.taken == me:  # and was interrupted before it read
                        self.taken = 0
                    self.relieve()

    def read(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for packets and handle them, no more of them than it takes until `done()`. True: it is.

        Somebody else is to read then. The place was taken, and the lock is not held.
        """
        s = self._s
        try:
            s.connection.poll(timeout)
        finally:
            with s.locked:
                self.taken = 0
                s.receive(done)
                if s.closed:
                    s.close_descriptors()
                s.notify()  # also without news: it may be a poke
                well = done()
                if well:
                    self.relieve()
        return well

    def _sleep(self, done: Callable[[], bool], timeout: float | None) -> BaseException | None:
        """Sleep until `done()`, the session's end, or there is nobody who reads. What interrupts it harms nothing."""
        sleeper = done, threading.Condition(self._lock)
        self.sleepers.append(sleeper)
        try:
            sleeper[1].wait(timeout)
        except BaseException as e:
            return e
        finally:
            self.sleepers.remove(sleeper)
        return None

    def relieve(self) -> None:
        """Have somebody else read, for the caller does not any more."""
        if self.taken:
            return
        if self.sleepers:
            self.sleepers[0][1].notify()
        else:
            self.standby.left()

    def notify(self) -> None:
        """Have those who wait look again."""
        s = self._s
        for done, awake in self.sleepers:
            if s.error is not None or done():
                awake.notify()
        if self.standby._done is not None:
            self.standby.news()
        if self.taken:
            s.connection.poke()  # one of them waits at the socket


class Standby:
    """The thread that stands by, while others come and go at the socket.

    It is not told when they go, for that would cost two switches of threads for every
    delivery: it looks after a moment whether somebody has read meanwhile. Where nobody
    comes or goes it sleeps without an end, until the next one goes.
    """

    __slots__ = ("asleep", "_r", "_s", "_awake", "_done", "_urgent")

    def __init__(self, r: Reading, s: Core, lock: threading.RLock) -> None:
        self.asleep = False  #: without an end
        self._r = r
        self._s = s
        self._awake = threading.Condition(lock)
        self._done: Callable[[], bool] | None = None  # None: nobody stands by
        self._urgent = False

    # The lock is held.

    def left(self) -> None:
        """Somebody does not read any more."""
        if self.asleep:
            self._awake.notify()

    def called(self) -> None:
        """It is to read at once, unless somebody does."""
        if self._done is not None and not self._r.taken:
            self._urgent = True
            self._awake.notify()

    def news(self) -> None:
        if self._done is not None and (self._s.error is not None or self._done()):
            self._awake.notify()

    # It is not.

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Stand by until `done()`. False: the time is up. Raises the session's error if it ends first."""
        s, r = self._s, self._r
        limit = None if timeout is None else time.monotonic() + timeout
        seen, yielded = -1, False
        while True:
            with s.locked:
                self._done = None
                if done():
                    r.relieve()
                    return True
                if s.error is not None:
                    raise again(s.error)
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._done = done
                idle, seen = r.times == seen, r.times
                if r.taken:
                    self.asleep = idle
                    self._awake.wait(left if idle else _STANDBY_SECONDS)
                    if self.asleep:
                        self.asleep, seen = False, -1
                    yielded = False
                    continue
                if r.sleepers and not yielded:
                    r.sleepers[0][1].notify()
                    yielded = True
                    idle = False
                if not idle and not self._urgent:
                    self._awake.wait(_STANDBY_SECONDS)
                    continue
                self._urgent = yielded = False
                r.taken = threading.get_ident()
            r.read(done, left)
