"""GPUs, and what drives them: `cuda` those of NVIDIA, `emul` emulated ones, which are in the host's memory.

Here they are opened. `contract` has what all of them can do.
"""

from __future__ import annotations

from typing import Any

from ..dlpack import is_on_gpu
from ..errors import ForeignDevice
from .contract import EMULATED, SendingDevice


def by_uuid(uuid: bytes) -> SendingDevice:
    """The device with a UUID. Raises ForeignDevice if this process does not see it, and NoDriver."""
    if uuid.startswith(EMULATED):
        from . import emul

        return emul.device(uuid)
    from . import cuda

    return cuda.device(uuid)


def device_of(device: int | bytes | None, value: Any) -> SendingDevice:
    """The device that is meant. Raises NoDriver, and ForeignDevice."""
    if isinstance(device, bytes):
        return by_uuid(device)
    from . import cuda

    if device is None and value is not None and is_on_gpu(value):
        device = int(value.__dlpack_device__()[1])
    try:
        return cuda.at(device or 0)
    except LookupError as e:
        raise ForeignDevice(str(e)) from None
