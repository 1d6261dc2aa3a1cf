"""A reader of a store of the Go package shmstore, or of `omnibus.keyed`, whose owner admits it over a socket::

    reader = attach(fd)                      # of the socket, which the owner handed over
    with reader.take(Handle(...)) as view:   # or pin, for an object that this reader was not charged for
        use(view)

The rules are those of shmstore (its doc.go and layout.go): this process writes only its own ledger, and checks all data
of the owner. An object stays as long as any view of it lives. The owner frees the objects that a killed reader held with
`RemoveReader`. An object with a segment of its own can be read after `Reader.add_segment`.
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
from .fences import acq_rel_fence, fence
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
    MAX_ARENA_BYTES,
    MAX_SLOTS,
    OWED,
    PAGE,
    READER_INDEXES,
    SEALS,
    TIMEOUT_SECONDS,
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

    The caller closes the socket after the reader: the owner takes the end of the connection for that of the reader.
    `on_room` is called after a release while the owner waits for space, in any thread, and has to wake the owner. Raises
    ProtocolError if the owner breaks the protocol, and OSError (ENOSYS) on a machine whose memory order this package does
    not support.
    """
    check_machine()
    if isinstance(sock, int):
        with socket.socket(fileno=os.dup(sock)) as s:
            return attach(s, on_room)
    before = sock.gettimeout()
    sock.settimeout(TIMEOUT_SECONDS)
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
        not store or not 1 <= slots <= MAX_SLOTS or not PAGE <= arena <= MAX_ARENA_BYTES
        or not 1 <= largest <= MAX_ARENA_BYTES or not 1 <= index < READER_INDEXES
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
        parts = [map_whole(part, n) for part, n in zip(got, (arena, PAGE + LINE * slots, PAGE + OWED * slots))]
        for mapping, kind, reader in ((parts[1], b"D", 0), (parts[2], b"O", index)):
            block = geometry.superblock(kind, reader)
            if ctypes.string_at(mapping.address, len(block)) != block:
                raise ProtocolError(f"a segment does not begin with the superblock of store {store:x}")
        return Reader(store, slots, parts, ledger, on_room)
    finally:
        for each in fds:
            os.close(each)


def map_whole(fd: int, size: int, seals: int = SEALS) -> Mapping:
    """Map a segment of a peer. Raises ProtocolError unless all of its pages are allocated, so that no access can fail.
    """
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
        self._lock = threading.RLock()  # reentrant: destructors run at any point
        self._settling = False
        # Segments of large objects, and their slots, by generation.
        self._own_segments: dict[int, tuple[Mapping, int]] = {}
        self._collected: dict[int, int] = {}  # number of debts collected, by slot
        self._ended_entries: deque[int] = deque()  # ledger entries whose leases have ended
        self._leases: dict[int, weakref.ref[Any]] = {}
        self._last_lease = 0
        self._closed: Callable[[], object] | None = None  # called when no lease is left; None: not closed

    def take(self, handle: Handle) -> View:
        """Collect one debt for an object, and view the object, read-only.

        The debt is settled when the view is released and the last slice, cast or array of it is gone. Raises
        NoDebt, Stale, Corrupt, NoSegment.
        """
        return self._open_lease(handle, 1)

    def pin(self, handle: Handle) -> View:
        """View an object without a debt for it. Raises Stale, Corrupt, NoSegment, OwnerStalled."""
        return self._open_lease(handle, 0)

    def read(self, handle: Handle, decode: Callable[[memoryview], _T]) -> _T:
        """Collect one debt for an object, and return `decode` of its bytes. The debt is settled when `decode` has returned,
        so its result must not refer to its view.

        Raises NoDebt, Stale, Corrupt, NoSegment, and the errors of `decode`.
        """
        self._check_process()
        held = False
        try:
            with self._lock:
                segment, offset = self._locate(handle)
                taken = self._collect(handle)
                self._collected[handle.slot] = taken
                held = True  # what a signal's handler raises comes behind this, or in front of both
            return decode(segment.view(offset, handle.size))
        finally:
            if held:
                self._ended_entries.append(PAGE // 4 + 2 * handle.slot + 1)
            self._settle_ended()

    def drop(self, handle: Handle) -> None:
        """Settle one debt without reading. Raises NoDebt, Stale, Corrupt, NoSegment."""
        self.read(handle, lambda _: None)

    def add_segment(self, handle: Handle, fd: int) -> None:
        """Map the segment of an object that has one of its own. The caller closes the descriptor.

        It stays mapped until a later `add_segment` finds the object gone, or until the reader is gone. Raises Stale,
        Corrupt, ProtocolError.
        """
        self._check_process()
        with self._lock:
            self._check(handle)
            if handle.offset != LARGE:
                raise Corrupt(f"{handle} lies in the arena")
            self._check_present(handle)
            size = os.fstat(fd).st_size
            if size < handle.size:
                raise ProtocolError(f"a segment of {size} bytes for {handle}")
            for gen, (_, slot) in list(self._own_segments.items()):
                if self._words[(PAGE + LINE * slot) // 8] >> 2 != gen:
                    del self._own_segments[gen]
            self._own_segments[handle.gen] = map_whole(fd, size), handle.slot

    def close(self, on_end: Callable[[], object] = lambda: None) -> None:
        """Refuse new leases, and call `on_end` when no view is left, perhaps at once. `on_end` may be called more than once.

        The memory stays mapped as long as the reader or a view is referred to.
        """
        if os.getpid() == self._pid:
            with self._lock:
                self._closed = on_end
            if not self._leases:
                self._call_on_end()

    def _call_on_end(self) -> None:
        on_end, self._closed = self._closed, _nothing  # drops the references of on_end
        if on_end is not None:
            on_end()

    def _open_lease(self, h: Handle, debt: int) -> View:
        """A view that holds a debt (1) or a pin (0)."""
        self._check_process()
        entry, held = PAGE // 4 + 2 * h.slot + debt, False
        try:
            with self._lock:
                segment, offset = self._locate(h)
                if debt:
                    taken = self._collect(h)
                    self._collected[h.slot] = taken
                else:
                    self._pin(h)
                held = True  # what a signal's handler raises comes behind this, or in front of both
                self._last_lease += 1
                number = self._last_lease
                view, ref = segment.tracked_view(offset, h.size, lambda _: self._on_lease_end(number, entry))
                self._leases[number] = ref
                held = False  # the view holds it
            return View(view, ref)
        finally:
            if held:
                self._ended_entries.append(entry)
            if self._ended_entries:
                self._settle_ended()

    def _on_lease_end(self, number: int, entry: int) -> None:
        """A lease has ended. Called by the garbage collector, in any thread, between any two steps."""
        if self._leases.pop(number, None) is None:
            return
        self._ended_entries.append(entry)
        self._settle_ended()
        if self._closed is not None and not self._leases:
            self._call_on_end()

    def _settle_ended(self) -> None:
        """Write the ended leases into the ledger. A nested call by a destructor leaves its lease to the outer loop."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._settling:
                return
            self._settling = True
            try:
                moved = self._settle_all_ended()
            finally:
                self._settling = False
        if moved and self._on_room is not None:
            fence()
            if self._halves[16] % 2:
                self._on_room()

    def _settle_all_ended(self) -> bool:
        """An exception of a signal handler comes only at calls and loop starts, so no lease is counted twice. The lock
        is held."""
        moved = False
        acq_rel_fence()  # reads of the objects come before their release
        while self._ended_entries:
            entry = self._ended_entries[0]
            # An odd entry counts settled debts, which grow; an even one counts pins, which fall.
            step = 1 if entry % 2 else -1
            self._ledger[entry] = (self._ledger[entry] + step) & 0xFFFFFFFF
            del self._ended_entries[0]
            moved = True
        return moved

    def _check_process(self) -> None:
        """Called before locking: in a forked child the lock may be held for ever."""
        if os.getpid() != self._pid:
            raise ForkedError(f"the reader belongs to process {self._pid}, and this is {os.getpid()}: attach here")

    def _check(self, h: Handle) -> None:
        if self._closed is not None:
            raise OmnibusError("the reader is closed")
        store, gen, offset, size, slot, _ = h
        if store != self.store:
            raise Corrupt(f"{h} is of another store than {self.store:x}")
        most = MAX_ARENA_BYTES if offset == LARGE else self._arena.size - offset
        if not (0 <= slot < self._slots and 0 < gen < 1 << 62 and offset >= 0 and 0 <= size <= most):
            raise Corrupt(f"{h} has a slot, a generation or an offset out of bounds")

    def _locate(self, h: Handle) -> tuple[Mapping, int]:
        """The segment and offset of a handle's bytes. They are valid only if a debt or pin holds the object afterwards. The
        lock is held."""
        self._check(h)
        if h.offset != LARGE:
            return self._arena, h.offset
        if (known := self._own_segments.get(h.gen)) is not None:
            return known[0], 0
        self._check_present(h)
        raise NoSegment(f"{h} has a segment of its own: have its owner send that, and add it")

    def _check_present(self, h: Handle) -> None:
        """Raise Stale or Corrupt unless the object exists. Fields that are read between two loads of the state word are of its
        generation."""
        at = (PAGE + LINE * h.slot) // 8
        present = (h.gen << 2 | LIVE, h.gen << 2 | CLOSING)
        if self._words[at] not in present:
            raise Stale(f"{h} is gone")
        acq_rel_fence()
        matches = self._matches(h)
        acq_rel_fence()
        if self._words[at] not in present:
            raise Stale(f"{h} is gone")
        if not matches:
            raise Corrupt(f"{h} does not agree with the directory of its store")

    def _matches(self, h: Handle) -> bool:
        at = (PAGE + LINE * h.slot) // 8
        return (self._words[at + 1], self._words[at + 2], self._halves[2 * at + 6]) == (h.offset, h.size, h.codec)

    def _collect(self, h: Handle) -> int:
        """The number of collected debts of the slot, including one for this object. The lock is held.

        A debt that is left while the object exists holds the object.
        """
        slot = h.slot
        taken = self._collected.get(slot, 0)
        left = (self._owed[PAGE // 4 + slot] - taken) & 0xFFFFFFFF
        acq_rel_fence()
        self._check_present(h)
        if not 0 < left < 1 << 31:
            raise NoDebt(f"{h}: nothing is left to collect: this reader has collected it, or attached after it was charged")
        return (taken + 1) & 0xFFFFFFFF

    def _pin(self, h: Handle) -> None:
        """Pin the object, and then check that the pin holds it. The lock is held."""
        at, entry = (PAGE + LINE * h.slot) // 8, PAGE // 4 + 2 * h.slot
        self._ledger[entry] += 1
        try:
            fence()
            until = time.monotonic() + TIMEOUT_SECONDS
            while (word := self._words[at]) == h.gen << 2 | CLOSING:
                if time.monotonic() > until:
                    raise OwnerStalled(f"{h}: the owner has been checking its pins for {TIMEOUT_SECONDS:g} s")
                time.sleep(0)
            if word != h.gen << 2 | LIVE:
                raise Stale(f"{h} is gone")
            acq_rel_fence()
            if not self._matches(h):
                raise Corrupt(f"{h} does not agree with the directory of its store")
        except BaseException:
            self._ledger[entry] -= 1
            raise


def _nothing() -> None:
    pass
