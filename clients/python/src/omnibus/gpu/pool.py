"""A pool of GPU memory in chunks, which this process shares with the receivers of its tensors.

The Go package `cudaipc/pool` has the format: arenas, and words for each used chunk, 64 bytes a slot. A reference to a
`Piece` keeps its chunk. The chunk is freed when the last reference is gone and the streams have done their work there.
A finalizer may free it at any point, so it only queues the chunk, and the next allocation collects the queue.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..bundle import HANDLE, POOL, Place
from ..devices.contract import DeviceLost, DriverError, OwnMemory, StreamSet, SendingDevice, uuid_text
from ..devices.words import FAULT, READY, SLOT_BYTES, reached
from ..errors import ForkedError, PoolFull
from ..fences import fence
from ..memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, FreeList

GRANULE = 256  # an alignment at which all copy engines and libraries are fast
WORDS = 0  # the number of a pool's words; arenas are numbered from 1

BLOCK, SPILL, FAIL = "block", "spill", "fail"


@dataclass(frozen=True)
class Options:
    """The options of sending tensors in GPU memory."""

    #: The GPU: CUDA's number, or a UUID. None: that of the first sent tensor, or the first GPU.
    device: int | bytes | None = None
    arena_bytes: int = 256 << 20  #: of one arena; chunks are at most half as large
    max_bytes: int = 1 << 30  #: of all
    slots: int = 4096  #: chunks in use at a time
    #: For tensors that the pool has no space for: "spill" sends them through host memory, "block" waits, "fail" raises
    #: PoolFull.
    when_full: str = SPILL
    #: How many seconds to wait for space before that: 0.02 by default, and without a limit with "block". A limit with
    #: "block" ends in PoolFull.
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.when_full not in (BLOCK, SPILL, FAIL):
            raise ValueError(f"when_full {self.when_full!r}: use {BLOCK!r}, {SPILL!r} or {FAIL!r}")
        if not (1 << 16 <= self.arena_bytes <= self.max_bytes and 1 <= self.slots <= 1 << 20):
            raise ValueError(f"arena_bytes from 64 KiB up to max_bytes, and 1 to {1 << 20} slots: {self}")

    @property
    def wait_seconds(self) -> float | None:
        """How long to wait for space, in seconds; None: without a limit."""
        return 0.02 if self.timeout is None and self.when_full != BLOCK else self.timeout


class _Arena(FreeList):
    """An arena, and its free ranges."""

    __slots__ = ("number", "memory", "pieces")

    def __init__(self, number: int, memory: OwnMemory) -> None:
        super().__init__(memory.size)
        self.number = number
        self.memory = memory
        self.pieces: dict[int, weakref.ref[Piece]] = {}  # by offset


class _Reservation:
    """A slot, and its range of an arena. They are freed when this object is collected."""

    __slots__ = ("pool", "slot", "generation", "arena", "offset", "size", "ready", "fault", "_process")

    def __init__(self, pool: Pool, slot: int, generation: int, arena: _Arena | None, offset: int, size: int) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.arena = arena  # None: the slot has no range
        self.offset = offset
        self.size = size
        self.ready, self.fault = pool.word(slot, READY), pool.word(slot, FAULT)
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:
            self.pool.freed((self.slot, self.arena, self.offset, self.size))


class Piece:
    """A chunk, or lent memory outside of the pool, as one generation of a slot.

    It belongs to one thread until it is sent. Users of its memory, and payloads that name it, hold references. After the
    last one it is freed as soon as the streams of its users have done their work.
    """

    __slots__ = ("device", "sent", "complete", "streams", "kept_alive", "published", "_reservation", "__weakref__")

    def __init__(self, device: SendingDevice, room: _Reservation, published: Any) -> None:
        self.device = device
        self.sent = False
        self.complete = False  # the word is written, or a stream will write it
        self.streams: StreamSet | None = None  # set by the device
        self.kept_alive: list[Any] = []  # kept until no process reads it
        self.published = published  # must be published before a payload names the piece
        self._reservation = room

    @property
    def pool(self) -> Pool:
        return self._reservation.pool

    @property
    def pointer(self) -> int:
        """The device address of its start."""
        r = self._reservation
        assert r.arena is not None
        return r.arena.memory.address + r.offset

    @property
    def nbytes(self) -> int:
        return self._reservation.size

    @property
    def slot(self) -> int:
        return self._reservation.slot

    @property
    def generation(self) -> int:
        return self._reservation.generation

    def word_address(self) -> int:
        """The device address of its words."""
        return self._reservation.pool.registered.address + SLOT_BYTES * self._reservation.slot

    def chunk_place(self, nbytes: int) -> Place:
        """The place of a chunk, as payloads have it."""
        r = self._reservation
        assert r.arena is not None
        return Place(POOL, nbytes, r.offset, self.device.uuid, r.pool.id, r.slot, r.generation, r.arena.number)

    def handle_place(self, handle: bytes, offset: int, nbytes: int) -> Place:
        """The place of lent memory, as payloads have it."""
        r = self._reservation
        return Place(HANDLE, nbytes, offset, self.device.uuid, r.pool.id, r.slot, r.generation, 0, handle)

    @property
    def is_settled(self) -> bool:
        """Whether the word says that it is complete, or never will be."""
        return reached(self._reservation.ready.value, self._reservation.generation)

    @property
    def is_failed(self) -> bool:
        """Whether the word says that it never will be complete."""
        return bool(self._reservation.fault.value == self._reservation.generation)

    def mark_complete(self) -> None:
        """Write that it is complete. A reader of that sees all earlier writes."""
        fence()
        self._reservation.ready.value = self._reservation.generation

    def mark_failed(self) -> None:
        """Write that it never will be complete, unless it is."""
        if not self.is_settled:
            self._reservation.fault.value = self._reservation.generation
            self.mark_complete()

    def __del__(self) -> None:
        streams = self.streams
        if streams is not None and os.getpid() == self._reservation._process:
            streams.drop_when_done((self._reservation, self.kept_alive))


class Pool:
    """The pool of a session. Its methods but `freed` are called under the session's lock.

    `poke` wakes the calls that wait for space.
    """

    def __init__(self, device: SendingDevice, options: Options, poke: Callable[[], object]) -> None:
        self.id = os.urandom(16)
        self.device = device
        self.options = options
        self._wake_waiters = poke
        self._process = os.getpid()
        size = SLOT_BYTES * options.slots
        self.words_fd = os.memfd_create("omnibus-gpu-words", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.words_fd, size)
        fcntl.fcntl(self.words_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        self._words = Arena(0, self.words_fd, size)
        self._words_at = ctypes.addressof(ctypes.c_char.from_buffer(self._words.memory))
        #: The words, registered with the device.
        self.registered = device.register(self._words_at, size, self._words.memory)
        self.words_published = Published(WORDS, self.words_fd, size)
        self._generations = [0] * options.slots
        self._slots = list(range(options.slots - 1, -1, -1))  # the free ones; the last is used next
        self._arenas: list[tuple[_Arena, Published]] = []
        self._freed: deque[tuple[int, _Arena | None, int, int]] = deque()

    def __del__(self) -> None:
        if hasattr(self, "words_fd"):
            os.close(self.words_fd)

    @property
    def max_bytes(self) -> int:
        """The largest chunk."""
        return self.options.arena_bytes // 2

    @property
    def in_use(self) -> int:
        """The number of pieces with a reference."""
        self._collect_freed()
        return self.options.slots - len(self._slots)

    def word(self, slot: int, at: int) -> Any:
        """A word of a slot. It keeps the memory alive."""
        return ctypes.c_uint32.from_buffer(self._words.memory, SLOT_BYTES * slot + at)

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that created the pool."""
        if os.getpid() != self._process:
            raise ForkedError(f"the pool belongs to process {self._process}, and this is {os.getpid()}: connect here")

    def allocate(self, nbytes: int) -> Piece | None:
        """Allocate a chunk; None: there is no space. Raises DriverError if the device has no memory for the first arena."""
        self._collect_freed()
        size = -(-max(nbytes, 1) // GRANULE) * GRANULE
        if not self._slots or size > self.max_bytes:
            return None
        for arena, published in self._arenas:
            if (at := arena.allocate(size)) is not None:
                return self._new_piece(arena, at, size, published)
        try:
            made = self._add_arena()
        except DriverError as e:
            if not self._arenas or isinstance(e, DeviceLost):
                raise
            made = None  # the device has no memory left; the existing arenas will have space again
        if made is None:
            return None
        at = made[0].allocate(size)
        assert at is not None
        return self._new_piece(made[0], at, size, made[1])

    def allocate_lent(self) -> Piece | None:
        """Allocate a piece without memory of the pool; None: there is no slot."""
        self._collect_freed()
        return self._new_piece(None, 0, 0, self.words_published) if self._slots else None

    def _new_piece(self, arena: _Arena | None, at: int, size: int, published: Published) -> Piece:
        slot = self._slots.pop()
        generation = self._generations[slot] = self._generations[slot] % 0xFFFFFFFF + 1
        room = _Reservation(self, slot, generation, arena, at, size)
        # The old words may be so far behind that, modulo 2^32, they would count as ahead.
        room.fault.value, room.ready.value = 0, generation - 1
        piece = Piece(self.device, room, published)
        if arena is not None:
            arena.pieces[at] = weakref.ref(piece)
        return piece

    def _add_arena(self) -> tuple[_Arena, Published] | None:
        total = sum(a.size for a, _ in self._arenas)
        if self._arenas and total + self.options.arena_bytes > self.options.max_bytes:
            return None
        memory = self.device.new_arena(self.options.arena_bytes)
        number = len(self._arenas) + 1
        made = _Arena(number, memory), Published(number, memory.fd, memory.size)
        self._arenas.append(made)
        return made

    def piece_at(self, address: int, nbytes: int) -> Piece | None:
        """The piece that contains all of these bytes, or None."""
        for arena, _ in self._arenas:
            start = address - arena.memory.address
            if not 0 <= start < arena.size:
                continue
            for at, ref in list(arena.pieces.items()):
                piece = ref()
                if piece is not None and at <= start and start + nbytes <= at + piece.nbytes:
                    return piece
        return None

    # Freeing.

    def freed(self, room: tuple[int, _Arena | None, int, int]) -> None:
        """Queue the slot and range of a piece without references. A finalizer calls it in any thread, at any point."""
        self._freed.append(room)
        self._wake_waiters()

    def _collect_freed(self) -> None:
        while self._freed:
            slot, arena, offset, size = self._freed.popleft()
            if arena is not None:
                del arena.pieces[offset]
                arena.free(offset, size)
            self._slots.append(slot)

    def full_error(self, nbytes: int) -> PoolFull:
        """The error for a lack of space."""
        what, o = f"no room for {nbytes} bytes on {uuid_text(self.device.uuid)}", self.options
        if nbytes > self.max_bytes:
            return PoolFull(f"{what}: chunks have at most {self.max_bytes}, half of arena_bytes")
        return PoolFull(f"{what} in {o.wait_seconds} seconds: {self.in_use} chunks of {o.max_bytes} bytes are in use")


class Published:
    """A descriptor that is published under the pool's name before its first use."""

    __slots__ = ("number", "fd", "size", "answer")

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number, self.fd, self.size = number, fd, size
        self.answer: Any = None  # of the host to the publication; several calls may wait for it


__all__ = ["BLOCK", "FAIL", "GRANULE", "SPILL", "Options", "Piece", "Pool", "Published"]
