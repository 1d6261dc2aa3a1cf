"""Emissions: payloads in messages, and in room of the client's own, which it keeps until the host returns them.

The windows are counted here as the protocol asks; where the count is off, as with other replicas that emit for the
same request, the host has what is too much wait, in order. A tensor in a GPU's memory stays until the payload that
names it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from . import wire
from .answers import Answer, Attempt
from .buffer import Buffer, Envelope
from .errors import Code, HostError, RequestOver, TooLarge, WindowFull, again
from .room import Out, Room
from .scoreboard import Running
from .session import Session, Work

#: Memory that is offered and used again and again; what does not fit gets segments of its own.
ROOM_BYTES = 256 << 20

#: How tensors travel, by the protocol's numbers.
MODES = ("default", "cuda_ipc", "cuda_ipc_pool")

#: Puts of one source for which the host may have no place yet, whatever its windows let through: it queues 4,096
#: messages of a source.
MAX_OUT = 2048


Payload: TypeAlias = "bytes | bytearray | memoryview"

#: Memory that was lent when a session ended. It stays as it is for as long as this process lives.
stranded: list[Any] = []


def tensors_of(edges: list[wire.Edge], tensors: list[wire.Tensors]) -> list[wire.Tensors]:
    """How tensors travel on each edge: an older host does not say."""
    return tensors + [wire.Tensors()] * (len(edges) - len(tensors))


class Origin(Protocol):
    """A task or a request, as its puts know it."""

    number: int

    @property
    def over(self) -> Any: ...  # true when the request is

    @property
    def _running(self) -> Running | None: ...  # the handler that emits

    def _out_edges(self) -> list[wire.Edge]: ...

    def _went_out(self, edge: int) -> None:
        """An emission has its place in the stream. The lock is held."""

    def _next_seq(self, edge: int) -> int | None:
        """The place of the next emission on an edge, if that is known here. The lock is held."""


class Puts:
    """What a source has put, by edge."""

    __slots__ = ("emitter", "session", "tensors", "on_gpu", "under_way", "out", "_all")

    def __init__(self, emitter: Origin, s: Session, tensors: list[wire.Tensors]) -> None:
        self.emitter = emitter
        self.session = s
        self.under_way = [[0, 0] for _ in tensors]  # deliveries, and bytes of them; the session's lock
        self.out = 0  # puts that have a place in the windows
        self._all = range(len(tensors))
        self.travel(tensors)

    def travel(self, tensors: list[wire.Tensors]) -> None:
        """Say how tensors on a GPU travel, by edge."""
        self.tensors = tensors
        self.on_gpu = any(t.transport for t in tensors)

    def edges(self, edge: int) -> Sequence[int]:
        """The edges that an emission goes to."""
        return self._all if edge == wire.ALL_EDGES else (edge,)

    def small(self, e: Envelope, codec: int, flags: int, payload: Payload) -> Work[None] | None:
        """Put what is in the message, or is passed on by reference. None: it is done; else it has to wait."""
        s, credit = self.session, self._credit(e.edge, len(payload))
        try:
            with s.locked:
                if s.error is not None:
                    raise again(s.error)
                if s.attempts or credit.take() is None:  # those that wait come first
                    return self._small_work(credit, e, codec, flags, payload)
                try:
                    self._put_locked(credit, None, e, codec, flags, len(payload), payload)
                except BaseException:
                    credit.give()
                    raise
        except HostError as error:
            raise self._named(error, e.edge, e.key)
        return None

    def _small_work(self, credit: _Credit, e: Envelope, codec: int, flags: int, payload: Payload) -> Work[None]:
        payload = bytes(payload)  # it may be the caller's, and changed while this waits
        yield from self._await(credit, e)
        try:
            with self.session.locked:
                self._put_locked(credit, None, e, codec, flags, len(payload), payload)
        except BaseException:
            credit.give_back()
            raise

    def _credit(self, edge: int, size: int) -> _Credit:
        return _Credit(self, self._all if edge == wire.ALL_EDGES else (edge,), (size + 127) & ~63)

    def _await(self, credit: _Credit, e: Envelope) -> Work[_Credit]:
        """Take a place in the windows of an emission's edges, and wait for it."""

        def ask() -> Attempt:
            return self.session.attempts.make(Attempt(credit.take, self, _Credit.give))

        running = self.emitter._running
        if running is not None:
            running.wait(credit.edge)
        try:
            taken: _Credit = yield from self._ask_work(ask, e.edge, e.key)
        finally:
            if running is not None:
                running.go_on()
        return taken

    # Which emission it was, for errors.

    def _ask_work(self, ask: Callable[[], Answer], edge: int, key: str) -> Work[Any]:
        """Ask for an emission. An error says which one it was."""
        try:
            return (yield ask())
        except HostError as e:
            raise self._named(e, edge, key)

    def _named(self, e: HostError, edge: int, key: str) -> HostError:
        """The error of an emission, which says which one it was. The lock is not held."""
        e.source = self.emitter.number
        e.key = wire.cut_utf8(str(key).encode(errors="replace"), wire.MAX_NAME_BYTES).decode()
        edges = self.emitter._out_edges()
        if edge == wire.ALL_EDGES and len(edges) == 1:
            edge = 0
        if edge < len(edges):
            with self.session.locked:
                seq = self.emitter._next_seq(edge)
            if seq is not None:  # or the edge would be read with the sequence 0
                e.edge, e.seq = edges[edge].name, seq
        return e

    def room(self, size: int, alone: bool) -> Room:
        s = self.session
        with s.locked:
            if s.error is not None:
                raise again(s.error)
            if 0 < s.largest_bytes < size:
                raise TooLarge(
                    Code.TOO_LARGE,
                    f"a payload of {size} bytes: this bus takes {s.largest_bytes}: see large_bytes in its pipeline file, and the "
                    "memory that it may use",
                )
            most = s.arena_bytes or ROOM_BYTES
            return (s.room.take(size, most) if size <= most and not alone else None) or s.room.alone(size)

    def _put_locked(
        self, credit: _Credit, room: Room | None, e: Envelope, codec: int, flags: int, size: int, payload: Payload
    ) -> None:
        """Put a payload. It is in `room`, or in the message. The lock is held."""
        s = self.session
        if s.error is not None:
            raise again(s.error)
        number = s.room.put(room, credit)
        segment, offset = (room.segment, room.offset) if room is not None else (0, 0)
        if e.last:
            flags |= wire.LAST
        try:
            s.connection.post(wire.Put(
                number, self.emitter.number, e.delivery, e.edge, flags, codec, 0, segment, offset, size, e.key, e.attrs,
                payload,
            ))  # fmt: skip
        except BaseException:
            s.room.unsaid(number)
            raise
        self.emitter._went_out(e.edge)

    def reserve_work(self, size: int, codec: int, e: Envelope, inline: bool = False) -> Work[Buffer]:
        """Room for a payload, to be filled and put: in a message, or in place."""
        credit = self._credit(e.edge, size)
        yield from self._await(credit, e)
        room = None
        if inline:
            view = memoryview(bytearray(size))
        else:
            try:
                room = self.room(size, credit.alone)
            except BaseException as error:
                credit.give_back()
                raise self._named(error, e.edge, e.key) if isinstance(error, HostError) else error
            view = room.view[:size]
        return Buffer(self.session, _Filled(self, credit, room, view, e, codec), view, e)


class Kept(Out):
    """What a put keeps until it is returned."""

    __slots__ = ("keep", "_session")

    def __init__(self, s: Session, keep: list[Any] | None) -> None:
        self.keep = keep  #: cleared when no process needs the payload any more
        self._session = s

    @property
    def keeps(self) -> bool:
        return self.keep is not None

    def returned(self) -> None:
        keep, self.keep = self.keep, None
        if keep is not None:
            self._session.call_later(keep.clear)  # what it drops may be anything

    def lost(self) -> None:
        # A process that reads a buffer that was lent may go on: there is no host to say when that is over.
        stranded.extend(p.lent for p in self.keep or () if p.lent)
        Kept.returned(self)


class _Credit(Kept):
    """A place in windows, until it is spent, given back or returned."""

    __slots__ = ("_puts", "_edges", "_cost", "_n", "_bytes")

    def __init__(self, puts: Puts, edges: Sequence[int], cost: int) -> None:
        super().__init__(puts.session, None)
        self._puts = puts
        self._edges = edges
        self._cost = cost
        self._n, self._bytes = 0, False  # what of it is taken

    @property
    def edge(self) -> int:
        """The first of its edges."""
        return next(iter(self._edges), 0)

    @property
    def alone(self) -> bool:
        """Whether the payload does not fit a window: it then has that to itself, and a segment of its own."""
        out = self._puts.emitter._out_edges()
        return any(0 < out[i].window_bytes < self._cost for i in self._edges)

    def take(self) -> _Credit | None:
        """Take it if there is room. The lock is held."""
        puts, cost = self._puts, self._cost
        out, under_way = puts.emitter._out_edges(), puts.under_way
        if puts.emitter.over:
            raise RequestOver(Code.OVER, "the request is over")
        if puts.out >= MAX_OUT:
            return None
        for i in self._edges:
            e, (n, nbytes) = out[i], under_way[i]
            most = e.window_bytes
            # What does not fit a byte window takes all of it.
            if (e.window and n >= e.window) or (most and nbytes and nbytes + cost > most):
                if e.policy == wire.POLICY_FAIL:
                    raise WindowFull(Code.WINDOW_FULL, f"the window of {e.name} is full")
                if e.policy == wire.POLICY_BLOCK:
                    return None
        for i in self._edges:
            most, used = out[i].window_bytes, under_way[i]
            used[0] += 1
            used[1] += most if 0 < most < cost else cost
        puts.out += 1
        self._n, self._bytes = 1, True
        return self

    def give(self) -> None:
        """Give it back, with the lock held. Idempotent."""
        self.spent(True)

    def give_back(self) -> None:
        with self._puts.session.locked:
            self.give()
            self._puts.session.notify()

    def spent(self, bytes_too: bool) -> None:
        puts, n, cost = self._puts, self._n, self._cost if bytes_too and self._bytes else 0
        for i in self._edges:
            used = puts.under_way[i]
            used[0] -= n
            if cost:
                most = puts.emitter._out_edges()[i].window_bytes
                used[1] -= most if 0 < most < cost else cost
        puts.out -= n
        self._n = 0
        if bytes_too:
            self._bytes = False

    def returned(self) -> None:
        self.spent(True)
        super().returned()


class _Filled:
    """How a buffer is sent: in a message, or in place."""

    __slots__ = ("_puts", "_credit", "_room", "_view", "_envelope", "_codec")

    def __init__(
        self, puts: Puts, credit: _Credit, room: Room | None, view: memoryview, e: Envelope, codec: int
    ) -> None:
        self._puts, self._credit, self._room, self._view = puts, credit, room, view
        self._envelope, self._codec = e, codec

    def keep(self, what: list[Any]) -> None:
        """Have this cleared when nobody needs the payload any more."""
        self._credit.keep = what

    def send(self, n: int, e: Envelope) -> None:
        r, flags, payload = self._room, wire.INLINE, self._view[:n]
        if r is not None:
            flags, payload = wire.OWN_SEGMENT if r.alone else 0, b""
        with self._puts.session.locked:
            self._puts._put_locked(self._credit, r, e, self._codec, flags, n, payload)

    def abort(self) -> None:
        s = self._puts.session
        self._credit.keep = None
        with s.locked:
            if s.error is None and self._room is not None:
                s.room.give(self._room)
            self._credit.give()
            s.notify()
