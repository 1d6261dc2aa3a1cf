"""Emulated GPUs, for machines without one: their memory is the host's, and there are no streams.

The Go package `cudaipc/emul` makes them. Here the CPU waits where a stream would.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any

from ..dlpack import CPU
from ..errors import Forged, Poisoned, ProtocolError
from ..memory import FIXED_SIZE, Mapping
from .driver import Memory
from .shared import Shared

if TYPE_CHECKING:
    from .gate import Gate

_handle = struct.Struct("<8sIIQ16s16sQ")
_MAGIC = b"omniemu\x01"


class _Memory(Mapping):
    """An arena or an allocation, mapped to be read."""

    __slots__ = ()

    def __init__(self, fd: int, size: int) -> None:
        try:
            super().__init__(fd, size, FIXED_SIZE)
        except ProtocolError as e:
            raise Forged(f"memory of an emulated GPU: {e}") from None


class Emulated:
    """An emulated GPU."""

    dlpack = (CPU, 0)

    def __init__(self) -> None:
        self._handles = Shared(_opened)

    def arena(self, fd: int, size: int) -> Memory:
        return _Memory(fd, size)

    def handle(self, handle: bytes) -> Memory:
        return self._handles.get(handle)

    def follow(self, gate: Gate, stream: Any) -> None:
        if stream is not None:
            raise BufferError("an emulated GPU has no streams")
        gate.wait()

    def check(self) -> None:
        """It is never lost."""


def _opened(handle: bytes) -> _Memory:
    """The memory that a handle names: a descriptor of its process, which is looked at before and after."""
    magic, pid, number, size, nonce, _, namespace = _handle.unpack(handle)
    if magic != _MAGIC or namespace != os.stat("/proc/self/ns/pid").st_ino:
        raise Forged("a handle of no emulated GPU, or of another container's")
    path, name = f"/proc/{pid}/fd/{number}", f"/memfd:omnibus-emul-handle-{nonce.hex()} (deleted)"
    try:
        if os.readlink(path) != name:  # whatever has the number by now is not opened
            raise Poisoned("their sender has freed them")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise Poisoned(f"their sender is dead, or has freed them: {e.strerror}") from None
    try:
        if os.readlink(f"/proc/self/fd/{fd}") != name:
            raise Poisoned("their sender has freed them")
        return _Memory(fd, size)
    finally:
        os.close(fd)


_devices: dict[bytes, Emulated] = {}


def device(uuid: bytes) -> Emulated:
    """Each has a UUID of its own, and all are there."""
    return _devices.setdefault(uuid, Emulated())
