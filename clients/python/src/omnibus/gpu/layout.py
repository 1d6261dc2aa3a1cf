"""A value with tensors on a GPU, laid out in one payload: in room that its sender reserves."""

from __future__ import annotations

import time
import weakref

from .. import wire
from ..bundle import POOL as IN_POOL
from ..bundle import Place, Plan, Planned
from ..devices.contract import DeviceLost, uuid_text
from ..devices.words import FIRST_NAP, LAST_NAP
from ..errors import ForeignDevice
from ..session import Work
from ..threadpool import blocking
from .chunk import ChunkTensor, room_for
from .pool import Piece, Pool
from .sender import DEFAULT, IPC, POOL, UNAVAILABLE, OnGPU, Sender


class Lent:
    """An allocation of this process that others read, as this process has it mapped itself."""

    __slots__ = ("device", "address", "size", "__weakref__")

    def __init__(self, device: bytes, address: int, size: int) -> None:
        self.device = device  # the UUID
        self.address = address
        self.size = size


#: By handle, which a driver does not open where it was made.
lent: weakref.WeakValueDictionary[bytes, Lent] = weakref.WeakValueDictionary()


class Layout:
    """One value, and where its tensors are.

    Its sender calls, for each payload: `choose_work`, reserves `plan.size()` bytes, and `fill_work`, which writes them.
    Where one of them says no, the tensors go through host memory, which is counted. `pieces` stay until the
    payload is returned; `sent` says that it went out.
    """

    def __init__(self, sender: Sender, plan: Plan, least: int) -> None:
        """`least` is how many bytes a payload has that names places: in a message nothing would keep them."""
        self.sender = sender
        self.plan = plan
        self.tensors = [(p, p.source) for p in plan.tensors if isinstance(p.source, OnGPU)]
        self.nbytes = sum(t.nbytes for _, t in self.tensors)
        self.pieces: list[Piece] = []
        self._least = least
        self._pool: Pool | None = None
        self._mode = DEFAULT
        self._new = 0  # bytes of a new chunk
        self._handles: dict[int, tuple[bytes, int, int]] = {}

    def choose_work(self, how: wire.Tensors) -> Work[bool]:
        """Find a pool, and lay out. False: the tensors go through host memory, and that is laid out."""
        self._pool = yield from self._find_pool(how)
        if self._pool is not None:
            try:
                self._handles = self._export(self._pool) if how.transport == IPC else {}
            except UNAVAILABLE as e:
                self.sender.falls_back(how.transport, e)
                self._pool = None
        if self._pool is None:
            self.in_host_memory()
            return False
        self._new = self._lay_out(how.transport)
        return True

    def in_host_memory(self) -> None:
        """Lay out for a payload that has all data."""
        self._lay_out(DEFAULT)
        self._pool, self.pieces, self._handles = None, [], {}

    def sent(self, out: bool) -> None:
        """What was filled in place is others' to read, whichever way it went out."""
        for _, t in self.tensors:
            if t.piece is not None:
                t.piece.sent = out or t.piece.complete  # its word is written once
            if out and isinstance(t.value, ChunkTensor):
                t.value.chunk._memory.sent = True

    def count(self) -> None:
        """A payload went out, as it was laid out last."""
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
            sender.falls_back(mode, e)
            return None
        return pool

    def _export(self, pool: Pool) -> dict[int, tuple[bytes, int, int]]:
        """The handles of tensors in memory of their own, by their number."""
        return {
            i: pool.device.export(t.address) for i, (_, t) in enumerate(self.tensors) if t.piece is None and t.nbytes
        }

    def fill_work(self, view: memoryview) -> Work[bool]:
        """Write the payload, its tensors on the GPU. False: there is no room for them there."""
        pool, sender = self._pool, self.sender
        assert pool is not None
        pieces = {id(t.piece): t.piece for _, t in self.tensors if t.piece is not None}
        fresh: Piece | None = None
        try:
            if self._new or self._handles:
                fresh = yield from sender.take_work(pool, self._new, pool.take_lent if self._handles else None)
                if fresh is None:
                    with sender._session.locked:
                        sender.stats.spilt += 1
                    return False
                pieces[id(fresh)] = fresh
            yield from sender.publish_work(pool, list(pieces.values()))
        except UNAVAILABLE as e:
            sender.falls_back(self._mode, e)
            return False
        try:
            self._fill(pool, fresh, view)
        except BaseException:
            if fresh is not None:
                fresh.fail()
            raise
        self.pieces = list(pieces.values())
        return True

    def settle(self) -> None:
        """Wait until the tensors are complete, which the GPU says. Raises DeviceLost if they never will be."""
        nap = FIRST_NAP
        with blocking():
            for p in self.pieces:
                while not p.settled:
                    time.sleep(nap)
                    nap = min(2 * nap, LAST_NAP)
        if self._pool is not None and any(p.failed for p in self.pieces):
            self._pool.device.check()
            raise DeviceLost("settle", 0, f"tensors on {uuid_text(self._pool.device.uuid)} were never completed")

    def _lay_out(self, mode: int) -> int:
        """Say of each tensor where it will be. Returns what those take of a new chunk."""
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
                size += room_for(t.nbytes)
            else:
                p.place, p.strides = len(plan.places) + 1, t.strides
            if p.place > len(plan.places):
                plan.places.append(Place(IN_POOL, 0))
        return size

    def _fill(self, pool: Pool, fresh: Piece | None, view: memoryview) -> None:
        """Write the payload, and give the device what makes it complete."""
        plan, outside = self.plan, []
        for i, (p, t) in enumerate(self.tensors):
            if p.place == 0:
                continue
            if t.piece is not None:
                plan.places[p.place - 1] = t.piece.place(t.piece.nbytes)
                continue
            assert fresh is not None
            outside.append((i, p, t))
            if i in self._handles:
                handle, offset, size = self._handles[i]
                plan.places[p.place - 1] = fresh.handle_place(handle, offset, p.nbytes)
                fresh.lent.append(lent.setdefault(handle, Lent(pool.device.uuid, t.address - offset, size)))
            else:
                plan.places[p.place - 1] = fresh.place(fresh.nbytes)
        plan.write(view)
        if fresh is not None:
            self._bring(pool, fresh, outside)
        for _, t in self.tensors:
            if t.piece is not None and not t.piece.complete:
                t.piece.complete = True
                pool.device.sending(t.piece).complete()

    def _bring(self, pool: Pool, fresh: Piece, outside: list[tuple[int, Planned, OnGPU]]) -> None:
        """Have what is in no chunk copied into a new one, or kept as it is."""
        sending = pool.device.sending(fresh)
        for _, p, t in outside:
            borrowed = sending.take(t.value)  # which stays until it is of no use
            if fresh.nbytes:
                sending.copy(fresh.pointer + p.offset, borrowed)
        fresh.complete = True
        sending.complete()
