"""How tensors are sent from NVIDIA's GPUs: memory that others map, words that streams write, and copies in between."""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..dlpack import Borrowed, borrow, is_on_gpu, row_major
from ..dtypes import DTYPES
from ..errors import OmnibusError, PayloadError
from .driver import DriverError
from .gate import READY
from .libcuda import Access, Copy2D, Handle, Properties

if TYPE_CHECKING:
    from .chunk import Spare
    from .cuda import Cuda, Reading
    from .pool import Piece

log = logging.getLogger("omnibus")

_PINNED, _FD, _ON_DEVICE, _READ_WRITE, _MINIMUM = 1, 1, 1, 3, 0
_REGISTER = 1 | 2  # portable, and mapped for the device
_HANDLE_CAPABLE = 10
_BARRIER = 0  # a write that is seen behind all before it
_UNIFIED = 4  # addresses that say themselves what they are of
_NOT_SUPPORTED = 801

#: How many copies one tensor may take, and the largest pitch that every driver takes.
MAX_COPIES, _MAX_PITCH = 1 << 16, (1 << 31) - 1


class Producer:
    """The part of a GPU that sends."""

    def owns(self: Cuda, value: Any) -> bool:  # type: ignore[misc]
        return is_on_gpu(value) and int(value.__dlpack_device__()[1]) == self.dlpack[1]

    def new_arena(self: Cuda, nbytes: int) -> _Arena:  # type: ignore[misc]
        return _Arena(self, nbytes)

    def new_memory(self: Cuda, nbytes: int) -> _Allocation:  # type: ignore[misc]
        return _Allocation(self, nbytes)

    def register(self: Cuda, address: int, nbytes: int, keep: Any) -> _Registered:  # type: ignore[misc]
        return _Registered(self, address, nbytes, keep)

    def export(self: Cuda, address: int) -> tuple[bytes, int, int]:  # type: ignore[misc]
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

    def use(self: Cuda, piece: Piece | Spare, stream: Any) -> None:  # type: ignore[misc]
        with self._lock, self.context:
            self.reading_of(piece).join(stream)

    def sending(self: Cuda, piece: Piece) -> _Sending:  # type: ignore[misc]
        with self._lock, self.context:
            return _Sending(self, piece, self.reading_of(piece))

    def bring(self: Cuda, memory: Spare, copies: Sequence[tuple[int, Any]]) -> None:  # type: ignore[misc]
        with self._lock, self.context:
            reading = self.reading_of(memory)
            reading.join(reading.own)  # whoever is given the memory comes behind that
        stream = reading.own
        elsewhere = [c for c in copies if not self.owns(c[1])]
        held = []  # no stream of theirs is told, so that they stay until they are copied, also when one of them cannot be
        try:
            for at, value in elsewhere:
                held.append(borrow(value, -1 if is_on_gpu(value) else None))
                self._copy(at, held[-1], stream)
        finally:
            if held:
                with self.context:
                    self.settle(stream)
        for at, value in copies:
            if self.owns(value):
                with self.context:
                    b = borrow(value, stream)
                self._copy(at, b, stream)

    def _copy(self: Cuda, dst: int, src: Borrowed, stream: int) -> None:  # type: ignore[misc]
        """Have a stream copy a tensor's elements, in row-major order."""
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
    """Memory of this process's, mapped, and a descriptor of it."""

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
                libcuda.ask("cuMemRelease", memory)  # the mapping keeps it

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        if self.address:
            unmap_memory(self._device, self.address, self.size)


class _Allocation:
    """Memory that nobody else maps."""

    def __init__(self, device: Cuda, nbytes: int) -> None:
        self.address = 0
        self.size = nbytes
        self._device = device
        with device.context:
            self.address = device.libcuda.number("cuMemAlloc_v2", nbytes)

    def __del__(self) -> None:
        if self.address:
            self._device.quietly("cuMemFree_v2", self.address)


#: Memory of the host's that a device does not forget.
_stuck: list[Any] = []


class _Registered:
    """Memory of the host's that the device may write to."""

    def __init__(self, device: Cuda, address: int, nbytes: int, keep: Any) -> None:
        self.address = self._host = 0
        self._device, self._keep = device, keep
        with device.context:
            device.call("cuMemHostRegister_v2", address, nbytes, _REGISTER)
            self._host = address
            self.address = device.libcuda.number("cuMemHostGetDevicePointer_v2", address, 0)

    def __del__(self) -> None:
        if self._host and not self._device.quietly("cuMemHostUnregister", self._host):
            # It must not be unmapped: the device would take what comes there for it.
            _stuck.append(self._keep)


class _Sending:
    """What is given a stream of the piece's own before the piece is complete."""

    __slots__ = ("_device", "_piece", "_reading", "_copied")

    def __init__(self, device: Cuda, piece: Piece, reading: Reading) -> None:
        self._device, self._piece, self._reading = device, piece, reading
        self._copied = False

    def take(self, value: Any) -> Borrowed:
        with self._device.context:
            b = borrow(value, self._reading.own)
        # Should something fail now, the stream has it all the same.
        self._piece.lent.append(b)
        return b

    def copy(self, dst: int, src: Borrowed) -> None:
        self._copied = True
        self._device._copy(dst, src, self._reading.own)

    def complete(self) -> None:
        device, piece, copied = self._device, self._piece, self._copied
        with device.context:
            self._reading.gather()
            device.call(
                "cuStreamWriteValue32_v2", self._reading.own, piece.words_at() + READY, piece.generation, _BARRIER
            )

        def done() -> None:
            piece.fail()  # unless it is complete: the device is lost
            if copied:
                piece.lent.clear()

        device.watcher.add(lambda: piece.settled, device.look, done)


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
    """The dimensions that matter, outermost first, with strides in bytes: neighbours that lie one behind the other are
    one. None: there are no elements."""
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


def map_memory(device: Cuda, memory: int, size: int) -> int:
    """Give memory an address. The device's context is current."""
    libcuda, call = device.libcuda, device.call
    address = libcuda.number("cuMemAddressReserve", size, 0, 0, 0)
    try:
        call("cuMemMap", address, size, 0, memory, 0)
        try:
            access = Access(_ON_DEVICE, device.number, _READ_WRITE)  # CUDA has no other
            call("cuMemSetAccess", address, size, ctypes.byref(access), 1)
        except BaseException:
            libcuda.ask("cuMemUnmap", address, size)
            raise
    except BaseException:
        libcuda.ask("cuMemAddressFree", address, size)
        raise
    return address


def unmap_memory(device: Cuda, address: int, size: int) -> None:
    try:
        with device.context:
            device.call("cuMemUnmap", address, size)
            device.call("cuMemAddressFree", address, size)
    except OmnibusError:
        log.debug("an arena cannot be unmapped", exc_info=True)
