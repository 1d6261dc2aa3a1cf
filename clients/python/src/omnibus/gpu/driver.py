"""What the lane asks of a GPU, and which backend drives it.

The Go package `cudaipc` has the contract. Here is what a reader needs of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OmnibusError

if TYPE_CHECKING:
    from .gate import Gate

#: What the UUIDs of emulated GPUs begin with.
EMULATED = b"emul"


class DriverError(OmnibusError):
    """A call of the driver's that failed: which, and its own number for why."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.call = call
        self.code = code
        self.text = text


class NoDriver(DriverError):
    """There is no driver, or an older one than it takes."""


class DeviceLost(DriverError):
    """The GPU, or all of CUDA in this process, can do nothing more."""


class Memory(Protocol):
    """Memory of another process, mapped here until this is collected."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


class Reading(Protocol):
    """The streams that read what is behind a gate."""

    def leave(self, keep: Any) -> None:
        """Drop `keep` when the streams have come as far as they are now. Called in the middle of anything."""


class Device(Protocol):
    """One GPU."""

    @property
    def dlpack(self) -> tuple[int, int]:
        """What the DLPack protocol calls it."""

    def arena(self, fd: int, size: int) -> Memory:
        """Map an arena. The descriptor stays the caller's."""

    def handle(self, handle: bytes) -> Memory:
        """Map the allocation behind another process's handle."""

    def follow(self, gate: Gate, stream: Any) -> None:
        """Have a stream wait for what is behind the gate; None is the one that DLPack means by it.

        Raises Poisoned if that is known to be garbage, BufferError for a stream that is none.
        """

    def check(self) -> None:
        """Raise DeviceLost if it is."""


def device(uuid: bytes) -> Device:
    """The device with a UUID. Raises ForeignDevice if this process does not see it, and NoDriver."""
    if uuid.startswith(EMULATED):
        from . import emul

        return emul.device(uuid)
    from . import cuda

    return cuda.device(uuid)


def uuid_text(uuid: bytes) -> str:
    """A UUID in the form of NVIDIA's tools."""
    h = uuid.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
