"""The interface of a GPU, and of the streams that use its memory.

The Go package `cudaipc` has the full contract; this module has the part for readers and senders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import OmnibusError

if TYPE_CHECKING:
    from ..dlpack import Borrowed

#: The prefix of the UUIDs of emulated GPUs.
EMULATED = b"emul"


class DriverError(OmnibusError):
    """A failed call of the driver: its name, and its error code."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text} ({code})")
        self.call = call
        self.code = code
        self.text = text


class NoDriver(DriverError):
    """There is no driver, or it is too old."""


class DeviceLost(DriverError):
    """The GPU, or CUDA in this process, has failed for good."""


class Memory(Protocol):
    """Memory of another process. It is unmapped when this object is collected."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


class StreamSet(Protocol):
    """The streams that use a piece of memory."""

    def drop_when_done(self, keep: Any) -> None:
        """Drop `keep` once the streams have done their current work. A finalizer may call it at any point."""


class StreamMemory(Protocol):
    """Memory that streams use."""

    streams: StreamSet | None  #: set by the device


class AwaitedMemory(StreamMemory, Protocol):
    """Memory that another process fills, and the word that says that it is complete."""

    @property
    def complete(self) -> bool:
        """Whether the word says that it is complete, or never will be."""

    @property
    def abandoned(self) -> bool:
        """Whether the process that fills it is dead."""

    def record_outcome(self) -> None:
        """Record, at the end of the wait, whether the memory is complete."""

    def is_done(self) -> bool:
        """Whether the wait has ended. Does not block. Raises Poisoned, and DeviceLost."""

    def wait(self) -> bool:
        """Wait on the CPU. Raises Poisoned."""


class FilledMemory(StreamMemory, Protocol):
    """Memory that this process fills, and the word that says that it is complete."""

    kept_alive: list[Any]  #: kept until no process reads it

    @property
    def generation(self) -> int:
        """The value of the word once the memory is complete."""

    @property
    def is_settled(self) -> bool:
        """Whether the word says that it is complete, or never will be."""

    def word_address(self) -> int:
        """The device address of its words."""

    def mark_complete(self) -> None:
        """Write that it is complete."""

    def mark_failed(self) -> None:
        """Write that it never will be complete, unless it is."""


class Device(Protocol):
    """One GPU."""

    @property
    def dlpack(self) -> tuple[int, int]:
        """The device type and number of the DLPack protocol."""

    def arena(self, fd: int, size: int) -> Memory:
        """Map an arena. The caller still owns the descriptor."""

    def handle(self, handle: bytes) -> Memory:
        """Map the allocation behind another process's handle."""

    def wait_on_stream(self, gate: AwaitedMemory, stream: Any) -> None:
        """Make a stream wait for the memory; None is DLPack's default stream.

        Raises Poisoned if the memory is known to be garbage, BufferError for an invalid stream.
        """

    def check(self) -> None:
        """Raise DeviceLost if it is."""


class OwnMemory(Protocol):
    """Memory that this process shares. It is freed when this object is collected."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def fd(self) -> int:
        """The descriptor by which other processes map it. It is open as long as the memory exists."""


class Registered(Protocol):
    """Host memory that a device may write to. It is unregistered when this object is collected."""

    @property
    def address(self) -> int:
        """The device address."""


class Fill(Protocol):
    """The device work that completes a piece, in order, after the work that fills its source tensors."""

    def borrow(self, value: Any) -> Borrowed:
        """The memory of a tensor, an object with `__dlpack__`. Later work is ordered after the work that fills it.

        The piece keeps it until it is copied, or else for the piece's lifetime.
        """

    def copy(self, dst: int, src: Borrowed) -> None:
        """Copy the elements of a tensor, in row-major order."""

    def complete(self) -> None:
        """Write to the piece's word, after all that work, that it is complete."""


class SendingDevice(Device, Protocol):
    """A GPU whose tensors this process sends."""

    @property
    def uuid(self) -> bytes: ...

    def owns(self, value: Any) -> bool:
        """Whether an object with `__dlpack__` lies in its memory."""

    def new_arena(self, nbytes: int) -> OwnMemory:
        """Memory of at least so many bytes, which other processes may map."""

    def new_memory(self, nbytes: int) -> Memory:
        """Memory that no other process maps."""

    def register(self, address: int, nbytes: int, keep: Any) -> Registered: ...

    def export(self, address: int) -> tuple[bytes, int, int]:
        """A handle of the allocation around an address, the offset of the address, and the size of the allocation."""

    def add_stream(self, piece: StreamMemory, stream: Any) -> None:
        """Add a stream that uses an unsent piece. Its later work is ordered after that of the earlier streams.

        None is DLPack's default stream. Raises BufferError for an invalid stream.
        """

    def start_fill(self, piece: FilledMemory) -> Fill: ...

    def copy_in(self, memory: StreamMemory, copies: Sequence[tuple[int, Any]]) -> None:
        """Copy tensors, objects with `__dlpack__`, to addresses in own memory, in row-major order.

        Later streams of the memory are ordered after the copies. The call waits only for copies of tensors that are on
        no GPU, or on another one.
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
