"""Memory of this process that other processes may read and write, allocated in blocks."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import threading

from .contract import NoRoom, Unavailable
from .stores import TooLarge

_ALIGNMENT = 4096


class Block:
    """An allocated range of the pool."""

    __slots__ = ("offset", "capacity", "size")

    def __init__(self, offset: int, capacity: int, size: int) -> None:
        self.offset, self.capacity, self.size = offset, capacity, size


class MemoryPool:
    """One range of memory, at one address for as long as the pool lives. Safe from any thread.

    The system allocates pages at their first write, and they stay allocated.
    """

    def __init__(self, size: int) -> None:
        self.size = _rounded(size)
        try:
            self._memory = mmap.mmap(-1, self.size)
        except (OSError, OverflowError, ValueError) as e:
            raise Unavailable(f"memory_pool_size: there are no {size} bytes of memory: {e}") from None
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._view = memoryview(self._memory)
        self._mu = threading.Lock()
        self._free = [(0, self.size)]  # offset and size, by offset; no two touch

    def allocate(self, size: int) -> Block:
        """Allocate a block. Raises TooLarge or NoRoom."""
        capacity = _rounded(size)
        if capacity > self.size:
            raise TooLarge(f"a value of {size} bytes: memory_pool_size is {self.size}; raise it")
        with self._mu:
            for i, (offset, free) in enumerate(self._free):
                if free >= capacity:
                    self._free[i : i + 1] = [(offset + capacity, free - capacity)] if free > capacity else []
                    return Block(offset, capacity, size)
        raise NoRoom(f"no {size} bytes are left together of memory_pool_size, {self.size}: raise it, or get values sooner")

    def free(self, block: Block) -> None:
        """Free a block, which neither side uses any more."""
        offset, capacity = block.offset, block.capacity
        with self._mu:
            i = bisect.bisect(self._free, (offset,))
            if i < len(self._free) and self._free[i][0] == offset + capacity:
                capacity += self._free.pop(i)[1]
            if i and sum(self._free[i - 1]) == offset:
                offset, before = self._free.pop(i - 1)
                capacity += before
                i -= 1
            self._free.insert(i, (offset, capacity))

    def free_bytes(self) -> int:
        """The bytes that are not allocated."""
        with self._mu:
            return sum(size for _, size in self._free)

    def view(self, block: Block) -> memoryview:
        """The bytes of a block."""
        return self._view[block.offset : block.offset + block.size]

    def address_of(self, block: Block) -> int:
        return self.address + block.offset


def _rounded(size: int) -> int:
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT
