"""Answers to questions: the host's, and those of this process, which tries something until it succeeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import OmnibusError, again
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
