"""NVIDIA's GPUs, the sending part: memory that other processes map, words that streams write, and copies."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..dlpack import Borrowed, borrow, is_on_gpu, row_major
from ..dtypes import DTYPES
from ..errors import ForeignDevice, PayloadError
from .contract import DriverError, FilledMemory, NoDriver, StreamMemory, uuid_text
from .cuda_device import CudaDevice, StreamSet, map_memory, unmap_memory
from .libcuda import Copy2D, Handle, Library, Properties
from .words import READY

_PINNED, _FD, _ON_DEVICE, _MINIMUM = 1, 1, 1, 0
_REGISTER = 1 | 2  # portable, and mapped for the device
_HANDLE_CAPABLE = 10
_BARRIER = 0  # the write is ordered after all earlier work
_UNIFIED = 4  # unified addresses, whose memory type the driver derives
_NOT_SUPPORTED = 801

#: The largest number of copies of one tensor, and the largest pitch that all drivers accept.
MAX_COPIES, _MAX_PITCH = 1 << 16, (1 << 31) - 1


class Cuda(CudaDevice):
    """A GPU that reads tensors and sends its own."""

    def owns(self, value: Any) -> bool:
        return is_on_gpu(value) and int(value.__dlpack_device__()[1]) == self.dlpack[1]

    def new_arena(self, nbytes: int) -> _Arena:
        return _Arena(self, nbytes)

    def new_memory(self, nbytes: int) -> _Allocation:
        return _Allocation(self, nbytes)

    def register(self, address: int, nbytes: int, keep: Any) -> _Registered:
        return _Registered(self, address, nbytes, keep)

    def export(self, address: int) -> tuple[bytes, int, int]:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        with self.context:
            self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
            may = ctypes.c_int(1)
            code = self.libcuda.ask("cuPointerGetAttribute", ctypes.byref(may), _HANDLE_CAPABLE, address)
            if code == 0 and not may.value:
                raise DriverError("cuIpcGetMemHandle", _NOT_SUPPORTED, "the memory was not made so that a handle could name it")
            handle = Handle()
            self.call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return bytes(handle.bytes), address - base.value, size.value

    def add_stream(self, piece: StreamMemory, stream: Any) -> None:
        with self._lock, self.context:
            self.streams_of(piece).add_stream(stream)

    def start_fill(self, piece: FilledMemory) -> _Fill:
        with self._lock, self.context:
            return _Fill(self, piece, self.streams_of(piece))

    def copy_in(self, memory: StreamMemory, copies: Sequence[tuple[int, Any]]) -> None:
        with self._lock, self.context:
            streams = self.streams_of(memory)
            streams.add_stream(streams.own_stream)  # later streams of the memory are ordered after the copies
        stream = streams.own_stream
        elsewhere = [c for c in copies if not self.owns(c[1])]
        held = []  # their own streams do not wait for the copies, so they are kept until the copies end, also on an error
        try:
            for at, value in elsewhere:
                held.append(borrow(value, -1 if is_on_gpu(value) else None))
                self._copy(at, held[-1], stream)
        finally:
            if held:
                with self.context:
                    self.synchronize(stream)
        for at, value in copies:
            if self.owns(value):
                with self.context:
                    b = borrow(value, stream)
                self._copy(at, b, stream)

    def _copy(self, dst: int, src: Borrowed, stream: int) -> None:
        """Copy a tensor's elements on a stream, in row-major order."""
        with self.context:
            for to, at, width, rows, pitch in packed(dst, src.address, DTYPES[src.dtype][1], src.shape, src.strides):
                if rows == 1:
                    self.call("cuMemcpyAsync", to, at, width, stream)
                else:
                    copy = Copy2D(
                        srcMemoryType=_UNIFIED, srcDevice=at, srcPitch=pitch, dstMemoryType=_UNIFIED, dstDevice=to,
                        dstPitch=width, WidthInBytes=width, Height=rows,
                    )  # fmt: skip
                    self.call("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream)


class _Arena:
    """Memory of this process, mapped, and its descriptor."""

    fd = -1

    def __init__(self, device: Cuda, nbytes: int) -> None:
        self.address = self.size = 0
        self._device = device
        libcuda, call = device.libcuda, device.call
        what = Properties(_PINNED, _FD, _ON_DEVICE, device.number)
        with device.context:
            unit = libcuda.number("cuMemGetAllocationGranularity", ctypes.byref(what), _MINIMUM, kind=ctypes.c_size_t)
            size = -(-nbytes // unit) * unit
            memory = libcuda.number("cuMemCreate", size, ctypes.byref(what), 0)
            try:
                self.fd = libcuda.number("cuMemExportToShareableHandle", memory, _FD, 0, kind=ctypes.c_int)
                os.set_inheritable(self.fd, False)
                self.address = map_memory(device, memory, size)
                self.size = size
            finally:
                libcuda.ask("cuMemRelease", memory)  # the mapping keeps the memory

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        if self.address:
            unmap_memory(self._device, self.address, self.size)


class _Allocation:
    """Memory that no other process maps."""

    def __init__(self, device: Cuda, nbytes: int) -> None:
        self.address = 0
        self.size = nbytes
        self._device = device
        with device.context:
            self.address = device.libcuda.number("cuMemAlloc_v2", nbytes)

    def __del__(self) -> None:
        if self.address:
            self._device.try_release("cuMemFree_v2", self.address)


#: Host memory that could not be unregistered.
_still_registered: list[Any] = []


class _Registered:
    """Host memory that the device may write to."""

    def __init__(self, device: Cuda, address: int, nbytes: int, keep: Any) -> None:
        self.address = self._host = 0
        self._device, self._keep = device, keep
        with device.context:
            device.call("cuMemHostRegister_v2", address, nbytes, _REGISTER)
            self._host = address
            self.address = device.libcuda.number("cuMemHostGetDevicePointer_v2", address, 0)

    def __del__(self) -> None:
        if self._host and not self._device.try_release("cuMemHostUnregister", self._host):
            # It must stay mapped: the device would write to the next mapping at the address.
            _still_registered.append(self._keep)


class _Fill:
    """The work on a piece's own stream that completes the piece."""

    __slots__ = ("_device", "_piece", "_streams", "_copied")

    def __init__(self, device: Cuda, piece: FilledMemory, streams: StreamSet) -> None:
        self._device, self._piece, self._streams = device, piece, streams
        self._copied = False

    def borrow(self, value: Any) -> Borrowed:
        with self._device.context:
            b = borrow(value, self._streams.own_stream)
        # Kept first: if a later call fails, the stream may read it all the same.
        self._piece.kept_alive.append(b)
        return b

    def copy(self, dst: int, src: Borrowed) -> None:
        self._copied = True
        self._device._copy(dst, src, self._streams.own_stream)

    def complete(self) -> None:
        device, piece, copied = self._device, self._piece, self._copied
        with device.context:
            self._streams.order_own_stream()
            device.call(
                "cuStreamWriteValue32_v2", self._streams.own_stream, piece.word_address() + READY, piece.generation, _BARRIER
            )

        def done() -> None:
            piece.mark_failed()  # without effect if it is complete; else the device is lost
            if copied:
                piece.kept_alive.clear()

        device.watcher.add(lambda: piece.is_settled, device.check_lost, done)


def packed(
    dst: int, src: int, item: int, shape: Sequence[int], strides: Sequence[int] | None
) -> Iterator[tuple[int, int, int, int, int]]:
    """The copies that put a strided tensor at dst in row-major order: to, from, width, rows, pitch; as few as it takes."""
    axes = _merged(item, shape, row_major(shape) if strides is None else strides)
    if axes is None:
        return
    width, rows, pitch = item, 1, item
    if axes and axes[-1][1] == item:
        width = item * axes.pop()[0]
    if axes and width <= axes[-1][1] <= _MAX_PITCH:
        rows, pitch = axes.pop()
    count = math.prod(n for n, _ in axes)
    if count > MAX_COPIES:
        raise PayloadError(f"tensor {list(shape)}: strides {list(strides or ())} take {count} copies: make it contiguous first")
    for i in range(count):
        at, rest = src, i
        for n, stride in reversed(axes):
            at += rest % n * stride
            rest //= n
        yield dst + i * rows * width, at, width, rows, pitch


def _merged(item: int, shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]] | None:
    """The dimensions of more than one element, outermost first, with strides in bytes. Contiguous neighbours are merged.
    None: there are no elements."""
    if 0 in shape:
        return None
    axes: list[tuple[int, int]] = []
    for n, stride in zip(shape, strides):
        if stride < 0:
            raise PayloadError(f"tensor {list(shape)}: strides {list(strides)}: make it contiguous first")
        if n == 1:
            continue
        if axes and axes[-1][1] == n * stride * item:
            axes[-1] = axes[-1][0] * n, stride * item
        else:
            axes.append((n, stride * item))
    return axes


_lock = threading.Lock()
_devices: dict[bytes, Cuda] | None = None


def devices() -> dict[bytes, Cuda]:
    """The GPUs that are visible to this process, by UUID. Raises NoDriver."""
    global _devices
    with _lock:
        if _devices is None:
            libcuda = Library()
            count = libcuda.number("cuDeviceGetCount", kind=ctypes.c_int)
            _devices = {d.uuid: d for d in (Cuda(libcuda, n) for n in range(count))}
        return _devices


def device(uuid: bytes) -> Cuda:
    """The GPU with a UUID."""
    try:
        found = devices().get(uuid)
    except NoDriver as e:
        raise ForeignDevice(f"tensors on {uuid_text(uuid)}: {e}") from e
    if found is None:
        raise ForeignDevice(f"{uuid_text(uuid)} is not visible to this process")
    return found


def at(ordinal: int) -> Cuda:
    """The GPU with a CUDA ordinal. Raises NoDriver and LookupError."""
    for d in devices().values():
        if d.dlpack[1] == ordinal:
            return d
    raise LookupError(f"no GPU {ordinal}")
