"""Answers to questions: the host's, and those of this process, which tries something until it succeeds.

Open it for tokens, and for what is done with an answer that nobody waits for any more.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

from . import wire
from .errors import OmnibusError, OutOfMemory, ProtocolError, again, host_error, out_of_memory
from .locked import Core


class Answer:
    """What becomes of a question. Its fields are read by whoever asked, once it is done."""

    __slots__ = (
        "kind", "accept", "orphan", "value", "error", "done", "abandoned", "watchers", "pieces", "token", "void", "fd",
        "limit",
    )  # fmt: skip

    #: Others wait for it, too, and its descriptor outlives whoever asked.
    shared = False

    def __init__(
        self,
        kind: type,
        accept: Callable[[Any, Any], Any] | None = None,
        orphan: Callable[[Any], None] | None = None,
        void: Callable[[], None] | None = None,
    ) -> None:
        self.kind = kind
        self.accept = accept  # makes a value of the message; called with the lock held
        self.orphan = orphan  # takes back a value that nobody waits for any more; likewise
        self.void = void  # told that the answer is an error; likewise
        self.value: Any = None
        self.error: OmnibusError | None = None
        self.done = False
        self.abandoned = False
        self.watchers: list[Callable[[], object]] = []  # called once, without the lock, when it is done
        self.pieces: list[bytes] = []
        self.token: int | None = None  # once it was sent
        self.fd = -1  # a descriptor that goes with the question; the asker's
        self.limit: float | None = None  # by time.monotonic, when the value is None: nobody waits any longer

    # Both are called with the lock held.

    def settle(self, value: Any, error: OmnibusError | None) -> None:
        """It is there."""
        self.value, self.error, self.done = value, error, True
        if error is not None:
            if self.void is not None:
                self.void()
        elif self.abandoned and self.orphan is not None:
            self.orphan(value)

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        self.abandoned = True
        if self.done and self.error is None and self.orphan is not None:
            self.orphan(self.value)


class Attempt(Answer):
    """The answer is what `try_` returns, once that is not None. It is called with the lock held.

    Of attempts in the same line the first is made first, and the others when it has succeeded.
    """

    __slots__ = ("try_", "line")

    def __init__(self, try_: Callable[[], Any], line: object, orphan: Callable[[Any], None] | None = None) -> None:
        super().__init__(Attempt, None, orphan)
        self.try_ = try_
        self.line = line


def answered(s: Core, a: Answer, value: Any, error: OmnibusError | None) -> None:
    """An answer is there. The session's lock is held."""
    a.settle(value, error)
    s._calls += a.watchers


class Attempts:
    """Those of a session that have not succeeded. They are made again when it has news, or is poked."""

    def __init__(self, s: Core) -> None:
        self._session = s
        self._waiting: list[Attempt] = []

    def __bool__(self) -> bool:
        """Whether somebody waits. It is true before the first attempt is made, and may be asked without the lock."""
        return bool(self._waiting)

    def make(self, a: Attempt) -> Attempt:
        with self._session.locked:
            if self._session.error is not None:
                raise again(self._session.error)
            self._session.connection.unhold()  # whoever waits must not wait for that
            self._waiting.append(a)
            if len(self._waiting) == 1:
                self.again()
            else:
                self._session.notify()  # for those of others that succeed now
        return a

    def again(self) -> None:
        """Try what has not succeeded yet. The lock is held."""
        if not self._waiting:
            return
        blocked: set[object] = set()
        for a in list(self._waiting):
            if a.done or a.abandoned:
                self._waiting.remove(a)
            elif a.line not in blocked and not self._try(a):
                blocked.add(a.line)

    def _try(self, a: Attempt) -> bool:
        value, error = None, None
        try:
            value = a.try_()
        except OmnibusError as e:
            error = again(e)
        if value is None and error is None:
            return False
        self._waiting.remove(a)
        answered(self._session, a, value, error)
        return True

    def expire(self, a: Answer) -> None:
        """The time for it is up."""
        with self._session.locked:
            if not a.done:
                answered(self._session, a, None, None)

    def fail(self, error: OmnibusError) -> None:
        """The session has ended. The lock is held."""
        waiting, self._waiting = self._waiting, []
        for a in waiting:
            if not a.done:
                answered(self._session, a, None, error)


class Questions:
    """The questions of a session that are not answered, and which answer belongs to which.

    Methods are called with the session's lock held, but for `ask`, `watch`, `abandon` and `cancel`.
    """

    __slots__ = ("_open", "_waiting", "_token", "_s")

    def __init__(self, s: Core) -> None:
        self._open: dict[int, Answer] = {}
        self._waiting: deque[tuple[Answer, Callable[[int], Any]]] = deque()  # beyond the bound of open questions
        self._token = 0
        self._s = s

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting)

    def ask(
        self,
        kind: type,
        question: Callable[[int], wire.Message],
        accept: Callable[[Any, Any], Any] | None = None,
        orphan: Callable[[Any], None] | None = None,
    ) -> Answer:
        """Send a question; `question` makes the message, given the token."""
        with self._s.locked:
            return self.ask_locked(Answer(kind, accept, orphan), question)

    def ask_locked(self, a: Answer, question: Callable[[int], wire.Message]) -> Answer:
        """ask, with the lock held."""
        if self._s.error is not None:
            raise again(self._s.error)
        if len(self._open) >= wire.MAX_QUESTIONS:
            self._waiting.append((a, question))
            return a
        token = self._token
        while token in self._open:
            token = (token + 1) & 0xFFFFFFFF
        self._pose(a, question(token))  # raises if it cannot be sent, and then it was not asked
        self._token = (token + 1) & 0xFFFFFFFF
        self._open[token] = a
        a.token = token
        return a

    def _pose(self, a: Answer, m: wire.Message) -> None:
        if a.fd < 0:
            self._s.post(m)
            return
        try:
            fd = os.dup(a.fd)
        except OSError as e:
            raise out_of_memory("no descriptor to send", e.errno or 0) from e
        try:
            self._s.post(m, fd)
        except BaseException:
            os.close(fd)
            raise

    # By those who ask.

    def watch(self, a: Answer, f: Callable[[], object]) -> None:
        """Call f, in any thread, when an answer is there."""
        with self._s.locked:
            if a.done:
                self._s.call_later(f)
            else:
                a.watchers.append(f)

    def abandon(self, a: Answer) -> None:
        """Nobody waits for the answer any more: what it brings is given back."""
        if not self._s.ours:
            return
        with self._s.locked:
            if a.fd >= 0 and not a.shared:  # which the asker closes now
                self._waiting = deque(w for w in self._waiting if w[0] is not a)
            a.abandon()
            if a.kind is Attempt:
                self._s.notify()  # what stood in line behind it, or wants what it had

    def cancel(self, a: Answer) -> None:
        """abandon, and have the host forget a question that it keeps: of the exchange."""
        if not self._s.ours:
            return
        with self._s.locked:
            if a.kind is wire.Fetched and a.token is not None and not a.done:
                self._s.post(wire.Cancel(a.token))
            self._waiting = deque(w for w in self._waiting if w[0] is not a)
            a.abandon()

    # By the host.

    def on_failed(self, m: wire.Failed, _: int | None) -> None:
        self._answered(self._take(m.token), None, host_error(m.code, m.text))

    def on_answer(self, m: Any, fds: int | tuple[int, ...] | None) -> None:
        try:
            a = self._take(m.token)
            if a.kind is not type(m):
                raise ProtocolError(f"{type(m).__name__.lower()} answers another question")
        except ProtocolError:
            for fd in (fds,) if isinstance(fds, int) else fds or ():
                os.close(fd)  # what it brought, and nobody uses
            raise
        if a.accept is None:
            self._answered(a, m, None)
            return
        try:
            value = a.accept(m, fds)
        except OmnibusError as e:
            self._answered(a, None, again(e))
            if not isinstance(e, OutOfMemory):
                raise
        else:
            self._answered(a, value, None)

    def on_reply(self, m: wire.Reply, _: int | None) -> None:
        a = self._open.get(m.token)
        if a is None or a.kind is not wire.Reply:
            raise ProtocolError("reply answers no question")
        a.pieces.append(m.piece)
        if not m.flags & wire.MORE_PIECES:
            del self._open[m.token]
            self._answered(a, b"".join(a.pieces), None)

    def _take(self, token: int) -> Answer:
        a = self._open.pop(token, None)
        if a is None:
            raise ProtocolError(f"an answer to question {token}, which is not open")
        return a

    def _answered(self, a: Answer, value: Any, error: OmnibusError | None) -> None:
        s = self._s
        answered(s, a, value, error)
        while self._waiting and len(self._open) < wire.MAX_QUESTIONS and s.error is None:
            nxt, question = self._waiting.popleft()
            try:
                self.ask_locked(nxt, question)
            except OmnibusError as e:
                answered(s, nxt, None, e)

    def fail(self, error: OmnibusError) -> None:
        """The session has ended."""
        questions, self._open = self._open, {}
        waiting, self._waiting = self._waiting, deque()
        for a in [*questions.values(), *(a for a, _ in waiting)]:
            answered(self._s, a, None, error)
