"""A cache of mapped memory of other processes, so that tensors in the same memory share one mapping."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from .contract import Memory


class _Mapping:
    """Mapped memory. It is unmapped when the last reference is gone.

    This class has no destructor, so a weak reference is cleared before the memory's destructor runs. A weak reference
    to an object with a destructor may still work while that unmaps the memory.
    """

    __slots__ = ("address", "size", "_memory", "__weakref__")

    def __init__(self, memory: Memory) -> None:
        self.address = memory.address
        self.size = memory.size
        self._memory = memory


class MappingCache:
    """Mappings by the handles of their owners. A new mapping may be created while an old one is being unmapped."""

    def __init__(self, open: Callable[[bytes], Memory]) -> None:
        self._map = open
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[bytes, _Mapping] = weakref.WeakValueDictionary()

    def get(self, handle: bytes) -> Memory:
        """The memory behind a handle."""
        with self._lock:
            share = self._open.get(handle)
            if share is None:
                share = self._open[handle] = _Mapping(self._map(handle))
            return share
