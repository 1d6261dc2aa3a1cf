"""Memory of other processes that is mapped once, however many tensors lie in it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from .contract import Memory


class _Share:
    """Memory that is mapped for as long as this is referred to.

    It has no destructor, so that nobody finds it by a weak reference once it goes. What has
    one, as the memory itself, is found until that has come to its end, and may be unmapped by then.
    """

    __slots__ = ("address", "size", "_memory", "__weakref__")

    def __init__(self, memory: Memory) -> None:
        self.address = memory.address
        self.size = memory.size
        self._memory = memory


class Shared:
    """What is mapped, by the handles of its owners. While one mapping goes another may come."""

    def __init__(self, open: Callable[[bytes], Memory]) -> None:
        self._map = open
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[bytes, _Share] = weakref.WeakValueDictionary()

    def get(self, handle: bytes) -> Memory:
        """The memory behind a handle."""
        with self._lock:
            share = self._open.get(handle)
            if share is None:
                share = self._open[handle] = _Share(self._map(handle))
            return share
