"""Memory of a GPU to be filled in place, and sent where it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import dlpack
from ..devices.contract import Memory, Reading, SendingDevice, uuid_text
from ..dtypes import data_bytes
from ..errors import Finished, ForkedError
from .pool import GRANULE, Piece


class Spare:
    """Memory of the device's that nobody else maps, where a pool had no room for a chunk."""

    __slots__ = ("device", "sent", "reading", "memory", "nbytes", "_process", "__weakref__")

    def __init__(self, device: SendingDevice, nbytes: int) -> None:
        self.device = device
        self.sent = False
        self.reading: Reading | None = None
        self.memory: Memory = device.new_memory(max(nbytes, 1))
        self.nbytes = nbytes
        self._process = os.getpid()

    @property
    def pointer(self) -> int:
        return self.memory.address

    def __del__(self) -> None:
        reading = getattr(self, "reading", None)
        if reading is not None and os.getpid() == self._process:
            reading.leave(self.memory)


class Chunk:
    """Memory for the tensors of a message, on a GPU. It belongs to one thread.

    It is sent with the first value that has a tensor of it. Other processes read it from then on, so
    nothing may write to it any more. What is never sent goes back with the last that has it.
    """

    __slots__ = ("nbytes", "_memory", "_at", "_process")

    def __init__(self, memory: Piece | Spare, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = memory
        self._at = 0
        self._process = os.getpid()

    @property
    def pooled(self) -> bool:
        """Whether it is in the pool. What is not, for want of room, is copied when it is sent."""
        return isinstance(self._memory, Piece)

    @property
    def sent(self) -> bool:
        """Whether a value with a tensor of it was sent."""
        return self._memory.sent

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> ChunkTensor:
        """A tensor in the chunk, whose elements are whatever was there. It is contiguous.

        Tensors begin at multiples of 256 bytes. Raises ValueError when there is not so much room left.
        """
        self.check()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = dtype_name(dtype)
        nbytes, at = data_bytes(dtype, shape), self._at
        if nbytes > self.nbytes - at:
            raise ValueError(f"{nbytes} bytes for {dtype}{list(shape)}: the chunk has {self.nbytes - at} of {self.nbytes} left")
        self._at = min(at + room_for(nbytes), self.nbytes)
        return ChunkTensor(self, dtype, shape, at, nbytes)

    def wait_for(self, stream: int) -> None:
        """Have the tensors count as complete only when what a stream was given so far, and is given before they are
        sent, is done.

        That is so without a call for the streams that `__dlpack__` was told of: with PyTorch, the one that was
        current in `torch.from_dlpack`.
        """
        self.check()
        self._memory.device.use(self._memory, stream)

    def check(self) -> None:
        """Raise Finished if it was sent, and ForkedError in a child of the process that made it."""
        if os.getpid() != self._process:
            raise ForkedError(f"the memory belongs to process {self._process}, and this is {os.getpid()}: connect here")
        if self._memory.sent:
            raise Finished("the chunk was sent: other processes read it")


class ChunkTensor:
    """A dense array of numbers in a chunk, to be filled by whoever takes it with `from_dlpack`, and sent."""

    __slots__ = ("chunk", "dtype", "shape", "nbytes", "offset")

    def __init__(self, chunk: Chunk, dtype: str, shape: tuple[int, ...], offset: int, nbytes: int) -> None:
        self.chunk = chunk
        self.dtype = dtype  #: the name, as of `Tensor`
        self.shape = shape
        self.nbytes = nbytes
        self.offset = offset  #: in the chunk

    @property
    def device(self) -> bytes:
        """The GPU's UUID."""
        return self.chunk._memory.device.uuid

    @property
    def pointer(self) -> int:
        """The address of the first element, on the device. It is for those who keep the chunk."""
        return self.chunk._memory.pointer + self.offset

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The tensor for `torch.from_dlpack` and the like, which may write to it on `stream` until it is sent."""
        self.chunk.check()
        if copy:
            raise BufferError("a tensor that is to be filled in place is not copied")
        dlpack.check_device(dl_device, self.__dlpack_device__())
        memory = self.chunk._memory
        memory.device.use(memory, stream)
        keep = [memory]
        return dlpack.capsule(
            self.pointer, *self.__dlpack_device__(), self.dtype, self.shape, None, False, keep.clear,
            max_version=max_version,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device as CUDA counts it in this process; the host for an emulated one."""
        return self.chunk._memory.device.dlpack

    def __repr__(self) -> str:
        return f"ChunkTensor({self.dtype}{list(self.shape)} on {uuid_text(self.device)})"


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of ours, NumPy's or torch's."""
    return str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).removeprefix("torch.")


def room_for(nbytes: int) -> int:
    """What a tensor takes of a chunk."""
    return -(-nbytes // GRANULE) * GRANULE
