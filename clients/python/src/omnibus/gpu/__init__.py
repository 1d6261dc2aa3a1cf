"""Tensors in GPU memory, as `Delivery.value` returns them.

Tensors of another process are read in place: see `DeviceTensor`. Tensors to send are filled in memory that other
processes read: see `Sender`, which clients, tasks and queues have as `gpu`, and `Options`. `unwrap` copies a value's
tensors onto a device. The only library is the driver's own, libcuda.so.1, which is loaded with the first such tensor.
Emulated GPUs need none.
"""

from ..devices import emul
from ..devices.contract import DeviceLost, DriverError, NoDriver
from .chunk import Chunk, ChunkTensor
from .pool import Options
from .sender import Sender, Sent, Stats
from .tensor import DeviceTensor
from .unwrap import unwrap

__all__ = [
    "Chunk", "ChunkTensor", "DeviceLost", "DeviceTensor", "DriverError", "NoDriver", "Options", "Sender", "Sent", "Stats",
    "emul", "unwrap",
]  # fmt: skip
