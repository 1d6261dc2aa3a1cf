"""Memory that is shared with the host: its segments, and room of the client's own, of which the client keeps the books.

Room is for all payloads that do not travel in a message. The host says when a payload is returned, and its room is used
again. Payloads below 1 MiB lie side by side in segments of 16 MiB, each in the first room that fits. Larger ones have a
segment each, which is kept for the next one of that size: sizes are rounded up to one of eight from each power of two
to the next. What was in use last, and is in the processor's cache, comes first.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import headroom, wire
from .errors import Code, OutOfMemory, ProtocolError, TooLarge, out_of_memory
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, Gaps, Mapping

SEGMENT_BYTES = 16 << 20
LARGE_BYTES = 1 << 20  #: from here on a payload has a segment to itself
MAX_SEGMENTS = 1024  #: that are used again and again
HOST_BYTES = 1 << 30  #: that a host takes of one client at least, beside its largest payload
KEEP_BYTES = 256 << 20  #: of segments, above which one that nothing lies in is given up
MAX_ALONE = 3072  #: for one payload each; the host takes 4,096 of both

_SIZES_PER_DOUBLING = 8

_ALIGN = 64
_PAGE = 4096


class Room(NamedTuple):
    """Where a payload lies."""

    segment: int
    offset: int
    size: int  # of the room
    view: memoryview
    alone: bool = False  # the segment is for this payload


class Out:
    """A payload that was put and is not returned. Both are called with the session's lock held."""

    __slots__ = ()

    @property
    def keeps(self) -> bool:
        """Whether it keeps memory beside the payload, which others find only while this client is there."""
        return False

    def spent(self, bytes_too: bool) -> None:
        """Its place in the windows is free."""

    def returned(self) -> None:
        """Nobody needs it any more."""

    def lost(self) -> None:
        """Nobody will say when it is returned: the session has ended."""


NOTHING = Out()


class _Segment:
    """An arena, and what is free in it."""

    __slots__ = ("arena", "size", "large", "gaps")

    def __init__(self, arena: Arena, size: int, large: bool) -> None:
        self.arena = arena
        self.size = size
        self.large = large  # for one payload at a time
        self.gaps = Gaps(size)


def large_bytes(size: int) -> int:
    """The size of the segment for a large payload: at most an eighth more, so that few sizes serve all."""
    step = max(1 << (size - 1).bit_length() - 1, _SIZES_PER_DOUBLING) // _SIZES_PER_DOUBLING
    return -(-size // step) * step


class OwnRoom:
    """The rooms of a session. Called with its lock held.

    `post` sends a message, with a descriptor that it closes.
    """

    def __init__(self, post: Callable[[wire.Message, int], None]) -> None:
        self._post = post
        self.keep_bytes = KEEP_BYTES
        self.most_bytes = 0  # of all segments, those for one payload included, that the host takes; 0: it does not say
        self.most_segments, self._most_alone = MAX_SEGMENTS, MAX_ALONE
        self._offered = 0  # bytes of all of them
        self._segments: dict[int, _Segment] = {}
        self._small: dict[int, _Segment] = {}  # those for payloads side by side
        self._total = 0  # bytes of all
        self._spare: dict[int, list[int]] = {}  # large ones that nothing lies in, by their size
        self._alone = 0  # segments for one payload each
        self._last_segment = 0
        self._puts: dict[int, tuple[Room | None, Out]] = {}
        self._last_put = 0

    def bound_segments(self, told: int) -> None:
        """The host takes so many segments: it has a descriptor open for each."""
        self.most_segments = max(min(MAX_SEGMENTS, told // 4), 1)
        self._most_alone = max(min(MAX_ALONE, told - self.most_segments), 1)

    @property
    def busy(self) -> bool:
        """Whether something was put that has not been returned."""
        return bool(self._puts)

    @property
    def keeping(self) -> bool:
        """Whether something that was put keeps memory beside it."""
        return any(out.keeps for _, out in self._puts.values())

    def take(self, size: int, most: int) -> Room | None:
        """Room for a payload; None: it has to wait. All segments together have at most so many bytes.

        Raises TooLarge, and OutOfMemory when the system has none.
        """
        if size > most:
            raise TooLarge(Code.TOO_LARGE, f"a payload of {size} bytes, and an arena of {most}")
        if size >= LARGE_BYTES:
            return self._take_large(size, most)
        size = -(-max(size, 1) // _ALIGN) * _ALIGN
        for number, s in self._small.items():
            at = s.gaps.take(size)
            if at is not None:
                return Room(number, at, size, s.arena.view(at, size))
        return self._make(size, max(size, min(SEGMENT_BYTES, most)), most, False)

    def _take_large(self, size: int, most: int) -> Room | None:
        segment_size = _pages(min(large_bytes(size), max(size, most)))
        spare = self._spare.get(segment_size)
        if not spare:
            return self._make(size, segment_size, most, True)
        number = spare.pop()
        s = self._segments[number]
        s.gaps.take(s.size)
        return Room(number, 0, s.size, s.arena.view(0, size))

    def _make(self, size: int, segment_size: int, most: int, large: bool) -> Room | None:
        segment_size = _pages(segment_size)
        self._drop_empty(most - segment_size)
        if self._segments and (self._total + segment_size > most or len(self._segments) >= self.most_segments):
            return None
        number, arena = self._offer(segment_size)
        s = self._segments[number] = _Segment(arena, segment_size, large)
        self._total += segment_size
        if not large:
            self._small[number] = s
        taken = segment_size if large else size
        at = s.gaps.take(taken)
        assert at is not None
        return Room(number, at, taken, arena.view(at, size))

    def alone(self, size: int) -> Room:
        """A segment for one payload alone. Raises OutOfMemory."""
        if self._alone >= self._most_alone:
            raise OutOfMemory(
                Code.MEMORY,
                f"others have {self._alone} payloads that have a segment each: let them take these, or copy what they keep",
            )
        number, arena = self._offer(_pages(max(size, 1)))
        self._alone += 1
        return Room(number, 0, size, arena.view(0, size), True)

    def give(self, r: Room) -> None:
        """Take room back that nothing was put in."""
        if r.alone:
            self._alone -= 1
            self._offered -= _pages(max(r.size, 1))
            self._post(wire.Forget(r.segment), -1)
            return
        s = self._segments[r.segment]
        s.gaps.give(r.offset, r.size)
        if s.large:
            self._spare.setdefault(s.size, []).append(r.segment)
        if s.gaps.empty and self._total > self.keep_bytes:
            self._drop(r.segment, s)

    def put(self, r: Room | None, out: Out = NOTHING) -> int:
        """The number of a put, by which the room comes back. None: the payload is in the message."""
        self._last_put = self._last_put % 0xFFFFFFFF + 1
        while self._last_put in self._puts:
            self._last_put = self._last_put % 0xFFFFFFFF + 1
        self._puts[self._last_put] = r, out
        return self._last_put

    def unsaid(self, put: int) -> None:
        """The host was not told of a put. Its room is still the caller's."""
        del self._puts[put]

    def spent(self, put: int, bytes_too: bool) -> None:
        """The place of a put in its windows is free. It may be returned already."""
        if put in self._puts:
            self._puts[put][1].spent(bytes_too)

    def returned(self, put: int) -> None:
        """Nobody needs a put any more. Raises ProtocolError for one that there is none of."""
        if put not in self._puts:
            raise ProtocolError(f"put {put} is returned, and is not out")
        r, out = self._puts.pop(put)
        if r is not None and r.alone:  # such a segment the host forgets with its payload
            self._alone -= 1
            self._offered -= _pages(max(r.size, 1))
        elif r is not None:
            self.give(r)
        out.returned()

    def lost(self) -> None:
        """The session has ended: what the host has mapped stays with its readers."""
        puts, self._puts = self._puts, {}
        self._segments.clear()
        self._small.clear()
        self._spare.clear()
        self._total = self._offered = 0
        for _, out in puts.values():
            out.lost()

    def used(self) -> tuple[int, int]:
        """The bytes of all segments, and their number."""
        return self._total, len(self._segments)

    def _drop_empty(self, most: int) -> None:
        """Give segments up that nothing lies in, until the rest have at most so many bytes."""
        for number, s in list(self._segments.items()):
            if self._total <= most and len(self._segments) < self.most_segments:
                return
            if s.gaps.empty:
                self._drop(number, s)

    def _drop(self, number: int, s: _Segment) -> None:
        """Give a segment up that nothing lies in."""
        del self._segments[number]
        self._total -= s.size
        self._offered -= s.size
        if s.large:
            self._spare[s.size].remove(number)
        else:
            del self._small[number]
        self._post(wire.Forget(number), -1)

    def _offer(self, size: int) -> tuple[int, Arena]:
        if 0 < self.most_bytes < self._offered + size:
            raise OutOfMemory(
                Code.MEMORY,
                f"no segment of {size} bytes: this process lends the host {self._offered}, and the host takes {self.most_bytes}: let "
                "others take the payloads, or raise large_bytes in the pipeline file",
            )
        headroom.check(f"no segment of {size} bytes", size)
        self._last_segment += 1
        fd = -1
        try:
            fd = os.memfd_create("omnibus-room", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.posix_fallocate(fd, 0, size)  # what has no memory is refused here, and not by a signal
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
            arena = Arena(self._last_segment, fd, size)
        except BaseException as e:
            if fd >= 0:
                os.close(fd)
            if isinstance(e, OSError):
                raise out_of_memory(f"no segment of {size} bytes", e.errno or 0) from None
            raise
        self._offered += size
        self._post(wire.Offer(self._last_segment, size), fd)
        return self._last_segment, arena


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


class Segments:
    """The segments of the host, in which payloads arrive, as a session has mapped them. Called with its lock held."""

    __slots__ = ("mapped",)

    def __init__(self) -> None:
        self.mapped: dict[int, Mapping] = {}

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
