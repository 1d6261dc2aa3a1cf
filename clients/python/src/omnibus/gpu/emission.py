"""A value with tensors on a GPU, on its way along edges that say how these travel."""

from __future__ import annotations

import weakref
from typing import Any

from .. import codec, wire
from ..buffer import Buffer, Envelope
from ..bundle import POOL as IN_POOL
from ..bundle import Place, Plan, Planned
from ..devices.contract import uuid_text
from ..errors import ForeignDevice
from ..puts import Puts
from ..session import Work
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


class Emission:
    """One value, and where it goes."""

    def __init__(self, puts: Puts, sender: Sender, plan: Plan, envelope: Envelope) -> None:
        self.puts = puts
        self.sender = sender
        self.plan = plan
        self.tensors = [(p, p.source) for p in plan.tensors if isinstance(p.source, OnGPU)]
        self.nbytes = sum(t.nbytes for _, t in self.tensors)
        self.envelope = envelope

    def work(self) -> Work[None]:
        """Emit it: once, or once for each edge if they say different things."""
        puts = self.puts
        edges = puts.edges(self.envelope.edge)
        alike = all(puts.tensors[i] == puts.tensors[edges[0]] for i in edges)
        out = 0
        try:
            for edge in [self.envelope.edge] if alike else edges:
                yield from self._along(edge, puts.tensors[edges[0] if alike else edge])
                out += 1
        finally:
            self._sent(out > 0)

    def _sent(self, out: bool) -> None:
        """What was filled in place is others' to read, whichever way it went out."""
        for _, t in self.tensors:
            if t.piece is not None:
                t.piece.sent = out or t.piece.complete  # its word is written once
            if out and isinstance(t.value, ChunkTensor):
                t.value.chunk._memory.sent = True

    def _along(self, edge: int, how: wire.Tensors) -> Work[None]:
        """Emit it along edges that are alike."""
        pool, mode = yield from self._choose(how)
        if pool is not None:
            handles = None
            try:
                handles = self._export(pool) if mode == IPC else {}
            except UNAVAILABLE as e:
                self.sender.falls_back(mode, e)
            if handles is not None and (yield from self._in_place(edge, pool, mode, handles)):
                return
        self._lay_out(DEFAULT)
        buffer = yield from self._reserve(edge)
        with buffer:
            self.plan.write(buffer.view)
            buffer.send()
        self.sender.count(DEFAULT, self.nbytes)

    def _choose(self, how: wire.Tensors) -> Work[tuple[Pool | None, int]]:
        """The pool, and the mode; without a pool it is the default."""
        mode, sender = how.transport, self.sender
        if mode == DEFAULT or self.nbytes == 0:
            return None, DEFAULT
        if self.nbytes < how.min_bytes:
            with sender._session.locked:
                sender.stats.small += 1
            return None, DEFAULT
        try:
            pool = sender.pool(self.tensors[0][1].value)
            for _, t in self.tensors:
                if t.piece is None and not pool.device.owns(t.value):
                    what, where = type(t.value).__name__, uuid_text(pool.device.uuid)
                    raise ForeignDevice(f"a value of type {what} is not on {where}, where the pool is")
            yield from sender.publish_work(pool, [t.piece for _, t in self.tensors if t.piece is not None])
        except UNAVAILABLE as e:
            sender.falls_back(mode, e)
            return None, DEFAULT
        return pool, mode

    def _export(self, pool: Pool) -> dict[int, tuple[bytes, int, int]]:
        """The handles of tensors in memory of their own, by their number."""
        return {
            i: pool.device.export(t.address) for i, (_, t) in enumerate(self.tensors) if t.piece is None and t.nbytes
        }

    def _in_place(
        self, edge: int, pool: Pool, mode: int, handles: dict[int, tuple[bytes, int, int]]
    ) -> Work[bool]:
        """Emit it with its tensors on the GPU. False: there is no room for them."""
        sender = self.sender
        nbytes = self._lay_out(mode)
        buffer = yield from self._reserve(edge)
        with buffer:
            pieces = {id(t.piece): t.piece for _, t in self.tensors if t.piece is not None}
            fresh: Piece | None = None
            if nbytes or handles:
                take = pool.take_lent if handles else None
                try:
                    fresh = yield from sender.take_work(pool, nbytes, take)
                except UNAVAILABLE as e:
                    sender.falls_back(mode, e)
                    return False
                if fresh is None:
                    with sender._session.locked:
                        sender.stats.spilt += 1
                    return False
                pieces[id(fresh)] = fresh
            try:
                yield from sender.publish_work(pool, list(pieces.values()))
            except UNAVAILABLE as e:
                sender.falls_back(mode, e)
                return False
            try:
                self._fill(pool, fresh, handles, buffer)
            except BaseException:
                if fresh is not None:
                    fresh.fail()
                raise
            way: Any = buffer._way
            way.keep(list(pieces.values()))
            buffer.send()
        sender.count(mode, self.nbytes)
        return True

    def _reserve(self, edge: int) -> Work[Buffer]:
        puts = self.puts
        return puts.reserve_work(self.plan.size(), codec.BUNDLE, self.envelope._replace(edge=edge))

    def _lay_out(self, mode: int) -> int:
        """Say of each tensor where it will be. Returns what those take of a new chunk."""
        plan, fresh, size = self.plan, 0, 0
        plan.places = []
        plan.min_bytes = self.sender._session.welcome.inline_bytes + 1  # in a message nothing would keep the places
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

    def _fill(
        self, pool: Pool, fresh: Piece | None, handles: dict[int, tuple[bytes, int, int]], buffer: Buffer
    ) -> None:
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
            if i in handles:
                handle, offset, size = handles[i]
                plan.places[p.place - 1] = fresh.handle_place(handle, offset, p.nbytes)
                fresh.lent.append(lent.setdefault(handle, Lent(pool.device.uuid, t.address - offset, size)))
            else:
                plan.places[p.place - 1] = fresh.place(fresh.nbytes)
        plan.write(buffer.view)
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
