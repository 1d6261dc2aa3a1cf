"""GPU devices: `cuda` has those of NVIDIA, `emul` emulated ones in the host's memory. `contract` has their interface.

This module opens devices.
"""

from __future__ import annotations

from typing import Any

from ..dlpack import is_on_gpu
from ..errors import ForeignDevice
from .contract import EMULATED, SendingDevice


def by_uuid(uuid: bytes) -> SendingDevice:
    """The device with a UUID. Raises ForeignDevice if it is not visible to this process, and NoDriver."""
    if uuid.startswith(EMULATED):
        from . import emul

        return emul.device(uuid)
    from . import cuda

    return cuda.device(uuid)


def device_of(device: int | bytes | None, value: Any) -> SendingDevice:
    """A device by number or UUID; None: that of the value, or the first. Raises NoDriver, and ForeignDevice."""
    if isinstance(device, bytes):
        return by_uuid(device)
    from . import cuda

    if device is None and value is not None and is_on_gpu(value):
        device = int(value.__dlpack_device__()[1])
    try:
        return cuda.at(device or 0)
    except LookupError as e:
        raise ForeignDevice(str(e)) from None
