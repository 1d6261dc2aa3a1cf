"""Selects the thread that reads a session's socket.

A session has no thread of its own. One of the threads that wait for something reads the socket, and the others sleep
until their condition holds or the reader stops. A standby thread reads when no waiting thread has read for a moment.
The session's lock guards all state here. It is not held while a thread sleeps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .errors import again
from .sessionbase import SessionBase

#: The longest timeout passed to one system call. Longer waits repeat it.
LONGEST_SECONDS = 3600.0

#: How long the socket may have no reader before the standby thread reads it.
_STANDBY_SECONDS = 0.005


class SocketReader:
    """Lets one thread at a time read a session's socket."""

    __slots__ = ("reading_thread", "read_count", "waiters", "standby", "_s", "_lock")

    def __init__(self, s: SessionBase, lock: threading.RLock) -> None:
        self.reading_thread = 0  #: the thread that reads; 0: none
        self.read_count = 0  #: how often a waiting thread has begun to read
        #: The condition of each thread that sleeps while another reads.
        self.waiters: list[tuple[Callable[[], bool], threading.Condition]] = []
        self.standby = Standby(self, s, lock)
        self._s = s
        self._lock = lock

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `done()`, which is called with the lock held. Returns False after the timeout. The lock is not held.

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
                        self.wake_next_reader()
                        return True
                    if s.error is not None:
                        raise again(s.error)
                    if left is not None and left <= 0:
                        return False
                    if asleep := bool(self.reading_thread):
                        if not told and s.has_unsent:
                            told = True
                            continue  # releasing the lock sends the messages; Condition.wait would not
                        interrupt = self._sleep_until_notified(done, left)
                    else:
                        self.reading_thread = me
                        self.read_count += 1
                if interrupt is not None:
                    try:
                        raise interrupt
                    finally:
                        interrupt = None  # its traceback refers to this frame
                if not asleep and self.read_packets(done, left):
                    well = True
                    return True
        finally:
            if not well:
                with s.locked:
                    if self.reading_thread == me:  # a signal came before `read_packets`
                        self.reading_thread = 0
                    self.wake_next_reader()

    def read_packets(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for packets and handle them until `done()`, whose value it returns. If true, it has woken the next reader.

        The caller has set `reading_thread`, and does not hold the lock.
        """
        s = self._s
        try:
            s.connection.poll(timeout)
        finally:
            with s.locked:
                self.reading_thread = 0
                s.receive(done)
                if s.closed:
                    s.close_descriptors()
                s.notify()  # also without packets: it may be a `wake`
                well = done()
                if well:
                    self.wake_next_reader()
        return well

    def _sleep_until_notified(self, done: Callable[[], bool], timeout: float | None) -> BaseException | None:
        """Sleep until `done()`, the session's end, or until no thread reads. Returns an exception that interrupted it.
        """
        sleeper = done, threading.Condition(self._lock)
        self.waiters.append(sleeper)
        try:
            sleeper[1].wait(timeout)
        except BaseException as e:
            return e
        finally:
            self.waiters.remove(sleeper)
        return None

    def wake_next_reader(self) -> None:
        """Make another thread read, since the caller stops reading."""
        if self.reading_thread:
            return
        if self.waiters:
            self.waiters[0][1].notify()
        else:
            self.standby.on_reader_left()

    def notify(self) -> None:
        """Wake the sleeping threads whose condition holds."""
        s = self._s
        for done, awake in self.waiters:
            if s.error is not None or done():
                awake.notify()
        if self.standby._done is not None:
            self.standby.notify_if_done()
        if self.reading_thread:
            s.connection.wake()  # the reading thread checks its condition, too


class Standby:
    """The standby thread, which reads the socket when no waiting thread does.

    Waking it each time a reader stops would cost two thread switches per delivery. So it polls: after
    `_STANDBY_SECONDS` it checks whether a thread has read meanwhile. While one reader stays at the socket, it sleeps
    without a timeout until that reader stops.
    """

    __slots__ = ("asleep", "_r", "_s", "_awake", "_done", "_urgent")

    def __init__(self, r: SocketReader, s: SessionBase, lock: threading.RLock) -> None:
        self.asleep = False  #: without a timeout
        self._r = r
        self._s = s
        self._awake = threading.Condition(lock)
        self._done: Callable[[], bool] | None = None  # None: no thread is in `wait`
        self._urgent = False

    # The lock is held.

    def on_reader_left(self) -> None:
        """A thread has stopped reading."""
        if self.asleep:
            self._awake.notify()

    def read_now(self) -> None:
        """Make the standby thread read at once, unless another thread reads."""
        if self._done is not None and not self._r.reading_thread:
            self._urgent = True
            self._awake.notify()

    def notify_if_done(self) -> None:
        if self._done is not None and (self._s.error is not None or self._done()):
            self._awake.notify()

    # The lock is not held.

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Be the standby thread until `done()`. Returns False after the timeout. Raises the session's error if it ends
        first."""
        s, r = self._s, self._r
        limit = None if timeout is None else time.monotonic() + timeout
        seen, yielded = -1, False
        while True:
            with s.locked:
                self._done = None
                if done():
                    r.wake_next_reader()
                    return True
                if s.error is not None:
                    raise again(s.error)
                left = None if limit is None else limit - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._done = done
                idle, seen = r.read_count == seen, r.read_count
                if r.reading_thread:
                    self.asleep = idle
                    self._awake.wait(left if idle else _STANDBY_SECONDS)
                    if self.asleep:
                        self.asleep, seen = False, -1
                    yielded = False
                    continue
                if r.waiters and not yielded:
                    r.waiters[0][1].notify()
                    yielded = True
                    idle = False
                if not idle and not self._urgent:
                    self._awake.wait(_STANDBY_SECONDS)
                    continue
                self._urgent = yielded = False
                r.reading_thread = threading.get_ident()
            r.read_packets(done, left)
