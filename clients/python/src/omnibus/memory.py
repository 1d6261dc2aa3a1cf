"""Shared memory of a connection: segments to read, arenas to write, and their free lists.

A payload is read in place. The lease on it must last as long as any object views
it: a slice of a memoryview, a NumPy array, a tensor. Slices of one memoryview do
not know of each other; only the object that exports the memory is referred to by
all of them. So `Mapping.tracked_view` makes an exporter for each payload, and a
weak reference to it reports when the last view is gone. The exporter is a ctypes
array, the only exporter of borrowed memory in every supported Python; users see
read-only memoryviews of it.

A forked child does not inherit the mappings (MADV_DONTFORK): it could otherwise
read memory that the host has reused.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .errors import ForkedError, ProtocolError, out_of_memory

F_ADD_SEALS = 1033
F_GET_SEALS = 1034
F_SEAL_SEAL = 0x01
F_SEAL_SHRINK = 0x02
F_SEAL_GROW = 0x04
F_SEAL_FUTURE_WRITE = 0x10
_READ_ONLY = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE
FIXED_SIZE = F_SEAL_SHRINK | F_SEAL_GROW

MADV_DONTFORK = 10
MADV_POPULATE_WRITE = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value

# ctypes creates a class for each array length, which is slow, and cached here for
# good. So the lengths of exporters are powers of two, or the segment's, and the
# view is a slice.
_exporters: dict[int, Any] = {}


def _exporter_type(size: int) -> Any:
    t = _exporters.get(size)
    if t is None:
        t = _exporters[size] = ctypes.c_ubyte * size
    return t


class Mapping:
    """A segment of another process, mapped read-only. Memory of an emulated GPU is mapped writable.

    It stays mapped while it is referred to, by tracked views for example. Safe from
    any thread.
    """

    __slots__ = ("size", "process", "_address", "_view")
    _address: int | None

    def __init__(self, fd: int, size: int, seals: int = _READ_ONLY, writable: bool = False) -> None:
        """Map a descriptor that has at least these seals. The caller closes the descriptor."""
        self._address = None
        check_segment(fd, size, seals)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, prot, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise out_of_memory(f"cannot map a segment of {size} bytes", ctypes.get_errno())
        _libc.madvise(address, size, MADV_DONTFORK)
        self.size = size
        self._address = address
        self._view: memoryview | None = None
        self.process = os.getpid()

    def __del__(self, _getpid: Callable[[], int] = os.getpid, _munmap: Any = _libc.munmap) -> None:
        # A forked child does not have the mapping; its address may be in use for other memory.
        if self._address is not None and self.process == _getpid():
            _munmap(self._address, self.size)

    @property
    def address(self) -> int:
        """The address of its first byte."""
        assert self._address is not None
        return self._address

    def check(self, offset: int, size: int) -> None:
        """Raise ProtocolError unless there are `size` bytes at `offset`."""
        if offset > self.size - size:
            raise ProtocolError(f"a payload of {size} bytes at {offset} in a segment of {self.size}")

    def view(self, offset: int, size: int) -> memoryview:
        """A read-only view. The caller must keep the mapping as long as any part of the view lives."""
        if self._view is None:
            self._view = memoryview((ctypes.c_ubyte * self.size).from_address(self.address)).toreadonly().cast("B")
        self.check(offset, size)
        return self._view[offset : offset + size]

    def tracked_view(self, offset: int, size: int, on_gone: Callable[[Any], None]) -> tuple[memoryview, weakref.ref[Any]]:
        """A read-only view, and a weak reference that is alive while any part of the view is.

        Once no slice, cast or array of the view is left, the reference is dead and
        `on_gone` is called with it, by the garbage collector, in any thread and
        between any two steps.
        """
        self.check(offset, size)
        assert self._address is not None
        length = min(1 << max(size - 1, 0).bit_length(), self.size)
        start = min(offset, self.size - length)
        exporter = _exporter_type(length).from_address(self._address + start)
        exporter.mapping = self
        ref = weakref.ref(exporter, on_gone)
        view = memoryview(exporter).toreadonly().cast("B")
        return view[offset - start : offset - start + size], ref


class View:
    """A payload viewed in place. A context manager that yields `data`.

    `release` returns the payload. While a slice, cast or array of it lives, `release`
    raises BufferError, and the payload stays; it is returned by a later
    `release`, or when the last of them is collected.
    """

    __slots__ = ("data", "_view_ref")

    def __init__(self, data: memoryview, window: weakref.ref[Any] | None) -> None:
        self.data = data
        self._view_ref = window

    def release(self) -> None:
        """Return the payload. Idempotent once it has succeeded."""
        self.data.release()  # raises BufferError for direct exports
        if self._view_ref is not None and self._view_ref() is not None:
            raise BufferError("a slice of the view, or an object made of one, is still alive")

    def __enter__(self) -> memoryview:
        return self.data

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except BufferError:
            # The slices are meant to outlive the block, or an error's
            # traceback refers to them. The weak reference tracks them.
            pass


class _Memory(mmap.mmap):
    """The mapping of an arena, with the id of its process."""

    process: int


def check_process(view: memoryview) -> None:
    """Raise ForkedError if a view is of shared memory that another process has mapped."""
    owner = view.obj
    process = getattr(getattr(owner, "mapping", owner), "process", None)
    if process is not None and process != os.getpid():
        raise ForkedError(f"the memory belongs to process {process}, and this is {os.getpid()}: connect here")


class Arena:
    """A segment that this process fills and the host reads."""

    __slots__ = ("segment", "memory")

    def __init__(self, segment: int, fd: int, size: int) -> None:
        """Map and seal a descriptor. The caller closes the descriptor."""
        check_segment(fd, size, FIXED_SIZE)
        try:
            memory = _Memory(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            memory.process = os.getpid()
        except OSError as e:
            raise out_of_memory(f"cannot map a segment of {size} bytes", e.errno or 0) from None
        except ValueError as e:
            raise ProtocolError(f"cannot map a segment of {size} bytes: {e}") from None
        # No process can map it writable from now on, so sent payloads do not change.
        try:
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
        except OSError as e:
            memory.close()
            raise ProtocolError(f"the arena cannot be sealed: {e}") from None
        for advice in (MADV_DONTFORK, MADV_POPULATE_WRITE):
            try:
                memory.madvise(advice)
            except OSError:
                pass  # populating only saves page faults, and older kernels lack it
        self.segment = segment
        self.memory = memory

    def view(self, offset: int, size: int) -> memoryview:
        """A writable view of a part of the arena."""
        if offset > len(self.memory) - size:
            raise ProtocolError(f"a view of {size} bytes at {offset} in an arena of {len(self.memory)}")
        return memoryview(self.memory)[offset : offset + size]


def check_segment(fd: int, size: int, seals: int) -> None:
    """Raise ProtocolError unless the seals keep the memory from being shrunk or changed under its readers."""
    try:
        have = fcntl.fcntl(fd, F_GET_SEALS)
        real = os.fstat(fd).st_size
    except OSError as e:
        raise ProtocolError(f"a segment's descriptor is no memfd: {e}") from None
    if have & seals != seals:
        raise ProtocolError(f"a segment has the seals {have:#x}, and needs {seals:#x}")
    if real != size or size == 0:
        raise ProtocolError(f"a segment of {size} bytes has {real}")


class FreeList:
    """The free list of a range of bytes: free ranges in order, never adjacent. Allocation is first-fit."""

    __slots__ = ("size", "_starts", "_ends")

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts, self._ends = [0], [size]

    def allocate(self, size: int) -> int | None:
        """The offset of `size` bytes, which are allocated; None if no free range is large enough."""
        for i, (start, end) in enumerate(zip(self._starts, self._ends)):
            if end - start >= size:
                self._starts[i] += size
                if self._starts[i] == end:
                    del self._starts[i], self._ends[i]
                return start
        return None

    def free(self, start: int, size: int) -> None:
        """Free an allocated range."""
        end = start + size
        i = bisect.bisect(self._starts, start)
        before = i > 0 and self._ends[i - 1] == start
        after = i < len(self._starts) and self._starts[i] == end
        if before and after:
            self._ends[i - 1] = self._ends[i]
            del self._starts[i], self._ends[i]
        elif before:
            self._ends[i - 1] = end
        elif after:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._ends.insert(i, end)

    @property
    def empty(self) -> bool:
        """Whether nothing is allocated."""
        return self._starts == [0] and self._ends == [self.size]
