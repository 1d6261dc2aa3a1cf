"""Memory that the host shares: segments in which payloads arrive, and the arena for what goes out.

Open it for who maps what, and when. Room of the client's own is in `room`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import wire
from .answers import Answer
from .errors import OutOfMemory, ProtocolError
from .memory import Arena, Mapping

if TYPE_CHECKING:
    from .session import Session, Work


class Segments:
    """Those of a session. Called with its lock held, but for `arena_work`."""

    __slots__ = ("arena", "mapped", "_asked", "_given", "_given_fd", "_s")

    def __init__(self, s: Session) -> None:
        self.arena: Arena | None = None  #: once it is there
        self.mapped: dict[int, Mapping] = {}
        self._asked: Answer | None = None  # for the arena
        self._given: wire.ArenaAt | None = None  # an arena that could not be mapped yet, ...
        self._given_fd = -1  # ... and its descriptor
        self._s = s

    def of(self, m: wire.Deliver | wire.Fetched) -> Mapping:
        """The segment that a delivery names, with its payload in bounds."""
        mapping = self.mapped.get(m.segment)
        if mapping is None:
            raise ProtocolError(f"delivery {m.delivery} is in segment {m.segment}, which is not here")
        mapping.check(m.offset, m.size)
        return mapping

    def on_segment(self, m: wire.Segment, fd: int | None) -> None:
        assert fd is not None
        try:
            if m.segment in self.mapped:
                raise ProtocolError(f"segment {m.segment} is there already")
            self.mapped[m.segment] = Mapping(fd, m.bytes)
        finally:
            os.close(fd)

    def on_forget(self, m: wire.Forget, _: Any) -> None:
        # Its deliveries and views keep the mapping for as long as they last.
        self.mapped.pop(m.segment, None)

    def clear(self) -> None:
        """The session has ended. What is still viewed stays mapped."""
        self.mapped.clear()
        self.arena = None
        self._give_up()

    def arena_work(self) -> Work[Arena]:
        """The arena, asked for once."""
        s = self._s

        def accept(m: wire.ArenaAt, fd: int) -> Arena:
            self._asked, self._given, self._given_fd = None, m, fd
            return self._map_given(m)

        with s.locked:
            if self.arena is not None:
                return self.arena
            if self._given is not None:
                return self._map_given(self._given)
            if self._asked is None or self._asked.error is not None:
                a = Answer(wire.ArenaAt, accept, None)
                self._asked = s.questions.ask_locked(a, lambda token: wire.Arena(token, s.arena_bytes))
            a = self._asked
        arena: Arena = yield a  # several may wait for the one answer
        return arena

    def _map_given(self, m: wire.ArenaAt) -> Arena:
        """Map the arena. The host gives no second one: where memory or descriptors are short, this one waits."""
        try:
            self.arena = Arena(m.segment, self._given_fd, m.bytes)
        except OutOfMemory:
            raise
        except BaseException:
            self._give_up()
            raise
        self._give_up()
        self._s.post(wire.Sealed(m.segment))
        return self.arena

    def _give_up(self) -> None:
        fd, self._given, self._given_fd = self._given_fd, None, -1
        if fd >= 0:
            os.close(fd)


def to_fill(segment: int, fd: int, size: int | None) -> Arena:
    """Map and seal memory to write; without a size, all of it. Takes the descriptor."""
    try:
        return Arena(segment, fd, os.fstat(fd).st_size if size is None else size)
    finally:
        os.close(fd)
