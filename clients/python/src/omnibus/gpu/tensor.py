"""A tensor in the memory of a GPU."""

from __future__ import annotations

from typing import Any

from .. import dlpack
from ..bundle import Placed
from ..devices.contract import uuid_text
from ..errors import OmnibusError
from .gate import Gate


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
