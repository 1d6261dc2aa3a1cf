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
from .answers import Answer, Attempt
from .delivery import Delivery
from .directory import Found, Name, find_work, publish_work, withdraw
from .errors import Code, HostGone, OmnibusError, ProtocolError
from .exchange import Exchange
from .handshake import dial, shake_hands, socket_path
from .request import Request, first_work, in_time, stream_work
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
    """Connect to a host. `name` is for people who look at the bus, `gpu` for those who send tensors of one.

    `allow_uids` are users whose host may be connected to, besides this process's own.

    Raises HostGone when nobody listens, Untrusted when the host may be another user's, Refused when
    the host does not want this client, ProtocolError when it is no host.
    """
    return Client(open_session(dial(socket_path(path, bus), allow_uids), bus, name, gpu))


def open_session(sock: socket.socket, bus: str | None, name: str | None, gpu: Options | None = None) -> Session:
    """A session over a socket that is connected, which it takes."""
    welcome = shake_hands(sock, bus, name)
    try:
        s = Session(sock, welcome)
    except OSError as e:
        sock.close()
        raise HostGone(f"there can be no connection to the host: {e.strerror or e}") from e
    s.gpu_options = gpu
    return s


class BaseClient:
    """What `Client` and `AsyncClient` have in common."""

    def __init__(self, s: Session) -> None:
        self._session = s
        self._pulls: dict[str, tuple[Pull, Answer]] = {}  # and to `serve`; the session's lock

    @property
    def bus(self) -> str:
        """The name of the bus."""
        return self._session.welcome.bus

    @property
    def inputs(self) -> list[wire.Edge]:
        """The edges that take what callers send."""
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

        For event loops of others. Only wait for it to be readable: nothing else.
        """
        self._session.check_process()
        return self._session.fileno()

    def process(self) -> None:
        """Handle what has arrived, without waiting."""
        self._session.process()

    def withdraw(self, name: Name) -> None:
        """Take back what this client has published under a name: nobody finds it any more."""
        withdraw(self._session, name)

    def _serve_work(self, stage: str, kind: type[BaseTask], consumer: Consumer) -> Work[Stage]:
        with self._session.locked:
            a = self._ask_to_serve(stage, kind, consumer)
        served: Stage = yield a
        return served

    def _ask_to_serve(self, stage: str, kind: type[BaseTask], consumer: Consumer) -> Answer:
        """Ask to serve a stage. The lock is held."""
        s, ends = self._session, bool(getattr(consumer, "ends_unasked", False))
        if s.scoreboard is None:
            fd = scoreboard.memory()
            s.scoreboard = scoreboard.Scoreboard(fd)
            s.post(wire.Scoreboard(), fd)

        def accept(m: wire.Serving, _: int | None) -> Stage:
            served = Stage(s, m, stage, kind, consumer, ends)
            s.stages[m.stage] = served  # tasks may follow in the same packet
            return served

        return s.questions.ask_locked(Answer(wire.Serving, accept), lambda token: wire.Serve(token, stage, wire.ENDS_UNASKED if ends else 0))

    def _pull_work(self, stage: str | None, kind: type[BaseTask]) -> Work[Pull]:
        """Serve a stage by pulling: the same for all who do, and asked anew when it was refused."""
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
            yield from self._call_work("status", None)  # all tasks that were opened before are known then
        except (ProtocolError, HostGone):
            raise
        except OmnibusError:
            pass  # an answer, whatever it is
        with self._session.locked:
            for pull, _ in self._pulls.values():
                pull.left = True
                pull.news()

    def _drain_work(self, timeout: float | None) -> Work[bool]:
        s = self._session
        if timeout is not None and timeout <= 0:
            s.process()  # what has come by now is in time
        with s.locked:
            if not s.room.keeping:
                return True
        a = Attempt(lambda: None if s.room.keeping else True, object())
        a.limit = None if timeout is None else time.monotonic() + timeout
        return bool((yield s.attempts.make(a)))

    def _call_work(self, method: str, arguments: Any) -> Work[Any]:
        body = json.dumps(arguments).encode() if arguments is not None else b""
        reply = yield self._session.questions.ask(wire.Reply, lambda token: wire.Call(token, method, body))
        try:
            return json.loads(reply) if reply else None
        except ValueError as e:
            raise ProtocolError(f"the reply to {method} is not JSON: {e}") from None


class Client(BaseClient):
    """A connection to a bus. Safe from any thread of the process that made it.

    Whoever waits reads the socket; there is no thread behind it. So a task's
    `aborted` turns true when somebody waits, iterates or calls `process`; `run`
    has a thread for that.
    """

    @property
    def gpu(self) -> Sender:
        """Memory of a GPU to send tensors from, and what was sent how."""
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

        Does not wait for the host to begin it: what the host refuses has no results, and asking for them raises why.
        A client has at most 1,024 requests that the host has not begun: one more waits, and the log says so.
        With `fail_fast` it waits for that, and raises Overloaded when there is no place. `timeout` is
        in seconds from now, `deadline` in seconds since 1970, by this process's clock: when it is over there is
        DeadlineExceeded. A host that is stopped meanwhile is waited for until a second after it.
        """
        work, limit = first_work(
            Request, self._session, timeout, deadline, fail_fast, trace, value, to, key, attrs, codec
        )
        with in_time():
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
        work, limit = stream_work(Request, self._session, timeout, deadline, fail_fast, trace)
        with in_time():
            return self._session.run(work, limit)

    def call(self, method: str, arguments: Any = None) -> Any:
        """Ask about the bus: status, stats, stalls, check, leases, abort, drain."""
        return self._session.run(self._call_work(method, arguments))

    def serve(self, stage: str, consumer: Consumer) -> Stage:
        """Serve a stage by a consumer of its own making; see `deliveries` and `run`."""
        return self._session.run(self._serve_work(stage, Task, consumer))

    def exchange(self, arena_bytes: int | None = None) -> Exchange:
        """An end of the exchange: payloads under keys, for all processes of this host.

        `arena_bytes` bounds the memory that the client shares, as it needs it, for what is put here; None: the memory that
        the host and this process may use does.
        """
        return Exchange(self._session, arena_bytes)

    def publish(self, name: Name, fd: int, size: int) -> None:
        """Put a descriptor under a name, until `withdraw` or the end of this client.

        The descriptor stays the caller's. `size` is for those who find it. Raises Taken when
        another descriptor has the name, Overloaded when the directory takes no more.
        """
        self._session.run(publish_work(self._session, name, fd, size))

    def find(self, name: Name) -> Found:
        """Find what a process has published under a name. Raises Nothing when none has, or it is dead."""
        return self._session.run(find_work(self._session, name))

    def deliveries(self, stage: str | None = None) -> Iterator[Delivery]:
        """Serve a stage and iterate over its deliveries, each to be finished, in any order.

        The stage is $OMNIBUS_STAGE by default. Ends when the host says goodbye,
        or, after `leave` or when the host drains, once no task is open; raises HostGone if it dies. A
        bare end of a stream is finished unseen.
        """
        return self._pull(self._session.run(self._pull_work(stage, Task)))

    def _pull(self, pull: Pull) -> Iterator[Delivery]:
        s = self._session
        while True:
            try:
                s.wait(pull.ready)
            except HostGone:
                if s.said_bye or s.draining:
                    return
                raise
            with s.locked:
                if not pull.ready():
                    continue  # somebody else has taken it, or it was taken back
                d = pull.take()
            if d is None:
                return
            yield d

    def leave(self) -> None:
        """Have no more tasks opened here; those that are open go on."""
        self._session.run(self._leave_work())

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nobody needs what was sent from here of a GPU's memory: others find it only until this client is
        closed. False: the time, in seconds, is up."""
        return self._session.run(self._drain_work(timeout))

    def close(self) -> None:
        """Leave and close the connection. What is unfinished fails. Idempotent."""
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
        self.left = False
        self._on_news: set[Callable[[], object]] = set()  # changed by whoever waits, without a lock

    def ready(self) -> bool:
        over = self.left or self._session.draining
        return bool(self._queue) or (over and self.stage is not None and not self.stage.tasks)

    def take(self) -> Delivery | None:
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
        for f in self._on_news.copy():
            self._session.call_later(f)
