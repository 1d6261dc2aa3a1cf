"""Emissions: payloads in messages, or in blocks of the client's own segments until the host returns them.

Windows are counted here as the protocol asks. If the count is off, as when other replicas emit for the same request,
the host queues the excess in order. A tensor in a GPU's memory stays until the payload that names it is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from . import wire
from .buffer import Buffer, Envelope
from .errors import Code, HostError, RequestOver, TooLarge, WindowFull, again
from .futures import Future, PolledFuture
from .scoreboard import HandlerEntry
from .segments import Block, OutstandingPut
from .session import Session, Work

#: Bound of the reused segments; payloads beyond it get segments of their own.
ARENA_BYTES = 256 << 20

#: The transports of tensors, by the protocol's numbers.
MODES = ("default", "cuda_ipc", "cuda_ipc_pool")

#: Bound of outstanding puts of one source, independent of its windows: the host queues 4,096 messages of a source.
MAX_OUT = 2048


Payload: TypeAlias = "bytes | bytearray | memoryview"

#: GPU memory that was lent when a session ended. It stays allocated for the life of the process.
orphaned_memory: list[Any] = []


def tensors_of(edges: list[wire.Edge], tensors: list[wire.Tensors]) -> list[wire.Tensors]:
    """The tensor transport of each edge; the default one where an older host does not say."""
    return tensors + [wire.Tensors()] * (len(edges) - len(tensors))


class PutSource(Protocol):
    """A task or a request, as `Puts` uses it."""

    number: int

    @property
    def over(self) -> Any: ...  # true when the request is

    @property
    def _handler_entry(self) -> HandlerEntry | None: ...  # the handler that emits

    def _out_edges(self) -> list[wire.Edge]: ...

    def _count_emission(self, edge: int) -> None:
        """Count an emission: its put is posted. The lock is held."""

    def _next_seq(self, edge: int) -> int | None:
        """The sequence number of the next emission on an edge; None if unknown here. The lock is held."""


class Puts:
    """The emissions of one source, and its use of the windows of its edges."""

    __slots__ = ("emitter", "session", "tensors", "uses_gpu_transport", "in_flight", "outstanding", "_all")

    def __init__(self, emitter: PutSource, s: Session, tensors: list[wire.Tensors]) -> None:
        self.emitter = emitter
        self.session = s
        # By edge: puts that hold credit, their bytes, and how many of these are kept for a replay; guarded by the
        # session's lock.
        self.in_flight = [[0, 0, 0] for _ in tensors]
        self.outstanding = 0  # puts that hold credit
        self._all = range(len(tensors))
        self.set_transports(tensors)

    def set_transports(self, tensors: list[wire.Tensors]) -> None:
        """Set the tensor transport of each edge."""
        self.tensors = tensors
        self.uses_gpu_transport = any(t.transport for t in tensors)

    def edges(self, edge: int) -> Sequence[int]:
        """The edges that an emission goes to."""
        return self._all if edge == wire.ALL_EDGES else (edge,)

    def put_small(self, e: Envelope, codec: int, flags: int, payload: Payload) -> Work[None] | None:
        """Put a payload in a message, or forward one by reference. Returns None if done, or the work that waits for
        credit."""
        s, credit = self.session, self._new_credit(e.edge, len(payload))
        try:
            with s.locked:
                if s.error is not None:
                    raise again(s.error)
                if s.polled or credit.acquire() is None:  # waiting emissions come first
                    return self._put_small_work(credit, e, codec, flags, payload)
                try:
                    self._put_locked(credit, None, e, codec, flags, len(payload), payload)
                except BaseException:
                    credit.release()
                    raise
        except HostError as error:
            raise self._with_emission(error, e.edge, e.key)
        return None

    def _put_small_work(self, credit: _Credit, e: Envelope, codec: int, flags: int, payload: Payload) -> Work[None]:
        payload = bytes(payload)  # the caller may change the buffer while this waits
        yield from self._await_credit(credit, e)
        try:
            with self.session.locked:
                self._put_locked(credit, None, e, codec, flags, len(payload), payload)
        except BaseException:
            credit.release_and_notify()
            raise

    def _new_credit(self, edge: int, size: int) -> _Credit:
        return _Credit(self, self._all if edge == wire.ALL_EDGES else (edge,), (size + 127) & ~63)

    def _await_credit(self, credit: _Credit, e: Envelope) -> Work[_Credit]:
        """Acquire credit in the windows of an emission's edges, waiting for it."""

        def ask() -> PolledFuture:
            return self.session.polled.add(PolledFuture(credit.acquire, self, _Credit.release))

        running = self.emitter._handler_entry
        if running is not None:
            running.begin_wait(credit.edge)
        try:
            taken: _Credit = yield from self._await_named(ask, e.edge, e.key)
        finally:
            if running is not None:
                running.end_wait()
        return taken

    # Errors of emissions.

    def _await_named(self, ask: Callable[[], Future], edge: int, key: str) -> Work[Any]:
        """Wait for the future of `ask`. An error gets the emission's edge, key and sequence number."""
        try:
            return (yield ask())
        except HostError as e:
            raise self._with_emission(e, edge, key)

    def _with_emission(self, e: HostError, edge: int, key: str) -> HostError:
        """Set the source, edge, key and sequence number of an emission in its error. The lock is not held."""
        e.source = self.emitter.number
        e.key = wire.cut_utf8(str(key).encode(errors="replace"), wire.MAX_NAME_BYTES).decode()
        edges = self.emitter._out_edges()
        if edge == wire.ALL_EDGES and len(edges) == 1:
            edge = 0
        if edge < len(edges):
            with self.session.locked:
                seq = self.emitter._next_seq(edge)
            if seq is not None:  # an edge without a known sequence number would show sequence 0
                e.edge, e.seq = edges[edge].name, seq
        return e

    def allocate(self, size: int, alone: bool) -> Block:
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
            most = s.arena_bytes or ARENA_BYTES
            block = s.allocator.allocate(size, most) if size <= most and not alone else None
            return block or s.allocator.allocate_dedicated(size)

    def _put_locked(
        self, credit: _Credit, block: Block | None, e: Envelope, codec: int, flags: int, size: int, payload: Payload
    ) -> None:
        """Put a payload that lies in `block` or, without one, in the message. The lock is held."""
        s = self.session
        if s.error is not None:
            raise again(s.error)
        number = s.allocator.register_put(block, credit)
        segment, offset = (block.segment, block.offset) if block is not None else (0, 0)
        if e.last:
            flags |= wire.LAST
        try:
            s.connection.post(wire.Put(
                number, self.emitter.number, e.delivery, e.edge, flags, codec, 0, segment, offset, size, e.key, e.attrs,
                payload,
            ))  # fmt: skip
        except BaseException:
            s.allocator.cancel_put(number)
            raise
        self.emitter._count_emission(e.edge)

    def reserve_work(self, size: int, codec: int, e: Envelope, inline: bool = False) -> Work[Buffer]:
        """A buffer for a payload, to be filled and put: in a message, or in a block."""
        credit = self._new_credit(e.edge, size)
        yield from self._await_credit(credit, e)
        block = None
        if inline:
            view = memoryview(bytearray(size))
        else:
            try:
                block = self.allocate(size, credit.needs_own_segment)
            except BaseException as error:
                credit.release_and_notify()
                raise self._with_emission(error, e.edge, e.key) if isinstance(error, HostError) else error
            view = block.view[:size]
        return Buffer(self.session, _ReservedPut(self, credit, block, view, e, codec), view, e)


class RetainingPut(OutstandingPut):
    """A put that retains objects until it is returned."""

    __slots__ = ("retained", "_session")

    def __init__(self, s: Session, keep: list[Any] | None) -> None:
        self.retained = keep  #: a list that is cleared when no process needs the payload; None: nothing is retained
        self._session = s

    @property
    def retains_memory(self) -> bool:
        return self.retained is not None

    def returned(self) -> None:
        keep, self.retained = self.retained, None
        if keep is not None:
            self._session.call_unlocked(keep.clear)  # destructors of its items may run any code

    def session_ended(self) -> None:
        # Other processes may still read lent buffers, and no host says when they stop.
        orphaned_memory.extend(p.kept_alive for p in self.retained or () if p.kept_alive)
        RetainingPut.returned(self)


class _Credit(RetainingPut):
    """A put's credit: its share of the windows of its edges, until it is spent, released or returned."""

    __slots__ = ("_puts", "_edges", "_cost", "_n", "_bytes")

    def __init__(self, puts: Puts, edges: Sequence[int], cost: int) -> None:
        super().__init__(puts.session, None)
        self._puts = puts
        self._edges = edges
        self._cost = cost
        self._n, self._bytes = 0, False  # the acquired count and whether the bytes are acquired

    @property
    def edge(self) -> int:
        """The first of its edges."""
        return next(iter(self._edges), 0)

    @property
    def needs_own_segment(self) -> bool:
        """Whether the payload exceeds a byte window. It then takes the whole window, and a segment of its own."""
        out = self._puts.emitter._out_edges()
        return any(0 < out[i].window_bytes < self._cost for i in self._edges)

    def acquire(self) -> _Credit | None:
        """Acquire the credit if the windows allow it; None if it has to wait. The lock is held."""
        puts, cost = self._puts, self._cost
        out, under_way = puts.emitter._out_edges(), puts.in_flight
        if puts.emitter.over:
            raise RequestOver(Code.OVER, "the request is over")
        if puts.outstanding >= MAX_OUT:
            return None
        for i in self._edges:
            e, (n, nbytes, retained) = out[i], under_way[i]
            most = e.window_bytes
            # A payload larger than the byte window takes all of it.
            if (e.window and n >= e.window) or (most and nbytes and nbytes + cost > most):
                if e.policy == wire.POLICY_FAIL:
                    raise WindowFull(Code.WINDOW_FULL, f"the window of {e.name} is full")
                if e.policy == wire.POLICY_BLOCK:
                    if retained and retained + self._share(i) > most:
                        text = f"input that is kept for a replay fills the byte window of {e.name}: make it larger"
                        raise WindowFull(Code.WINDOW_FULL, text)
                    return None
        for i in self._edges:
            used = under_way[i]
            used[0] += 1
            used[1] += self._share(i)
        puts.outstanding += 1
        self._n, self._bytes = 1, True
        return self

    def release(self) -> None:
        """Release the credit. The lock is held. Idempotent."""
        self.spent(True)

    def release_and_notify(self) -> None:
        with self._puts.session.locked:
            self.release()
            self._puts.session.notify()

    def _share(self, edge: int) -> int:
        """The bytes of the put in the byte window of an edge, which a larger payload takes all of."""
        most = self._puts.emitter._out_edges()[edge].window_bytes
        return most if 0 < most < self._cost else self._cost

    def spent(self, bytes_too: bool) -> None:
        """Give back the count, and the bytes unless the host keeps the payload for a replay."""
        puts, n, retained = self._puts, self._n, self._bytes and not self._n
        for i in self._edges:
            used = puts.in_flight[i]
            used[0] -= n
            if bytes_too and self._bytes:
                used[1] -= self._share(i)
                used[2] -= self._share(i) if retained else 0
            elif n:
                used[2] += self._share(i)
        puts.outstanding -= n
        self._n = 0
        if bytes_too:
            self._bytes = False

    def returned(self) -> None:
        self.spent(True)
        super().returned()


class _ReservedPut:
    """The put of a `Buffer`: in a message, or in a block."""

    __slots__ = ("_puts", "_credit", "_block", "_view", "_envelope", "_codec")

    def __init__(
        self, puts: Puts, credit: _Credit, block: Block | None, view: memoryview, e: Envelope, codec: int
    ) -> None:
        self._puts, self._credit, self._block, self._view = puts, credit, block, view
        self._envelope, self._codec = e, codec

    def retain(self, what: list[Any]) -> None:
        """Clear this list when no process needs the payload any more."""
        self._credit.retained = what

    def send(self, n: int, e: Envelope) -> None:
        r, flags, payload = self._block, wire.INLINE, self._view[:n]
        if r is not None:
            flags, payload = wire.OWN_SEGMENT if r.dedicated else 0, b""
        with self._puts.session.locked:
            self._puts._put_locked(self._credit, r, e, self._codec, flags, n, payload)

    def abort(self) -> None:
        s = self._puts.session
        self._credit.retained = None
        with s.locked:
            if s.error is None and self._block is not None:
                s.allocator.free(self._block)
            self._credit.release()
            s.notify()
