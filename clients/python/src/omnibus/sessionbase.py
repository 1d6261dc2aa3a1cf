"""The base of a session: its lock, which sends posted messages when it is released, and its viewed payloads.

An exception of a signal handler, such as KeyboardInterrupt, may come between any two steps, and Python code cannot
exclude that. The session's state may then be half written, or its lock still held. The session ends in that case:
see `SessionLock`. `ViewedPayloads` returns a payload to the host when the last view of it is gone.
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


class _ThisProcess:
    """The id of this process, without a system call for each read."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()


#: This process. A fork updates it in the child.
this_process = _ThisProcess()


def _refresh_pid() -> None:
    this_process.pid = os.getpid()


os.register_at_fork(after_in_child=_refresh_pid)


class SessionBase:
    """The state that all parts of a session share: its lock, its connection, and the error that ended it."""

    def __init__(self, sock: socket.socket) -> None:
        self.error: OmnibusError | None = None
        self.closed = False  # by `close`: the descriptors are closed when no thread reads
        self.lock = threading.RLock()  # acquired through `locked`, never twice by one thread; an RLock knows its owner
        self.locked = SessionLock(self)
        self._pid = this_process.pid
        self._unlocked_calls: list[Callable[[], object]] = []
        self.corking_thread = 0  # a thread that posts more without waiting: unlocking does not flush; 0: none
        self.connection = Connection(sock)
        self.viewed_payloads = ViewedPayloads(self)

    # Overridden by the session. The lock is held.

    def receive(self, done: Callable[[], bool] | None = None) -> None:
        """Handle arrived packets until `done()`. The caller calls `notify`."""
        raise NotImplementedError

    def notify(self) -> None:
        """Wake the waiting threads whose condition is true."""
        raise NotImplementedError

    def close_descriptors(self) -> None:
        """Close the descriptors of `fileno` and `wake` if the session is closed and no thread reads."""
        raise NotImplementedError

    def _fail(self, error: OmnibusError) -> None:
        """End the session."""
        raise NotImplementedError

    def fail_interrupted(self) -> None:
        """End the session because a signal handler raised while its state was being changed. The lock is held."""
        self._fail(HostGone("the connection ends: a signal came in the middle of a message; connect again"))

    # Processes and threads.

    @property
    def in_own_process(self) -> bool:
        """Whether this is the process that connected, and not a child of it."""
        return this_process.pid == self._pid

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that connected."""
        if this_process.pid != self._pid:
            raise ForkedError(f"the connection belongs to process {self._pid}, and this is {this_process.pid}: connect here")

    def __reduce__(self) -> NoReturn:
        # Tasks, requests, deliveries and buffers refer to their session.
        raise TypeError("a connection and its objects cannot be sent to another process: connect there")

    def wake(self) -> None:
        """Wake the thread that reads the socket. Safe in a signal handler."""
        self.connection.wake()

    @property
    def has_unsent(self) -> bool:
        """Whether releasing the lock will send a message or call a function. The lock is held."""
        return bool(self.connection.outbox or self._unlocked_calls)

    def call_unlocked(self, f: Callable[[], object]) -> None:
        """Call f after the lock is released. The lock is held."""
        self._unlocked_calls.append(f)

    # Sending.

    def post(self, m: wire.Message, fd: int = -1) -> None:
        """Put a message into the outbox, which releasing the lock sends. The lock is held. Takes the descriptor."""
        self.connection.post(m, fd)

    def tell(self, m: wire.Message, then: Callable[[], None] | None = None) -> None:
        """Send a message that has no answer. `then` is called with the lock held."""
        with self.locked:
            if self.error is not None:
                raise again(self.error)
            self.post(m)
            if then is not None:
                then()

    def tell_unless_ended(self, m: wire.Message) -> None:
        """tell, but without an error if the session has ended."""
        with self.locked:
            self.post(m)

    def flush(self) -> None:
        """Send posted messages, as far as the socket takes them, unless this thread is corking. The lock is held."""
        if self.corking_thread and self.corking_thread == threading.get_ident():
            return
        try:
            self.connection.flush()
        except HostGone as e:
            self._fail(e)


class SessionLock:
    """Holds the session's lock during a `with` block."""

    __slots__ = ("s",)

    def __init__(self, s: SessionBase) -> None:
        self.s = s

    def __enter__(self) -> None:
        s = self.s
        if this_process.pid != s._pid:
            s.check_process()
        if s.lock._is_owned():  # type: ignore[attr-defined]  # a signal handler interrupted its holder
            s.fail_interrupted()
            s.lock.release()
        s.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        s = self.s
        calls = None
        try:
            if kind is not None and not issubclass(kind, Exception):
                s.fail_interrupted()
            if s.viewed_payloads.gone_views:
                s.viewed_payloads.release_gone_locked()
            if s.connection.outbox:
                s.flush()
            if s._unlocked_calls:
                calls, s._unlocked_calls = s._unlocked_calls, []
        except BaseException as e:
            if not isinstance(e, Exception):
                s.fail_interrupted()
            raise
        finally:
            if s.lock._is_owned():  # type: ignore[attr-defined]  # a signal handler may have released it
                s.lock.release()
        if s.viewed_payloads.gone_views:
            s.viewed_payloads.release_gone()
        if calls:
            for call in calls:
                try:
                    call()
                except RuntimeError as e:  # an event loop that is closed
                    log.debug("a callback failed: %s", e)


class ViewedPayloads:
    """Payloads of finished deliveries that still have views. A payload returns to the host when its last view is gone.

    The garbage collector reports a gone view in any thread, between any two steps, where no lock may be awaited. So
    `on_view_gone` only queues it. The thread that holds the session's lock, or the one that reads the socket, tells the
    host. The session's lock is held for all methods except `on_view_gone` and `release_gone`.
    """

    __slots__ = ("gone_views", "_tracked", "_s")

    def __init__(self, s: SessionBase) -> None:
        self.gone_views: deque[Any] = deque()  #: weak references whose view is gone, not yet handled
        self._tracked: dict[int, tuple[Any, list[Any]]] = {}  # by id of the weak reference: it, [message, views left]
        self._s = s

    def __bool__(self) -> bool:
        """Whether a payload of the host still has views."""
        return bool(self._tracked)

    def track(self, last: wire.Message, windows: list[Any]) -> None:
        """Post `last`, which returns the payload, when these views are gone."""
        left = [last, len(windows)]
        for w in windows:
            self._tracked[id(w)] = (w, left)

    def untrack(self, window: Any) -> None:
        """Undo `track` for a payload with one view."""
        self._tracked.pop(id(window), None)

    def clear(self) -> None:
        """Forget all payloads: the session has ended."""
        self._tracked.clear()

    def release_gone_locked(self) -> None:
        """Return the payloads whose views are gone."""
        while self.gone_views:
            window = self.gone_views.popleft()
            kept = self._tracked.pop(id(window), None)
            if kept is not None:
                left = kept[1]
                left[1] -= 1
                if left[1] == 0:
                    self._s.post(left[0])

    def on_view_gone(self, window: Any) -> None:
        """The view of a weak reference is gone. Called by the garbage collector in any thread."""
        if id(window) not in self._tracked:
            return  # it will not be tracked later either: `track` is called while the view lives
        self.gone_views.append(window)
        if self._s.in_own_process:
            self.release_gone()

    def release_gone(self) -> None:
        """release_gone_locked, in this thread or in another one, without waiting for the lock."""
        s = self._s
        while self.gone_views and s.error is None:
            # This thread may hold the lock: the collector runs in the middle of its work.
            if s.lock._is_owned() or not s.lock.acquire(blocking=False):  # type: ignore[attr-defined]
                # The holder of the lock releases before or after it unlocks; if it
                # starts to wait instead, the woken reader does.
                s.wake()
                return
            try:
                self.release_gone_locked()
                s.flush()
            finally:
                s.lock.release()
