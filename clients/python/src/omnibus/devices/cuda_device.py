"""How tensors are read on NVIDIA's GPUs, by the driver interface of CUDA. How they are sent is in `cuda`.

Contexts are the primary ones, which PyTorch uses. Waits are in streams of this module's own, one for each
gate, and bridged to the reader's stream by an event: a wait for a word is nothing that its owner knows of, and others
must not queue up behind it.
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
from .contract import Awaited, DeviceLost, DriverError, Memory, Used, uuid_text
from .libcuda import NOT_READY, Access, Handle, Library
from .shared import Shared
from .words import FIRST_NAP, LAST_NAP, Watcher, reached

log = logging.getLogger("omnibus")

_LEGACY_STREAM = 1  # CU_STREAM_LEGACY, which is what DLPack means by no stream
_NON_BLOCKING, _NO_TIMING = 1, 2
_REGISTER = 1 | 2  # portable, and mapped for the device
_GEQ = 0  # a wait for a word that has reached a value, in a circle
_BARRIER = 0  # a write that is seen behind all before it
_FD, _LAZY_PEERS = 1, 1
_ON_DEVICE, _READ_WRITE = 1, 3

#: What the driver says of a handle of memory that is gone: no value, not mapped, the kernel says no, no handle.
_STALE = (1, 205, 304, 400)

_PAGE = mmap.PAGESIZE
_LINE, _MIRROR, _ACK = 64, 0, 4
#: How many places are open at once that streams read.
MAX_LINES = 4096


class _Line:
    """Words that this process alone writes, a cache line of them, and a stream that waits for nothing else.

    The mirror says what the producer's word says, but that it is also raised when the producer is
    dead: so no stream waits for the dead. The stream writes the ack when those that read are done.
    """

    __slots__ = ("mirror", "ack", "at", "stream", "open", "tail", "seq")

    def __init__(self, page: mmap.mmap, offset: int, at: int, stream: int, open: int, tail: int) -> None:
        self.mirror = ctypes.c_uint32.from_buffer(page, offset + _MIRROR)
        self.ack = ctypes.c_uint32.from_buffer(page, offset + _ACK)
        self.at = at  # on the device
        self.stream = stream
        self.open = open  # the event behind the wait
        self.tail = tail  # the event behind what a reader's stream has done
        self.seq = 0  # of the gate that has it


class CudaDevice:
    """A GPU that tensors are read on."""

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
        self._handles = Shared(lambda handle: _Imported(self, handle))
        self._free: deque[_Line] = deque()
        self._pages: list[mmap.mmap] = []
        self._spare: list[tuple[mmap.mmap, int, int]] = []  # lines that have not been made
        self._copies = threading.Lock()
        self._copying = 0  # a stream

    @property
    def context(self) -> _Current:
        """The primary context, current while in a `with`."""
        if not self._context:
            with self._lock:
                if not self._context:
                    kind = ctypes.c_void_p
                    self._context = self.libcuda.number("cuDevicePrimaryCtxRetain", self.number, kind=kind)
        return _Current(self.libcuda, self._context)

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call in the context. Takes note of one that says that the device is lost."""
        try:
            self.libcuda.call(name, *arguments)
        except DeviceLost as e:
            self.lost = DeviceLost(e.call, e.code, e.text)  # without the frames, and what they hold
            raise

    def check(self) -> None:
        if self.lost is not None:
            raise DeviceLost(self.lost.call, self.lost.code, self.lost.text)

    def quietly(self, name: str, *arguments: Any) -> bool:
        """Make a call that gives something back. For destructors. False: the device has it still."""
        try:
            with self.context:
                self.call(name, *arguments)
        except OmnibusError:
            log.debug("something cannot be given back", exc_info=True)
            return self.lost is not None
        return True

    def look(self) -> bool:
        """Whether the device is lost, by a call that does nothing."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        try:
            with self.context:
                self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        except OmnibusError:
            pass  # it is noted if it is lost
        return self.lost is not None

    # Memory.

    def arena(self, fd: int, size: int) -> Memory:
        return _Arena(self, fd, size)

    def handle(self, handle: bytes) -> Memory:
        return self._handles.get(handle)

    # Streams.

    def follow(self, gate: Awaited, stream: Any) -> None:
        with self._lock, self.context:
            self.reading_of(gate).follow(gate, stream)

    def reading_of(self, of: Used) -> Reading:
        """The streams that use something. The lock is held, and the context current."""
        if of.reading is None:
            of.reading = Reading(self, self._line())
        assert isinstance(of.reading, Reading)
        return of.reading

    def _line(self) -> _Line:
        """Words that nobody uses. The lock is held."""
        self.watcher.start()
        try:
            line = self._free.popleft()
        except IndexError:
            line = self._new_line()
        line.seq = (line.seq + 1) & 0xFFFFFFFF
        return line

    def _new_line(self) -> _Line:
        if not self._spare:
            if len(self._pages) * _PAGE >= MAX_LINES * _LINE:
                raise DriverLimit(f"{MAX_LINES} places are open on {uuid_text(self.uuid)}: let go of tensors")
            page = mmap.mmap(-1, _PAGE)
            address = ctypes.addressof(ctypes.c_char.from_buffer(page))
            self.call("cuMemHostRegister_v2", address, _PAGE, _REGISTER)
            self._pages.append(page)  # it stays registered
            try:
                at = self.libcuda.number("cuMemHostGetDevicePointer_v2", address, 0)
            except BaseException:
                if self.quietly("cuMemHostUnregister", address):
                    self._pages.pop()
                raise
            self._spare = [(page, offset, at + offset) for offset in range(0, _PAGE, _LINE)]
        page, offset, at = self._spare[-1]
        made: list[tuple[str, int]] = []
        try:
            made.append(("cuStreamDestroy_v2", self._stream()))
            made.append(("cuEventDestroy_v2", self._event()))
            made.append(("cuEventDestroy_v2", self._event()))
        except BaseException:
            for end, thing in made:
                self.libcuda.ask(end, thing)
            raise
        self._spare.pop()
        return _Line(page, offset, at, *(thing for _, thing in made))

    def _stream(self) -> int:
        return self.libcuda.number("cuStreamCreate", _NON_BLOCKING, kind=ctypes.c_void_p)

    def _event(self) -> int:
        return self.libcuda.number("cuEventCreate", _NO_TIMING, kind=ctypes.c_void_p)

    def give(self, line: _Line) -> None:
        """Take a line back whose stream is done."""
        self._free.append(line)

    # Copies.

    def to_host(self, value: Any, address: int, nbytes: int) -> None:
        """Copy a contiguous tensor of this device's, an object with `__dlpack__`, into the host's memory."""
        with self._copies, self.context:
            if not self._copying:
                self._copying = self._stream()
            b = borrow(value, self._copying)  # our stream waits for what fills it
            self.call("cuMemcpyAsync", address, b.address, nbytes, self._copying)
            self.settle(self._copying)

    def settle(self, stream: int) -> None:
        """Wait until a stream has done all that it was given. The context is current."""
        nap = FIRST_NAP
        while (code := self.libcuda.ask("cuStreamQuery", stream)) == NOT_READY:
            time.sleep(nap)
            nap = min(2 * nap, LAST_NAP)
        if code:
            raise self.libcuda.failure("cuStreamQuery", code)


class DriverLimit(OmnibusError):
    """Too many places are open at once."""


class _Current:
    """A context that is current in a thread for a while, whatever was before."""

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
    """Memory of another process's, behind a descriptor."""

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
                libcuda.ask("cuMemRelease", memory)  # the mapping keeps it

    def __del__(self) -> None:
        if self.address:
            unmap_memory(self._device, self.address, self.size)


class _Imported:
    """An allocation of another process's, behind a handle."""

    def __init__(self, device: CudaDevice, handle: bytes) -> None:
        self.address = self.size = 0
        self._device = device
        with device.context:
            try:
                base = device.libcuda.number("cuIpcOpenMemHandle_v2", Handle.from_buffer_copy(handle), _LAZY_PEERS)
            except DriverError as e:
                if e.code in _STALE:  # what the driver says of a handle that is none, too
                    raise Poisoned(f"their sender is dead, or has freed them: {e}") from e
                raise
            self.address = base
            size = ctypes.c_size_t()
            device.call("cuMemGetAddressRange_v2", ctypes.byref(ctypes.c_uint64()), ctypes.byref(size), base)
            self.size = size.value

    def __del__(self) -> None:
        if self.address:
            self._device.quietly("cuIpcCloseMemHandle", self.address)


class Reading:
    """The streams that read what is behind a gate, or fill what is to be sent."""

    __slots__ = ("_device", "_line", "_streams", "_waiting", "_opening")

    def __init__(self, device: CudaDevice, line: _Line) -> None:
        self._device = device
        self._line = line
        self._streams: list[int] = []
        self._waiting = False  # the own stream, for the mirror
        self._opening = False  # the event is behind that

    def follow(self, gate: Awaited, stream: Any) -> None:
        """Have a stream wait. The device's lock is held, and its context current."""
        raw = _raw(stream)
        over = gate.over()
        if not over and stream != -1:  # whoever says -1 waits in a way of its own
            self._open(gate)
            self._device.call("cuStreamWaitEvent", raw, self._line.open, 0)
        if raw not in self._streams:
            self._streams.append(raw)

    @property
    def own(self) -> int:
        """A stream that nothing else is given."""
        return self._line.stream

    def join(self, stream: Any) -> None:
        """Have a stream go on behind those that were given it before. The device's lock is held, and its context current."""
        raw = _raw(stream)
        if stream != -1:  # whoever says -1 waits in a way of its own
            self._behind(raw)
        if raw not in self._streams:
            self._streams.append(raw)

    def gather(self) -> None:
        """Have the own stream go on behind what all of them were given so far. The context is current."""
        self._behind(self._line.stream)

    def _behind(self, raw: int) -> None:
        line, call = self._line, self._device.call
        for other in self._streams:
            if other != raw:
                call("cuEventRecord", line.tail, other)
                call("cuStreamWaitEvent", raw, line.tail, 0)

    def _open(self, gate: Awaited) -> None:
        """Have the event record the opening of the gate."""
        if not self._waiting:
            self._wait(gate)
        if not self._opening:
            self._device.call("cuEventRecord", self._line.open, self._line.stream)
            self._opening = True

    def _wait(self, gate: Awaited) -> None:
        """Have the own stream wait for the gate."""
        line, seq, call = self._line, self._line.seq, self._device.call

        def opened() -> None:
            gate.judge()  # before anybody is let through
            line.mirror.value = seq

        def gone() -> bool:
            return gate.abandoned or self._device.look()

        call("cuStreamWaitValue32_v2", line.stream, line.at + _MIRROR, seq, _GEQ)
        self._waiting = True
        self._device.watcher.add(lambda: gate.complete, gone, opened)

    def leave(self, keep: Any) -> None:
        # No lock: it may be this thread's already. Nobody else has the gate, and so the line.
        line, seq, device = self._line, self._line.seq, self._device
        call = device.call
        held = [keep]
        try:
            with device.context:
                self.gather()
                call("cuStreamWriteValue32_v2", line.stream, line.at + _ACK, seq, _BARRIER)
        except OmnibusError:
            # A device that is lost does nothing any more. Otherwise no word will
            # say when the streams are done: they are asked, and the line is not used again.
            if device.lost is None:
                log.exception("the end of tensors on a GPU")
                device.watcher.add(lambda: False, lambda: self._idle() or device.look(), held.clear)
            return

        def done() -> None:
            held.clear()
            device.give(line)

        device.watcher.add(lambda: reached(line.ack.value, seq), device.look, done)

    def _idle(self) -> bool:
        """Whether the streams have nothing to do, or are none any more."""
        device = self._device
        with device.context:
            return all(device.libcuda.ask("cuStreamQuery", s) != NOT_READY for s in [*self._streams, self._line.stream])


def _raw(stream: Any) -> int:
    """CUDA's own name of a stream of DLPack's."""
    if stream is not None and (not isinstance(stream, int) or stream == 0 or stream < -1):
        raise BufferError(f"stream {stream!r} is none of CUDA's")
    return _LEGACY_STREAM if stream in (None, -1) else stream


def map_memory(device: CudaDevice, memory: int, size: int) -> int:
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


def unmap_memory(device: CudaDevice, address: int, size: int) -> None:
    try:
        with device.context:
            device.call("cuMemUnmap", address, size)
            device.call("cuMemAddressFree", address, size)
    except OmnibusError:
        log.debug("an arena cannot be unmapped", exc_info=True)
