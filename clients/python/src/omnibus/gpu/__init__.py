"""Tensors in the memory of GPUs, as `Delivery.value` gives them.

Those of another process are read where they are: see `DeviceTensor`. Those that this one makes are filled where others
read them: see `Sender`, which clients, tasks and queues have as `gpu`, and `Options`. `unwrap` copies what came onto a device. Needs no library but the driver's own,
libcuda.so.1, which is loaded with the first such tensor; emulated GPUs need none.
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
