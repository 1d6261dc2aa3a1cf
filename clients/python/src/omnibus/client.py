"""Connecting to a bus, as a caller, as a stage, or as both. With an event loop: `aio`."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import scoreboard, wire
from .delivery import Delivery
from .directory import Found, Name, find_work, publish_work, withdraw
from .errors import Code, HostGone, OmnibusError, ProtocolError
from .exchange import Exchange
from .futures import Future, PolledFuture
from .handshake import dial, shake_hands, socket_path
from .request import Request, deadline_errors, submit_stream_work, submit_value_work
from .session import Session, Work
from .task import BaseTask, Consumer, Stage, Task, sender_of

if TYPE_CHECKING:
    from .gpu import Options, Sender


def connect(
    path: str | None = None,
    bus: str | None = None,
    name: str | None = None,
    gpu: Options | None = None,
    allow_uids: Iterable[int] = (),
) -> Client:
    """Connect to a host. `name` is shown in the bus's status, `gpu` sets the options for sending GPU tensors.

    `allow_uids` are users whose host is trusted, besides this process's own user.

    Raises HostGone if no host listens, Untrusted if the host may belong to another user, Refused if the host refuses
    this client, ProtocolError if the peer is no host.
    """
    return Client(open_session(dial(socket_path(path, bus), allow_uids), bus, name, gpu))


def open_session(sock: socket.socket, bus: str | None, name: str | None, gpu: Options | None = None) -> Session:
    """A session over a connected socket, which the session owns."""
    welcome = shake_hands(sock, bus, name)
    try:
        s = Session(sock, welcome)
    except OSError as e:
        sock.close()
        raise HostGone(f"cannot set up the connection to the host: {e.strerror or e}") from e
    s.gpu_options = gpu
    return s


class BaseClient:
    """The common base of `Client` and `AsyncClient`."""

    def __init__(self, s: Session) -> None:
        self._session = s
        # By stage, with the future of `serve`; guarded by the session's lock.
        self._pulls: dict[str, tuple[Pull, Future]] = {}

    @property
    def bus(self) -> str:
        """The name of the bus."""
        return self._session.welcome.bus

    @property
    def inputs(self) -> list[wire.Edge]:
        """The edges that take callers' inputs."""
        return self._session.welcome.inputs

    @property
    def results(self) -> list[wire.Edge]:
        """The edges that bring results."""
        return self._session.welcome.results

    @property
    def draining(self) -> bool:
        """Whether the host is going to stop."""
        return self._session.draining

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self._session.error is not None

    def fileno(self) -> int:
        """A descriptor that is readable when `process` has something to do.

        For event loops of other libraries. Only wait for it to be readable.
        """
        self._session.check_process()
        return self._session.fileno()

    def process(self) -> None:
        """Handle arrived messages, without waiting."""
        self._session.process()

    def withdraw(self, name: Name) -> None:
        """Withdraw the descriptor that this client has published under a name: `find` finds it no more."""
        withdraw(self._session, name)

    def _serve_work(self, stage: str, kind: type[BaseTask], consumer: Consumer) -> Work[Stage]:
        with self._session.locked:
            a = self._ask_to_serve(stage, kind, consumer)
        served: Stage = yield a
        return served

    def _ask_to_serve(self, stage: str, kind: type[BaseTask], consumer: Consumer) -> Future:
        """Ask to serve a stage. The lock is held."""
        s, ends = self._session, bool(getattr(consumer, "ends_unasked", False))
        if s.scoreboard is None:
            fd = scoreboard.create_memory()
            s.scoreboard = scoreboard.Scoreboard(fd)
            s.post(wire.Scoreboard(), fd)

        def accept(m: wire.Serving, _: int | None) -> Stage:
            served = Stage(s, m, stage, kind, consumer, ends)
            s.stages[m.stage] = served  # `open` messages may follow in the same packet
            return served

        return s.questions.ask_locked(Future(wire.Serving, accept), lambda token: wire.Serve(token, stage, wire.ENDS_UNASKED if ends else 0))

    def _pull_work(self, stage: str | None, kind: type[BaseTask]) -> Work[Pull]:
        """Serve a stage by pulling. All callers share one `Pull`; a refused `serve` is sent again."""
        s, name = self._session, stage or os.environ.get("OMNIBUS_STAGE", "")
        with s.locked:
            pull, a = self._pulls.get(name) or (None, None)
            if pull is None or a is None or a.error is not None:
                pull = Pull(s)
                a = self._ask_to_serve(name, kind, pull)
                self._pulls[name] = pull, a
        pull.stage = yield a
        return pull

    def _leave_work(self) -> Work[None]:
        self._session.tell(wire.Leave())
        try:
            yield from self._call_work("status", None)  # its answer comes behind every `open` that was sent before
        except (ProtocolError, HostGone):
            raise
        except OmnibusError:
            pass  # any answer will do
        with self._session.locked:
            for pull, _ in self._pulls.values():
                pull.has_left = True
                pull.news()

    def _drain_work(self, timeout: float | None) -> Work[bool]:
        s = self._session
        if timeout is not None and timeout <= 0:
            s.process()  # messages that have arrived count as in time
        with s.locked:
            if not s.allocator.retains_memory:
                return True
        a = PolledFuture(lambda: None if s.allocator.retains_memory else True, object())
        a.limit = None if timeout is None else time.monotonic() + timeout
        return bool((yield s.polled.add(a)))

    def _call_work(self, method: str, arguments: Any) -> Work[Any]:
        body = json.dumps(arguments).encode() if arguments is not None else b""
        reply = yield self._session.questions.ask(wire.Reply, lambda token: wire.Call(token, method, body))
        try:
            return json.loads(reply) if reply else None
        except ValueError as e:
            raise ProtocolError(f"the reply to {method} is not JSON: {e}") from None


class Client(BaseClient):
    """A connection to a bus. Safe from any thread of the process that made it.

    A thread that waits reads the socket; the client has no thread of its own. So a
    task's `aborted` turns true only while a thread waits, iterates or calls
    `process`; `run` has a thread for that.
    """

    @property
    def gpu(self) -> Sender:
        """GPU memory to send tensors from, and counters of sent tensors by transport."""
        return sender_of(self._session)

    def submit(
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
    ) -> Request:
        """Submit a request of one input, and return it for its results.

        Does not wait for the host to begin it: iterating over a refused request raises the refusal. A client has at
        most 1,024 requests that the host has not begun; a further submit waits, and logs that. With `fail_fast` it
        waits until the host has begun the request, and raises Overloaded if the host has no permit for it. `timeout` is
        in seconds from now, `deadline` in seconds since 1970, by this process's clock; after it, DeadlineExceeded is
        raised. The client waits for a stopped host until a second after the deadline.
        """
        work, limit = submit_value_work(
            Request, self._session, timeout, deadline, fail_fast, trace, value, to, key, attrs, codec
        )
        with deadline_errors():
            return self._session.run(work, limit)

    def stream(
        self,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        fail_fast: bool = False,
        trace: wire.Trace | None = None,
    ) -> Request:
        """Submit a request whose inputs are sent one by one, until `close_send`. Waits until the host has begun it."""
        work, limit = submit_stream_work(Request, self._session, timeout, deadline, fail_fast, trace)
        with deadline_errors():
            return self._session.run(work, limit)

    def call(self, method: str, arguments: Any = None) -> Any:
        """Call an admin method of the bus: status, stats, stalls, check, leases, abort, drain."""
        return self._session.run(self._call_work(method, arguments))

    def serve(self, stage: str, consumer: Consumer) -> Stage:
        """Serve a stage by a custom consumer; see `deliveries` and `run` for the usual ways."""
        return self._session.run(self._serve_work(stage, Task, consumer))

    def exchange(self, arena_bytes: int | None = None) -> Exchange:
        """An end of the exchange: payloads under keys, for all processes of this host.

        `arena_bytes` bounds the memory that the client shares for its puts, which it allocates as needed; None: only the
        memory that the host and this process may use bounds it.
        """
        return Exchange(self._session, arena_bytes)

    def publish(self, name: Name, fd: int, size: int) -> None:
        """Publish a descriptor under a name, until `withdraw` or the end of this client.

        The descriptor stays the caller's. `size` is told to the processes that find it. Raises Taken if
        another descriptor has the name, Overloaded if the directory is full.
        """
        self._session.run(publish_work(self._session, name, fd, size))

    def find(self, name: Name) -> Found:
        """Find the descriptor that a process has published under a name. Raises Nothing if there is none, or its owner
        is dead."""
        return self._session.run(find_work(self._session, name))

    def deliveries(self, stage: str | None = None) -> Iterator[Delivery]:
        """Serve a stage and iterate over its deliveries, each to be finished, in any order.

        The stage is $OMNIBUS_STAGE by default. Ends when the host sends `bye` or, after `leave` or while
        the host drains, once no task is open. Raises HostGone if the host dies. A
        delivery without a payload is finished without being yielded.
        """
        return self._pull(self._session.run(self._pull_work(stage, Task)))

    def _pull(self, pull: Pull) -> Iterator[Delivery]:
        s = self._session
        while True:
            try:
                s.wait(pull.ready)
            except HostGone:
                if s.host_said_bye or s.draining:
                    return
                raise
            with s.locked:
                if not pull.ready():
                    continue  # another thread has taken the delivery, or its request has ended
                d = pull.pop()
            if d is None:
                return
            yield d

    def leave(self) -> None:
        """Tell the host to open no more tasks here. Open tasks go on."""
        self._session.run(self._leave_work())

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until no process needs the GPU memory that this client has sent: others can find it only until the client is
        closed. Returns False after the timeout, in seconds."""
        return self._session.run(self._drain_work(timeout))

    def close(self) -> None:
        """Leave and close the connection. Unfinished deliveries fail. Idempotent."""
        self._session.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Pull:
    """The consumer behind a pull loop."""

    def __init__(self, s: Session) -> None:
        self._session = s
        self._queue: deque[Delivery] = deque()
        self.stage: Stage | None = None
        self.has_left = False
        self._on_change: set[Callable[[], object]] = set()  # changed by waiting loops, without a lock

    def ready(self) -> bool:
        over = self.has_left or self._session.draining
        return bool(self._queue) or (over and self.stage is not None and not self.stage.tasks)

    def pop(self) -> Delivery | None:
        return self._queue.popleft() if self._queue else None

    # As a consumer; called with the lock held.

    def delivered(self, task: BaseTask, parts: list[Delivery]) -> None:
        for d in parts:
            if d.bare:
                d._finish()
            else:
                self._queue.append(d)
        self.news()

    def ended(self, task: BaseTask) -> None:
        task._answer_end(Code.OK, "")

    def over(self, task: BaseTask) -> None:
        mine = [d for d in self._queue if d.task is task]
        self._queue = deque(d for d in self._queue if d.task is not task)
        for d in mine:
            d._finish(Code.OVER)

    def news(self) -> None:
        self._session.notify()
        for f in self._on_change.copy():
            self._session.call_unlocked(f)
