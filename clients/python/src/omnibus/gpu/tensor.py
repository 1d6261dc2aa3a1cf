"""Tensors in the memory of a GPU, the places that they lie in, and the words that say when they are complete.

The words are the producer's: 64 bytes for each slot, of which `ready` is the first 4 and `fault` the next. A
word counts generations in a circle, and has reached one when it is at most 2^31 - 1 behind.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from .. import dlpack
from ..bundle import Place, Placed
from ..devices.contract import Device, Memory, Reading, uuid_text
from ..devices.words import FAULT, FIRST_NAP, LAST_NAP, READY, SLOT_BYTES, SPIN, reached
from ..directory import Found
from ..errors import Forged, ForkedError, OmnibusError, Poisoned
from ..fences import fence
from ..memory import Mapping
from ..threadpool import blocking


class Words:
    """The words of a pool of another process, and whether that lives."""

    __slots__ = ("_mapping", "_found")

    def __init__(self, found: Found) -> None:
        """Map what was found, and close the descriptor."""
        self._found = found  # it watches the owner
        fd = found.take()
        try:
            self._mapping = Mapping(fd, found.size)
        finally:
            os.close(fd)

    @property
    def dead(self) -> bool:
        """Whether whoever writes them is."""
        return self._found.owner.dead

    def slot(self, number: int) -> tuple[Any, Any]:
        """The words ready and fault of a slot, valid for as long as this is."""
        at = number * SLOT_BYTES
        if at > self._mapping.size - SLOT_BYTES:
            raise Forged(f"slot {number} of {self._mapping.size // SLOT_BYTES}")
        word, base = ctypes.c_uint32.from_address, self._mapping.address + at
        return word(base + READY), word(base + FAULT)


class Gate:
    """Holds the place, and the lease on it, for as long as somebody has it.

    When the last one has let go, it has them kept until the streams that read there are done.
    """

    __slots__ = (
        "device", "uuid", "pointer", "reading", "_generation", "_words", "_ready", "_fault", "_memory", "_payload",
        "_broken", "_process", "__weakref__",
    )  # fmt: skip

    def __init__(self, device: Device, place: Place, words: Words, memory: Memory, payload: memoryview) -> None:
        """Raises Forged for a place that is not there."""
        self.reading: Reading | None = None  # the device's
        self._broken = False
        self._process = os.getpid()
        self.device = device
        self.uuid = place.device
        self._generation = place.generation
        self._words = words
        self._ready, self._fault = words.slot(place.slot)
        # Whoever holds the place has seen the word begin one before its own generation. Beyond
        # that the memory is somebody else's already, and for what is to come later nobody may wait.
        if (at := self._ready.value) not in (place.generation, (place.generation - 1) & 0xFFFFFFFF):
            raise Forged(f"generation {place.generation} of slot {place.slot}, which is at {at}")
        if place.offset > memory.size or place.nbytes > memory.size - place.offset:
            raise Forged(f"{place.nbytes} bytes at {place.offset} of {memory.size}")
        self.pointer = memory.address + place.offset
        self._memory = memory
        self._payload = payload

    @property
    def complete(self) -> bool:
        """Whether what is behind it is, or never will be."""
        if not reached(self._ready.value, self._generation):
            return False
        fence()  # what is read later is not read before the word
        return True

    @property
    def abandoned(self) -> bool:
        """Whether whoever would complete it is dead."""
        return self._words.dead

    def judge(self) -> None:
        """Take note of what the end of waiting means."""
        # What was written before its producer died is complete.
        if not self.complete or self._fault.value == self._generation:
            self._broken = True

    @property
    def error(self) -> OmnibusError | None:
        """Why what is read there is garbage, as far as that is known."""
        return self._poisoned() if self._broken else None

    def _poisoned(self) -> Poisoned:
        return Poisoned(f"tensors on {uuid_text(self.uuid)} were never completed")

    def over(self) -> bool:
        """Whether waiting is over, without waiting. Raises what `error` says then, and DeviceLost."""
        if not self.complete and not self.abandoned:
            return False
        self.judge()
        if self._broken:
            raise self._poisoned()  # a variable for it would be a circle, which keeps the payload
        self.device.check()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait on the CPU. False: the time is up. Raises Poisoned."""
        now = time.monotonic()
        limit = None if timeout is None else now + max(timeout, 0)
        spin = now + SPIN
        while not self.complete and time.monotonic() < spin:
            pass
        if self.over():
            return True
        with blocking():
            return self._nap(limit)

    def _nap(self, limit: float | None) -> bool:
        nap = FIRST_NAP
        while not self.over():
            if limit is not None and time.monotonic() >= limit:
                return False
            time.sleep(nap)
            nap = min(2 * nap, LAST_NAP)
        return True

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that opened it."""
        if os.getpid() != self._process:
            raise ForkedError(f"the memory belongs to process {self._process}, and this is {os.getpid()}: connect here")

    def __del__(self) -> None:
        reading = self.reading
        if reading is not None and os.getpid() == self._process:
            reading.leave((self._payload, self._memory, self._words))


class DeviceTensor:
    """A dense array of numbers in a GPU's memory, where its producer put it.

    It may not be complete yet. `torch.from_dlpack` gives it to PyTorch without a copy: the stream that is current
    there waits for it, and when the last of what was made of it is gone, the memory goes back once
    that stream has come so far. So it must be read on that stream, or on others that are in order with it, and must
    not be written to. Its delivery's payload stays as long as it does.
    """

    __slots__ = ("dtype", "shape", "strides", "nbytes", "_offset", "_gate")

    def __init__(self, placed: Placed, gate: Gate) -> None:
        self.dtype = placed.dtype  #: the name, as of `Tensor`
        self.shape = placed.shape
        self.strides = placed.strides  #: in elements; None: contiguous, in row-major order
        self.nbytes = placed.nbytes  #: from the first element to the end of the last
        self._offset = placed.offset
        self._gate = gate

    @property
    def device(self) -> bytes:
        """The GPU's UUID."""
        return self._gate.uuid

    @property
    def pointer(self) -> int:
        """The address of the first element, on the device. It is for those who keep the tensor."""
        return self._gate.pointer + self._offset

    @property
    def ready(self) -> bool:
        """Whether it is complete. Raises Poisoned if it never will be."""
        return self._gate.over()

    @property
    def error(self) -> OmnibusError | None:
        """Why what was read of it is garbage. It is certain once a stream that waited for it is synchronized."""
        return self._gate.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait on the CPU until it is complete. False: the time, in seconds, is up. Raises Poisoned."""
        self._gate.check_process()
        return self._gate.wait(timeout)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The tensor for `torch.from_dlpack` and the like, once `stream` is told to wait for it.

        On an emulated GPU the memory is the host's, and the CPU waits. Raises Poisoned.
        """
        gate = self._gate
        gate.check_process()
        if copy:
            raise BufferError("a tensor of another process is not copied here: copy what is made of it")
        dlpack.check_device(dl_device, self.__dlpack_device__())
        gate.device.follow(gate, stream)
        keep = [gate]
        return dlpack.capsule(
            self.pointer, *self.__dlpack_device__(), self.dtype, self.shape, self.strides, True, keep.clear,
            max_version=max_version,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device as CUDA counts it in this process; the host for an emulated one."""
        return self._gate.device.dlpack

    def __repr__(self) -> str:
        return f"DeviceTensor({self.dtype}{list(self.shape)} on {uuid_text(self.device)})"
