"""Futures: for the host's answers to questions, and for conditions of this process that are polled until they hold.

`Questions` matches answers to questions by their tokens. A future whose waiter gives up is abandoned: its value is
disposed of when it arrives.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from . import wire
from .errors import OmnibusError, OutOfMemory, ProtocolError, again, host_error, out_of_memory
from .sessionbase import SessionBase


class Future:
    """The result of a question. The asker reads its fields once `done` is true."""

    __slots__ = (
        "kind", "accept", "dispose", "value", "error", "done", "abandoned", "callbacks", "pieces", "token", "on_error", "fd",
        "limit",
    )  # fmt: skip

    #: Whether several callers wait for it. Its descriptor then stays open when one of them gives up.
    shared = False

    def __init__(
        self,
        kind: type,
        accept: Callable[[Any, Any], Any] | None = None,
        dispose: Callable[[Any], None] | None = None,
        on_error: Callable[[], None] | None = None,
    ) -> None:
        self.kind = kind
        self.accept = accept  # makes the value from the message and its descriptors; called with the lock held
        self.dispose = dispose  # returns the value of an abandoned future; likewise
        self.on_error = on_error  # called if the result is an error; likewise
        self.value: Any = None
        self.error: OmnibusError | None = None
        self.done = False
        self.abandoned = False
        self.callbacks: list[Callable[[], object]] = []  # called once, without the lock, when done
        self.pieces: list[bytes] = []
        self.token: int | None = None  # None until the question is sent
        self.fd = -1  # a descriptor that is sent with the question; the asker owns it
        self.limit: float | None = None  # when it is resolved to None without an answer, by time.monotonic

    # Called with the lock held.

    def resolve(self, value: Any, error: OmnibusError | None) -> None:
        """Set the result."""
        self.value, self.error, self.done = value, error, True
        if error is not None:
            if self.on_error is not None:
                self.on_error()
        elif self.abandoned and self.dispose is not None:
            self.dispose(value)

    def abandon(self) -> None:
        """Dispose of the value, now or when it arrives: no caller waits for it."""
        self.abandoned = True
        if self.done and self.error is None and self.dispose is not None:
            self.dispose(self.value)


class PolledFuture(Future):
    """A future whose value is the first result of `poll` that is not None. `poll` is called with the lock held.

    Futures with the same queue key are polled in order: a later one only after the earlier ones are done.
    """

    __slots__ = ("poll", "queue_key")

    def __init__(self, poll: Callable[[], Any], queue_key: object, dispose: Callable[[Any], None] | None = None) -> None:
        super().__init__(PolledFuture, None, dispose)
        self.poll = poll
        self.queue_key = queue_key


def resolve(s: SessionBase, a: Future, value: Any, error: OmnibusError | None) -> None:
    """Resolve a future, and schedule its callbacks. The session's lock is held."""
    a.resolve(value, error)
    s._unlocked_calls += a.callbacks


class PolledFutures:
    """The polled futures of a session that are not done. `poll` runs when messages arrive, and on `wake`."""

    def __init__(self, s: SessionBase) -> None:
        self._session = s
        self._waiting: list[PolledFuture] = []

    def __bool__(self) -> bool:
        """Whether a future is not done. True before its first poll. May be read without the lock."""
        return bool(self._waiting)

    def add(self, a: PolledFuture) -> PolledFuture:
        with self._session.locked:
            if self._session.error is not None:
                raise again(self._session.error)
            self._session.connection.post_deferred()  # the deferred messages must be sent before anything waits
            self._waiting.append(a)
            if len(self._waiting) == 1:
                self.poll()
            else:
                self._session.notify()  # polls earlier futures, too
        return a

    def poll(self) -> None:
        """Poll the futures that are not done. The lock is held."""
        if not self._waiting:
            return
        blocked: set[object] = set()
        for a in list(self._waiting):
            if a.done or a.abandoned:
                self._waiting.remove(a)
            elif a.queue_key not in blocked and not self._try(a):
                blocked.add(a.queue_key)

    def _try(self, a: PolledFuture) -> bool:
        value, error = None, None
        try:
            value = a.poll()
        except OmnibusError as e:
            error = again(e)
        if value is None and error is None:
            return False
        self._waiting.remove(a)
        resolve(self._session, a, value, error)
        return True

    def expire(self, a: Future) -> None:
        """Resolve a future to None: its time is up."""
        with self._session.locked:
            if not a.done:
                resolve(self._session, a, None, None)

    def fail(self, error: OmnibusError) -> None:
        """Resolve all futures with the session's error. The lock is held."""
        waiting, self._waiting = self._waiting, []
        for a in waiting:
            if not a.done:
                resolve(self._session, a, None, error)


class Questions:
    """The open questions of a session, by token.

    The session's lock is held for all methods except `ask`, `add_done_callback`, `abandon` and `cancel`.
    """

    __slots__ = ("_open", "_waiting", "_token", "_session")

    def __init__(self, s: SessionBase) -> None:
        self._open: dict[int, Future] = {}
        # Questions beyond MAX_QUESTIONS, not yet sent.
        self._waiting: deque[tuple[Future, Callable[[int], Any]]] = deque()
        self._token = 0
        self._session = s

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting)

    def ask(
        self,
        kind: type,
        question: Callable[[int], wire.Message],
        accept: Callable[[Any, Any], Any] | None = None,
        dispose: Callable[[Any], None] | None = None,
    ) -> Future:
        """Send a question; `question` makes the message, given the token."""
        with self._session.locked:
            return self.ask_locked(Future(kind, accept, dispose), question)

    def ask_locked(self, a: Future, question: Callable[[int], wire.Message]) -> Future:
        """ask, with the lock held."""
        if self._session.error is not None:
            raise again(self._session.error)
        if len(self._open) >= wire.MAX_QUESTIONS:
            self._waiting.append((a, question))
            return a
        token = self._token
        while token in self._open:
            token = (token + 1) & 0xFFFFFFFF
        self._send_question(a, question(token))  # if it raises, the question was not asked
        self._token = (token + 1) & 0xFFFFFFFF
        self._open[token] = a
        a.token = token
        return a

    def _send_question(self, a: Future, m: wire.Message) -> None:
        if a.fd < 0:
            self._session.post(m)
            return
        try:
            fd = os.dup(a.fd)
        except OSError as e:
            raise out_of_memory("no descriptor to send", e.errno or 0) from e
        try:
            self._session.post(m, fd)
        except BaseException:
            os.close(fd)
            raise

    # For askers.

    def add_done_callback(self, a: Future, f: Callable[[], object]) -> None:
        """Call f, in any thread, when a future is done."""
        with self._session.locked:
            if a.done:
                self._session.call_unlocked(f)
            else:
                a.callbacks.append(f)

    def abandon(self, a: Future) -> None:
        """Stop waiting for a future: its value is disposed of."""
        if not self._session.in_own_process:
            return
        with self._session.locked:
            if a.fd >= 0 and not a.shared:  # the asker closes the descriptor now
                self._waiting = deque(w for w in self._waiting if w[0] is not a)
            a.abandon()
            if a.kind is PolledFuture:
                self._session.notify()  # for later futures of its queue, and for waiters of the value it held

    def cancel(self, a: Future) -> None:
        """abandon, and tell the host to cancel a fetch of the exchange that waits."""
        if not self._session.in_own_process:
            return
        with self._session.locked:
            if a.kind is wire.Fetched and a.token is not None and not a.done:
                self._session.post(wire.Cancel(a.token))
            self._waiting = deque(w for w in self._waiting if w[0] is not a)
            a.abandon()

    # Handlers of the host's messages.

    def on_failed(self, m: wire.Failed, _: int | None) -> None:
        self._resolve(self._pop_question(m.token), None, host_error(m.code, m.text))

    def on_answer(self, m: Any, fds: int | tuple[int, ...] | None) -> None:
        try:
            a = self._pop_question(m.token)
            if a.kind is not type(m):
                raise ProtocolError(f"{type(m).__name__.lower()} answers another question")
        except ProtocolError:
            for fd in (fds,) if isinstance(fds, int) else fds or ():
                os.close(fd)  # the descriptors of the unexpected answer
            raise
        if a.accept is None:
            self._resolve(a, m, None)
            return
        try:
            value = a.accept(m, fds)
        except OmnibusError as e:
            self._resolve(a, None, again(e))
            if not isinstance(e, OutOfMemory):
                raise
        else:
            self._resolve(a, value, None)

    def on_reply(self, m: wire.Reply, _: int | None) -> None:
        a = self._open.get(m.token)
        if a is None or a.kind is not wire.Reply:
            raise ProtocolError("reply answers no question")
        a.pieces.append(m.piece)
        if not m.flags & wire.MORE_PIECES:
            del self._open[m.token]
            self._resolve(a, b"".join(a.pieces), None)

    def _pop_question(self, token: int) -> Future:
        a = self._open.pop(token, None)
        if a is None:
            raise ProtocolError(f"an answer to question {token}, which is not open")
        return a

    def _resolve(self, a: Future, value: Any, error: OmnibusError | None) -> None:
        s = self._session
        resolve(s, a, value, error)
        while self._waiting and len(self._open) < wire.MAX_QUESTIONS and s.error is None:
            nxt, question = self._waiting.popleft()
            try:
                self.ask_locked(nxt, question)
            except OmnibusError as e:
                resolve(s, nxt, None, e)

    def fail(self, error: OmnibusError) -> None:
        """Resolve all questions with the session's error."""
        questions, self._open = self._open, {}
        waiting, self._waiting = self._waiting, deque()
        for a in [*questions.values(), *(a for a, _ in waiting)]:
            resolve(self._session, a, None, error)
