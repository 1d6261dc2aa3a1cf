"""The client, requests and tasks of event loops, and the running of work on them.

Each class is the counterpart of one without a loop in `client`, `request` or `task`, and shares its base class. Only
this module and `coroutines` import asyncio, and they are loaded on first use.
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
from .buffer import Buffer
from .client import BaseClient, open_session
from .deadlines import wait_limit
from .delivery import Delivery
from .directory import Found, Name, find_work, publish_work
from .emit import Emitter
from .errors import again
from .futures import Future
from .handshake import dial, socket_path
from .request import BaseRequest, deadline_errors, submit_stream_work, submit_value_work
from .session import OutOfTime, Session, Work, resume
from .task import BaseTask, FilledTensor, check_unused, sender_of
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
                    await _await_done(s, a, loop, limit)
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
        return await arun(e._session, work, wait_limit(e._deadline))
    except OutOfTime:
        raise e._no_answer() from None


def _running_loop(s: Session) -> asyncio.AbstractEventLoop:
    """The running loop. Raises RuntimeError if the client's loop, which reads the socket, does not run."""
    if s.loop is not None and not s.loop.is_running():
        raise RuntimeError("the event loop of the client does not run: use the client in the loop that connected it")
    return asyncio.get_running_loop()


async def _await_done(s: Session, a: Future, loop: asyncio.AbstractEventLoop, limit: float | None) -> None:
    done: asyncio.Future[None] = loop.create_future()
    s.questions.add_done_callback(a, lambda: loop.call_soon_threadsafe(_set_done, done))
    soonest = min((t for t in (a.limit, limit) if t is not None), default=None)
    timer = None if soonest is None else loop.call_later(max(soonest - time.monotonic(), 0), _set_done, done)
    try:
        await done
    finally:
        if timer is not None:
            timer.cancel()
    if not a.done:
        if soonest == limit:
            # Raised here, not set in the future: the future and the traceback would keep each other alive.
            raise OutOfTime
        s.polled.expire(a)


def _set_done(f: asyncio.Future[None]) -> None:
    if not f.done():
        f.set_result(None)


async def wait_for_change(s: Session, ready: Callable[[], bool], at: Any, timeout: float | None = None) -> bool:
    """Wait in the running event loop until `ready()`, checked at each call of `at._on_change`. Returns False after
    `timeout` seconds."""
    loop = _running_loop(s)
    event = asyncio.Event()
    late = False

    def expire() -> None:
        nonlocal late
        late = True
        event.set()

    timer = None if timeout is None else loop.call_later(timeout, expire)

    def tell() -> None:
        loop.call_soon_threadsafe(event.set)

    at._on_change.add(tell)
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
        at._on_change.discard(tell)  # without a lock: the garbage collector may run this
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
    except BaseException:  # the thread cannot be cancelled: it may connect yet, or have connected
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
        work, limit = submit_value_work(
            AsyncRequest, self._session, timeout, deadline, fail_fast, trace, value, to, key, attrs, codec
        )
        with deadline_errors():
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
        work, limit = submit_stream_work(AsyncRequest, self._session, timeout, deadline, fail_fast, trace)
        with deadline_errors():
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
            await wait_for_change(s, lambda: pull.ready() or s.error is not None, pull)
            with s.locked:
                if s.error is None and not pull.ready():
                    continue  # another task has taken the delivery, or its request has ended
                d = pull.pop()
            if d is None:
                if s.error is not None and not (s.host_said_bye or s.draining):
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
    """A session's `gpu.Sender` for an event loop: `achunk` and `aempty` await space."""

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
        """As Sender.chunk: it blocks the event loop while it waits for space."""
        return self._sender.chunk(nbytes)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> ChunkTensor:
        """As Sender.empty: it blocks the event loop while it waits for space."""
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
        """Send an input; waits for credit and space. `to` names the only stage that gets it."""
        await _arun_for(self, self._send_work(value, to, key, attrs, last, codec))

    async def values(self) -> list[Any]:
        """All results, decoded, once the request is complete."""
        return [d.value() async for d in self]

    def __aiter__(self) -> AsyncRequest:
        return self

    async def __anext__(self) -> Delivery:
        self._finish_last()
        if not await wait_for_change(self._session, self._result_ready, self, self._wait_seconds()):
            raise self._unknown_end()
        with self._session.locked:
            d = self._take_result()
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
        return self._enter(await _arun_for(self._task, check_unused(self._work)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(kind)


class AsyncBuffer:
    """The result of `AsyncTask.reserve`: await it for a Buffer, or use it in `async with`."""

    __slots__ = ("_task", "_work", "_buffer")

    def __init__(self, task: AsyncTask, work: Work[Buffer]) -> None:
        self._task, self._work = task, work
        self._buffer: Buffer | None = None

    def __await__(self) -> Generator[Any, Any, Buffer]:
        return _arun_for(self._task, check_unused(self._work)).__await__()

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
        """Emit a value: tensors and arrays as tensors, values that contain them as bundles, others as msgpack."""
        await _arun_for(self, self._emit_work(value, self._envelope(self._current_delivery, to, key, attrs, last), codec))

    async def emit_bytes(
        self, data: Any, *, to: str | None = None, key: str = "", attrs: wire.Attrs | None = None, last: bool = False
    ) -> None:
        """Emit raw bytes: any contiguous buffer, copied once."""
        await _arun_for(self, self._emit_work(data, self._envelope(self._current_delivery, to, key, attrs, last), codecs.RAW))

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
        work = self._reserve_work(size, codecs.TENSOR, self._envelope(self._current_delivery, to, key, attrs, last))
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
        """Forward the payload of an unfinished delivery by reference, without a copy."""
        delivery._check_unfinished()
        rest = self._forward(self._envelope(delivery.number, to, key, attrs, last))
        if rest is not None:
            await _arun_for(self, rest)

    def reserve(self, size: int, *, codec: int = codecs.RAW, to: str | None = None) -> AsyncBuffer:
        """A buffer for a payload of up to `size` bytes, to be filled in place and sent."""
        return AsyncBuffer(self, self._reserve_work(size, codec, self._envelope(self._current_delivery, to)))

    def _emit_for(self, delivery: int, value: Any, *, codec: int | None = None, **options: Any) -> Awaitable[None]:
        return _arun_for(self, self._emit_work(value, self._envelope(delivery, **options), codec))
