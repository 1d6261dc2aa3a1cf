"""Tensors in the memory of GPUs, as `Delivery.value` gives them.

Those of another process are read where they are: see `DeviceTensor`. Needs no library but the driver's own,
libcuda.so.1, which is loaded with the first such tensor; emulated GPUs need none.
"""

from .driver import DeviceLost, DriverError, NoDriver
from .tensor import DeviceTensor

__all__ = ["DeviceLost", "DeviceTensor", "DriverError", "NoDriver"]
