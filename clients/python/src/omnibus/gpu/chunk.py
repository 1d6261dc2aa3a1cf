"""GPU memory that is filled in place, and sent without a copy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import dlpack
from ..devices.contract import Memory, StreamSet, SendingDevice, uuid_text
from ..dtypes import data_bytes
from ..errors import Finished, ForkedError
from .pool import GRANULE, Piece


class PrivateMemory:
    """Device memory that no other process maps, for a chunk that the pool has no space for."""

    __slots__ = ("device", "sent", "streams", "memory", "nbytes", "_process", "__weakref__")

    def __init__(self, device: SendingDevice, nbytes: int) -> None:
        self.device = device
        self.sent = False
        self.streams: StreamSet | None = None
        self.memory: Memory = device.new_memory(max(nbytes, 1))
        self.nbytes = nbytes
        self._process = os.getpid()

    @property
    def pointer(self) -> int:
        return self.memory.address

    def __del__(self) -> None:
        streams = getattr(self, "streams", None)
        if streams is not None and os.getpid() == self._process:
            streams.drop_when_done(self.memory)


class Chunk:
    """Memory for the tensors of a message, on a GPU. It belongs to one thread.

    It is sent with the first value that has a tensor of it. Other processes read it from then on, so it must not be
    written any more. An unsent chunk is freed with the last reference to it.
    """

    __slots__ = ("nbytes", "_memory", "_used", "_process")

    def __init__(self, memory: Piece | PrivateMemory, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = memory
        self._used = 0
        self._process = os.getpid()

    @property
    def pooled(self) -> bool:
        """Whether it is in the pool. A chunk outside, for want of space, is copied when it is sent."""
        return isinstance(self._memory, Piece)

    @property
    def sent(self) -> bool:
        """Whether a value with a tensor of it was sent."""
        return self._memory.sent

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> ChunkTensor:
        """An uninitialized, contiguous tensor in the chunk.

        Tensors begin at multiples of 256 bytes. Raises ValueError if the chunk has not enough space left.
        """
        self.check()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = dtype_name(dtype)
        nbytes, at = data_bytes(dtype, shape), self._used
        if nbytes > self.nbytes - at:
            raise ValueError(f"{nbytes} bytes for {dtype}{list(shape)}: the chunk has {self.nbytes - at} of {self.nbytes} left")
        self._used = min(at + aligned_size(nbytes), self.nbytes)
        return ChunkTensor(self, dtype, shape, at, nbytes)

    def wait_for(self, stream: int) -> None:
        """Complete the tensors only after the work that the stream has when they are sent.

        The streams that were passed to `__dlpack__` need no call: with PyTorch, the one that was current in
        `torch.from_dlpack`.
        """
        self.check()
        self._memory.device.add_stream(self._memory, stream)

    def check(self) -> None:
        """Raise Finished if it was sent, and ForkedError in a child of the process that created it."""
        if os.getpid() != self._process:
            raise ForkedError(f"the memory belongs to process {self._process}, and this is {os.getpid()}: connect here")
        if self._memory.sent:
            raise Finished("the chunk was sent: other processes read it")


class ChunkTensor:
    """A dense array of numbers in a chunk, to be filled through `from_dlpack`, and sent."""

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
        """The device address of the first element, valid while the chunk is referenced."""
        return self.chunk._memory.pointer + self.offset

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The tensor for `torch.from_dlpack` and similar functions. It may be written on `stream` until it is sent."""
        self.chunk.check()
        if copy:
            raise BufferError("a tensor that is to be filled in place is not copied")
        dlpack.check_device(dl_device, self.__dlpack_device__())
        memory = self.chunk._memory
        memory.device.add_stream(memory, stream)
        keep = [memory]
        return dlpack.capsule(
            self.pointer, *self.__dlpack_device__(), self.dtype, self.shape, None, False, keep.clear,
            max_version=max_version,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The DLPack device, with CUDA's number in this process; the host for an emulated GPU."""
        return self.chunk._memory.device.dlpack

    def __repr__(self) -> str:
        return f"ChunkTensor({self.dtype}{list(self.shape)} on {uuid_text(self.device)})"


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, also of NumPy's or torch's."""
    return str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype).removeprefix("torch.")


def aligned_size(nbytes: int) -> int:
    """The bytes that a tensor takes of a chunk."""
    return -(-nbytes // GRANULE) * GRANULE
