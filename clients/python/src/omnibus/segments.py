"""Memory shared with the host: the host's segments, and the client's own segments with their allocator.

Blocks of own segments hold all payloads that do not travel in a message. The host says when a payload is returned,
and its block is free again. Payloads below 1 MiB are allocated first-fit in segments of 16 MiB. Larger payloads have
a segment each, which is reused for the next payload of that size class: there are eight classes from each power of
two to the next. Recently used memory, which is likely in the processor's cache, is allocated first.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import headroom, wire
from .errors import Code, OutOfMemory, ProtocolError, TooLarge, out_of_memory
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, FreeList, Mapping

SEGMENT_BYTES = 16 << 20
LARGE_BYTES = 1 << 20  #: payloads of this size or more have a segment each
MAX_SEGMENTS = 1024  #: bound of reused segments
HOST_BYTES = 1 << 30  #: the least that a host accepts from one client, besides its largest payload
KEEP_BYTES = 256 << 20  #: when the segments exceed this, empty ones are dropped
MAX_DEDICATED = 3072  #: bound of segments for one payload each; the host accepts 4,096 of both kinds

_SIZES_PER_DOUBLING = 8

_ALIGN = 64
_PAGE = 4096


class Block(NamedTuple):
    """Allocated memory for one payload."""

    segment: int
    offset: int
    size: int  # allocated bytes
    view: memoryview
    dedicated: bool = False  # the segment holds only this payload, and is forgotten with it


class OutstandingPut:
    """The callbacks of a put that the host has not returned yet. Called with the session's lock held."""

    __slots__ = ()

    @property
    def retains_memory(self) -> bool:
        """Whether it retains memory besides the payload, which other processes find only while this client is
        connected."""
        return False

    def spent(self, bytes_too: bool) -> None:
        """The windows have its credit again: its count and, with `bytes_too`, its bytes."""

    def returned(self) -> None:
        """No process needs the payload any more."""

    def session_ended(self) -> None:
        """The session has ended, so `returned` will not be called."""


PLAIN_PUT = OutstandingPut()


class _Segment:
    """A segment of the client's own, and its free list."""

    __slots__ = ("arena", "size", "large", "free_list")

    def __init__(self, arena: Arena, size: int, large: bool) -> None:
        self.arena = arena
        self.size = size
        self.large = large  # holds one payload at a time
        self.free_list = FreeList(size)


def large_bytes(size: int) -> int:
    """The segment size for a large payload: at most an eighth more, so that few size classes serve all."""
    step = max(1 << (size - 1).bit_length() - 1, _SIZES_PER_DOUBLING) // _SIZES_PER_DOUBLING
    return -(-size // step) * step


class BlockAllocator:
    """Allocates the blocks of a session, and tracks its puts. Called with the session's lock held.

    `post` sends a message, with a descriptor that it takes.
    """

    def __init__(self, post: Callable[[wire.Message, int], None]) -> None:
        self._post = post
        self.keep_bytes = KEEP_BYTES
        self.max_bytes = 0  # of all segments, dedicated ones included, that the host accepts; 0: it does not say
        self.max_segments, self._max_dedicated = MAX_SEGMENTS, MAX_DEDICATED
        self._offered = 0  # bytes of all segments, dedicated ones included
        self._segments: dict[int, _Segment] = {}
        self._small: dict[int, _Segment] = {}  # segments for several payloads
        self._total = 0  # bytes of the reused segments
        self._free_large: dict[int, list[int]] = {}  # empty large segments, by size
        self._dedicated = 0  # number of dedicated segments
        self._last_segment = 0
        self._puts: dict[int, tuple[Block | None, OutstandingPut]] = {}
        self._last_put = 0

    def limit_segments(self, accepted: int) -> None:
        """Set the bounds from the number of segments that the host accepts: it has a descriptor open for each."""
        self.max_segments = max(min(MAX_SEGMENTS, accepted // 4), 1)
        self._max_dedicated = max(min(MAX_DEDICATED, accepted - self.max_segments), 1)

    @property
    def has_puts(self) -> bool:
        """Whether a put has not been returned."""
        return bool(self._puts)

    @property
    def retains_memory(self) -> bool:
        """Whether a put retains memory besides its payload."""
        return any(out.retains_memory for _, out in self._puts.values())

    def allocate(self, size: int, most: int) -> Block | None:
        """A block for a payload; None if it has to wait. All reused segments together have at most `most` bytes.

        Raises TooLarge, and OutOfMemory when the system has no memory.
        """
        if size > most:
            raise TooLarge(Code.TOO_LARGE, f"a payload of {size} bytes, and an arena of {most}")
        if size >= LARGE_BYTES:
            return self._allocate_large(size, most)
        size = -(-max(size, 1) // _ALIGN) * _ALIGN
        for number, s in self._small.items():
            at = s.free_list.allocate(size)
            if at is not None:
                return Block(number, at, size, s.arena.view(at, size))
        return self._allocate_in_new_segment(size, max(size, min(SEGMENT_BYTES, most)), most, False)

    def _allocate_large(self, size: int, most: int) -> Block | None:
        segment_size = _pages(min(large_bytes(size), max(size, most)))
        spare = self._free_large.get(segment_size)
        if not spare:
            return self._allocate_in_new_segment(size, segment_size, most, True)
        number = spare.pop()
        s = self._segments[number]
        s.free_list.allocate(s.size)
        return Block(number, 0, s.size, s.arena.view(0, size))

    def _allocate_in_new_segment(self, size: int, segment_size: int, most: int, large: bool) -> Block | None:
        segment_size = _pages(segment_size)
        self._drop_empty(most - segment_size)
        if self._segments and (self._total + segment_size > most or len(self._segments) >= self.max_segments):
            return None
        number, arena = self._offer(segment_size)
        s = self._segments[number] = _Segment(arena, segment_size, large)
        self._total += segment_size
        if not large:
            self._small[number] = s
        taken = segment_size if large else size
        at = s.free_list.allocate(taken)
        assert at is not None
        return Block(number, at, taken, arena.view(at, size))

    def allocate_dedicated(self, size: int) -> Block:
        """A block in a segment of its own. Raises OutOfMemory."""
        if self._dedicated >= self._max_dedicated:
            raise OutOfMemory(
                Code.MEMORY,
                f"other processes hold {self._dedicated} payloads with a segment each: let them finish these, or copy kept payloads",
            )
        number, arena = self._offer(_pages(max(size, 1)))
        self._dedicated += 1
        return Block(number, 0, size, arena.view(0, size), True)

    def free(self, r: Block) -> None:
        """Free a block that has no put, or whose put was returned."""
        if r.dedicated:
            self._dedicated -= 1
            self._offered -= _pages(max(r.size, 1))
            self._post(wire.Forget(r.segment), -1)
            return
        s = self._segments[r.segment]
        s.free_list.free(r.offset, r.size)
        if s.large:
            self._free_large.setdefault(s.size, []).append(r.segment)
        if s.free_list.empty and self._total > self.keep_bytes:
            self._drop(r.segment, s)

    def register_put(self, r: Block | None, out: OutstandingPut = PLAIN_PUT) -> int:
        """A new put: its number, by which the host returns the block. A block of None is a payload in the message."""
        self._last_put = self._last_put % 0xFFFFFFFF + 1
        while self._last_put in self._puts:
            self._last_put = self._last_put % 0xFFFFFFFF + 1
        self._puts[self._last_put] = r, out
        return self._last_put

    def cancel_put(self, put: int) -> None:
        """Undo `register_put`: the put was not sent. The caller still owns the block."""
        del self._puts[put]

    def spent(self, put: int, bytes_too: bool) -> None:
        """The host has freed a put's share of the windows. The put may be returned already."""
        if put in self._puts:
            self._puts[put][1].spent(bytes_too)

    def returned(self, put: int) -> None:
        """The host has returned a put. Raises ProtocolError if there is no such put."""
        if put not in self._puts:
            raise ProtocolError(f"put {put} is returned, but not outstanding")
        r, out = self._puts.pop(put)
        if r is not None and r.dedicated:  # the host forgets such a segment with its payload
            self._dedicated -= 1
            self._offered -= _pages(max(r.size, 1))
        elif r is not None:
            self.free(r)
        out.returned()

    def session_ended(self) -> None:
        """Drop all segments and puts: the session has ended. Readers keep the segments that they have mapped."""
        puts, self._puts = self._puts, {}
        self._segments.clear()
        self._small.clear()
        self._free_large.clear()
        self._total = self._offered = 0
        for _, out in puts.values():
            out.session_ended()

    def used(self) -> tuple[int, int]:
        """The bytes of the reused segments, and their number."""
        return self._total, len(self._segments)

    def _drop_empty(self, most: int) -> None:
        """Drop empty segments until the rest have at most `most` bytes."""
        for number, s in list(self._segments.items()):
            if self._total <= most and len(self._segments) < self.max_segments:
                return
            if s.free_list.empty:
                self._drop(number, s)

    def _drop(self, number: int, s: _Segment) -> None:
        """Drop an empty segment."""
        del self._segments[number]
        self._total -= s.size
        self._offered -= s.size
        if s.large:
            self._free_large[s.size].remove(number)
        else:
            del self._small[number]
        self._post(wire.Forget(number), -1)

    def _offer(self, size: int) -> tuple[int, Arena]:
        if 0 < self.max_bytes < self._offered + size:
            raise OutOfMemory(
                Code.MEMORY,
                f"no segment of {size} bytes: this process lends the host {self._offered}, and the host takes {self.max_bytes}: let "
                "other processes finish payloads, or raise large_bytes in the pipeline file",
            )
        headroom.check(f"no segment of {size} bytes", size)
        self._last_segment += 1
        fd = -1
        try:
            fd = os.memfd_create("omnibus-room", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
            os.posix_fallocate(fd, 0, size)  # fails here if memory is short; a page fault would raise SIGBUS later
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


class HostSegments:
    """The mapped segments of the host, in which payloads arrive. Called with the session's lock held."""

    __slots__ = ("mapped",)

    def __init__(self) -> None:
        self.mapped: dict[int, Mapping] = {}

    def of(self, m: wire.Deliver | wire.Fetched) -> Mapping:
        """The segment of a delivery. Raises ProtocolError if it is unknown, or the payload exceeds it."""
        mapping = self.mapped.get(m.segment)
        if mapping is None:
            raise ProtocolError(f"delivery {m.delivery} is in segment {m.segment}, which is unknown")
        mapping.check(m.offset, m.size)
        return mapping

    def on_segment(self, m: wire.Segment, fd: int | None) -> None:
        assert fd is not None
        try:
            if m.segment in self.mapped:
                raise ProtocolError(f"segment {m.segment} exists already")
            self.mapped[m.segment] = Mapping(fd, m.bytes)
        finally:
            os.close(fd)

    def on_forget(self, m: wire.Forget, _: Any) -> None:
        # Its deliveries and views keep the mapping.
        self.mapped.pop(m.segment, None)

    def clear(self) -> None:
        """Forget all segments: the session has ended. Segments with views stay mapped."""
        self.mapped.clear()
