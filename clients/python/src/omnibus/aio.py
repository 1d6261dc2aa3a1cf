"""What is awaited: the client, requests and tasks of an event loop, and how work is done there.

Each is the counterpart of one without a loop, in `client`, `request` and `task`, and has what they do in common from
there. Only `coroutines`, for the handlers of stages, knows asyncio, too; so neither is loaded before it is used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from . import codec as codecs
from . import tensor, wire
from .answers import Answer
from .buffer import Buffer
from .client import BaseClient, open_session
from .deadlines import limit_of
from .delivery import Delivery
from .directory import Found, Name, find_work, publish_work
from .emit import Emitter
from .errors import again
from .handshake import dial, socket_path
from .request import BaseRequest, first_work, in_time, stream_work
from .session import OutOfTime, Session, Work, resume
from .task import BaseTask, FilledTensor, sender_of, unused
from .tensor import Tensor

if TYPE_CHECKING:
    from .gpu import Chunk, ChunkTensor, Options, Stats

_R = TypeVar("_R")


async def arun(s: Session, work: Work[_R], limit: float | None = None) -> _R:
    """As Session.run, in the running event loop."""
    loop = _running_loop(s)
    try:
        a = next(work)
        while True:
            if not a.done:
                try:
                    await _done(s, a, loop, limit)
                except BaseException:
                    s.questions.abandon(a)
                    work.close()
                    raise
            a = resume(work, a)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


async def _arun_for(e: Emitter, work: Work[_R]) -> _R:
    """As Emitter._run."""
    try:
        return await arun(e._session, work, limit_of(e._deadline))
    except OutOfTime:
        raise e._silence() from None


def _running_loop(s: Session) -> asyncio.AbstractEventLoop:
    """Raises RuntimeError where nobody reads: what the client was made in has ended, or another loop runs within it."""
    if s.loop is not None and not s.loop.is_running():
        raise RuntimeError("the event loop that the client belongs to does not run: use it in the one that connected")
    return asyncio.get_running_loop()


async def _done(s: Session, a: Answer, loop: asyncio.AbstractEventLoop, limit: float | None) -> None:
    told: asyncio.Future[None] = loop.create_future()
    s.questions.watch(a, lambda: loop.call_soon_threadsafe(_settle, told))
    soonest = min((t for t in (a.limit, limit) if t is not None), default=None)
    timer = None if soonest is None else loop.call_later(max(soonest - time.monotonic(), 0), _settle, told)
    try:
        await told
    finally:
        if timer is not None:
            timer.cancel()
    if not a.done:
        if soonest == limit:
            raise OutOfTime  # not by the future: it and the frames that this passes would keep each other, and memory
        s.attempts.expire(a)


def _settle(f: asyncio.Future[None]) -> None:
    if not f.done():
        f.set_result(None)


async def news(s: Session, ready: Callable[[], bool], at: Any, patience: float | None = None) -> bool:
    """Wait in the running event loop until `ready()`; `at._on_news` are called at each change. False: the time is up."""
    loop = _running_loop(s)
    event = asyncio.Event()
    late = False

    def expire() -> None:
        nonlocal late
        late = True
        event.set()

    timer = None if patience is None else loop.call_later(patience, expire)

    def tell() -> None:
        loop.call_soon_threadsafe(event.set)

    at._on_news.add(tell)
    try:
        while True:
            with s.locked:
                if ready():
                    return True
            if late:
                return False
            await event.wait()
            event.clear()
    finally:
        at._on_news.discard(tell)  # without a lock, for the collector may be the caller
        if timer is not None:
            timer.cancel()


async def aconnect(
    path: str | None = None,
    bus: str | None = None,
    name: str | None = None,
    gpu: Options | None = None,
    allow_uids: Iterable[int] = (),
) -> AsyncClient:
    """Connect, for the running event loop. As `connect`."""
    loop = asyncio.get_running_loop()
    opened: list[Session] = []
    unwanted = threading.Event()

    def connected() -> Session:
        s = open_session(dial(socket_path(path, bus), allow_uids), bus, name, gpu)
        opened.append(s)
        if unwanted.is_set():
            s.close()
        return s

    try:
        s = await loop.run_in_executor(None, connected)
    except BaseException:  # the thread goes on all the same, or has it and could not hand it over
        unwanted.set()
        for s in opened:
            s.close()
        raise
    return AsyncClient(s, loop)


class AsyncClient(BaseClient):
    """As `Client`, for one event loop and its thread."""

    def __init__(self, s: Session, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(s)
        self._loop = s.loop = loop
        loop.add_reader(s.fileno(), self._process)

    def _process(self) -> None:
        self._session.process()
        if self._session.error is not None:
            self._loop.remove_reader(self._session.fileno())

    @property
    def gpu(self) -> AsyncSender:
        """As Client.gpu."""
        return AsyncSender(self._session)

    async def submit(
        self,
        value: Any,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        codec: int | None = None,
        fail_fast: bool = False,
        trace: wire.Trace | None = None,
    ) -> AsyncRequest:
        """As Client.submit."""
        work, limit = first_work(
            AsyncRequest, self._session, timeout, deadline, fail_fast, trace, value, to, key, attrs, codec
        )
        with in_time():
            return await arun(self._session, work, limit)

    async def stream(
        self,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        fail_fast: bool = False,
        trace: wire.Trace | None = None,
    ) -> AsyncRequest:
        """As Client.stream."""
        work, limit = stream_work(AsyncRequest, self._session, timeout, deadline, fail_fast, trace)
        with in_time():
            return await arun(self._session, work, limit)

    async def call(self, method: str, arguments: Any = None) -> Any:
        """As Client.call."""
        return await arun(self._session, self._call_work(method, arguments))

    async def publish(self, name: Name, fd: int, size: int) -> None:
        """As Client.publish."""
        await arun(self._session, publish_work(self._session, name, fd, size))

    async def find(self, name: Name) -> Found:
        """As Client.find."""
        return await arun(self._session, find_work(self._session, name))

    async def deliveries(self, stage: str | None = None) -> AsyncIterator[Delivery]:
        """As Client.deliveries."""
        s = self._session
        pull = await arun(s, self._pull_work(stage, AsyncTask))
        while True:
            await news(s, lambda: pull.ready() or s.error is not None, pull)
            with s.locked:
                if s.error is None and not pull.ready():
                    continue  # somebody else has taken it, or it was taken back
                d = pull.take()
            if d is None:
                if s.error is not None and not (s.said_bye or s.draining):
                    raise again(s.error)
                return
            yield d

    async def leave(self) -> None:
        """As Client.leave."""
        await arun(self._session, self._leave_work())

    async def drain(self, timeout: float | None = None) -> bool:
        """As Client.drain."""
        return await arun(self._session, self._drain_work(timeout))

    async def close(self) -> None:
        """As Client.close."""
        self._session.check_process()
        if not self._session.closed:
            self._loop.remove_reader(self._session.fileno())
        self._session.close()

    def __await__(self) -> Generator[Any, Any, AsyncClient]:
        return _itself(self).__await__()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _itself(c: AsyncClient) -> AsyncClient:
    return c


class AsyncSender:
    """A session's `gpu.Sender` for an event loop: room is awaited by `achunk` and `aempty`."""

    __slots__ = ("_session", "_sender")

    def __init__(self, s: Session) -> None:
        self._session, self._sender = s, sender_of(s)

    @property
    def options(self) -> Options:
        return self._sender.options

    @property
    def stats(self) -> Stats:
        return self._sender.stats

    def chunk(self, nbytes: int) -> Chunk:
        """As Sender.chunk: the event loop stands still while it waits for room."""
        return self._sender.chunk(nbytes)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> ChunkTensor:
        """As Sender.empty: the event loop stands still while it waits for room."""
        return self._sender.empty(shape, dtype)

    async def achunk(self, nbytes: int) -> Chunk:
        """As Sender.chunk."""
        return await arun(self._session, self._sender.chunk_work(nbytes))

    async def aempty(self, shape: int | Sequence[int], dtype: Any = "float32") -> ChunkTensor:
        """As Sender.empty."""
        return await arun(self._session, self._sender.empty_work(shape, dtype))


class AsyncRequest(BaseRequest):
    """As `Request`, for an event loop: `async for`, `async with`, and `send` is awaited."""

    __slots__ = ()

    async def send(
        self,
        value: Any,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
        codec: int | None = None,
    ) -> None:
        """Send an input; waits for room. `to` names the one stage that gets it."""
        await _arun_for(self, self._send_work(value, to, key, attrs, last, codec))

    async def values(self) -> list[Any]:
        """All results decoded, once the request is complete."""
        return [d.value() async for d in self]

    def __aiter__(self) -> AsyncRequest:
        return self

    async def __anext__(self) -> Delivery:
        self._finish_last()
        if not await news(self._session, self._ready, self, self._patience()):
            raise self._unended()
        with self._session.locked:
            d = self._next()
        if d is None:
            raise StopAsyncIteration
        return d

    async def __aenter__(self) -> AsyncRequest:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncFilledTensor(FilledTensor):
    __slots__ = ()

    async def __aenter__(self) -> Tensor:
        return self._enter(await _arun_for(self._task, unused(self._work)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind)


class AsyncBuffer:
    """What `AsyncTask.reserve` returns: await it for a Buffer, or use it in `async with`."""

    __slots__ = ("_task", "_work", "_buffer")

    def __init__(self, task: AsyncTask, work: Work[Buffer]) -> None:
        self._task, self._work = task, work
        self._buffer: Buffer | None = None

    def __await__(self) -> Generator[Any, Any, Buffer]:
        return _arun_for(self._task, unused(self._work)).__await__()

    async def __aenter__(self) -> Buffer:
        self._buffer = await self
        return self._buffer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._buffer is not None:
            self._buffer.abort()


class AsyncTask(BaseTask):
    """One request at one stage, for handlers that are coroutines. As `Task`, but to be awaited.

    A handler is cancelled when the request is over.
    """

    __slots__ = ()

    @property
    def gpu(self) -> AsyncSender:
        """As Task.gpu."""
        return AsyncSender(self._session)

    async def emit(
        self,
        value: Any,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
        codec: int | None = None,
    ) -> None:
        """Emit a value: tensors and arrays as tensors, values with such in them as bundles, all else as msgpack."""
        await _arun_for(self, self._emit_work(value, self._envelope(self._current, to, key, attrs, last), codec))

    async def emit_bytes(
        self, data: Any, *, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> None:
        """Emit raw bytes: any contiguous buffer, copied once."""
        await _arun_for(self, self._emit_work(data, self._envelope(self._current, to, key, attrs, last), codecs.RAW))

    def emit_tensor(
        self,
        dtype: str,
        shape: tuple[int, ...],
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
    ) -> AsyncFilledTensor:
        """Emit a tensor that is filled in place, in an `async with` block."""
        size = tensor.payload_bytes(dtype, shape)
        work = self._reserve_work(size, codecs.TENSOR, self._envelope(self._current, to, key, attrs, last))
        return AsyncFilledTensor(self, dtype, tuple(shape), work)

    async def forward(
        self,
        delivery: Delivery,
        *,
        to: str | None = None,
        key: str = "",
        attrs: wire.Attrs | None = None,
        last: bool = False,
    ) -> None:
        """Pass the payload of a delivery that is not finished on by reference, without a copy."""
        delivery._check_unfinished()
        rest = self._forward(self._envelope(delivery.number, to, key, attrs, last))
        if rest is not None:
            await _arun_for(self, rest)

    def reserve(self, size: int, *, codec: int = codecs.RAW, to: str | None = None) -> AsyncBuffer:
        """Room for a payload of up to `size` bytes, to be filled in place and sent."""
        return AsyncBuffer(self, self._reserve_work(size, codec, self._envelope(self._current, to)))

    def _emit_for(self, delivery: int, value: Any, *, codec: int | None = None, **options: Any) -> Awaitable[None]:
        return _arun_for(self, self._emit_work(value, self._envelope(delivery, **options), codec))
