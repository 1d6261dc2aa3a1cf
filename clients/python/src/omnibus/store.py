"""A reader of a store of the Go package shmstore, whose owner calls `Store.Admit` at the other end of a socket::

    reader = attach(fd)                      # of the socket, which the owner handed over
    with reader.take(Handle(...)) as view:   # or pin, for an object that this reader was not charged for
        use(view)

The rules are those of shmstore (its doc.go and layout.go): this process writes its own ledger and nothing else, and all
that comes from the owner is checked. An object stays as long as any view of it lives. What a killed process held
the owner frees with `RemoveReader`.

Python has no atomic accesses, so these are what the order rests on. Each shared word is one aligned access of ctypes, which
CPython compiles to one instruction; x86-64 keeps loads in their order, stores in theirs, and no store passes an earlier
load. The one order that it does not keep, a store before a later load, is needed twice: between a raised pin and the
look at its object, and between a release and the look whether the owner waits for room. There the system call
membarrier stands. Other processors promise less of plain accesses, so `attach` refuses them.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import socket
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

from .errors import ForkedError, OmnibusError, ProtocolError, out_of_memory
from .memory import F_ADD_SEALS, F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, Arena, Mapping

_VERSION = 3
_HELLO, _GEOMETRY, _LEDGER, _GRANT = 1, 2, 3, 4
_MESSAGE = struct.Struct("=8sIIQQQII16s")
_SUPERBLOCK = struct.Struct("=8sIIQQQI20s")
_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL
_PAGE, _LINE, _ENTRY, _OWED = 4096, 64, 8, 4
_MOST_ARENA, _MOST_SLOTS, _MOST_READERS = 1 << 46, 1 << 28, 64
_LIVE, _CLOSING = 1, 2
_LARGE = 1 << 63
_TIMEOUT = 5.0  # of attaching, and of an owner that looks at pins

_SYS_MEMBARRIER = 324  # of x86-64
_PRIVATE_EXPEDITED, _REGISTER_PRIVATE_EXPEDITED = 8, 16
_syscall = ctypes.CDLL(None, use_errno=True).syscall


class Stale(OmnibusError, LookupError):
    """The object is gone: it was evicted, and its slot may have another by now."""


class Corrupt(OmnibusError, ValueError):
    """The handle is none of this store, or does not agree with what the store says of its object."""


class NoDebt(OmnibusError, LookupError):
    """This reader was not charged for the object, or has collected all that it was charged."""


class OwnerStalled(OmnibusError, TimeoutError):
    """The owner began to look at an object's pins and has not finished: most likely it died."""


class Handle(NamedTuple):
    """Names an object, as shmstore.Handle does."""

    store: int
    gen: int
    offset: int
    size: int
    slot: int
    codec: int


def attach(sock: socket.socket | int, on_room: Callable[[], object] | None = None) -> Reader:
    """Become a reader of the store whose owner is at the other end of a SOCK_SEQPACKET socket, or its descriptor.

    The socket stays the caller's, to be closed behind the reader: the owner takes its end for that of the reader.
    `on_room` is called after a release while the owner waits for room, in whatever thread, and has to wake it. Raises
    ProtocolError for an owner that does not keep to the protocol, and OSError (ENOSYS) where the processor or the
    kernel cannot order the accesses.
    """
    _check_machine()
    if isinstance(sock, int):
        with socket.socket(fileno=os.dup(sock)) as s:
            return attach(s, on_room)
    before = sock.gettimeout()
    sock.settimeout(_TIMEOUT)
    try:
        return _attach(sock, on_room)
    finally:
        sock.settimeout(before)


def _check_machine() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 1 << 32:
        raise OSError(38, f"a reader in Python needs Linux on x86-64, and this is {sys.platform} on {platform.machine()}")
    if _syscall(_SYS_MEMBARRIER, _REGISTER_PRIVATE_EXPEDITED, 0, 0):
        raise OSError(38, f"the kernel has no membarrier: {os.strerror(ctypes.get_errno())}")


def _fence() -> None:
    """No access of this thread passes this."""
    if _syscall(_SYS_MEMBARRIER, _PRIVATE_EXPEDITED, 0, 0):
        raise OSError(ctypes.get_errno(), "membarrier failed")  # it was registered


def _attach(sock: socket.socket, on_room: Callable[[], object] | None) -> Reader:
    _send(sock, _HELLO, os.getpid())
    (store, arena, largest, slots, index), _ = _receive(sock, _GEOMETRY, 0)
    if (
        not store or not 1 <= slots <= _MOST_SLOTS or not _PAGE <= arena <= _MOST_ARENA
        or not 1 <= largest <= _MOST_ARENA or not 1 <= index < _MOST_READERS
    ):  # fmt: skip
        raise ProtocolError(f"a store with {slots} slots, {arena} bytes, objects of {largest}, and this as reader {index}")

    def superblock(kind: bytes, reader: int) -> bytes:
        return _SUPERBLOCK.pack(b"OMNIBUS" + kind, _VERSION, slots, store, arena, largest, reader, b"")

    size = _PAGE + _ENTRY * slots
    fd = os.memfd_create("omnibus-ledger", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    fds: list[int] = [fd]
    try:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as e:
            raise out_of_memory(f"no ledger of {size} bytes", e.errno or 0) from None
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        ledger = Arena(0, fd, size).memory
        ledger[: _SUPERBLOCK.size] = superblock(b"L", index)
        _send(sock, _LEDGER, store, fd)
        (granted, *rest), got = _receive(sock, _GRANT, 3)
        fds += got
        if granted != store or any(rest):
            raise ProtocolError(f"a grant for store {granted:x}, and this is {store:x}")
        parts = []
        for part, n in zip(got, (arena, _PAGE + _LINE * slots, _PAGE + _OWED * slots)):
            mapping = Mapping(part, n, _SEALS)
            if os.fstat(part).st_blocks * 512 < n:
                raise ProtocolError(f"a segment of {n} bytes has holes")
            parts.append(mapping)
        for mapping, kind, reader in ((parts[1], b"D", 0), (parts[2], b"O", index)):
            if ctypes.string_at(mapping.address, _SUPERBLOCK.size) != superblock(kind, reader):
                raise ProtocolError(f"a segment does not begin with the superblock of store {store:x}")
        return Reader(store, slots, parts, ledger, on_room)
    finally:
        for each in fds:
            os.close(each)


def _send(sock: socket.socket, kind: int, identity: int, *fds: int) -> None:
    packet = _MESSAGE.pack(b"OMNIBUS@", _VERSION, kind, identity, 0, 0, 0, 0, b"")
    socket.send_fds(sock, [packet], list(fds))


def _receive(sock: socket.socket, want: int, descriptors: int) -> tuple[tuple[int, ...], list[int]]:
    """The five numbers of a message, and its descriptors, which are the caller's to close."""
    packet, fds, flags, _ = socket.recv_fds(sock, _MESSAGE.size + 1, 4)
    try:
        if len(packet) != _MESSAGE.size:
            raise ProtocolError(f"message {want} has {len(packet)} bytes: the owner has ended the connection, or is none")
        magic, version, kind, *numbers, zero = _MESSAGE.unpack(packet)
        if magic != b"OMNIBUS@" or version != _VERSION or kind != want or any(zero):
            raise ProtocolError(f"message {kind} of version {version} in place of {want} of version {_VERSION}")
        if len(fds) != descriptors or flags & socket.MSG_CTRUNC:
            raise ProtocolError(f"{len(fds)} descriptors with message {want}, which has {descriptors}")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return tuple(numbers), fds


class Reader:
    """A reader of a store. Safe from any thread; a forked child attaches anew."""

    def __init__(
        self, store: int, slots: int, parts: list[Mapping], ledger: mmap.mmap, on_room: Callable[[], object] | None
    ) -> None:
        self.store = store
        self._slots = slots
        self._pid = os.getpid()
        self._parts = parts
        self._arena, directory, account = parts
        self._words = (ctypes.c_uint64 * (directory.size // 8)).from_address(directory.address)
        self._halves = (ctypes.c_uint32 * (directory.size // 4)).from_address(directory.address)
        self._owed = (ctypes.c_uint32 * (account.size // 4)).from_address(account.address)
        self._ledger = (ctypes.c_uint32 * (len(ledger) // 4)).from_buffer(ledger)
        self._on_room = on_room
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}  # debts ever collected, by slot
        self._gone: deque[int] = deque()  # places in the ledger whose leases have ended
        self._leases: dict[int, weakref.ref[Any]] = {}
        self._last = 0
        self._closed = False

    def take(self, handle: Handle) -> AbstractContextManager[memoryview]:
        """Collect one of the debts for an object, and view it: read-only, and to be left before its debt is settled.

        The debt is settled when the block is left and the last slice, cast or array of the view is gone. Raises
        NoDebt, Stale, Corrupt.
        """
        return self._viewed(handle, self._collect)

    def pin(self, handle: Handle) -> AbstractContextManager[memoryview]:
        """View an object that this reader need not have been charged for. Raises Stale, Corrupt, OwnerStalled."""
        return self._viewed(handle, self._pin)

    @contextmanager
    def _viewed(self, handle: Handle, hold: Callable[[Handle], int]) -> Iterator[memoryview]:
        view = self._leased(handle, hold)
        try:
            yield view
        finally:
            with suppress(BufferError):  # an array of it lives
                view.release()
            del view

    def drop(self, handle: Handle) -> None:
        """Settle one debt unread. Raises NoDebt, Stale, Corrupt."""
        try:
            with self._lock:
                self._check(handle)
                self._gone.append(self._collect(handle))
        finally:
            self._settle()

    def close(self) -> None:
        """Take no new leases. The memory stays mapped as long as the reader or a view is referred to. Idempotent."""
        with self._lock:
            self._closed = True

    def _leased(self, h: Handle, hold: Callable[[Handle], int]) -> memoryview:
        try:
            with self._lock:
                self._check(h)
                place = hold(h)
                self._last += 1
                number = self._last
                try:
                    view, ref = self._arena.window(h.offset, h.size, lambda _: self._ended(number, place))
                except BaseException:
                    self._gone.append(place)
                    raise
                self._leases[number] = ref
            return view
        finally:
            self._settle()  # what ended meanwhile found the lock taken

    def _ended(self, number: int, place: int) -> None:
        """A lease has ended, in any thread, in the middle of anything."""
        self._leases.pop(number, None)
        self._gone.append(place)
        self._settle()

    def _settle(self) -> None:
        """Write into the ledger what has ended. A thread that finds another at it leaves that to it."""
        if os.getpid() != self._pid:
            return
        moved = False
        while self._gone and self._lock.acquire(blocking=False):
            try:
                while self._gone:
                    place = self._gone.popleft()
                    step = 1 if place % 2 else -1  # debts settled grow; pins fall
                    self._ledger[place] = (self._ledger[place] + step) & 0xFFFFFFFF
                    moved = True
            finally:
                self._lock.release()
        if moved and self._on_room is not None:
            _fence()
            if self._halves[16] % 2:
                self._on_room()

    def _check(self, h: Handle) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(f"the reader belongs to process {self._pid}, and this is {os.getpid()}: attach here")
        if self._closed:
            raise OmnibusError("the reader is closed")
        arena = self._arena.size
        if h.store != self.store:
            raise Corrupt(f"{h} is of another store than {self.store:x}")
        if h.offset == _LARGE:
            raise OmnibusError(f"{h} has a segment of its own: such objects a reader in Python does not read")
        if not (0 <= h.slot < self._slots and 0 < h.gen < 1 << 62 and 0 <= h.offset <= arena and 0 <= h.size <= arena - h.offset):
            raise Corrupt(f"{h} has a slot, a generation or a place that there are none of")

    def _word(self, h: Handle) -> int:
        return int(self._words[(_PAGE + _LINE * h.slot) // 8])

    def _matches(self, h: Handle) -> bool:
        at = (_PAGE + _LINE * h.slot) // 8
        return (self._words[at + 1], self._words[at + 2], self._halves[2 * at + 6]) == (h.offset, h.size, h.codec)

    def _collect(self, h: Handle) -> int:
        """Collect a debt; the place in the ledger where it is settled. The lock is held.

        What was read between two looks at the word is of the object's generation. A debt that was left then holds it.
        """
        present = (h.gen << 2 | _LIVE, h.gen << 2 | _CLOSING)
        if self._word(h) not in present:
            raise Stale(f"{h} is gone")
        place = _PAGE // 4 + 2 * h.slot + 1
        taken = self._taken.get(h.slot, 0)
        left = (self._owed[_PAGE // 4 + h.slot] - taken) & 0xFFFFFFFF
        matches = self._matches(h)
        if self._word(h) not in present:
            raise Stale(f"{h} is gone")
        if not matches:
            raise Corrupt(f"{h} does not agree with the directory of its store")
        if not 0 < left < 1 << 31:
            raise NoDebt(f"{h}: nothing is left to collect")
        self._taken[h.slot] = (taken + 1) & 0xFFFFFFFF
        return place

    def _pin(self, h: Handle) -> int:
        """Raise a pin, and then look whether it holds the object. The lock is held."""
        place = _PAGE // 4 + 2 * h.slot
        self._ledger[place] += 1
        try:
            _fence()
            until = time.monotonic() + _TIMEOUT
            while (word := self._word(h)) == h.gen << 2 | _CLOSING:
                if time.monotonic() > until:
                    raise OwnerStalled(f"{h}: the owner has looked at its pins for {_TIMEOUT:g} s")
                time.sleep(0)
            if word != h.gen << 2 | _LIVE:
                raise Stale(f"{h} is gone")
            if not self._matches(h):
                raise Corrupt(f"{h} does not agree with the directory of its store")
        except BaseException:
            self._ledger[place] -= 1
            raise
        return place
