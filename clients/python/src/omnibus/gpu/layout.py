"""The layout of a value with tensors on a GPU in one payload, whose space the sender reserves."""

from __future__ import annotations

import time
import weakref

from .. import wire
from ..bundle import POOL as IN_POOL
from ..bundle import Place, Plan, Planned
from ..devices.contract import DeviceLost, uuid_text
from ..devices.words import FIRST_SLEEP_SECONDS, MAX_SLEEP_SECONDS
from ..errors import ForeignDevice
from ..session import Work
from ..threadpool import blocking
from .chunk import ChunkTensor, aligned_size
from .pool import Piece, Pool
from .sender import DEFAULT, IPC, POOL, UNAVAILABLE, OnGPU, Sender


class LentAllocation:
    """An allocation of this process that other processes read, at its address here."""

    __slots__ = ("device", "address", "size", "__weakref__")

    def __init__(self, device: bytes, address: int, size: int) -> None:
        self.device = device  # the UUID
        self.address = address
        self.size = size


#: By handle. A driver does not open a handle in the process that created it.
lent_allocations: weakref.WeakValueDictionary[bytes, LentAllocation] = weakref.WeakValueDictionary()


class Layout:
    """One value, and the places of its tensors.

    For each payload the sender calls `choose_work`, reserves `plan.size()` bytes, and calls `fill_work`, which writes
    them. If either returns False, the tensors go through host memory, which is counted. `pieces` must be kept until the
    payload is returned. `mark_sent` notes that it was sent.
    """

    def __init__(self, sender: Sender, plan: Plan, least: int) -> None:
        """`least` is the smallest size of a payload with places: an inline message would not keep them alive."""
        self.sender = sender
        self.plan = plan
        self.tensors = [(p, p.source) for p in plan.tensors if isinstance(p.source, OnGPU)]
        self.nbytes = sum(t.nbytes for _, t in self.tensors)
        self.pieces: list[Piece] = []
        self._least = least
        self._pool: Pool | None = None
        self._mode = DEFAULT
        self._new_bytes = 0  # bytes of a new chunk
        self._handles: dict[int, tuple[bytes, int, int]] = {}

    def choose_work(self, how: wire.Tensors) -> Work[bool]:
        """Find a pool, and lay out the payload. False: it is laid out for host memory."""
        self._pool = yield from self._find_pool(how)
        if self._pool is not None:
            try:
                self._handles = self._export(self._pool) if how.transport == IPC else {}
            except UNAVAILABLE as e:
                self.sender.count_fallback(how.transport, e)
                self._pool = None
        if self._pool is None:
            self.use_host_memory()
            return False
        self._new_bytes = self._lay_out(how.transport)
        return True

    def use_host_memory(self) -> None:
        """Lay out a payload with all data in host memory."""
        self._lay_out(DEFAULT)
        self._pool, self.pieces, self._handles = None, [], {}

    def mark_sent(self, out: bool) -> None:
        """Mark the chunks of the value as sent, in either layout: other processes may read them now."""
        for _, t in self.tensors:
            if t.piece is not None:
                t.piece.sent = out or t.piece.complete  # the word of a complete piece must not be written again
            if out and isinstance(t.value, ChunkTensor):
                t.value.chunk._memory.sent = True

    def count(self) -> None:
        """Count a sent payload of the last layout."""
        self.sender.count(self._mode, self.nbytes)

    def _find_pool(self, how: wire.Tensors) -> Work[Pool | None]:
        mode, sender = how.transport, self.sender
        if mode == DEFAULT or self.nbytes == 0:
            return None
        if self.nbytes < how.min_bytes:
            with sender._session.locked:
                sender.stats.small += 1
            return None
        try:
            pool = sender.pool(self.tensors[0][1].value)
            for _, t in self.tensors:
                if t.piece is None and not pool.device.owns(t.value):
                    what, where = type(t.value).__name__, uuid_text(pool.device.uuid)
                    raise ForeignDevice(f"a value of type {what} is not on {where}, where the pool is")
            yield from sender.publish_work(pool, [t.piece for _, t in self.tensors if t.piece is not None])
        except UNAVAILABLE as e:
            sender.count_fallback(mode, e)
            return None
        return pool

    def _export(self, pool: Pool) -> dict[int, tuple[bytes, int, int]]:
        """The handles of tensors outside of chunks, by number."""
        return {
            i: pool.device.export(t.address) for i, (_, t) in enumerate(self.tensors) if t.piece is None and t.nbytes
        }

    def fill_work(self, view: memoryview) -> Work[bool]:
        """Write the payload, with its tensors on the GPU. False: there is no space for them there."""
        pool, sender = self._pool, self.sender
        assert pool is not None
        pieces = {id(t.piece): t.piece for _, t in self.tensors if t.piece is not None}
        fresh: Piece | None = None
        try:
            if self._new_bytes or self._handles:
                fresh = yield from sender.allocate_work(pool, self._new_bytes, pool.allocate_lent if self._handles else None)
                if fresh is None:
                    with sender._session.locked:
                        sender.stats.spilt += 1
                    return False
                pieces[id(fresh)] = fresh
            yield from sender.publish_work(pool, list(pieces.values()))
        except UNAVAILABLE as e:
            sender.count_fallback(self._mode, e)
            return False
        try:
            self._fill(pool, fresh, view)
        except BaseException:
            if fresh is not None:
                fresh.mark_failed()
            raise
        self.pieces = list(pieces.values())
        return True

    def wait_complete(self) -> None:
        """Wait until the GPU has completed the tensors. Raises DeviceLost if it never will."""
        pause = FIRST_SLEEP_SECONDS
        with blocking():
            for p in self.pieces:
                while not p.is_settled:
                    time.sleep(pause)
                    pause = min(2 * pause, MAX_SLEEP_SECONDS)
        if self._pool is not None and any(p.is_failed for p in self.pieces):
            self._pool.device.check()
            raise DeviceLost("settle", 0, f"tensors on {uuid_text(self._pool.device.uuid)} were never completed")

    def _lay_out(self, mode: int) -> int:
        """Assign a place to each tensor. Returns the bytes of a new chunk."""
        plan, fresh, size = self.plan, 0, 0
        plan.places, plan.min_bytes = [], self._least
        self._mode = mode
        numbers: dict[int, int] = {}
        for p, t in self.tensors:
            p.place, p.offset, p.strides = 0, 0, None
            if mode == DEFAULT or t.nbytes == 0:
                continue
            if t.piece is not None:
                p.place = numbers.setdefault(id(t.piece), len(plan.places) + 1)
                p.offset = t.offset
            elif mode == POOL:
                fresh = p.place = fresh or len(plan.places) + 1
                p.offset = size
                size += aligned_size(t.nbytes)
            else:
                p.place, p.strides = len(plan.places) + 1, t.strides
            if p.place > len(plan.places):
                plan.places.append(Place(IN_POOL, 0))
        return size

    def _fill(self, pool: Pool, fresh: Piece | None, view: memoryview) -> None:
        """Write the payload, and start the device work that completes it."""
        plan, outside = self.plan, []
        for i, (p, t) in enumerate(self.tensors):
            if p.place == 0:
                continue
            if t.piece is not None:
                plan.places[p.place - 1] = t.piece.chunk_place(t.piece.nbytes)
                continue
            assert fresh is not None
            outside.append((i, p, t))
            if i in self._handles:
                handle, offset, size = self._handles[i]
                plan.places[p.place - 1] = fresh.handle_place(handle, offset, p.nbytes)
                fresh.kept_alive.append(lent_allocations.setdefault(handle, LentAllocation(pool.device.uuid, t.address - offset, size)))
            else:
                plan.places[p.place - 1] = fresh.chunk_place(fresh.nbytes)
        plan.write(view)
        if fresh is not None:
            self._copy_into(pool, fresh, outside)
        for _, t in self.tensors:
            if t.piece is not None and not t.piece.complete:
                t.piece.complete = True
                pool.device.start_fill(t.piece).complete()

    def _copy_into(self, pool: Pool, fresh: Piece, outside: list[tuple[int, Planned, OnGPU]]) -> None:
        """Copy tensors outside of chunks into a new one, or keep their own memory alive."""
        sending = pool.device.start_fill(fresh)
        for _, p, t in outside:
            borrowed = sending.borrow(t.value)  # the piece keeps it as long as needed
            if fresh.nbytes:
                sending.copy(fresh.pointer + p.offset, borrowed)
        fresh.complete = True
        sending.complete()
