"""Emissions from room of the client's own: payloads that it keeps until the host returns them.

A source goes this way when its edges may carry tensors on a GPU: what is in a GPU's memory must stay until the
payload that names it is returned, and granted room never is. All that such a source emits goes this way, also what is
small, for only so is it known here what is under way. The windows are counted here as the protocol asks; where
the count is off, as with other replicas that emit for the same request, the host has what is too much wait, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import wire
from .answers import Attempt
from .emit import Buffer, Envelope
from .errors import Code, RequestOver, WindowFull, again
from .room import Out, Room
from .session import Session, Work

if TYPE_CHECKING:
    from .emit import Emitter

#: Memory that is offered and used again and again; what does not fit gets segments of its own.
ROOM_BYTES = 256 << 20

#: How tensors travel, by the protocol's numbers.
MODES = ("default", "cuda_ipc", "cuda_ipc_pool")

_BLOCK, _FAIL = 0, 1  # policies

#: Memory that was lent when a session ended. It stays as it is for as long as this process lives.
stranded: list[Any] = []


def tensors_of(edges: list[wire.Edge], tensors: list[wire.Tensors]) -> list[wire.Tensors]:
    """How tensors travel on each edge: an older host does not say."""
    return tensors + [wire.Tensors()] * (len(edges) - len(tensors))


class Puts:
    """What a source has put, by edge."""

    __slots__ = ("emitter", "session", "tensors", "under_way")

    def __init__(self, emitter: Emitter, s: Session, tensors: list[wire.Tensors]) -> None:
        self.emitter = emitter
        self.session = s
        self.tensors = tensors  #: how those on a GPU travel, by edge
        self.under_way = [[0, 0] for _ in tensors]  # deliveries, and bytes of them; the session's lock

    def edges(self, edge: int) -> list[int]:
        """The edges that an emission goes to."""
        return list(range(len(self.tensors))) if edge == wire.ALL_EDGES else [edge]

    def credit_work(self, edge: int, size: int, key: str) -> Work[_Credit]:
        """Take a place in the windows of an emission's edges, and wait for it."""
        credit = _Credit(self, self.edges(edge), (size + 63) // 64 * 64 + 64)

        def ask() -> Attempt:
            return self.session.attempts.make(Attempt(credit.take, self, _Credit.give))

        taken: _Credit = yield from self.emitter._ask_work(ask, edge, key)
        return taken

    def room(self, size: int, alone: bool) -> Room:
        s = self.session
        with s.locked:
            if s.error is not None:
                raise again(s.error)
            most = s.arena_bytes or ROOM_BYTES
            return (s.room.take(size, most) if size <= most and not alone else None) or s.room.alone(size)

    def put(self, credit: _Credit, room: Room | None, m: wire.Put, edge: int, keep: list[Any] | None = None) -> None:
        """Put a payload. It is in `room`, or in the message. `keep` is cleared when nobody needs it any more."""
        s = self.session
        with s.locked:
            if s.error is not None:
                raise again(s.error)
            credit.keep = keep
            number = s.room.put(room, credit)
            try:
                s.post(m._replace(put=number))
            except BaseException:
                s.room.unsaid(number)
                raise
            self.emitter._went_out(edge)

    def small_work(self, m: wire.Put) -> Work[None]:
        """Put what is in the message, or is passed on by reference."""
        credit = yield from self.credit_work(m.edge, len(m.payload), m.key)
        try:
            self.put(credit, None, m, m.edge)
        except BaseException:
            credit.give_back()
            raise

    def reserve_work(self, size: int, codec: int, e: Envelope) -> Work[Buffer]:
        """Room for a payload, to be filled in place and put."""
        credit = yield from self.credit_work(e.edge, size, e.key)
        try:
            room = self.room(size, credit.alone)
        except BaseException:
            credit.give_back()
            raise
        way = _Filled(self, credit, room, self.message(e, codec))
        return Buffer(self.session, way, room.view[:size], e)

    def message(
        self, e: Envelope, codec: int, flags: int = 0, payload: bytes | bytearray | memoryview = b""
    ) -> wire.Put:
        source, size, flags = self.emitter.number, len(payload), flags | e.flags
        return wire.Put(
            0, source, e.delivery, e.edge, flags, codec, 0, 0, 0, size, e.key, e.attrs, bytes(payload)
        )  # fmt: skip


class _Credit(Out):
    """A place in windows, until it is spent, given back or returned."""

    __slots__ = ("keep", "_puts", "_edges", "_left")

    def __init__(self, puts: Puts, edges: list[int], cost: int) -> None:
        self.keep: list[Any] | None = None
        self._puts = puts
        self._edges = edges
        self._left = [1, cost]

    @property
    def alone(self) -> bool:
        """Whether the payload does not fit a window: it then has that to itself, and a segment of its own."""
        return any(self._charge(i) < self._left[1] for i in self._edges)

    def _charge(self, edge: int) -> int:
        """What it takes of a byte window: all of one that it does not fit."""
        most = self._puts.emitter._out_edges()[edge].window_bytes
        return min(self._left[1], most) if most else self._left[1]

    def take(self) -> _Credit | None:
        """Take it if there is room. The lock is held."""
        puts = self._puts
        out = puts.emitter._out_edges()
        if puts.emitter.over:
            raise RequestOver(Code.OVER, "the request is over")
        for i in self._edges:
            e, (n, nbytes) = out[i], puts.under_way[i]
            if (e.window and n >= e.window) or (e.window_bytes and nbytes + self._charge(i) > e.window_bytes):
                if e.policy == _FAIL:
                    raise WindowFull(Code.WINDOW_FULL, f"the window of {e.name} is full")
                if e.policy == _BLOCK:
                    return None
        self._count(1, 1)
        return self

    def _count(self, n: int, sign: int) -> None:
        for i in self._edges:
            self._puts.under_way[i][0] += n
            self._puts.under_way[i][1] += sign * self._charge(i)

    def give(self) -> None:
        """Give it back, with the lock held. Idempotent."""
        self._count(-self._left[0], -1)
        self._left = [0, 0]

    def give_back(self) -> None:
        with self._puts.session.locked:
            self.give()
            self._puts.session.notify()

    @property
    def keeps(self) -> bool:
        return self.keep is not None

    def spent(self, bytes_too: bool) -> None:
        self._count(-self._left[0], -1 if bytes_too else 0)
        self._left = [0, 0 if bytes_too else self._left[1]]

    def returned(self) -> None:
        self.give()
        self._drop()

    def lost(self) -> None:
        # Who reads a buffer that was lent may go on: there is nobody left to say when that is over.
        stranded.extend(p.lent for p in self.keep or () if p.lent)
        self._drop()

    def _drop(self) -> None:
        keep, self.keep = self.keep, None
        if keep is not None:
            self._puts.session.call_later(keep.clear)  # what it drops may be anything


class _Filled:
    """How a buffer is sent whose payload lies in room of the client's own."""

    __slots__ = ("_puts", "_credit", "_room", "_message", "keep")

    def __init__(self, puts: Puts, credit: _Credit, room: Room, m: wire.Put) -> None:
        self._puts, self._credit, self._room, self._message = puts, credit, room, m
        self.keep: list[Any] | None = None  #: cleared when nobody needs the payload any more

    def send(self, n: int, flags: int, key: str, attrs: wire.Attrs) -> None:
        m, r = self._message, self._room
        flags |= m.flags | (wire.OWN_SEGMENT if r.alone else 0)
        m = m._replace(flags=flags, segment=r.segment, offset=r.offset, size=n, key=key, attrs=attrs)
        self._puts.put(self._credit, r, m, m.edge, self.keep)

    def abort(self) -> None:
        s = self._puts.session
        with s.locked:
            if s.error is None:
                s.room.give(self._room)
            self._credit.give()
            s.notify()
