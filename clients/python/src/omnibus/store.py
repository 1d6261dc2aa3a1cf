"""A reader of a store of the Go package shmstore, or of `omnibus.keyed`, whose owner admits it at the other end of a socket::

    reader = attach(fd)                      # of the socket, which the owner handed over
    with reader.take(Handle(...)) as view:   # or pin, for an object that this reader was not charged for
        use(view)

The rules are those of shmstore (its doc.go and layout.go): this process writes its own ledger and nothing else, and all
that comes from the owner is checked. An object stays as long as any view of it lives. What a killed process held
the owner frees with `RemoveReader`. An object with a segment of its own can be read after `Reader.add_segment`.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import ForkedError, OmnibusError, ProtocolError, out_of_memory
from .fences import fence, ordered
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, Mapping, View
from .storelayout import (
    CLOSING,
    ENTRY,
    GEOMETRY,
    GRANT,
    HELLO,
    LARGE,
    LEDGER,
    LINE,
    LIVE,
    MOST_ARENA,
    MOST_SLOTS,
    OWED,
    PAGE,
    READER_INDEXES,
    SEALS,
    TIMEOUT,
    Corrupt,
    Geometry,
    Handle,
    NoDebt,
    NoSegment,
    OwnerStalled,
    Stale,
    check_machine,
    receive,
    send,
)

__all__ = ["Corrupt", "Handle", "NoDebt", "NoSegment", "OwnerStalled", "Reader", "Stale", "attach"]

_T = TypeVar("_T")


def attach(sock: socket.socket | int, on_room: Callable[[], object] | None = None) -> Reader:
    """Become a reader of the store whose owner is at the other end of a SOCK_SEQPACKET socket, or its descriptor.

    The socket stays the caller's, to be closed behind the reader: the owner takes its end for that of the reader.
    `on_room` is called after a release while the owner waits for room, in whatever thread, and has to wake it. Raises
    ProtocolError for an owner that does not keep to the protocol, and OSError (ENOSYS) where it is not known how the
    processor orders accesses.
    """
    check_machine()
    if isinstance(sock, int):
        with socket.socket(fileno=os.dup(sock)) as s:
            return attach(s, on_room)
    before = sock.gettimeout()
    sock.settimeout(TIMEOUT)
    try:
        return _attach(sock, on_room)
    finally:
        sock.settimeout(before)


def _attach(sock: socket.socket, on_room: Callable[[], object] | None) -> Reader:
    send(sock, HELLO, (os.getpid(),))
    (*numbers, index), _, _ = receive(sock, GEOMETRY, 0)
    geometry = Geometry(*numbers)
    store, arena, largest, slots = geometry
    if (
        not store or not 1 <= slots <= MOST_SLOTS or not PAGE <= arena <= MOST_ARENA
        or not 1 <= largest <= MOST_ARENA or not 1 <= index < READER_INDEXES
    ):  # fmt: skip
        raise ProtocolError(f"a store with {slots} slots, {arena} bytes, objects of {largest}, and this as reader {index}")
    size = PAGE + ENTRY * slots
    fd = os.memfd_create("omnibus-ledger", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    fds: list[int] = [fd]
    try:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as e:
            raise out_of_memory(f"no ledger of {size} bytes", e.errno or 0) from None
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        ledger = Arena(0, fd, size).memory
        block = geometry.superblock(b"L", index)
        ledger[: len(block)] = block
        send(sock, LEDGER, (store,), fd)
        (granted, *rest), got, _ = receive(sock, GRANT, 3)
        fds += got
        if granted != store or any(rest):
            raise ProtocolError(f"a grant for store {granted:x}, and this is {store:x}")
        parts = [whole(part, n) for part, n in zip(got, (arena, PAGE + LINE * slots, PAGE + OWED * slots))]
        for mapping, kind, reader in ((parts[1], b"D", 0), (parts[2], b"O", index)):
            block = geometry.superblock(kind, reader)
            if ctypes.string_at(mapping.address, len(block)) != block:
                raise ProtocolError(f"a segment does not begin with the superblock of store {store:x}")
        return Reader(store, slots, parts, ledger, on_room)
    finally:
        for each in fds:
            os.close(each)


def whole(fd: int, size: int, seals: int = SEALS) -> Mapping:
    """A segment of a peer's that has all of its pages, so that no access to it fails."""
    mapping = Mapping(fd, size, seals)
    if os.fstat(fd).st_blocks * 512 < size:
        raise ProtocolError(f"a segment of {size} bytes has holes")
    return mapping


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
        self._lock = threading.RLock()  # destructors come in the middle of anything
        self._settling = False
        self._large: dict[int, tuple[Mapping, int]] = {}  # segments of objects, and their slots, by generation
        self._taken: dict[int, int] = {}  # debts ever collected, by slot
        self._gone: deque[int] = deque()  # places in the ledger whose leases have ended
        self._leases: dict[int, weakref.ref[Any]] = {}
        self._last = 0
        self._closed: Callable[[], object] | None = None  # called when no lease is left

    def take(self, handle: Handle) -> View:
        """Collect one of the debts for an object, and view it, read-only.

        The debt is settled when the view was released and the last slice, cast or array of it is gone. Raises
        NoDebt, Stale, Corrupt, NoSegment.
        """
        return self._leased(handle, 1)

    def pin(self, handle: Handle) -> View:
        """View an object that this reader need not have been charged for. Raises Stale, Corrupt, NoSegment, OwnerStalled."""
        return self._leased(handle, 0)

    def read(self, handle: Handle, decode: Callable[[memoryview], _T]) -> _T:
        """What `decode` makes of an object. It keeps nothing of its view: the debt is settled when it has returned.

        Raises NoDebt, Stale, Corrupt, NoSegment, and what `decode` raises.
        """
        self._check_process()
        held = False
        try:
            with self._lock:
                segment, offset = self._locate(handle)
                taken = self._collect(handle)
                self._taken[handle.slot] = taken
                held = True  # what a signal's handler raises comes behind this, or in front of both
            return decode(segment.view(offset, handle.size))
        finally:
            if held:
                self._gone.append(PAGE // 4 + 2 * handle.slot + 1)
            self._settle()

    def drop(self, handle: Handle) -> None:
        """Settle one debt unread. Raises NoDebt, Stale, Corrupt, NoSegment."""
        self.read(handle, lambda _: None)

    def add_segment(self, handle: Handle, fd: int) -> None:
        """Map the segment of an object that has one of its own, from its descriptor, which stays the caller's to close.

        It stays mapped until this finds that the object is gone, or the reader is. Raises Stale, Corrupt, ProtocolError.
        """
        self._check_process()
        with self._lock:
            self._check(handle)
            if handle.offset != LARGE:
                raise Corrupt(f"{handle} lies in the arena")
            self._present(handle)
            size = os.fstat(fd).st_size
            if size < handle.size:
                raise ProtocolError(f"a segment of {size} bytes for {handle}")
            for gen, (_, slot) in list(self._large.items()):
                if self._words[(PAGE + LINE * slot) // 8] >> 2 != gen:
                    del self._large[gen]
            self._large[handle.gen] = whole(fd, size), handle.slot

    def close(self, on_end: Callable[[], object] = lambda: None) -> None:
        """Take no new leases, and call `on_end` when no view is left, perhaps at once. It may be called more than once.

        The memory stays mapped as long as the reader or a view is referred to.
        """
        if os.getpid() == self._pid:
            with self._lock:
                self._closed = on_end
            if not self._leases:
                self._end()

    def _end(self) -> None:
        on_end, self._closed = self._closed, _nothing  # which refers to nothing
        if on_end is not None:
            on_end()

    def _leased(self, h: Handle, debt: int) -> View:
        """A view that holds a debt (1) or a pin (0)."""
        self._check_process()
        place, held = PAGE // 4 + 2 * h.slot + debt, False
        try:
            with self._lock:
                segment, offset = self._locate(h)
                if debt:
                    taken = self._collect(h)
                    self._taken[h.slot] = taken
                else:
                    self._pin(h)
                held = True  # what a signal's handler raises comes behind this, or in front of both
                self._last += 1
                number = self._last
                view, ref = segment.window(offset, h.size, lambda _: self._ended(number, place))
                self._leases[number] = ref
                held = False  # the view holds it
            return View(view, ref)
        finally:
            if held:
                self._gone.append(place)
            if self._gone:
                self._settle()

    def _ended(self, number: int, place: int) -> None:
        """A lease has ended, in any thread, in the middle of anything."""
        if self._leases.pop(number, None) is None:
            return
        self._gone.append(place)
        self._settle()
        if self._closed is not None and not self._leases:
            self._end()

    def _settle(self) -> None:
        """Write into the ledger what has ended. A destructor in the middle of this leaves it to the loop."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._settling:
                return
            self._settling = True
            try:
                moved = self._settle_all()
            finally:
                self._settling = False
        if moved and self._on_room is not None:
            fence()
            if self._halves[16] % 2:
                self._on_room()

    def _settle_all(self) -> bool:
        """What a signal's handler raises comes at calls and where loops begin anew. The lock is held."""
        moved = False
        ordered()  # the objects were read before
        while self._gone:
            place = self._gone[0]
            step = 1 if place % 2 else -1  # debts settled grow; pins fall
            self._ledger[place] = (self._ledger[place] + step) & 0xFFFFFFFF
            del self._gone[0]
            moved = True
        return moved

    def _check_process(self) -> None:
        """It comes before the lock, which a forked child may find taken for ever."""
        if os.getpid() != self._pid:
            raise ForkedError(f"the reader belongs to process {self._pid}, and this is {os.getpid()}: attach here")

    def _check(self, h: Handle) -> None:
        if self._closed is not None:
            raise OmnibusError("the reader is closed")
        store, gen, offset, size, slot, _ = h
        if store != self.store:
            raise Corrupt(f"{h} is of another store than {self.store:x}")
        room = MOST_ARENA if offset == LARGE else self._arena.size - offset
        if not (0 <= slot < self._slots and 0 < gen < 1 << 62 and offset >= 0 and 0 <= size <= room):
            raise Corrupt(f"{h} has a slot, a generation or a place that there are none of")

    def _locate(self, h: Handle) -> tuple[Mapping, int]:
        """Where the bytes of a handle lie. What lies there counts only if the object is held afterwards. The lock is held."""
        self._check(h)
        if h.offset != LARGE:
            return self._arena, h.offset
        if (known := self._large.get(h.gen)) is not None:
            return known[0], 0
        self._present(h)
        raise NoSegment(f"{h} has a segment of its own: have its owner send that, and add it")

    def _present(self, h: Handle) -> None:
        """Raise unless there is such an object. What was read between two looks at the word is of its generation."""
        at = (PAGE + LINE * h.slot) // 8
        present = (h.gen << 2 | LIVE, h.gen << 2 | CLOSING)
        if self._words[at] not in present:
            raise Stale(f"{h} is gone")
        ordered()
        matches = self._matches(h)
        ordered()
        if self._words[at] not in present:
            raise Stale(f"{h} is gone")
        if not matches:
            raise Corrupt(f"{h} does not agree with the directory of its store")

    def _matches(self, h: Handle) -> bool:
        at = (PAGE + LINE * h.slot) // 8
        return (self._words[at + 1], self._words[at + 2], self._halves[2 * at + 6]) == (h.offset, h.size, h.codec)

    def _collect(self, h: Handle) -> int:
        """How many debts are taken of its slot with one of the object's. The lock is held.

        A debt that was left while the object was there holds it.
        """
        slot = h.slot
        taken = self._taken.get(slot, 0)
        left = (self._owed[PAGE // 4 + slot] - taken) & 0xFFFFFFFF
        ordered()
        self._present(h)
        if not 0 < left < 1 << 31:
            raise NoDebt(f"{h}: nothing is left to collect: this reader has collected it, or attached after it was charged")
        return (taken + 1) & 0xFFFFFFFF

    def _pin(self, h: Handle) -> None:
        """Raise a pin, and then look whether it holds the object. The lock is held."""
        at, place = (PAGE + LINE * h.slot) // 8, PAGE // 4 + 2 * h.slot
        self._ledger[place] += 1
        try:
            fence()
            until = time.monotonic() + TIMEOUT
            while (word := self._words[at]) == h.gen << 2 | CLOSING:
                if time.monotonic() > until:
                    raise OwnerStalled(f"{h}: the owner has looked at its pins for {TIMEOUT:g} s")
                time.sleep(0)
            if word != h.gen << 2 | LIVE:
                raise Stale(f"{h} is gone")
            ordered()
            if not self._matches(h):
                raise Corrupt(f"{h} does not agree with the directory of its store")
        except BaseException:
            self._ledger[place] -= 1
            raise


def _nothing() -> None:
    pass
