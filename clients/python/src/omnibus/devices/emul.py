"""Emulated GPUs, for machines without one: their memory is the host's, and there are no streams.

The Go package `cudaipc/emul` has the format of shared memory and handles. The CPU waits in place of a stream, and does a
stream's work at once.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import dlpack
from ..dlpack import CPU, Borrowed
from ..dtypes import data_bytes
from ..errors import Code, Forged, OutOfMemory, PayloadError, Poisoned, ProtocolError
from ..memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, FIXED_SIZE, Mapping
from .contract import EMULATED, AwaitedMemory, DriverError, FilledMemory, Memory, StreamMemory
from .mapping_cache import MappingCache

_handle = struct.Struct("<8sIIQ16s16sQ")
_MAGIC = b"omniemu\x01"

_PAGE = mmap.PAGESIZE
_GRANULARITY = 1 << 16  # of an arena's size
_NOT_SUPPORTED = 801  # CUDA's number


class _Memory(Mapping):
    """An arena or an allocation, mapped read-only, or writable in the process that created it."""

    __slots__ = ()

    def __init__(self, fd: int, size: int, writable: bool = False) -> None:
        try:
            super().__init__(fd, size, FIXED_SIZE, writable)
        except ProtocolError as e:
            raise Forged(f"memory of an emulated GPU: {e}") from None


class _OwnMemory(_Memory):
    """Memory that this process has created, under a name that other processes check."""

    __slots__ = ("fd", "nonce", "_close", "__weakref__")

    def __init__(self, name: str, size: int, nonce: bytes = b"") -> None:
        self.fd = os.memfd_create(name, os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        self.nonce = nonce  # empty for memory without a handle
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        except OSError as e:
            raise OutOfMemory(Code.MEMORY, f"no {size} bytes on an emulated GPU: {e.strerror}") from None
        super().__init__(self.fd, size, writable=True)

        self._close = weakref.finalize(self, os.close, self.fd)


class _Registered(NamedTuple):
    address: int


class Emulated:
    """An emulated GPU."""

    dlpack = (CPU, 0)

    def __init__(self, uuid: bytes) -> None:
        self.uuid = uuid
        self._lock = threading.Lock()
        self._own_memories: weakref.WeakSet[_OwnMemory] = weakref.WeakSet()
        self._handles = MappingCache(_open_handle)

    def arena(self, fd: int, size: int) -> Memory:
        return _Memory(fd, size)

    def handle(self, handle: bytes) -> Memory:
        return self._handles.get(handle)

    def wait_on_stream(self, gate: AwaitedMemory, stream: Any) -> None:
        if stream is not None:
            raise BufferError("an emulated GPU has no streams")
        gate.wait()

    def check(self) -> None:
        """An emulated device is never lost."""

    # Sending.

    def owns(self, value: Any) -> bool:
        try:
            b = dlpack.borrow(value)
        except PayloadError:
            return False
        return self._memory_around(b.address) is not None

    def _memory_around(self, address: int) -> _OwnMemory | None:
        with self._lock:
            return next((m for m in self._own_memories if 0 <= address - m.address < m.size), None)

    def _add_memory(self, m: _OwnMemory) -> _OwnMemory:
        with self._lock:
            self._own_memories.add(m)
        return m

    def new_arena(self, nbytes: int) -> _OwnMemory:
        size = -(-nbytes // _GRANULARITY) * _GRANULARITY
        return self._add_memory(_OwnMemory(f"omnibus-emul-arena-{self.uuid.hex()}", size))

    def new_memory(self, nbytes: int) -> _OwnMemory:
        """Memory with a handle, like a CUDA allocation."""
        nonce = os.urandom(16)
        return self._add_memory(_OwnMemory(f"omnibus-emul-handle-{nonce.hex()}", -(-nbytes // _PAGE) * _PAGE, nonce))

    def register(self, address: int, nbytes: int, keep: Any) -> _Registered:
        return _Registered(address)

    def export(self, address: int) -> tuple[bytes, int, int]:
        m = self._memory_around(address)
        if m is None or not m.nonce:
            raise DriverError("export", _NOT_SUPPORTED, f"{address:#x} is in no allocation that has a handle")
        namespace = os.stat("/proc/self/ns/pid").st_ino
        handle = _handle.pack(_MAGIC, os.getpid(), m.fd, m.size, m.nonce, self.uuid, namespace)
        return handle, address - m.address, m.size

    def add_stream(self, piece: StreamMemory, stream: Any) -> None:
        if stream is not None:
            raise BufferError("an emulated GPU has no streams")

    def start_fill(self, piece: FilledMemory) -> _Fill:
        return _Fill(piece)

    def copy_in(self, memory: StreamMemory, copies: Sequence[tuple[int, Any]]) -> None:
        for at, value in copies:
            _copy(at, dlpack.borrow(value))


class _Fill:
    """Does the work that completes a piece, at once."""

    __slots__ = ("_piece",)

    def __init__(self, piece: FilledMemory) -> None:
        self._piece = piece

    def borrow(self, value: Any) -> Borrowed:
        b = dlpack.borrow(value)
        self._piece.kept_alive.append(b)
        return b

    def copy(self, dst: int, src: Borrowed) -> None:
        self._piece.kept_alive.clear()
        _copy(dst, src)

    def complete(self) -> None:
        self._piece.mark_complete()


def _copy(dst: int, src: Borrowed) -> None:
    if nbytes := data_bytes(src.dtype, src.shape):
        exporter = (ctypes.c_ubyte * (1 << (nbytes - 1).bit_length())).from_address(dst)
        src.copy_into(memoryview(exporter).cast("B")[:nbytes])


def _open_handle(handle: bytes) -> _Memory:
    """Open the memory of a handle, through /proc of its process. The name is checked before and after the open."""
    magic, pid, number, size, nonce, _, namespace = _handle.unpack(handle)
    if magic != _MAGIC or namespace != os.stat("/proc/self/ns/pid").st_ino:
        raise Forged("a handle of no emulated GPU, or of another container's")
    path, name = f"/proc/{pid}/fd/{number}", f"/memfd:omnibus-emul-handle-{nonce.hex()} (deleted)"
    try:
        if os.readlink(path) != name:  # the descriptor number may belong to another file by now
            raise Poisoned("their sender has freed them")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise Poisoned(f"their sender is dead, or has freed them: {e.strerror}") from None
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != name:
            raise Poisoned("their sender has freed them")
        return _Memory(fd, size)
    finally:
        os.close(fd)


_devices: dict[bytes, Emulated] = {}


def device(uuid: bytes) -> Emulated:
    """The emulated GPU with a UUID. All of them exist."""
    return _devices.setdefault(uuid, Emulated(uuid))


def uuid(number: int = 0) -> bytes:
    """The UUID of the emulated GPU with a number, the same in every process."""
    return EMULATED + bytes(11) + bytes([number + 1])
