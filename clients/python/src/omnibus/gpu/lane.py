"""Messages with tensors on a GPU: where they lie, and what of other processes is mapped for it.

The Go package `cudaipc/lane` has the rules.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ..bundle import HANDLE, Bundle, Place, Placed
from ..directory import Found, Name, find_work
from ..errors import Forged, HostGone, Nothing, ProtocolError
from ..session import Session
from . import driver
from .driver import Device, Memory
from .emission import lent
from .gate import Gate, Words
from .handled import HANDLED, Handled
from .tensor import DeviceTensor

_WORDS = 0  # the number of a pool's words; arenas count from 1


class _Pool:
    """A pool of another process: its words, and what is mapped of its arenas."""

    __slots__ = ("id", "words", "arenas")

    def __init__(self, id: bytes, words: Words) -> None:
        self.id = id
        self.words = words
        self.arenas: dict[tuple[bytes, int], Memory] = {}  # by the device's UUID and the number


#: How often it is looked after, in seconds, what of the memory of others is theirs no more.
TIDY = 10.0


class Lane:
    """What is mapped of the pools of other processes. It stays so, that nothing is opened after the first messages.

    Pools of the dead, and arenas that were withdrawn, go when new ones come, and otherwise with the first message
    after `TIDY` seconds. What is read stays mapped.
    """

    def __init__(self, find: Callable[[Name], Found], device: Callable[[bytes], Device] = driver.device) -> None:
        self._find = find
        self._device = device
        self._lock = threading.Lock()
        self._pools: dict[bytes, _Pool] = {}
        self._tidied = time.monotonic()

    def open(self, b: Bundle, payload: memoryview) -> Any:
        """The value of a bundle, with a `DeviceTensor` for each tensor in a place. These keep the payload."""
        gates = [self._enter(p, payload) for p in b.places]
        return b.value(lambda t: DeviceTensor(t, gates[t.place - 1]) if isinstance(t, Placed) else t)

    def _enter(self, p: Place, payload: memoryview) -> Gate:
        device = self._device(p.device)
        with self._lock:
            self._tidy()
            pool = self._pool(p.pool)
            memory = None if p.kind == HANDLE else self._arena(pool, p, device)
        pool.words.slot(p.slot)
        if memory is None:
            own = lent.get(p.handle)
            if own is not None and own.device != p.device:
                raise Forged("a handle of this process, of another GPU")
            memory = own or device.handle(p.handle)
        return Gate(device, p, pool.words, memory, payload)

    def _pool(self, id: bytes) -> _Pool:
        pool = self._pools.get(id)
        if pool is None:
            found = self._find(Name(id, _WORDS))
            try:
                pool = _Pool(id, Words(found))
            except ProtocolError as e:
                raise Forged(f"the words of a pool: {e}") from None
            self._drop_dead()
            self._pools[id] = pool
        return pool

    def _tidy(self) -> None:
        """Let go of what others have given back, once in a while."""
        now = time.monotonic()
        if now - self._tidied >= TIDY:
            self._tidied = now
            self._drop_dead()
            for pool in self._pools.values():
                self._drop_withdrawn(pool)

    def _drop_dead(self) -> None:
        self._pools = {i: p for i, p in self._pools.items() if not p.words.dead}

    def _arena(self, pool: _Pool, p: Place, device: Device) -> Memory:
        if p.arena == _WORDS:
            raise Forged("the words of a pool are no arena")
        memory = pool.arenas.get((p.device, p.arena))
        if memory is None:
            self._drop_withdrawn(pool)
            with self._find(Name(pool.id, p.arena)) as found:
                memory = Handled(device, found) if p.arena & HANDLED else device.arena(found.fd, found.size)
                pool.arenas[p.device, p.arena] = memory
        return memory

    def _drop_withdrawn(self, pool: _Pool) -> None:
        """Let go of arenas that their owner has given back: they would keep the memory in use."""
        for key in list(pool.arenas):
            try:
                self._find(Name(pool.id, key[1])).close()
            except Nothing:
                del pool.arenas[key]


def of(s: Session) -> Lane:
    """The lane of a session."""
    lane: Lane | None = s.gpu
    if lane is None:
        with s.locked:
            lane = s.gpu
            if lane is None:
                ref = weakref.ref(s)
                lane = s.gpu = Lane(lambda name: _found(ref(), name))
    return lane


def _found(s: Session | None, name: Name) -> Found:
    if s is None:
        raise HostGone("the connection was closed here")
    return s.run(find_work(s, name))
