"""Memory of a GPU that this process shares with those that it sends tensors to, in chunks.

The Go package `cudaipc/pool` has the format: arenas, and words for each chunk that is in use, 64 bytes a slot. Who has
a `Piece` has its chunk: it goes back when the last of them lets go, and what streams were given to do
there is done. That may be anywhere, in the middle of anything; so it is noted, and looked at by whoever wants room.
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
from ..devices.contract import DeviceLost, DriverError, OwnMemory, Reading, SendingDevice, uuid_text
from ..devices.words import FAULT, READY, SLOT_BYTES, reached
from ..errors import ForkedError, PoolFull
from ..fences import fence
from ..memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, FreeList

GRANULE = 256  # a multiple that every copy engine, and every library, is at its best with
WORDS = 0  # the number of a pool's words; arenas count from 1

BLOCK, SPILL, FAIL = "block", "spill", "fail"


@dataclass(frozen=True)
class Options:
    """How a process sends tensors in the memory of a GPU."""

    #: The GPU: a number of CUDA's, or a UUID. None: that of the first tensor that is sent, or the first.
    device: int | bytes | None = None
    arena_bytes: int = 256 << 20  #: of one arena; chunks are at most half as large
    max_bytes: int = 1 << 30  #: of all
    slots: int = 4096  #: chunks in use at a time
    #: What becomes of tensors that the pool has no room for: "spill", they go through the host's memory; "block", they
    #: wait; "fail", PoolFull.
    when_full: str = SPILL
    #: For how many seconds room is waited for before that; by default 0.02, and with "block" for ever. That, too, ends
    #: with PoolFull.
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.when_full not in (BLOCK, SPILL, FAIL):
            raise ValueError(f"when_full {self.when_full!r}: use {BLOCK!r}, {SPILL!r} or {FAIL!r}")
        if not (1 << 16 <= self.arena_bytes <= self.max_bytes and 1 <= self.slots <= 1 << 20):
            raise ValueError(f"arena_bytes from 64 KiB up to max_bytes, and 1 to {1 << 20} slots: {self}")

    @property
    def patience(self) -> float | None:
        """For how long room is waited for."""
        return 0.02 if self.timeout is None and self.when_full != BLOCK else self.timeout


class _Arena(FreeList):
    """An arena, and what is free in it."""

    __slots__ = ("number", "memory", "pieces")

    def __init__(self, number: int, memory: OwnMemory) -> None:
        super().__init__(memory.size)
        self.number = number
        self.memory = memory
        self.pieces: dict[int, weakref.ref[Piece]] = {}  # by where they begin


class _Room:
    """A slot, and what it has of an arena. The pool has it back when this is collected."""

    __slots__ = ("pool", "slot", "generation", "arena", "offset", "size", "ready", "fault", "_process")

    def __init__(self, pool: Pool, slot: int, generation: int, arena: _Arena | None, offset: int, size: int) -> None:
        self.pool = pool
        self.slot = slot
        self.generation = generation
        self.arena = arena  # None: it takes no room
        self.offset = offset
        self.size = size
        self.ready, self.fault = pool.word(slot, READY), pool.word(slot, FAULT)
        self._process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() == self._process:
            self.pool.freed((self.slot, self.arena, self.offset, self.size))


class Piece:
    """A chunk, or what is lent of somebody else's memory, as one generation of a slot.

    It belongs to one thread until it is sent. Whoever was given its memory has it, and so has each payload that
    names it; when the last is gone, it goes back once the streams that were given to those have come so far.
    """

    __slots__ = ("device", "sent", "complete", "reading", "lent", "published", "_room", "__weakref__")

    def __init__(self, device: SendingDevice, room: _Room, published: Any) -> None:
        self.device = device
        self.sent = False
        self.complete = False  # the word was written, or a stream was given that to do
        self.reading: Reading | None = None  # the device's: streams that use it
        self.lent: list[Any] = []  # what is kept until nobody reads it
        self.published = published  # what others must know before they hear of the piece
        self._room = room

    @property
    def pool(self) -> Pool:
        return self._room.pool

    @property
    def pointer(self) -> int:
        """Where it begins, on the device."""
        r = self._room
        assert r.arena is not None
        return r.arena.memory.address + r.offset

    @property
    def nbytes(self) -> int:
        return self._room.size

    @property
    def slot(self) -> int:
        return self._room.slot

    @property
    def generation(self) -> int:
        return self._room.generation

    def words_at(self) -> int:
        """Where its words are, on the device."""
        return self._room.pool.registered.address + SLOT_BYTES * self._room.slot

    def place(self, nbytes: int) -> Place:
        """What payloads say of a chunk."""
        r = self._room
        assert r.arena is not None
        return Place(POOL, nbytes, r.offset, self.device.uuid, r.pool.id, r.slot, r.generation, r.arena.number)

    def handle_place(self, handle: bytes, offset: int, nbytes: int) -> Place:
        """What payloads say of memory that is lent."""
        r = self._room
        return Place(HANDLE, nbytes, offset, self.device.uuid, r.pool.id, r.slot, r.generation, 0, handle)

    @property
    def settled(self) -> bool:
        """Whether the word says that it is complete, or never will be."""
        return reached(self._room.ready.value, self._room.generation)

    @property
    def failed(self) -> bool:
        """Whether the word says that it never will be complete."""
        return bool(self._room.fault.value == self._room.generation)

    def settle(self) -> None:
        """Say that it is complete. All that was written before is seen by whoever sees that."""
        fence()
        self._room.ready.value = self._room.generation

    def fail(self) -> None:
        """Say that it never will be, unless it is."""
        if not self.settled:
            self._room.fault.value = self._room.generation
            self.settle()

    def __del__(self) -> None:
        reading = self.reading
        if reading is not None and os.getpid() == self._room._process:
            reading.leave((self._room, self.lent))


class Pool:
    """What a session sends tensors from. Its methods but `freed` are called with the session's lock held.

    `poke` has those look again that wait for room.
    """

    def __init__(self, device: SendingDevice, options: Options, poke: Callable[[], object]) -> None:
        self.id = os.urandom(16)
        self.device = device
        self.options = options
        self._poke = poke
        self._process = os.getpid()
        size = SLOT_BYTES * options.slots
        self.words_fd = os.memfd_create("omnibus-gpu-words", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self.words_fd, size)
        fcntl.fcntl(self.words_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        self._words = Arena(0, self.words_fd, size)
        self._words_at = ctypes.addressof(ctypes.c_char.from_buffer(self._words.memory))
        #: The words, as the device sees them.
        self.registered = device.register(self._words_at, size, self._words.memory)
        self.words_published = Published(WORDS, self.words_fd, size)
        self._generations = [0] * options.slots
        self._slots = list(range(options.slots - 1, -1, -1))  # free ones; the last is used next
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
        """How many pieces somebody has."""
        self._catch_up()
        return self.options.slots - len(self._slots)

    def word(self, slot: int, at: int) -> Any:
        """A word of a slot's. It keeps the memory."""
        return ctypes.c_uint32.from_buffer(self._words.memory, SLOT_BYTES * slot + at)

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that made it."""
        if os.getpid() != self._process:
            raise ForkedError(f"the pool belongs to process {self._process}, and this is {os.getpid()}: connect here")

    def take(self, nbytes: int) -> Piece | None:
        """A chunk; None: there is no room. Raises DriverError when the device has no memory for the first arena."""
        self._catch_up()
        size = -(-max(nbytes, 1) // GRANULE) * GRANULE
        if not self._slots or size > self.max_bytes:
            return None
        for arena, published in self._arenas:
            if (at := arena.allocate(size)) is not None:
                return self._piece(arena, at, size, published)
        try:
            made = self._grow()
        except DriverError as e:
            if not self._arenas or isinstance(e, DeviceLost):
                raise
            made = None  # the device has no memory left; there will be room in the arenas that are there
        if made is None:
            return None
        at = made[0].allocate(size)
        assert at is not None
        return self._piece(made[0], at, size, made[1])

    def take_lent(self) -> Piece | None:
        """A piece that takes no room; None: there is no slot."""
        self._catch_up()
        return self._piece(None, 0, 0, self.words_published) if self._slots else None

    def _piece(self, arena: _Arena | None, at: int, size: int, published: Published) -> Piece:
        slot = self._slots.pop()
        generation = self._generations[slot] = self._generations[slot] % 0xFFFFFFFF + 1
        room = _Room(self, slot, generation, arena, at, size)
        # What the words said of the last generations may be so long ago that it would be taken for news.
        room.fault.value, room.ready.value = 0, generation - 1
        piece = Piece(self.device, room, published)
        if arena is not None:
            arena.pieces[at] = weakref.ref(piece)
        return piece

    def _grow(self) -> tuple[_Arena, Published] | None:
        total = sum(a.size for a, _ in self._arenas)
        if self._arenas and total + self.options.arena_bytes > self.options.max_bytes:
            return None
        memory = self.device.new_arena(self.options.arena_bytes)
        number = len(self._arenas) + 1
        made = _Arena(number, memory), Published(number, memory.fd, memory.size)
        self._arenas.append(made)
        return made

    def at(self, address: int, nbytes: int) -> Piece | None:
        """The piece that has all of these bytes."""
        for arena, _ in self._arenas:
            start = address - arena.memory.address
            if not 0 <= start < arena.size:
                continue
            for at, ref in list(arena.pieces.items()):
                piece = ref()
                if piece is not None and at <= start and start + nbytes <= at + piece.nbytes:
                    return piece
        return None

    # Giving back.

    def freed(self, room: tuple[int, _Arena | None, int, int]) -> None:
        """Nobody has a piece any more. Called in any thread, in the middle of anything."""
        self._freed.append(room)
        self._poke()

    def _catch_up(self) -> None:
        while self._freed:
            slot, arena, offset, size = self._freed.popleft()
            if arena is not None:
                del arena.pieces[offset]
                arena.free(offset, size)
            self._slots.append(slot)

    def full(self, nbytes: int) -> PoolFull:
        """Why there is no room."""
        what, o = f"no room for {nbytes} bytes on {uuid_text(self.device.uuid)}", self.options
        if nbytes > self.max_bytes:
            return PoolFull(f"{what}: chunks have at most {self.max_bytes}, half of arena_bytes")
        return PoolFull(f"{what} in {o.patience} seconds: {self.in_use} chunks of {o.max_bytes} bytes are in use")


class Published:
    """A descriptor that others find under the pool's name, once somebody has asked the host."""

    __slots__ = ("number", "fd", "size", "asked")

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number, self.fd, self.size = number, fd, size
        self.asked: Any = None  # the answer, which several may wait for


__all__ = ["BLOCK", "FAIL", "GRANULE", "SPILL", "Options", "Piece", "Pool", "Published"]
