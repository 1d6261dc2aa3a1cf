"""Shared memory of a connection: segments to read, arenas to write, and what is free of them.

A payload is read where it lies. The lease on it must last as long as anything
views it: a slice of a memoryview, a NumPy array, a tensor. Slices of one
memoryview do not know of each other, so the only thing that knows of them all
is the object that exports the memory. `Mapping.window` therefore makes an exporter
for each payload, and a weak reference to that tells when the last view is gone.
The exporter is a ctypes array, the one exporter of borrowed memory that every
supported Python has; users see read-only memoryviews of it.

A forked child does not inherit the mappings (MADV_DONTFORK): it could otherwise
read payloads whose room the host has given to others.
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

# ctypes makes a class for each length of array, which takes longer than all
# the rest and is never undone while it is in use. So exporters have lengths
# that are powers of two, or the segment's, and the view is cut to size.
_exporters: dict[int, Any] = {}


def _exporter_type(size: int) -> Any:
    t = _exporters.get(size)
    if t is None:
        t = _exporters[size] = ctypes.c_ubyte * size
    return t


class Mapping:
    """A segment of the host's, mapped to be read. Memory of an emulated GPU is also written to.

    It stays mapped while it is referred to, by windows for example. Safe from
    any thread.
    """

    __slots__ = ("size", "process", "_address", "_view")
    _address: int | None

    def __init__(self, fd: int, size: int, seals: int = _READ_ONLY, writable: bool = False) -> None:
        """Map a descriptor, which stays the caller's to close and has at least these seals."""
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
        # A child does not have the mapping; what lies there now is not ours.
        if self._address is not None and self.process == _getpid():
            _munmap(self._address, self.size)

    @property
    def address(self) -> int:
        """Where it begins."""
        assert self._address is not None
        return self._address

    def check(self, offset: int, size: int) -> None:
        """Raise ProtocolError unless there are `size` bytes at `offset`."""
        if offset > self.size - size:
            raise ProtocolError(f"a payload of {size} bytes at {offset} in a segment of {self.size}")

    def view(self, offset: int, size: int) -> memoryview:
        """A read-only view. Its caller refers to the mapping for as long as any part of the view lives."""
        if self._view is None:
            self._view = memoryview((ctypes.c_ubyte * self.size).from_address(self.address)).toreadonly().cast("B")
        self.check(offset, size)
        return self._view[offset : offset + size]

    def window(self, offset: int, size: int, on_gone: Callable[[Any], None]) -> tuple[memoryview, weakref.ref[Any]]:
        """A read-only view, and what knows whether any part of it lives.

        The reference is dead, and `on_gone` was called with it, once no slice,
        cast or array of the view is left. `on_gone` may be called in any thread,
        in the middle of anything.
        """
        self.check(offset, size)
        assert self._address is not None
        room = min(1 << max(size - 1, 0).bit_length(), self.size)
        start = min(offset, self.size - room)
        exporter = _exporter_type(room).from_address(self._address + start)
        exporter.mapping = self
        ref = weakref.ref(exporter, on_gone)
        view = memoryview(exporter).toreadonly().cast("B")
        return view[offset - start : offset - start + size], ref


class View:
    """A payload where it lies. A context manager that gives `data`.

    `release` gives it back. While a slice, cast or array of it lives, `release`
    raises BufferError, and the payload stays; it goes back at a later
    `release`, or when the last of them is collected.
    """

    __slots__ = ("data", "_window")

    def __init__(self, data: memoryview, window: weakref.ref[Any] | None) -> None:
        self.data = data
        self._window = window

    def release(self) -> None:
        """Let go of the payload. Idempotent once it has succeeded."""
        self.data.release()  # raises BufferError for what was made of it directly
        if self._window is not None and self._window() is not None:
            raise BufferError("a slice of the view, or something made of one, is still alive")

    def __enter__(self) -> memoryview:
        return self.data

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except BufferError:
            # The slices were probably meant to outlive the block, or an
            # error is on its way with them in its traceback. They are counted.
            pass


class _Memory(mmap.mmap):
    """The mapping of an arena, which knows its process."""

    process: int


def check_process(view: memoryview) -> None:
    """Raise ForkedError if a view is of shared memory that this process has not mapped itself."""
    owner = view.obj
    process = getattr(getattr(owner, "mapping", owner), "process", None)
    if process is not None and process != os.getpid():
        raise ForkedError(f"the memory belongs to process {process}, and this is {os.getpid()}: connect here")


class Arena:
    """A segment that this process fills and the host reads."""

    __slots__ = ("segment", "memory")

    def __init__(self, segment: int, fd: int, size: int) -> None:
        """Map and seal a descriptor, which stays the caller's to close."""
        check_segment(fd, size, FIXED_SIZE)
        try:
            memory = _Memory(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            memory.process = os.getpid()
        except OSError as e:
            raise out_of_memory(f"cannot map a segment of {size} bytes", e.errno or 0) from None
        except ValueError as e:
            raise ProtocolError(f"cannot map a segment of {size} bytes: {e}") from None
        # Nobody can map it writable from now on: what was sent stays as it is.
        try:
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
        except OSError as e:
            memory.close()
            raise ProtocolError(f"the arena cannot be sealed: {e}") from None
        for advice in (MADV_DONTFORK, MADV_POPULATE_WRITE):
            try:
                memory.madvise(advice)
            except OSError:
                pass  # populating saves page faults and no more; older kernels have it not
        self.segment = segment
        self.memory = memory

    def view(self, offset: int, size: int) -> memoryview:
        """Room in the arena."""
        if offset > len(self.memory) - size:
            raise ProtocolError(f"room for {size} bytes at {offset} in an arena of {len(self.memory)}")
        return memoryview(self.memory)[offset : offset + size]


def check_segment(fd: int, size: int, seals: int) -> None:
    """Check that nobody can take the memory away, or change it, under its readers."""
    try:
        have = fcntl.fcntl(fd, F_GET_SEALS)
        real = os.fstat(fd).st_size
    except OSError as e:
        raise ProtocolError(f"a segment's descriptor is no memfd: {e}") from None
    if have & seals != seals:
        raise ProtocolError(f"a segment has the seals {have:#x}, and needs {seals:#x}")
    if real != size or size == 0:
        raise ProtocolError(f"a segment of {size} bytes has {real}")


class Gaps:
    """What is free of a range of bytes: gaps in order, none beside another. The first that fits is taken."""

    __slots__ = ("size", "_starts", "_ends")

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts, self._ends = [0], [size]

    def take(self, size: int) -> int | None:
        """Where there was room; None: nowhere."""
        for i, (start, end) in enumerate(zip(self._starts, self._ends)):
            if end - start >= size:
                self._starts[i] += size
                if self._starts[i] == end:
                    del self._starts[i], self._ends[i]
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Have room that was taken be free again."""
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
        """Whether nothing is taken."""
        return self._starts == [0] and self._ends == [self.size]
