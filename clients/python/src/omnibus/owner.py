"""The owner of a store as the Go package shmstore lays it out: the one process that writes its objects.

An object goes when its room, or its slot, is needed, the oldest first, unless a reader owes for it or has pinned it. All
lie in the arena. A method of `Owner` is for one thread at a time, but for `exchange`, which waits for a peer.
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
from .fences import fence, ordered
from .memory import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, Arena, Gaps, Mapping
from .store import whole
from .storelayout import (
    CLOSING,
    ENTRY,
    GEOMETRY,
    GRANT,
    HELLO,
    LEDGER,
    LINE,
    LIVE,
    MOST_ARENA,
    MOST_SLOTS,
    OWED,
    PAGE,
    READER_INDEXES,
    TIMEOUT,
    Geometry,
    Handle,
    TooManyReaders,
    check_machine,
    refuse,
    receive,
    send,
)

_ALIGN = 64
_MOST_LOOKED_AT = 500  # for an error


class Full(OmnibusError):
    """There is no room, and all objects are owed for, pinned, or being written. The text says which reader keeps how much."""


class Object:
    """An object, from its reservation on. `tag` is the caller's."""

    __slots__ = ("tag", "gen", "slot", "offset", "size", "view", "handle")

    def __init__(self, tag: Any, gen: int, slot: int, offset: int, size: int, view: memoryview) -> None:
        self.tag, self.gen, self.slot, self.offset, self.size = tag, gen, slot, offset, size
        self.view: memoryview | None = view  #: to be filled, until it is committed
        self.handle: Handle | None = None  #: while it can be read


class Segment:
    """Shared memory that this process alone writes, and its descriptor."""

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
    """What the owner knows of a reader. One that settles more than it owes keeps all until it is removed: its connection
    is ended."""

    __slots__ = ("reader", "pid", "sock", "owed", "ledger", "segment", "_lied", "_mapping")

    def __init__(self, reader: int, pid: int, sock: socket.socket, segment: Segment, ledger: Mapping) -> None:
        self.reader, self.pid, self.sock, self.segment = reader, pid, sock, segment
        self._lied, self._mapping = False, ledger
        memory = segment.arena.memory
        self.owed = (ctypes.c_uint32 * (len(memory) // 4)).from_buffer(memory)  # written here
        self.ledger = (ctypes.c_uint32 * (ledger.size // 4)).from_address(ledger.address)  # written there

    def keeps(self, slot: int) -> bool:
        """Whether it owes for the object in a slot."""
        left = (self.owed[PAGE // OWED + slot] - self.ledger[PAGE // 4 + 2 * slot + 1]) & 0xFFFFFFFF
        if left >> 31 and not self._lied:
            self._lied = True
            self.end()
        return left != 0 or self._lied

    def pins(self, slot: int) -> bool:
        """Whether it has pinned it."""
        return bool(self.ledger[PAGE // 4 + 2 * slot])


    def end(self) -> None:
        """End its connection. What it keeps stays until it is removed."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class Owner:
    """A store: objects, slots, and accounts of readers. `on_gone` is called with each object that has gone."""

    def __init__(
        self, arena_bytes: int, max_object_bytes: int, slots: int, max_readers: int, on_gone: Callable[[Object], object]
    ) -> None:
        check_machine()
        for what, n, least, most in (
            ("arena_bytes", arena_bytes, PAGE, MOST_ARENA), ("max_object_bytes", max_object_bytes, 1, arena_bytes),
            ("slots", slots, 1, MOST_SLOTS), ("max_readers", max_readers, 1, READER_INDEXES - 1),
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
        # By generation, which is by age. The first of a plain dict is looked for among those that were deleted before it.
        self.objects: OrderedDict[int, Object] = OrderedDict()
        self.used_bytes = self.evicted = 0
        self._on_gone = on_gone
        self._invited: set[int] = set()
        self._arena = Segment("arena", arena_bytes)
        self._directory = Segment("directory", PAGE + LINE * slots)
        memory = self._directory.arena.memory
        self._words = (ctypes.c_uint64 * (len(memory) // 8)).from_buffer(memory)
        self._halves = (ctypes.c_uint32 * (len(memory) // 4)).from_buffer(memory)
        block = self.geometry.superblock(b"D", 0)
        memory[: len(block)] = block
        self._room = memoryview(self._arena.arena.memory)
        self._gaps = Gaps(arena_bytes)
        self._generation = 0
        self._free_slots: list[int] = []
        self._slots_used = 0  # of those that were ever in use

    # Objects.

    def reserve(self, size: int, tag: Any) -> Object:
        """Room for an object, to be filled; then it is committed or aborted. Raises Full and TooLarge."""
        g = self.geometry
        if size > g.largest:
            raise TooLarge(Code.TOO_LARGE, f"a value of {size} bytes: this store takes {g.largest} (max_object_bytes)")
        room = _rounded(size)
        while True:
            if self._free_slots or self._slots_used < g.slots:
                offset = self._gaps.take(room)
                if offset is not None:
                    break
            if not self._evict_oldest():
                raise Full(f"no room for {size} bytes: {self._holders()}")
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._slots_used
            self._slots_used += 1
        self._generation += 1
        self.used_bytes += room
        o = Object(tag, self._generation, slot, offset, size, self._room[offset : offset + size])
        self.objects[o.gen] = o
        return o

    def commit(self, o: Object, codec: int) -> Handle:
        """Have an object that is filled be read: all readers are charged for it."""
        o.view = None
        at = (PAGE + LINE * o.slot) // 8
        words = self._words
        words[at + 1], words[at + 2], self._halves[2 * at + 6] = o.offset, o.size, codec
        self.charge(o)
        words[at] = o.gen << 2 | LIVE
        o.handle = h = Handle(self.geometry.store, o.gen, o.offset, o.size, o.slot, codec)
        return h

    def charge(self, o: Object) -> None:
        """Charge all readers once more."""
        at = PAGE // OWED + o.slot
        for a in self.accounts.values():
            a.owed[at] = (a.owed[at] + 1) & 0xFFFFFFFF
        ordered()  # what is written behind this, or sent, is seen behind it

    def abort(self, o: Object) -> None:
        """Give back room that was reserved."""
        self._forget(o)

    def evict(self, o: Object) -> bool:
        """Free an object now, if no reader owes for it or has pinned it."""
        if o.handle is None or self._is_kept(o):
            return False
        at = (PAGE + LINE * o.slot) // 8
        self._words[at] = o.gen << 2 | CLOSING
        fence()
        for a in self.accounts.values():
            if a.pins(o.slot):
                self._words[at] = o.gen << 2 | LIVE
                return False
        self._words[at] = 0
        self.evicted += 1
        self._forget(o)
        return True

    def free(self, nbytes: int) -> int:
        """Free the oldest objects that may go until they have so many bytes; the bytes that came free."""
        before = self.used_bytes
        for o in list(self.objects.values()):
            if before - self.used_bytes >= nbytes:
                break
            self.evict(o)
        return before - self.used_bytes

    def _evict_oldest(self) -> bool:
        for o in self.objects.values():
            if self.evict(o):  # which changes the dict, and is the end of the search
                return True
        return False

    def _is_kept(self, o: Object) -> bool:
        for a in self.accounts.values():
            if a.keeps(o.slot):
                return True
        return False

    def _forget(self, o: Object) -> None:
        o.handle = o.view = None
        del self.objects[o.gen]
        room = _rounded(o.size)
        self._gaps.give(o.offset, room)
        self._free_slots.append(o.slot)
        self.used_bytes -= room
        self._on_gone(o)

    def _holders(self) -> str:
        """Why nothing can go, for an error: how much of the oldest objects each reader keeps."""
        g, oldest = self.geometry, list(islice(self.objects.values(), _MOST_LOOKED_AT))
        held = [f"{self.used_bytes} of {g.arena} bytes are taken, {len(self.objects)} of {g.slots} slots"]
        of = f", of the oldest {_MOST_LOOKED_AT}" if len(self.objects) > len(oldest) else ""
        for a in self.accounts.values():
            kept = [o for o in oldest if o.handle and (a.keeps(o.slot) or a.pins(o.slot))]
            if kept:
                held.append(f"reader {a.reader} (process {a.pid}) keeps {len(kept)} values with {sum(o.size for o in kept)} bytes{of}")
        filling = sum(o.handle is None for o in oldest)
        if filling:
            held.append(f"{filling} are being written{of}")
        return "; ".join(held)

    # Readers.

    def invite(self) -> int:
        """An index for a reader that is about to attach. It is given back by `join`'s end, `remove`."""
        if len(self.accounts) + len(self._invited) >= self.max_readers:
            raise TooManyReaders(f"all {self.max_readers} readers are there (max_readers)")
        index = next(i for i in range(1, READER_INDEXES) if i not in self.accounts and i not in self._invited)
        self._invited.add(index)
        return index

    def exchange(self, sock: socket.socket, index: int) -> Account:
        """Talk with a reader until its account can be joined. It waits for the peer; no lock is needed."""
        sock.settimeout(TIMEOUT)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        g = self.geometry
        receive(sock, HELLO, 0)
        send(sock, GEOMETRY, (*g, index))
        (store, *rest), fds, pid = receive(sock, LEDGER, 1)  # from the reader, also where another has made the socket
        try:
            if store != g.store or any(rest):
                raise ProtocolError(f"a ledger for store {store:x}, and this is {g.store:x}")
            if not pid:
                raise ProtocolError("the reader's process is in another pid namespace, from where its death cannot be seen")
            ledger = whole(fds[0], PAGE + ENTRY * g.slots)
        finally:
            os.close(fds[0])
        block = g.superblock(b"L", index)
        if ctypes.string_at(ledger.address, len(block)) != block:
            raise ProtocolError(f"a ledger does not begin with the superblock of store {g.store:x}")
        segment = Segment("account", PAGE + OWED * g.slots)
        block = g.superblock(b"O", index)
        segment.arena.memory[: len(block)] = block
        return Account(index, pid, sock, segment, ledger)

    def refuse(self, sock: socket.socket, why: OmnibusError) -> None:
        """Tell a process that is about to attach that it does not become a reader. It waits for it; no lock is needed."""
        sock.settimeout(TIMEOUT)
        receive(sock, HELLO, 0)  # closed unread, it would take the answer along
        refuse(sock, why)

    def join(self, a: Account) -> None:
        """From here on a reader is charged, and its pins count."""
        self._invited.discard(a.reader)
        self.accounts[a.reader] = a

    def grant(self, sock: socket.socket, a: Account) -> None:
        """Give a reader that has joined the store."""
        send(sock, GRANT, (self.geometry.store,), self._arena.fd, self._directory.fd, a.segment.fd)
        sock.settimeout(None)

    def remove(self, index: int) -> None:
        """Forget a reader, or its invitation: all that it alone kept may go. Idempotent."""
        self._invited.discard(index)
        self.accounts.pop(index, None)


def _rounded(size: int) -> int:
    return max(size + _ALIGN - 1 & -_ALIGN, _ALIGN)
