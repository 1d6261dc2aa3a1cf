"""The layout of a store in shared memory, and the four messages by which a reader attaches. layout.go and attach.go of
the Go package shmstore describe both to the byte.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterable
from typing import NamedTuple

from .errors import OmnibusError, ProtocolError
from .memory import F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK

VERSION = 3
HELLO, GEOMETRY, LEDGER, GRANT, REFUSAL = 1, 2, 3, 4, 5
SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL
PAGE = 4096
LINE, ENTRY, OWED = 64, 8, 4  #: bytes per slot of the directory, of a ledger, of an account
MAX_ARENA_BYTES, MAX_SLOTS, READER_INDEXES = 1 << 46, 1 << 28, 64
LIVE, CLOSING = 1, 2  #: states, the low two bits of a word; the rest of it is the generation
LARGE = 1 << 63  #: the offset of an object that has a segment of its own
TIMEOUT_SECONDS = 5.0  #: of attaching, and of a reader that waits for the owner's check of pins

_MESSAGE = struct.Struct("=8sIIQQQIII12s")
_HANDLE = struct.Struct("<4Q2I")
_CREDENTIALS = struct.Struct("iII")
_SUPERBLOCK = struct.Struct("=8sIIQQQI20s")


class Stale(OmnibusError, LookupError):
    """The object was evicted, and its slot may hold another by now."""


class Corrupt(OmnibusError, ValueError):
    """The handle is of another store, or does not match the directory's entry of its object."""


class NoDebt(OmnibusError, LookupError):
    """This reader was not charged for the object, or has collected all of its debts."""


class NoSegment(OmnibusError, LookupError):
    """The object has a segment of its own, which this reader does not have: see `Reader.add_segment`."""


class TooManyReaders(OmnibusError):
    """All indexes of readers are in use."""


class OwnerGone(OmnibusError, ConnectionError):
    """The store was closed, or its writer has ended; a new writer creates a new store. Views stay readable."""


class OwnerStalled(OmnibusError, TimeoutError):
    """The owner began to check an object's pins and has not finished: most likely it died."""


class Handle(NamedTuple):
    """Names an object, as shmstore.Handle does."""

    store: int
    gen: int
    offset: int
    size: int
    slot: int
    codec: int

    def to_bytes(self) -> bytes:
        """The binary form, which is that of the Go type."""
        return _HANDLE.pack(*self)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Handle:
        """The handle of a binary form. Raises Corrupt for a wrong length; the store checks the fields."""
        if len(data) != _HANDLE.size:
            raise Corrupt(f"a handle of {len(data)} bytes, and not of {_HANDLE.size}")
        return cls._make(_HANDLE.unpack(data))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Handle:
        """The handle of six numbers, such as a tuple or a list that came over a wire. Raises Corrupt."""
        if type(numbers) is Handle:
            return numbers
        h = tuple(numbers) if isinstance(numbers, (tuple, list)) else ()
        if len(h) != 6 or not all(type(n) is int for n in h):
            raise Corrupt(f"a handle is six numbers, or 40 bytes for Handle.from_bytes, and this is {numbers!r:.100}")
        return cls._make(h)


class Geometry(NamedTuple):
    """The geometry of a store: its identity, the bytes of its arena and of its largest object, and the number of slots.
    """

    store: int
    arena: int
    largest: int
    slots: int

    def superblock(self, kind: bytes, reader: int) -> bytes:
        """The first bytes of a segment: of a directory ("D", reader 0), an account ("O") or a ledger ("L")."""
        return _SUPERBLOCK.pack(b"OMNIBUS" + kind, VERSION, self.slots, self.store, self.arena, self.largest, reader, b"")


def check_machine() -> None:
    """Raise OSError (ENOSYS) on a machine whose memory order this package does not support."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64") or sys.maxsize < 1 << 32:
        what = f"this is {sys.platform} on {platform.machine()}"
        raise OSError(errno.ENOSYS, f"a store in Python needs Linux on x86-64 or arm64, and {what}")


#: The reasons of a refusal, as they travel.
_REASONS: dict[int, tuple[type[OmnibusError], str]] = {
    1: (TooManyReaders, "all its reader indexes are in use (max_readers)"),
    2: (OwnerGone, "it is closed"),
}


def send(sock: socket.socket, kind: int, numbers: tuple[int, ...], *fds: int, reason: int = 0) -> None:
    """Send a message: up to five numbers, the identity first, and descriptors."""
    packet = _MESSAGE.pack(b"OMNIBUS@", VERSION, kind, *numbers, *[0] * (5 - len(numbers)), reason, b"")
    socket.send_fds(sock, [packet], list(fds))


def send_refusal(sock: socket.socket, why: OmnibusError) -> None:
    """Send a refusal, in place of the geometry."""
    send(sock, REFUSAL, (), reason=next((n for n, (kind, _) in _REASONS.items() if isinstance(why, kind)), 0))


def receive(sock: socket.socket, want: int, descriptors: int) -> tuple[tuple[int, ...], list[int], int]:
    """The five numbers of a message, its descriptors, which the caller closes, and the id of the sending process.

    The id is 0 if the socket does not pass credentials (SO_PASSCRED), or the process is in an invisible pid namespace.
    """
    packet, ancillary, flags, _ = sock.recvmsg(_MESSAGE.size + 1, socket.CMSG_SPACE(4 * 4) + socket.CMSG_SPACE(_CREDENTIALS.size))
    fds: list[int] = []
    pid = 0
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, _, _ = _CREDENTIALS.unpack(data)
    try:
        if not packet and not fds:
            raise ConnectionResetError(errno.ECONNRESET, "the other process has ended the connection")
        if len(packet) != _MESSAGE.size:
            raise ProtocolError(f"message {want} has {len(packet)} bytes, and not {_MESSAGE.size}")
        magic, version, kind, *numbers, reason, zero = _MESSAGE.unpack(packet)
        if magic == b"OMNIBUS@" and version == VERSION and (kind, want) == (REFUSAL, GEOMETRY):
            kind, why = _REASONS.get(reason, (ProtocolError, f"reason {reason}"))
            raise kind(f"the store's owner has refused this reader: {why}")
        if magic != b"OMNIBUS@" or version != VERSION or kind != want or reason or any(zero):
            raise ProtocolError(f"message {kind} of version {version} in place of {want} of version {VERSION}")
        if flags & socket.MSG_CTRUNC:
            raise ProtocolError(f"descriptors of message {want} were lost: it has too many, or this process has (ulimit -n)")
        if len(fds) != descriptors:
            raise ProtocolError(f"{len(fds)} descriptors with message {want}, which has {descriptors}")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return tuple(numbers), fds, pid
