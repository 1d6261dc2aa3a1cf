"""What is asked of a GPU, and what it is told of who uses its memory.

The Go package `cudaipc` has the contract. Here is what readers and senders need of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OmnibusError

if TYPE_CHECKING:
    from ..dlpack import Borrowed

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


class Used(Protocol):
    """Memory that streams use."""

    reading: Reading | None  #: the device's: which streams these are


class Awaited(Used, Protocol):
    """Memory that another process fills, and its word for that."""

    @property
    def complete(self) -> bool:
        """Whether the word says that it is filled, or never will be."""

    @property
    def abandoned(self) -> bool:
        """Whether the process that fills it is dead."""

    def judge(self) -> None:
        """Take note of what the end of waiting means."""

    def over(self) -> bool:
        """Whether waiting is over, without waiting. Raises Poisoned, and DeviceLost."""

    def wait(self) -> bool:
        """Wait on the CPU. Raises Poisoned."""


class Filled(Used, Protocol):
    """Memory that this process fills, and its word for that."""

    lent: list[Any]  #: what is kept until nobody reads it

    @property
    def generation(self) -> int:
        """What the word says once it is complete."""

    @property
    def settled(self) -> bool:
        """Whether the word says that it is complete, or never will be."""

    def words_at(self) -> int:
        """Where its words are, on the device."""

    def settle(self) -> None:
        """Say that it is complete."""

    def fail(self) -> None:
        """Say that it never will be, unless it is."""


class Device(Protocol):
    """One GPU."""

    @property
    def dlpack(self) -> tuple[int, int]:
        """What the DLPack protocol calls it."""

    def arena(self, fd: int, size: int) -> Memory:
        """Map an arena. The descriptor stays the caller's."""

    def handle(self, handle: bytes) -> Memory:
        """Map the allocation behind another process's handle."""

    def follow(self, gate: Awaited, stream: Any) -> None:
        """Have a stream wait for what is behind the gate; None is the one that DLPack means by it.

        Raises Poisoned if that is known to be garbage, BufferError for a stream that is none.
        """

    def check(self) -> None:
        """Raise DeviceLost if it is."""


class OwnMemory(Protocol):
    """Memory that this process shares, until this is collected."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def fd(self) -> int:
        """What others map it by. It is open as long as the memory is there."""


class Registered(Protocol):
    """Memory of the host's that a device may write to, until this is collected."""

    @property
    def address(self) -> int:
        """Where the device has it."""


class Sending(Protocol):
    """What is to be done on a device before a piece is complete: in order, behind what fills its tensors."""

    def take(self, value: Any) -> Borrowed:
        """The memory of a tensor, an object with `__dlpack__`: what comes next is behind what fills it.

        The piece keeps it until it is copied, or else as long as it lasts.
        """

    def copy(self, dst: int, src: Borrowed) -> None:
        """Copy the elements of a tensor, in row-major order."""

    def complete(self) -> None:
        """Have the piece's word say, behind all that, that it is complete."""


class SendingDevice(Device, Protocol):
    """A GPU that this process sends tensors of."""

    @property
    def uuid(self) -> bytes: ...

    def owns(self, value: Any) -> bool:
        """Whether an object with `__dlpack__` is in its memory."""

    def new_arena(self, nbytes: int) -> OwnMemory:
        """Memory for others to map, of at least so many bytes."""

    def new_memory(self, nbytes: int) -> Memory:
        """Memory that nobody else maps."""

    def register(self, address: int, nbytes: int, keep: Any) -> Registered: ...

    def export(self, address: int) -> tuple[bytes, int, int]:
        """A handle of the allocation around an address, how far into it that is, and how large it is."""

    def use(self, piece: Used, stream: Any) -> None:
        """Note that a stream is given a piece that is not sent: what it does there comes behind what others did.

        None is the stream that DLPack means by it. Raises BufferError for a stream that is none.
        """

    def sending(self, piece: Filled) -> Sending: ...

    def bring(self, memory: Used, copies: Sequence[tuple[int, Any]]) -> None:
        """Copy tensors, objects with `__dlpack__`, to addresses in memory of ours, in row-major order.

        Whoever uses the memory comes behind that. Nobody waits for it here, but for tensors that are on no GPU, or on another.
        """


def uuid_of(text: str) -> bytes:
    """The UUID of a text in the form of NVIDIA's tools, or of hexadecimal digits alone. Raises ValueError."""
    uuid = bytes.fromhex(text.removeprefix("GPU-").removeprefix("MIG-").replace("-", ""))
    if len(uuid) != 16:
        raise ValueError(f"{text!r} is no UUID: it takes 32 hexadecimal digits")
    return uuid


def uuid_text(uuid: bytes) -> str:
    """A UUID in the form of NVIDIA's tools."""
    h = uuid.hex()
    return f"GPU-{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
