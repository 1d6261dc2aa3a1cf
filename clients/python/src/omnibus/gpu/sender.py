"""How a session sends tensors in the memory of a GPU: its pool, what is lent, and what was sent how."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import devices, wire
from ..devices.contract import EMULATED, DriverError, SendingDevice
from ..directory import Name
from ..dlpack import is_on_gpu
from ..dtypes import data_bytes
from ..errors import ForeignDevice, HostError, OmnibusError, OutOfMemory, again
from ..futures import Future, PolledFuture
from ..puts import MODES
from ..session import Session, Work
from ..sources import Source
from ..sources import of as source_of
from .chunk import Chunk, ChunkTensor, Spare, dtype_name
from .pool import SPILL, Options, Piece, Pool, Published

log = logging.getLogger("omnibus")

DEFAULT, IPC, POOL = range(len(MODES))

#: For how many seconds the figures change before the host is told.
TELL_AFTER = 1.0


@dataclass
class Sent:
    """Messages, and the bytes of their tensors on a GPU."""

    messages: int = 0
    bytes: int = 0


@dataclass
class Stats:
    """What a client has sent with tensors on a GPU, where an edge says how they travel."""

    default: Sent = field(default_factory=Sent)
    cuda_ipc: Sent = field(default_factory=Sent)
    cuda_ipc_pool: Sent = field(default_factory=Sent)
    fallbacks: int = 0  #: by default, for the other is not to be had; the log says why
    small: int = 0  #: by default, for they had fewer bytes than the edge's least
    spilt: int = 0  #: by default, for the pool had no room


class OnGPU(Source):
    """A tensor on a GPU that is about to be sent."""

    __slots__ = ("value", "piece", "offset", "address", "strides")

    def __init__(self, value: Any, dtype: str, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape, lambda dst: _to_host(value, dst))  # no cycle: it is to go with its last user
        self.value = value
        self.piece: Piece | None = None  # the chunk that it is in
        self.offset = 0  # there
        self.address = 0  # of one that is in no chunk
        self.strides: tuple[int, ...] | None = None  # in elements


def _to_host(value: Any, dst: memoryview) -> None:
    source = source_of(value)
    assert source is not None and source.fill is not None
    source.fill(dst)


class Sender:
    """A session's pool of GPU memory. Safe from any thread.

    Nothing is made before it is needed.
    """

    def __init__(self, s: Session, options: Options) -> None:
        self.stats = Stats()
        self.options = options
        self._session = s
        self._pool: Pool | None = None
        self._why: OmnibusError | None = None  # there is none
        self._due = False  # a timer runs; the session's lock
        self._told = b""  # what the host knows of the figures

    # Memory to fill in place.

    def chunk(self, nbytes: int) -> Chunk:
        """Memory for tensors of one message, to be filled where others read it.

        Waits for room as the options say. Raises PoolFull when there is none, unless they say "spill": such a chunk is
        copied when it is sent. Raises NoDriver without a GPU.
        """
        return self._session.run(self.chunk_work(nbytes))

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> ChunkTensor:
        """A tensor in a chunk of its own: see `chunk` and `Chunk.empty`."""
        return self._session.run(self.empty_work(shape, dtype))

    def chunk_work(self, nbytes: int) -> Work[Chunk]:
        if nbytes < 0:
            raise ValueError(f"a chunk of {nbytes} bytes")
        pool = self.pool(None)
        try:
            piece = yield from self.take_work(pool, nbytes)
        except DriverError:  # when it is sent, it is said that there is no pool
            if pool.options.when_full != SPILL:
                raise
            piece = None
        return Chunk(Spare(pool.device, nbytes) if piece is None else piece, nbytes)

    def empty_work(self, shape: int | Sequence[int], dtype: Any) -> Work[ChunkTensor]:
        size = data_bytes(dtype_name(dtype), (shape,) if isinstance(shape, int) else tuple(shape))
        chunk = yield from self.chunk_work(size)
        return chunk.empty(shape, dtype)

    # The pool.

    def pool(self, value: Any) -> Pool:
        """The pool, made for the device of a tensor if none was said. Raises why there is none."""
        s = self._session
        with s.locked:
            if s.error is not None:
                raise again(s.error)
            if self._pool is not None:
                self._pool.check_process()
                return self._pool
            if self._why is not None:
                raise again(self._why)
            try:
                self._pool = Pool(devices.device_of(self.options.device, value), self.options, self._freed)
            except OmnibusError as e:
                self._why = again(e)
                raise
            return self._pool

    def _freed(self) -> None:
        """There is more room. Called in any thread, in the middle of anything."""
        if self._session.polled:
            self._session.wake()

    def take_work(self, pool: Pool, nbytes: int, take: Callable[[], Piece | None] | None = None) -> Work[Piece | None]:
        """A chunk, or what `take` takes; None: there is no room, and it is to be done without."""
        patience = pool.options.patience
        if nbytes > pool.max_bytes:
            patience = 0
        a = PolledFuture(take or (lambda: pool.take(nbytes)), pool)
        if patience is not None:
            a.limit = time.monotonic() + patience
        self._session.polled.add(a)
        if not a.done and patience == 0:
            self._session.polled.expire(a)
        piece: Piece | None = yield a
        if piece is None:
            with self._session.locked:
                if pool.options.when_full != SPILL:
                    raise pool.full(nbytes)
        return piece

    def publish_work(self, pool: Pool, pieces: Sequence[Piece]) -> Work[None]:
        """Have others find what the pieces lie in."""
        for p in {id(p): p for p in [pool.words_published, *(piece.published for piece in pieces)]}.values():
            if p.asked is None or p.asked.error is not None:  # of one that nobody waits for the answer still comes
                with self._session.locked:
                    p.asked = _ask(self._session, Name(pool.id, p.number), p)
            yield p.asked

    # What a value has on a GPU.

    def of(self, value: Any) -> Source | None:
        """The value as a tensor, for a plan: an OnGPU if it is on one. Raises Finished for what was sent."""
        return self.on_gpu(value) or source_of(value)

    def on_gpu(self, value: Any) -> OnGPU | None:
        """The value as a tensor on a GPU; None: it is none. Raises Finished for what was sent."""
        if isinstance(value, ChunkTensor):
            value.chunk.check()
            t = OnGPU(value, value.dtype, value.shape)
            t.address = value.pointer
            memory = value.chunk._memory
            if isinstance(memory, Piece) and memory.pool is self._pool:
                t.piece, t.offset = memory, value.offset
            return t
        if hasattr(value, "__dlpack__") and self._on_device(value):
            from ..dlpack import borrow

            b = borrow(value, -1 if is_on_gpu(value) else None)
            t = OnGPU(value, b.dtype, b.shape)
            t.address, t.strides = b.address, b.strides
            if self._pool is not None and b.strides is None:
                with self._session.locked:
                    piece = self._pool.at(b.address, t.nbytes)
                if piece is not None and not piece.sent:  # a view of what is in a chunk already
                    t.piece, t.offset = piece, b.address - piece.pointer
            return t
        return None

    def _on_device(self, value: Any) -> bool:
        return is_on_gpu(value) or (self._emulated is not None and self._emulated.owns(value))

    @property
    def _emulated(self) -> SendingDevice | None:
        d = self.options.device
        if isinstance(d, bytes) and d.startswith(EMULATED):
            return devices.by_uuid(d)
        return None

    def count(self, mode: int, nbytes: int) -> None:
        """A message was sent."""
        with self._session.locked:
            sent: Sent = getattr(self.stats, MODES[mode])
            sent.messages += 1
            sent.bytes += nbytes
            self._changed()

    def falls_back(self, mode: int, why: Exception) -> None:
        """Tensors travel through the host's memory that were to go by a mode."""
        with self._session.locked:
            self.stats.fallbacks += 1
            self._changed()
        # Again and again it would drown what is new.
        say = log.warning if self.stats.fallbacks & (self.stats.fallbacks - 1) == 0 else log.debug
        say("tensors travel through host memory instead of by %s (%d times): %s", MODES[mode], self.stats.fallbacks, why)

    # The figures are the bus's, too.

    def _changed(self) -> None:
        """Tell the host, before long. The lock is held."""
        if not self._due:
            timer = threading.Timer(TELL_AFTER, self._tell)
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # too many threads, or the interpreter ends: `close` tells
                timer.start()
                self._due = True

    def _tell(self) -> None:
        with self._session.locked:
            self._due = False
            self.tell_locked()

    def tell_locked(self) -> None:
        """Tell the host what is new. Its answer is of no interest: an older one does not know what this is about."""
        s, figures = self._session, json.dumps(asdict(self.stats)).encode()
        if s.error is None and figures != self._told:
            self._told = figures
            s.questions.ask_locked(Future(wire.Reply), lambda token: wire.Call(token, "tensors", figures))


class _Publishing(Future):
    """Several may wait for it, and the descriptor stays."""

    shared = True


def _ask(s: Session, name: Name, p: Published) -> Future:
    """Publish a descriptor. The lock is held."""
    a = _Publishing(wire.Published, lambda m, _: None)
    a.fd = p.fd
    return s.questions.ask_locked(a, lambda token: wire.Publish(token, name.number, name.pool, p.size))


def of(s: Session) -> Sender:
    """The sender of a session."""
    sender: Sender | None = s.sender
    if sender is None:
        with s.locked:
            if s.sender is None:
                s.sender = Sender(s, s.gpu_options or Options())
            sender = s.sender
    assert sender is not None
    return sender


#: What makes tensors go another way: no GPU, no room in the host's directory, a device that cannot do it.
UNAVAILABLE = (DriverError, ForeignDevice, HostError, OutOfMemory)
