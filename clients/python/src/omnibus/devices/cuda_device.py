"""NVIDIA's GPUs, the reading part, over CUDA's driver interface. The sending part is in `cuda`.

Contexts are the primary ones, which PyTorch uses. Each gate has a stream of this module, which waits for the word. An
event connects it to the reader's stream. So the owner of a reader's stream need not know of waits for words, and no
other work queues behind one.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import threading
import time
from collections import deque
from types import TracebackType
from typing import Any

from ..dlpack import CUDA, borrow
from ..errors import Forged, OmnibusError, Poisoned
from .contract import AwaitedMemory, DeviceLost, DriverError, Memory, StreamMemory, uuid_text
from .libcuda import NOT_READY, Access, Handle, Library
from .mapping_cache import MappingCache
from .words import FIRST_SLEEP_SECONDS, MAX_SLEEP_SECONDS, Watcher, reached

log = logging.getLogger("omnibus")

_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, DLPack's default stream
_NON_BLOCKING, _NO_TIMING = 1, 2
_REGISTER = 1 | 2  # portable, and mapped for the device
_GEQ = 0  # a wait until a word has reached a value, modulo 2^32
_BARRIER = 0  # the write is ordered after all earlier work
_FD, _LAZY_PEERS = 1, 1
_ON_DEVICE, _READ_WRITE = 1, 3

#: The driver's codes for a handle of freed memory: invalid value, map failed, operating system, invalid handle.
_STALE = (1, 205, 304, 400)

_PAGE = mmap.PAGESIZE
_LINE, _MIRROR, _ACK = 64, 0, 4
#: The largest number of places that streams use at once.
MAX_LINES = 4096


class _Line:
    """A cache line of words that only this process writes, and a stream that waits only for them.

    The mirror follows the producer's word, and is also raised when the producer is dead, so that no stream waits for
    ever. The stream writes the ack when the reading streams are done.
    """

    __slots__ = ("mirror", "ack", "device_address", "stream", "opened_event", "tail_event", "seq")

    def __init__(self, page: mmap.mmap, offset: int, at: int, stream: int, open: int, tail: int) -> None:
        self.mirror = ctypes.c_uint32.from_buffer(page, offset + _MIRROR)
        self.ack = ctypes.c_uint32.from_buffer(page, offset + _ACK)
        self.device_address = at  # of the line
        self.stream = stream
        self.opened_event = open  # recorded after the wait
        self.tail_event = tail  # recorded after the work of a reader's stream
        self.seq = 0  # of the current gate


class CudaDevice:
    """A GPU that reads tensors of other processes."""

    def __init__(self, libcuda: Library, ordinal: int) -> None:
        self.libcuda = libcuda
        self.dlpack = (CUDA, ordinal)
        self.number = libcuda.number("cuDeviceGet", ordinal, kind=ctypes.c_int)
        uuid = (ctypes.c_ubyte * 16)()
        libcuda.call("cuDeviceGetUuid_v2", ctypes.byref(uuid), self.number)
        self.uuid = bytes(uuid)
        self.lost: DeviceLost | None = None
        self.watcher = Watcher()
        self._context = 0
        self._lock = threading.RLock()
        self._handles = MappingCache(lambda handle: _Imported(self, handle))
        self._free: deque[_Line] = deque()
        self._pages: list[mmap.mmap] = []
        self._unused_lines: list[tuple[mmap.mmap, int, int]] = []  # page, offset and device address of lines without a stream
        self._copy_lock = threading.Lock()
        self._copy_stream = 0  # a stream

    @property
    def context(self) -> _CurrentContext:
        """The primary context, current inside a `with`."""
        if not self._context:
            with self._lock:
                if not self._context:
                    kind = ctypes.c_void_p
                    self._context = self.libcuda.number("cuDevicePrimaryCtxRetain", self.number, kind=kind)
        return _CurrentContext(self.libcuda, self._context)

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call in the context. Records that the device is lost if the call reports it."""
        try:
            self.libcuda.call(name, *arguments)
        except DeviceLost as e:
            self.lost = DeviceLost(e.call, e.code, e.text)  # a copy without traceback, whose frames would keep objects alive
            raise

    def check(self) -> None:
        if self.lost is not None:
            raise DeviceLost(self.lost.call, self.lost.code, self.lost.text)

    def try_release(self, name: str, *arguments: Any) -> bool:
        """Make a call that releases a resource. For destructors. False: the device still has it."""
        try:
            with self.context:
                self.call(name, *arguments)
        except OmnibusError:
            log.debug("something cannot be given back", exc_info=True)
            return self.lost is not None
        return True

    def check_lost(self) -> bool:
        """Whether the device is lost, by a call that does nothing."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        try:
            with self.context:
                self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        except OmnibusError:
            pass  # `call` has recorded it if the device is lost
        return self.lost is not None

    # Memory.

    def arena(self, fd: int, size: int) -> Memory:
        return _Arena(self, fd, size)

    def handle(self, handle: bytes) -> Memory:
        return self._handles.get(handle)

    # Streams.

    def wait_on_stream(self, gate: AwaitedMemory, stream: Any) -> None:
        with self._lock, self.context:
            self.streams_of(gate).wait_on_stream(gate, stream)

    def streams_of(self, of: StreamMemory) -> StreamSet:
        """The streams that use memory. Under the lock, with the context current."""
        if of.streams is None:
            of.streams = StreamSet(self, self._take_line())
        assert isinstance(of.streams, StreamSet)
        return of.streams

    def _take_line(self) -> _Line:
        """A free line. Under the lock."""
        self.watcher.start()
        try:
            line = self._free.popleft()
        except IndexError:
            line = self._new_line()
        line.seq = (line.seq + 1) & 0xFFFFFFFF
        return line

    def _new_line(self) -> _Line:
        if not self._unused_lines:
            if len(self._pages) * _PAGE >= MAX_LINES * _LINE:
                raise DriverLimit(f"{MAX_LINES} places are open on {uuid_text(self.uuid)}: let go of tensors")
            page = mmap.mmap(-1, _PAGE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            self.call("cuMemHostRegister_v2", address, _PAGE, _REGISTER)
            self._pages.append(page)  # it stays registered for the process's lifetime
            try:
                at = self.libcuda.number("cuMemHostGetDevicePointer_v2", address, 0)
            except BaseException:
                if self.try_release("cuMemHostUnregister", address):
                    self._pages.pop()
                raise
            self._unused_lines = [(page, offset, at + offset) for offset in range(0, _PAGE, _LINE)]
        page, offset, at = self._unused_lines[-1]
        made: list[tuple[str, int]] = []
        try:
            made.append(("cuStreamDestroy_v2", self._new_stream()))
            made.append(("cuEventDestroy_v2", self._new_event()))
            made.append(("cuEventDestroy_v2", self._new_event()))
        except BaseException:
            for end, thing in made:
                self.libcuda.ask(end, thing)
            raise
        self._unused_lines.pop()
        return _Line(page, offset, at, *(thing for _, thing in made))

    def _new_stream(self) -> int:
        return self.libcuda.number("cuStreamCreate", _NON_BLOCKING, kind=ctypes.c_void_p)

    def _new_event(self) -> int:
        return self.libcuda.number("cuEventCreate", _NO_TIMING, kind=ctypes.c_void_p)

    def free_line(self, line: _Line) -> None:
        """Free a line whose stream is done."""
        self._free.append(line)

    # Copies.

    def to_host(self, value: Any, address: int, nbytes: int) -> None:
        """Copy a contiguous tensor of this device, an object with `__dlpack__`, into host memory."""
        with self._copy_lock, self.context:
            if not self._copy_stream:
                self._copy_stream = self._new_stream()
            b = borrow(value, self._copy_stream)  # the copy stream waits for the tensor
            self.call("cuMemcpyAsync", address, b.address, nbytes, self._copy_stream)
            self.synchronize(self._copy_stream)

    def synchronize(self, stream: int) -> None:
        """Wait until a stream has done all its work. With the context current."""
        pause = FIRST_SLEEP_SECONDS
        while (code := self.libcuda.ask("cuStreamQuery", stream)) == NOT_READY:
            time.sleep(pause)
            pause = min(2 * pause, MAX_SLEEP_SECONDS)
        if code:
            raise self.libcuda.failure("cuStreamQuery", code)


class DriverLimit(OmnibusError):
    """Streams use too many places at once."""


class _CurrentContext:
    """Makes a context current in a thread, and restores the previous one."""

    __slots__ = ("_libcuda", "_context")

    def __init__(self, libcuda: Library, context: int) -> None:
        self._libcuda = libcuda
        self._context = context

    def __enter__(self) -> None:
        self._libcuda.call("cuCtxPushCurrent_v2", self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._libcuda.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


class _Arena:
    """Memory of another process, by its descriptor."""

    def __init__(self, device: CudaDevice, fd: int, size: int) -> None:
        self.address = 0
        self.size = size
        self._device = device
        libcuda = device.libcuda
        with device.context:
            try:
                memory = libcuda.number("cuMemImportFromShareableHandle", fd, _FD)
            except DeviceLost:
                raise
            except OmnibusError as e:
                raise Forged(f"an arena: {e}") from e
            try:
                self.address = map_memory(device, memory, size)
            finally:
                libcuda.ask("cuMemRelease", memory)  # the mapping keeps the memory

    def __del__(self) -> None:
        if self.address:
            unmap_memory(self._device, self.address, self.size)


class _Imported:
    """An allocation of another process, by its handle."""

    def __init__(self, device: CudaDevice, handle: bytes) -> None:
        self.address = self.size = 0
        self._device = device
        with device.context:
            try:
                base = device.libcuda.number("cuIpcOpenMemHandle_v2", Handle.from_buffer_copy(handle), _LAZY_PEERS)
            except DriverError as e:
                if e.code in _STALE:  # the driver has the same codes for a forged handle
                    raise Poisoned(f"their sender is dead, or has freed them: {e}") from e
                raise
            self.address = base
            size = ctypes.c_size_t()
            device.call("cuMemGetAddressRange_v2", ctypes.byref(ctypes.c_uint64()), ctypes.byref(size), base)
            self.size = size.value

    def __del__(self) -> None:
        if self.address:
            self._device.try_release("cuIpcCloseMemHandle", self.address)


class StreamSet:
    """The streams that read the memory of a gate, or fill memory to be sent."""

    __slots__ = ("_device", "_line", "_streams", "_waiting", "_opened_recorded")

    def __init__(self, device: CudaDevice, line: _Line) -> None:
        self._device = device
        self._line = line
        self._streams: list[int] = []
        self._waiting = False  # whether the own stream waits for the mirror
        self._opened_recorded = False  # whether the event is recorded after that wait

    def wait_on_stream(self, gate: AwaitedMemory, stream: Any) -> None:
        """Make a stream wait for the gate. Under the device's lock, with its context current."""
        raw = _cuda_stream(stream)
        over = gate.is_done()
        if not over and stream != -1:  # with -1 the consumer synchronizes itself
            self._record_opened(gate)
            self._device.call("cuStreamWaitEvent", raw, self._line.opened_event, 0)
        if raw not in self._streams:
            self._streams.append(raw)

    @property
    def own_stream(self) -> int:
        """A stream without foreign work."""
        return self._line.stream

    def add_stream(self, stream: Any) -> None:
        """Add a stream, ordered after the earlier ones. Under the device's lock, with its context current."""
        raw = _cuda_stream(stream)
        if stream != -1:  # with -1 the consumer synchronizes itself
            self._order_after_all(raw)
        if raw not in self._streams:
            self._streams.append(raw)

    def order_own_stream(self) -> None:
        """Order the own stream after the current work of all streams. With the context current."""
        self._order_after_all(self._line.stream)

    def _order_after_all(self, raw: int) -> None:
        line, call = self._line, self._device.call
        for other in self._streams:
            if other != raw:
                call("cuEventRecord", line.tail_event, other)
                call("cuStreamWaitEvent", raw, line.tail_event, 0)

    def _record_opened(self, gate: AwaitedMemory) -> None:
        """Record the event after the own stream's wait for the gate."""
        if not self._waiting:
            self._wait_for_gate(gate)
        if not self._opened_recorded:
            self._device.call("cuEventRecord", self._line.opened_event, self._line.stream)
            self._opened_recorded = True

    def _wait_for_gate(self, gate: AwaitedMemory) -> None:
        """Make the own stream wait for the gate."""
        line, seq, call = self._line, self._line.seq, self._device.call

        def opened() -> None:
            gate.record_outcome()  # before the waiting streams continue
            line.mirror.value = seq

        def gone() -> bool:
            return gate.abandoned or self._device.check_lost()

        call("cuStreamWaitValue32_v2", line.stream, line.device_address + _MIRROR, seq, _GEQ)
        self._waiting = True
        self._device.watcher.add(lambda: gate.complete, gone, opened)

    def drop_when_done(self, keep: Any) -> None:
        # No lock: this thread may hold it already. The last reference to the gate is gone, so no other thread uses the line.
        line, seq, device = self._line, self._line.seq, self._device
        call = device.call
        held = [keep]
        try:
            with device.context:
                self.order_own_stream()
                call("cuStreamWriteValue32_v2", line.stream, line.device_address + _ACK, seq, _BARRIER)
        except OmnibusError:
            # A lost device does no more work. Otherwise no word will report the end of the streams: they are polled,
            # and the line is not reused.
            if device.lost is None:
                log.exception("the end of tensors on a GPU")
                device.watcher.add(lambda: False, lambda: self._is_idle() or device.check_lost(), held.clear)
            return

        def done() -> None:
            held.clear()
            device.free_line(line)

        device.watcher.add(lambda: reached(line.ack.value, seq), device.check_lost, done)

    def _is_idle(self) -> bool:
        """Whether the streams have no work left, or are destroyed."""
        device = self._device
        with device.context:
            return all(device.libcuda.ask("cuStreamQuery", s) != NOT_READY for s in [*self._streams, self._line.stream])


def _cuda_stream(stream: Any) -> int:
    """The CUDA stream of a DLPack stream number."""
    if stream is not None and (not isinstance(stream, int) or stream == 0 or stream < -1):
        raise BufferError(f"stream {stream!r} is none of CUDA's")
    return _LEGACY_STREAM if stream in (None, -1) else stream


def map_memory(device: CudaDevice, memory: int, size: int) -> int:
    """Map memory, and return its address. With the device's context current."""
    libcuda, call = device.libcuda, device.call
    address = libcuda.number("cuMemAddressReserve", size, 0, 0, 0)
    try:
        call("cuMemMap", address, size, 0, memory, 0)
        try:
            access = Access(_ON_DEVICE, device.number, _READ_WRITE)  # CUDA has no read-only access
            call("cuMemSetAccess", address, size, ctypes.byref(access), 1)
        except BaseException:
            libcuda.ask("cuMemUnmap", address, size)
            raise
    except BaseException:
        libcuda.ask("cuMemAddressFree", address, size)
        raise
    return address


def unmap_memory(device: CudaDevice, address: int, size: int) -> None:
    try:
        with device.context:
            device.call("cuMemUnmap", address, size)
            device.call("cuMemAddressFree", address, size)
    except OmnibusError:
        log.debug("an arena cannot be unmapped", exc_info=True)
