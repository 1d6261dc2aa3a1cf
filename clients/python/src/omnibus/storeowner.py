"""The owner of a store as the Go package shmstore lays it out: the one process that writes its objects.

When space or a slot is needed, the oldest objects are evicted first, except those with debts or pins of a reader. All
objects lie in the arena. One thread at a time may call the methods of `StoreOwner`; `negotiate`, which waits for a
peer, may run beside them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

from . import headroom
from .errors import Code, OmnibusError, ProtocolError, TooLarge, out_of_memory
from .fences import fence, acq_rel_fence
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, FreeList, Mapping
from .store import map_whole
from .storelayout import (
    CLOSING,
    ENTRY,
    GEOMETRY,
    GRANT,
    HELLO,
    LEDGER,
    LINE,
    LIVE,
    MAX_ARENA_BYTES,
    MAX_SLOTS,
    OWED,
    PAGE,
    READER_INDEXES,
    TIMEOUT_SECONDS,
    Geometry,
    Handle,
    TooManyReaders,
    check_machine,
    send_refusal,
    receive,
    send,
)

_ALIGN = 64
_MAX_DESCRIBED = 500  # objects that an error text counts


class Full(OmnibusError):
    """There is no space, and each object has debts or pins, or is being written. The text says how much each reader
    keeps."""


class Object:
    """An object, from its reservation on. `tag` is any value of the caller."""

    __slots__ = ("tag", "gen", "slot", "offset", "size", "view", "handle")

    def __init__(self, tag: Any, gen: int, slot: int, offset: int, size: int, view: memoryview) -> None:
        self.tag, self.gen, self.slot, self.offset, self.size = tag, gen, slot, offset, size
        self.view: memoryview | None = view  #: the bytes to fill; None once committed
        self.handle: Handle | None = None  #: None unless it can be read


class Segment:
    """Shared memory that only this process writes, and its descriptor."""

    __slots__ = ("fd", "arena")

    def __init__(self, name: str, size: int) -> None:
        self.fd = -1
        headroom.check(f"no {name} of {size} bytes", size)
        self.fd = os.memfd_create(f"omnibus-{name}", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(self.fd, 0, size)
        except OSError as e:
            raise out_of_memory(f"no {name} of {size} bytes", e.errno or 0) from None
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        self.arena = Arena(0, self.fd, size)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            _close(self.fd)


class Account:
    """The account of a reader. A reader that settles more debts than it has is inconsistent: its connection is ended, and
    until it is removed it counts as having a debt for every object."""

    __slots__ = ("reader", "pid", "sock", "owed", "ledger", "segment", "_inconsistent", "_mapping")

    def __init__(self, reader: int, pid: int, sock: socket.socket, segment: Segment, ledger: Mapping) -> None:
        self.reader, self.pid, self.sock, self.segment = reader, pid, sock, segment
        self._inconsistent, self._mapping = False, ledger
        memory = segment.arena.memory
        self.owed = (ctypes.c_uint32 * (len(memory) // 4)).from_buffer(memory)  # written here
        self.ledger = (ctypes.c_uint32 * (ledger.size // 4)).from_address(ledger.address)  # written there

    def has_debt(self, slot: int) -> bool:
        """Whether the reader has a debt for the object in a slot."""
        left = (self.owed[PAGE // OWED + slot] - self.ledger[PAGE // 4 + 2 * slot + 1]) & 0xFFFFFFFF
        if left >> 31 and not self._inconsistent:
            self._inconsistent = True
            self.end_connection()
        return left != 0 or self._inconsistent

    def has_pin(self, slot: int) -> bool:
        """Whether it has pinned it."""
        return bool(self.ledger[PAGE // 4 + 2 * slot])


    def end_connection(self) -> None:
        """End its connection. What it keeps stays until it is removed."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class StoreOwner:
    """A store: objects, slots, and accounts of readers. `on_gone` is called with each object that has gone."""

    def __init__(
        self, arena_bytes: int, max_object_bytes: int, slots: int, max_readers: int, on_gone: Callable[[Object], object]
    ) -> None:
        check_machine()
        for what, n, least, most in (
            ("arena_bytes", arena_bytes, PAGE, MAX_ARENA_BYTES), ("max_object_bytes", max_object_bytes, 1, arena_bytes),
            ("slots", slots, 1, MAX_SLOTS), ("max_readers", max_readers, 1, READER_INDEXES - 1),
        ):  # fmt: skip
            if not least <= n <= most:
                raise ValueError(f"{what} is {n}, and takes {least} to {most}")
        arena_bytes = -(-arena_bytes // PAGE) * PAGE
        store = 0
        while not store:
            (store,) = struct.unpack("Q", os.urandom(8))
        self.geometry = Geometry(store, arena_bytes, max_object_bytes, slots)
        self.max_readers = max_readers
        self.accounts: dict[int, Account] = {}
        # By generation, so by age. In a plain dict, finding the first item scans the slots of deleted ones.
        self.objects: OrderedDict[int, Object] = OrderedDict()
        self.used_bytes = self.evicted = 0
        self._on_gone = on_gone
        self._reserved_indexes: set[int] = set()
        self._arena = Segment("arena", arena_bytes)
        self._directory = Segment("directory", PAGE + LINE * slots)
        memory = self._directory.arena.memory
        self._words = (ctypes.c_uint64 * (len(memory) // 8)).from_buffer(memory)
        self._halves = (ctypes.c_uint32 * (len(memory) // 4)).from_buffer(memory)
        block = self.geometry.superblock(b"D", 0)
        memory[: len(block)] = block
        self._arena_view = memoryview(self._arena.arena.memory)
        self._free_list = FreeList(arena_bytes)
        self._generation = 0
        self._free_slots: list[int] = []
        self._used_slots = 0  # number of slots that were ever in use

    # Objects.

    def reserve(self, size: int, tag: Any) -> Object:
        """Reserve an object, to be filled and then committed or aborted. Raises Full and TooLarge."""
        g = self.geometry
        if size > g.largest:
            raise TooLarge(Code.TOO_LARGE, f"a value of {size} bytes: this store takes {g.largest} (max_object_bytes)")
        nbytes = _round_up(size)
        while True:
            if self._free_slots or self._used_slots < g.slots:
                offset = self._free_list.allocate(nbytes)
                if offset is not None:
                    break
            if not self._evict_oldest():
                raise Full(f"no space for {size} bytes: {self._describe_holders()}")
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._used_slots
            self._used_slots += 1
        self._generation += 1
        self.used_bytes += nbytes
        o = Object(tag, self._generation, slot, offset, size, self._arena_view[offset : offset + size])
        self.objects[o.gen] = o
        return o

    def commit(self, o: Object, codec: int) -> Handle:
        """Publish a filled object, and charge all readers for it."""
        o.view = None
        at = (PAGE + LINE * o.slot) // 8
        words = self._words
        words[at + 1], words[at + 2], self._halves[2 * at + 6] = o.offset, o.size, codec
        self.charge(o)
        words[at] = o.gen << 2 | LIVE
        o.handle = h = Handle(self.geometry.store, o.gen, o.offset, o.size, o.slot, codec)
        return h

    def charge(self, o: Object) -> None:
        """Charge all readers for an object once more."""
        at = PAGE // OWED + o.slot
        for a in self.accounts.values():
            a.owed[at] = (a.owed[at] + 1) & 0xFFFFFFFF
        acq_rel_fence()  # the charges are visible before later writes and messages

    def abort(self, o: Object) -> None:
        """Abort a reservation."""
        self._release_object(o)

    def evict(self, o: Object) -> bool:
        """Evict an object now, unless a reader has a debt or a pin for it. Returns whether it is evicted."""
        if o.handle is None or self._has_debts(o):
            return False
        at = (PAGE + LINE * o.slot) // 8
        self._words[at] = o.gen << 2 | CLOSING
        fence()
        for a in self.accounts.values():
            if a.has_pin(o.slot):
                self._words[at] = o.gen << 2 | LIVE
                return False
        self._words[at] = 0
        self.evicted += 1
        self._release_object(o)
        return True

    def free(self, nbytes: int) -> int:
        """Evict the oldest objects without debts and pins, until `nbytes` are free. Returns the freed bytes."""
        before = self.used_bytes
        for o in list(self.objects.values()):
            if before - self.used_bytes >= nbytes:
                break
            self.evict(o)
        return before - self.used_bytes

    def _evict_oldest(self) -> bool:
        for o in self.objects.values():
            if self.evict(o):  # this changes the dict, so the loop ends here
                return True
        return False

    def _has_debts(self, o: Object) -> bool:
        for a in self.accounts.values():
            if a.has_debt(o.slot):
                return True
        return False

    def _release_object(self, o: Object) -> None:
        o.handle = o.view = None
        del self.objects[o.gen]
        nbytes = _round_up(o.size)
        self._free_list.free(o.offset, nbytes)
        self._free_slots.append(o.slot)
        self.used_bytes -= nbytes
        self._on_gone(o)

    def _describe_holders(self) -> str:
        """The text of `Full`: how much of the oldest objects each reader keeps."""
        g, oldest = self.geometry, list(islice(self.objects.values(), _MAX_DESCRIBED))
        held = [f"{self.used_bytes} of {g.arena} bytes are taken, {len(self.objects)} of {g.slots} slots"]
        of = f", of the oldest {_MAX_DESCRIBED}" if len(self.objects) > len(oldest) else ""
        for a in self.accounts.values():
            kept = [o for o in oldest if o.handle and (a.has_debt(o.slot) or a.has_pin(o.slot))]
            if kept:
                held.append(f"reader {a.reader} (process {a.pid}) keeps {len(kept)} values with {sum(o.size for o in kept)} bytes{of}")
        filling = sum(o.handle is None for o in oldest)
        if filling:
            held.append(f"{filling} are being written{of}")
        return "; ".join(held)

    # Readers.

    def reserve_index(self) -> int:
        """Reserve an index for a reader that is about to attach. `remove_reader` releases it."""
        if len(self.accounts) + len(self._reserved_indexes) >= self.max_readers:
            raise TooManyReaders(f"all {self.max_readers} reader indexes are in use (max_readers)")
        index = next(i for i in range(1, READER_INDEXES) if i not in self.accounts and i not in self._reserved_indexes)
        self._reserved_indexes.add(index)
        return index

    def negotiate(self, sock: socket.socket, index: int) -> Account:
        """Exchange messages with a reader up to its ledger. Returns its account. Waits for the peer; needs no lock."""
        sock.settimeout(TIMEOUT_SECONDS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        g = self.geometry
        receive(sock, HELLO, 0)
        send(sock, GEOMETRY, (*g, index))
        # The pid is the sender's, also if another process created the socket.
        (store, *rest), fds, pid = receive(sock, LEDGER, 1)
        try:
            if store != g.store or any(rest):
                raise ProtocolError(f"a ledger for store {store:x}, and this is {g.store:x}")
            if not pid:
                raise ProtocolError("the reader's process is in another pid namespace, from where its death cannot be seen")
            ledger = map_whole(fds[0], PAGE + ENTRY * g.slots)
        finally:
            os.close(fds[0])
        block = g.superblock(b"L", index)
        if ctypes.string_at(ledger.address, len(block)) != block:
            raise ProtocolError(f"a ledger does not begin with the superblock of store {g.store:x}")
        segment = Segment("account", PAGE + OWED * g.slots)
        block = g.superblock(b"O", index)
        segment.arena.memory[: len(block)] = block
        return Account(index, pid, sock, segment, ledger)

    def send_refusal(self, sock: socket.socket, why: OmnibusError) -> None:
        """Refuse a process that is about to attach. Waits for the peer; needs no lock."""
        sock.settimeout(TIMEOUT_SECONDS)
        receive(sock, HELLO, 0)  # closing a socket with unread data discards the answer
        send_refusal(sock, why)

    def add_reader(self, a: Account) -> None:
        """Add a reader: it is charged from now on, and its pins count."""
        self._reserved_indexes.discard(a.reader)
        self.accounts[a.reader] = a

    def send_grant(self, sock: socket.socket, a: Account) -> None:
        """Send an added reader the descriptors of the store."""
        send(sock, GRANT, (self.geometry.store,), self._arena.fd, self._directory.fd, a.segment.fd)
        sock.settimeout(None)

    def remove_reader(self, index: int) -> None:
        """Remove a reader, or its reserved index. Objects that only this reader kept can be evicted. Idempotent."""
        self._reserved_indexes.discard(index)
        self.accounts.pop(index, None)


def _round_up(size: int) -> int:
    return max(size + _ALIGN - 1 & -_ALIGN, _ALIGN)
