"""Received tensors in GPU memory, their places, and the words that say when they are complete.

The producer writes the words: 64 bytes for each slot, `ready` in the first 4 and `fault` in the next. A word counts
generations modulo 2^32, and has reached one that is at most 2^31 - 1 behind it.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

from .. import dlpack
from ..bundle import Place, Placed
from ..devices.contract import Device, Memory, StreamSet, uuid_text
from ..devices.words import FAULT, FIRST_SLEEP_SECONDS, MAX_SLEEP_SECONDS, READY, SLOT_BYTES, SPIN_SECONDS, reached
from ..directory import Found
from ..errors import Forged, ForkedError, OmnibusError, Poisoned
from ..fences import fence
from ..memory import Mapping
from ..threadpool import blocking


class Words:
    """The words of a pool of another process, and whether that process lives."""

    __slots__ = ("_mapping", "_found")

    def __init__(self, found: Found) -> None:
        """Map the words, and close the descriptor."""
        self._found = found  # it watches the owning process
        fd = found.take()
        try:
            self._mapping = Mapping(fd, found.size)
        finally:
            os.close(fd)

    @property
    def owner_dead(self) -> bool:
        """Whether the process that writes the words is dead."""
        return self._found.owner.dead

    def slot(self, number: int) -> tuple[Any, Any]:
        """The words ready and fault of a slot, valid as long as this object."""
        at = number * SLOT_BYTES
        if at > self._mapping.size - SLOT_BYTES:
            raise Forged(f"slot {number} of {self._mapping.size // SLOT_BYTES}")
        word, base = ctypes.c_uint32.from_address, self._mapping.address + at
        return word(base + READY), word(base + FAULT)


class Gate:
    """Keeps a place of memory, and the lease on it, while there are references to the gate.

    After the last reference both are kept until the reading streams are done.
    """

    __slots__ = (
        "device", "uuid", "pointer", "streams", "_generation", "_words", "_ready", "_fault", "_memory", "_payload",
        "_failed", "_process", "__weakref__",
    )  # fmt: skip

    def __init__(self, device: Device, place: Place, words: Words, memory: Memory, payload: memoryview) -> None:
        """Raises Forged for an invalid place."""
        self.streams: StreamSet | None = None  # the device's
        self._failed = False
        self._process = os.getpid()
        self.device = device
        self.uuid = place.device
        self._generation = place.generation
        self._words = words
        self._ready, self._fault = words.slot(place.slot)
        # While the payload holds the place, the word is at its generation or one before. Past that the memory is in
        # use for another value, and a wait for a later generation might never end.
        if (at := self._ready.value) not in (place.generation, (place.generation - 1) & 0xFFFFFFFF):
            raise Forged(f"generation {place.generation} of slot {place.slot}, which is at {at}")
        if place.offset > memory.size or place.nbytes > memory.size - place.offset:
            raise Forged(f"{place.nbytes} bytes at {place.offset} of {memory.size}")
        self.pointer = memory.address + place.offset
        self._memory = memory
        self._payload = payload

    @property
    def complete(self) -> bool:
        """Whether the memory is complete, or never will be."""
        if not reached(self._ready.value, self._generation):
            return False
        fence()  # orders later reads after that of the word
        return True

    @property
    def abandoned(self) -> bool:
        """Whether the producer is dead."""
        return self._words.owner_dead

    def record_outcome(self) -> None:
        """Record, at the end of the wait, whether the memory is complete."""
        # Memory that was completed before the producer died is valid.
        if not self.complete or self._fault.value == self._generation:
            self._failed = True

    @property
    def error(self) -> OmnibusError | None:
        """The reason why the memory is garbage, as far as it is known, or None."""
        return self._poisoned() if self._failed else None

    def _poisoned(self) -> Poisoned:
        return Poisoned(f"tensors on {uuid_text(self.uuid)} were never completed")

    def is_done(self) -> bool:
        """Whether the wait has ended. Does not block. Raises the `error`, and DeviceLost."""
        if not self.complete and not self.abandoned:
            return False
        self.record_outcome()
        if self._failed:
            raise self._poisoned()  # a local variable would make a reference cycle, which keeps the payload
        self.device.check()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait on the CPU. False: the timeout has passed. Raises Poisoned."""
        now = time.monotonic()
        limit = None if timeout is None else now + max(timeout, 0)
        spin = now + SPIN_SECONDS
        while not self.complete and time.monotonic() < spin:
            pass
        if self.is_done():
            return True
        with blocking():
            return self._sleep_until_done(limit)

    def _sleep_until_done(self, limit: float | None) -> bool:
        pause = FIRST_SLEEP_SECONDS
        while not self.is_done():
            if limit is not None and time.monotonic() >= limit:
                return False
            time.sleep(pause)
            pause = min(2 * pause, MAX_SLEEP_SECONDS)
        return True

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that opened it."""
        if os.getpid() != self._process:
            raise ForkedError(f"the memory belongs to process {self._process}, and this is {os.getpid()}: connect here")

    def __del__(self) -> None:
        streams = self.streams
        if streams is not None and os.getpid() == self._process:
            streams.drop_when_done((self._payload, self._memory, self._words))


class DeviceTensor:
    """A dense array of numbers in GPU memory, in place at its producer.

    It may not be complete yet. `torch.from_dlpack` passes it to PyTorch without a copy, and makes the current stream
    wait for it. After the last reference to the resulting tensors, the memory is given back once that stream has done
    its work. So the tensor must be read on that stream, or on streams that are ordered with it, and must not be
    written. The payload of its delivery is kept as long as the tensor.
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
        """The device address of the first element, valid while the tensor is referenced."""
        return self._gate.pointer + self._offset

    @property
    def ready(self) -> bool:
        """Whether it is complete. Raises Poisoned if it never will be."""
        return self._gate.is_done()

    @property
    def error(self) -> OmnibusError | None:
        """The reason why its data is garbage, or None. Final once a stream that waited for it is synchronized."""
        return self._gate.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait on the CPU until it is complete. False: the timeout, in seconds, has passed. Raises Poisoned."""
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
        """The tensor for `torch.from_dlpack` and similar functions. `stream` waits for it.

        On an emulated GPU the memory is in the host, and the CPU waits. Raises Poisoned.
        """
        gate = self._gate
        gate.check_process()
        if copy:
            raise BufferError("a tensor of another process is not copied here: copy what is made of it")
        dlpack.check_device(dl_device, self.__dlpack_device__())
        gate.device.wait_on_stream(gate, stream)
        keep = [gate]
        return dlpack.capsule(
            self.pointer, *self.__dlpack_device__(), self.dtype, self.shape, self.strides, True, keep.clear,
            max_version=max_version,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The DLPack device, with CUDA's number in this process; the host for an emulated GPU."""
        return self._gate.device.dlpack

    def __repr__(self) -> str:
        return f"DeviceTensor({self.dtype}{list(self.shape)} on {uuid_text(self.device)})"
