"""Room for an output that is asked for before the handler asks.

A task that has reserved the same room twice in a row is expected to do so again, so the
question goes out as soon as a delivery is finished, and the next handling finds the answer
there. One such room waits at most. Nothing else of the task waits for the credit that it
has: it is not asked for while another question of the task is open, and given back when the
task asks for something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from . import wire

if TYPE_CHECKING:
    from .answers import Answer
    from .session import Session

#: While so many questions are open, none is asked that nobody waits for.
_QUESTIONS = wire.MAX_QUESTIONS // 4


class Room(NamedTuple):
    """What is asked for by `reserve`."""

    edge: int
    codec: int
    size: int

    def serves(self, other: Room) -> bool:
        """Whether it does in place of another, without too much of it left over."""
        return other.size <= self.size <= 2 * other.size and self.edge == other.edge and self.codec == other.codec


class Ahead:
    """The room that one task has asked for ahead. Its methods are called with the session's lock held."""

    __slots__ = ("_last", "_steady", "_answer", "_others")

    def __init__(self) -> None:
        self._last: Room | None = None  # what the task reserved last
        self._steady: bool | None = False  # whether the next is expected to be like it; None: no more
        self._answer: Answer | None = None
        self._others: list[Answer] = []  # to questions of the task that somebody waits for

    def asked(self, answer: Answer) -> Answer:
        """Note a question of the task."""
        if self._steady is not None:
            self._others = [a for a in self._others if not a.done]
            self._others.append(answer)
        return answer

    def take(self, s: Session, room: Room) -> Answer | None:
        """What was asked for already, if it serves."""
        if self._steady is None:
            return None
        self._steady = self._last is not None and self._last.serves(room)
        if not self._steady:
            self.drop(s)
            self._last = room
        answer, self._answer = self._answer, None
        return answer

    def ask(self, s: Session, reserve: Callable[[Room, int], Answer]) -> None:
        """Ask for what the next handling is expected to reserve."""
        if not self._steady or self._answer is not None or s.error is not None or len(s.questions) >= _QUESTIONS:
            return
        if not all(a.done for a in self._others):
            return
        assert self._last is not None
        self._answer = reserve(self._last, 0)

    def drop(self, s: Session, for_good: bool = False) -> None:
        """Give it back: now, or when it comes."""
        if self._answer is None:
            return
        self._answer.abandon()
        self._answer = None
        self._steady = None if for_good else False
