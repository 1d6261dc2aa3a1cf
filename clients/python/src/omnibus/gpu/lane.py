"""Received messages with tensors on a GPU: the mapped memory of other processes.

The Go package `cudaipc/lane` has the rules.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .. import devices
from ..bundle import HANDLE, Bundle, Place, Placed
from ..devices.contract import Device, Memory
from ..directory import Found, Name, ask_find
from ..errors import Forged, HostGone, Nothing, ProtocolError
from ..futures import Future
from ..memory import Mapping
from ..session import OutOfTime, Session, Work
from .layout import lent_allocations
from .tensor import DeviceTensor, Gate, Words

_WORDS = 0  # the number of a pool's words; arenas are numbered from 1

#: Set in the number of an arena that is opened by a handle, since its device exports no descriptors.
BY_HANDLE = 1 << 31

#: Published of such an arena: its size, its offset in the handle's allocation, and the handle.
_HANDLE_ARENA = struct.Struct("<8sQQ8x64s")
_HANDLE_ARENA_MAGIC = b"omnihdl\x01"


class HandleArena:
    """An arena that is opened by a handle. It is unmapped when this object is collected."""

    __slots__ = ("_memory", "_offset", "size")

    size: int
    _offset: int

    def __init__(self, device: Device, found: Found) -> None:
        """The caller still owns the descriptor. Raises Forged."""
        try:
            published = Mapping(found.fd, found.size)
        except ProtocolError as e:
            raise Forged(f"the handle of an arena: {e}") from None
        if published.size != _HANDLE_ARENA.size:
            raise Forged(f"what is published is no handle of an arena: {published.size} bytes")
        magic, self.size, self._offset, handle = _HANDLE_ARENA.unpack(ctypes.string_at(published.address, _HANDLE_ARENA.size))
        if magic != _HANDLE_ARENA_MAGIC:
            raise Forged("what is published is no handle of an arena")
        self._memory = device.handle(handle)
        if self._offset > self._memory.size or self.size > self._memory.size - self._offset:
            raise Forged(f"an arena of {self.size} bytes at {self._offset} of {self._memory.size}")

    @property
    def address(self) -> int:
        """The device address of its start."""
        return self._memory.address + self._offset


class _Pool:
    """A pool of another process: its words, and its mapped arenas."""

    __slots__ = ("id", "words", "arenas")

    def __init__(self, id: bytes, words: Words) -> None:
        self.id = id
        self.words = words
        self.arenas: dict[tuple[bytes, int], Memory] = {}  # by the device's UUID and the number


#: The interval, in seconds, of the check for memory that its owner has given back.
TIDY_SECONDS = 10.0


class Lane:
    """The mapped pools of other processes. They stay mapped, so that only the first messages open memory.

    Pools of dead processes, and withdrawn arenas, are dropped when new ones are opened, and otherwise with the first
    message after TIDY_SECONDS. Memory that is being read stays mapped.
    """

    def __init__(
        self, find: Callable[[Name, float | None], Found], device: Callable[[bytes], Device] = devices.by_uuid
    ) -> None:
        """`find` looks up a published name, and raises OutOfTime at its limit, of time.monotonic."""
        self._find = find
        self._device = device
        self._lock = threading.Lock()
        self._pools: dict[bytes, _Pool] = {}
        self._tidied = time.monotonic()

    def decode(self, b: Bundle, payload: memoryview, limit: float | None = None) -> Any:
        """The value of a bundle, with a `DeviceTensor` for each tensor in a place. These keep the payload alive.

        Raises OutOfTime if memory of another process was not found by the limit.
        """
        gates = [self._open_gate(p, payload, limit) for p in b.places]
        return b.value(lambda t: DeviceTensor(t, gates[t.place - 1]) if isinstance(t, Placed) else t)

    def _open_gate(self, p: Place, payload: memoryview, limit: float | None) -> Gate:
        device = self._device(p.device)
        with self._locked(limit):
            self._tidy(limit)
            pool = self._pool(p.pool, limit)
            memory = None if p.kind == HANDLE else self._arena(pool, p, device, limit)
        pool.words.slot(p.slot)
        if memory is None:
            own = lent_allocations.get(p.handle)
            if own is not None and own.device != p.device:
                raise Forged("a handle of this process, of another GPU")
            memory = own or device.handle(p.handle)
        return Gate(device, p, pool.words, memory, payload)

    @contextlib.contextmanager
    def _locked(self, limit: float | None) -> Iterator[None]:
        """Hold the lock, also during lookups. Raises OutOfTime at the limit."""
        if not self._lock.acquire(timeout=-1 if limit is None else max(limit - time.monotonic(), 0)):
            raise OutOfTime
        try:
            yield
        finally:
            self._lock.release()

    def _pool(self, id: bytes, limit: float | None) -> _Pool:
        pool = self._pools.get(id)
        if pool is None:
            found = self._find(Name(id, _WORDS), limit)
            try:
                pool = _Pool(id, Words(found))
            except ProtocolError as e:
                raise Forged(f"the words of a pool: {e}") from None
            self._drop_dead()
            self._pools[id] = pool
        return pool

    def _tidy(self, limit: float | None) -> None:
        """Drop memory that its owner has given back, every TIDY_SECONDS."""
        now = time.monotonic()
        if now - self._tidied >= TIDY_SECONDS:
            self._tidied = now
            self._drop_dead()
            for pool in self._pools.values():
                self._drop_withdrawn(pool, limit)

    def _drop_dead(self) -> None:
        self._pools = {i: p for i, p in self._pools.items() if not p.words.owner_dead}

    def _arena(self, pool: _Pool, p: Place, device: Device, limit: float | None) -> Memory:
        if p.arena == _WORDS:
            raise Forged("the words of a pool are no arena")
        memory = pool.arenas.get((p.device, p.arena))
        if memory is None:
            self._drop_withdrawn(pool, limit)
            with self._find(Name(pool.id, p.arena), limit) as found:
                memory = HandleArena(device, found) if p.arena & BY_HANDLE else device.arena(found.fd, found.size)
                pool.arenas[p.device, p.arena] = memory
        return memory

    def _drop_withdrawn(self, pool: _Pool, limit: float | None) -> None:
        """Drop arenas that their owner has withdrawn: a mapping would keep the memory in use."""
        for key in list(pool.arenas):
            try:
                self._find(Name(pool.id, key[1]), limit).close()
            except Nothing:
                del pool.arenas[key]


def for_session(s: Session) -> Lane:
    """The lane of a session."""
    lane: Lane | None = s.gpu
    if lane is None:
        with s.locked:
            lane = s.gpu
            if lane is None:
                lane = s.gpu = Lane(_Finder(s).find)
    return lane


class _Finder:
    """Looks up names in the directory of a lane's session, for one thread at a time.

    A lookup that is out of time keeps its pending answer for the next lookup of the same name, so that repeated lookups
    with short limits succeed in the end.
    """

    def __init__(self, s: Session) -> None:
        self._session = weakref.ref(s)
        self._late: tuple[Name, Future] | None = None

    def find(self, name: Name, limit: float | None) -> Found:
        s = self._session()
        if s is None:
            raise HostGone("the connection was closed here")
        late, self._late = self._late, None
        a = late[1] if late is not None and late[0] == name and late[1].error is None else ask_find(s, name)
        try:
            return s.run(_wait_for(a), limit)
        except OutOfTime:
            self._late = name, a
            raise


def _wait_for(a: Future) -> Work[Found]:
    found: Found = yield a
    return found
