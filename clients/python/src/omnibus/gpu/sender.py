"""Sends tensors in GPU memory: the pool of a session, lent memory, and statistics."""

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
from .chunk import Chunk, ChunkTensor, PrivateMemory, dtype_name
from .pool import SPILL, Options, Piece, Pool, Published

log = logging.getLogger("omnibus")

DEFAULT, IPC, POOL = range(len(MODES))

#: How many seconds after a change the statistics are reported to the host.
REPORT_SECONDS = 1.0


@dataclass
class Sent:
    """The number of messages, and the bytes of their tensors on a GPU."""

    messages: int = 0
    bytes: int = 0


@dataclass
class Stats:
    """The sent messages with tensors on a GPU, by tensor transport of their edges."""

    default: Sent = field(default_factory=Sent)
    cuda_ipc: Sent = field(default_factory=Sent)
    cuda_ipc_pool: Sent = field(default_factory=Sent)
    fallbacks: int = 0  #: sent by default because the transport was unavailable; the log says why
    small: int = 0  #: sent by default because they had fewer than the edge's min_bytes
    spilt: int = 0  #: sent by default because the pool had no space


class OnGPU(Source):
    """A tensor on a GPU that is about to be sent."""

    __slots__ = ("value", "piece", "offset", "address", "strides")

    def __init__(self, value: Any, dtype: str, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape, lambda dst: _to_host(value, dst))  # no reference cycle, so that it is freed with its last user
        self.value = value
        self.piece: Piece | None = None  # its chunk, None outside of the pool
        self.offset = 0  # in the chunk
        self.address = 0  # on the device
        self.strides: tuple[int, ...] | None = None  # in elements


def _to_host(value: Any, dst: memoryview) -> None:
    source = source_of(value)
    assert source is not None and source.fill is not None
    source.fill(dst)


class Sender:
    """A session's pool of GPU memory. Safe from any thread.

    The pool is created when it is first needed.
    """

    def __init__(self, s: Session, options: Options) -> None:
        self.stats = Stats()
        self.options = options
        self._session = s
        self._pool: Pool | None = None
        self._pool_error: OmnibusError | None = None  # of the creation of the pool
        self._timer_runs = False  # guarded by the session's lock
        self._reported = b""  # the last statistics that were reported

    # Memory to fill in place.

    def chunk(self, nbytes: int) -> Chunk:
        """Memory for tensors of one message, to be filled in place.

        Waits for space as the options say. Without space it raises PoolFull, unless they say "spill": such a chunk is
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
            piece = yield from self.allocate_work(pool, nbytes)
        except DriverError:  # the send counts a fallback
            if pool.options.when_full != SPILL:
                raise
            piece = None
        return Chunk(PrivateMemory(pool.device, nbytes) if piece is None else piece, nbytes)

    def empty_work(self, shape: int | Sequence[int], dtype: Any) -> Work[ChunkTensor]:
        size = data_bytes(dtype_name(dtype), (shape,) if isinstance(shape, int) else tuple(shape))
        chunk = yield from self.chunk_work(size)
        return chunk.empty(shape, dtype)

    # The pool.

    def pool(self, value: Any) -> Pool:
        """The pool, created for the device of a tensor if the options name none. Raises the error of its creation."""
        s = self._session
        with s.locked:
            if s.error is not None:
                raise again(s.error)
            if self._pool is not None:
                self._pool.check_process()
                return self._pool
            if self._pool_error is not None:
                raise again(self._pool_error)
            try:
                self._pool = Pool(devices.device_of(self.options.device, value), self.options, self._freed)
            except OmnibusError as e:
                self._pool_error = again(e)
                raise
            return self._pool

    def _freed(self) -> None:
        """Wake the calls that wait for space. A finalizer calls it in any thread, at any point."""
        if self._session.polled:
            self._session.wake()

    def allocate_work(self, pool: Pool, nbytes: int, take: Callable[[], Piece | None] | None = None) -> Work[Piece | None]:
        """Allocate a chunk, or a piece with `take`; None: there is no space, and the options say "spill"."""
        patience = pool.options.wait_seconds
        if nbytes > pool.max_bytes:
            patience = 0
        a = PolledFuture(take or (lambda: pool.allocate(nbytes)), pool)
        if patience is not None:
            a.limit = time.monotonic() + patience
        self._session.polled.add(a)
        if not a.done and patience == 0:
            self._session.polled.expire(a)
        piece: Piece | None = yield a
        if piece is None:
            with self._session.locked:
                if pool.options.when_full != SPILL:
                    raise pool.full_error(nbytes)
        return piece

    def publish_work(self, pool: Pool, pieces: Sequence[Piece]) -> Work[None]:
        """Publish the memory of the pieces, so that receivers find it."""
        for p in {id(p): p for p in [pool.words_published, *(piece.published for piece in pieces)]}.values():
            if p.answer is None or p.answer.error is not None:  # a pending answer is reused, also of a call that has stopped waiting
                with self._session.locked:
                    p.answer = _publish(self._session, Name(pool.id, p.number), p)
            yield p.answer

    # Tensors of a value.

    def source_for(self, value: Any) -> Source | None:
        """The value as a tensor, for a plan: an OnGPU if it is on a GPU. Raises Finished for a sent chunk."""
        return self.on_gpu(value) or source_of(value)

    def on_gpu(self, value: Any) -> OnGPU | None:
        """The value as a tensor on a GPU; None: it is none. Raises Finished for a sent chunk."""
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
                    piece = self._pool.piece_at(b.address, t.nbytes)
                if piece is not None and not piece.sent:  # a view of memory in a chunk
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
        """Count a sent message."""
        with self._session.locked:
            sent: Sent = getattr(self.stats, MODES[mode])
            sent.messages += 1
            sent.bytes += nbytes
            self._schedule_report()

    def count_fallback(self, mode: int, why: Exception) -> None:
        """Count and log tensors that go through host memory in place of a mode."""
        with self._session.locked:
            self.stats.fallbacks += 1
            self._schedule_report()
        # Only powers of two are warnings, so that repetitions do not flood the log.
        say = log.warning if self.stats.fallbacks & (self.stats.fallbacks - 1) == 0 else log.debug
        say("tensors travel through host memory instead of by %s (%d times): %s", MODES[mode], self.stats.fallbacks, why)

    # The host has the statistics, too.

    def _schedule_report(self) -> None:
        """Report to the host in REPORT_SECONDS. Under the lock."""
        if not self._timer_runs:
            timer = threading.Timer(REPORT_SECONDS, self._report)
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # too many threads, or the interpreter ends: the close reports
                timer.start()
                self._timer_runs = True

    def _report(self) -> None:
        with self._session.locked:
            self._timer_runs = False
            self.report_locked()

    def report_locked(self) -> None:
        """Report changed statistics to the host. The answer is ignored: an older host does not know the call."""
        s, figures = self._session, json.dumps(asdict(self.stats)).encode()
        if s.error is None and figures != self._reported:
            self._reported = figures
            s.questions.ask_locked(Future(wire.Reply), lambda token: wire.Call(token, "tensors", figures))


class _Publishing(Future):
    """The answer to a publication. Several calls may wait for it, and it does not close the descriptor."""

    shared = True


def _publish(s: Session, name: Name, p: Published) -> Future:
    """Publish a descriptor. Under the lock."""
    a = _Publishing(wire.Published, lambda m, _: None)
    a.fd = p.fd
    return s.questions.ask_locked(a, lambda token: wire.Publish(token, name.number, name.pool, p.size))


def for_session(s: Session) -> Sender:
    """The sender of a session."""
    sender: Sender | None = s.sender
    if sender is None:
        with s.locked:
            if s.sender is None:
                s.sender = Sender(s, s.gpu_options or Options())
            sender = s.sender
    assert sender is not None
    return sender


#: The errors after which tensors go through host memory: no GPU, a full directory of the host, an unsupported device.
UNAVAILABLE = (DriverError, ForeignDevice, HostError, OutOfMemory)
