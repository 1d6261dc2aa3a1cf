"""Arenas that other processes open by a handle, because the device has no memory that descriptors stand for."""

from __future__ import annotations

import ctypes
import struct

from ..devices.contract import Device
from ..directory import Found
from ..errors import Forged, ProtocolError
from ..memory import Mapping

#: Set in the number of such an arena.
HANDLED = 1 << 31

#: What is published of one: its size, where it begins in what the handle names, and the handle.
LAYOUT = struct.Struct("<8sQQ8x64s")
MAGIC = b"omnihdl\x01"


class Handled:
    """Such an arena, mapped until this is collected."""

    __slots__ = ("_memory", "_offset", "size")

    size: int
    _offset: int

    def __init__(self, device: Device, found: Found) -> None:
        """The descriptor stays the caller's. Raises Forged."""
        try:
            published = Mapping(found.fd, found.size)
        except ProtocolError as e:
            raise Forged(f"the handle of an arena: {e}") from None
        if published.size != LAYOUT.size:
            raise Forged(f"what is published is no handle of an arena: {published.size} bytes")
        magic, self.size, self._offset, handle = LAYOUT.unpack(ctypes.string_at(published.address, LAYOUT.size))
        if magic != MAGIC:
            raise Forged("what is published is no handle of an arena")
        self._memory = device.handle(handle)
        if self._offset > self._memory.size or self.size > self._memory.size - self._offset:
            raise Forged(f"an arena of {self.size} bytes at {self._offset} of {self._memory.size}")

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._memory.address + self._offset
