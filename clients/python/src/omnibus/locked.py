"""The lock of a session, and what is said when it is let go: what was posted is sent.

What a signal's handler raises, such as KeyboardInterrupt, comes between any two steps: the books may be half written
then, or the lock not let go of, for no code of Python's can rule that out. The session ends in place of going on
with such books, or of waiting for ever. Open it for how that is noticed, and for how payloads go back to the host
whose last view is gone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from . import wire
from .connection import Connection
from .errors import ForkedError, HostGone, OmnibusError, again

log = logging.getLogger("omnibus")


class _Current:
    """Which process this is, without a system call for each look."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()


#: This process, as of its last fork.
current = _Current()


def _renew() -> None:
    current.pid = os.getpid()


os.register_at_fork(after_in_child=_renew)


class Core:
    """What the parts of a session are made with: its lock, its socket, and whether it has ended."""

    def __init__(self, sock: socket.socket) -> None:
        self.error: OmnibusError | None = None
        self.closed = False  # by `close`: the descriptors go with the last one that reads
        self.lock = threading.RLock()  # to be had by `locked`, and never twice: it knows its thread
        self.locked = Locked(self)
        self._pid = current.pid
        self._calls: list[Callable[[], object]] = []
        self.more = 0  # the thread that sends more at once, and does not wait: what it posts leaves with that; 0: none
        self.connection = Connection(sock)
        self.windows = Windows(self)

    # What the session does with what they have. The lock is held.

    def receive(self, done: Callable[[], bool] | None = None) -> None:
        """Handle what has arrived, until `done()`. The caller notifies those who wait."""
        raise NotImplementedError

    def notify(self) -> None:
        """Have those who wait look again."""
        raise NotImplementedError

    def close_descriptors(self) -> None:
        """Close what `fileno` and `poke` use, once nobody does."""
        raise NotImplementedError

    def _fail(self, error: OmnibusError) -> None:
        """End the session."""
        raise NotImplementedError

    def interrupted(self) -> None:
        """End the session because something was raised in the middle of its books. The lock is held."""
        self._fail(HostGone("the connection ends: a signal came in the middle of a message; connect again"))

    # Processes and threads.

    @property
    def ours(self) -> bool:
        """Whether this is the process that connected, and not a child of it."""
        return current.pid == self._pid

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that connected."""
        if current.pid != self._pid:
            raise ForkedError(f"the connection belongs to process {self._pid}, and this is {current.pid}: connect here")

    def __reduce__(self) -> NoReturn:
        # All that belongs to a connection refers to it.
        raise TypeError("a connection, and what came over it, cannot be sent to another process: connect there")

    def poke(self) -> None:
        """Have whoever reads look around. Safe in a signal handler."""
        self.connection.poke()

    @property
    def unsaid(self) -> bool:
        """Whether something is to be sent, or to be called, when the lock is let go. It is held."""
        return bool(self.connection.outbox or self._calls)

    def call_later(self, f: Callable[[], object]) -> None:
        """Call f when the lock is let go. The lock is held."""
        self._calls.append(f)

    # Sending.

    def post(self, m: wire.Message, fd: int = -1) -> None:
        """Put a message into the outbox. The lock is held; letting it go sends it. Takes the descriptor."""
        self.connection.post(m, fd)

    def tell(self, m: wire.Message, then: Callable[[], None] | None = None) -> None:
        """Send a message that has no answer. `then` is called with the lock held."""
        with self.locked:
            if self.error is not None:
                raise again(self.error)
            self.post(m)
            if then is not None:
                then()

    def tell_quietly(self, m: wire.Message) -> None:
        """tell, when it does not matter any more if the host is gone."""
        with self.locked:
            self.post(m)

    def flush(self) -> None:
        """Send what was posted, as far as the host takes it, unless this thread sends more. The lock is held."""
        if self.more and self.more == threading.get_ident():
            return
        try:
            self.connection.flush()
        except HostGone as e:
            self._fail(e)


class Locked:
    """Has the lock while in a `with`."""

    __slots__ = ("s",)

    def __init__(self, s: Core) -> None:
        self.s = s

    def __enter__(self) -> None:
        s = self.s
        if current.pid != s._pid:
            s.check_process()
        if s.lock._is_owned():  # type: ignore[attr-defined]  # and nothing in here comes twice
            s.interrupted()
            s.lock.release()
        s.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        s = self.s
        calls = None
        try:
            if kind is not None and not issubclass(kind, Exception):
                s.interrupted()
            if s.windows.released:
                s.windows.settle_locked()
            if s.connection.outbox:
                s.flush()
            if s._calls:
                calls, s._calls = s._calls, []
        except BaseException as e:
            if not isinstance(e, Exception):
                s.interrupted()
            raise
        finally:
            if s.lock._is_owned():  # type: ignore[attr-defined]  # or a handler of a signal has come in here, too
                s.lock.release()
        if s.windows.released:
            s.windows.settle()
        if calls:
            for call in calls:
                try:
                    call()
                except RuntimeError as e:  # an event loop that is closed
                    log.debug("nobody is there to be told: %s", e)


class Windows:
    """Payloads that are still viewed after their delivery was finished: they go back when the last view is gone.

    The garbage collector says so, in any thread and in the middle of anything, and then nothing may wait. So what is
    gone is noted, and the thread that has the lock, or else reads, tells the host. Called with the session's lock held,
    but for `gone` and `settle`.
    """

    __slots__ = ("released", "_kept", "_s")

    def __init__(self, s: Core) -> None:
        self.released: deque[Any] = deque()  #: windows that are gone, and nobody has looked at yet
        self._kept: dict[int, tuple[Any, list[Any]]] = {}  # by id of the window: it, [message, windows left]
        self._s = s

    def __bool__(self) -> bool:
        """Whether a payload of the host's is kept."""
        return bool(self._kept)

    def keep(self, last: wire.Message, windows: list[Any]) -> None:
        """These still show a payload: `last` gives it back when they are gone."""
        left = [last, len(windows)]
        for w in windows:
            self._kept[id(w)] = (w, left)

    def forget(self, window: Any) -> None:
        """Undo `keep`, for one window alone."""
        self._kept.pop(id(window), None)

    def clear(self) -> None:
        """The session has ended: nothing goes back."""
        self._kept.clear()

    def settle_locked(self) -> None:
        """Give back what nobody views any more."""
        while self.released:
            window = self.released.popleft()
            kept = self._kept.pop(id(window), None)
            if kept is not None:
                left = kept[1]
                left[1] -= 1
                if left[1] == 0:
                    self._s.post(left[0])

    def gone(self, window: Any) -> None:
        """The last view of a window is gone. Called in any thread, in the middle of anything."""
        if id(window) not in self._kept:
            return  # nor will it be: what is kept is alive while `keep` is called
        self.released.append(window)
        if self._s.ours:
            self.settle()

    def settle(self) -> None:
        """settle_locked, or have somebody else do it, without waiting for the lock."""
        s = self._s
        while self.released and s.error is None:
            # By this thread, if it was in the middle of something.
            if s.lock._is_owned() or not s.lock.acquire(blocking=False):  # type: ignore[attr-defined]
                # Whoever holds the lock settles before or after it lets go,
                # and whoever reads does so if that one went to wait.
                s.poke()
                return
            try:
                self.settle_locked()
                s.flush()
            finally:
                s.lock.release()
