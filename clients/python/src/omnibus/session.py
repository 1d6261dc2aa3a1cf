"""A session: one connection to the host, and the dispatch of its messages to tasks, requests and futures.

The socket is in `connection`, the lock in `sessionbase`, the choice of the reading thread in `socketreader`, open
questions in `futures`, and shared memory in `segments`.

A session has no thread. One lock guards all state, and is never held while a thread waits for the host. Messages are
handled under the lock; callbacks of users are called after it is released.

Handlers of messages are methods `_on_…`. A message that breaks the protocol ends the session, and so does the host's
death. Every open question then fails with the session's error, and every task and request ends.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from . import wire
from .errors import HostGone, OmnibusError, OutOfMemory, ProtocolError, Refused, again
from .futures import Future, PolledFutures, Questions
from .scoreboard import Scoreboard
from .segments import HOST_BYTES, BlockAllocator, HostSegments
from .sessionbase import SessionBase
from .socketreader import SocketReader
from .threadpool import blocking, in_pool

log = logging.getLogger("omnibus")

_T = TypeVar("_T")

#: Packets handled before the lock is released to other threads.
_PACKETS_A_TURN = 64

#: A generator that waits for futures, run by threads and by event loops alike:
#: it yields a future and is resumed when the future is done.
Work = Generator[Future, Any, _T]


class OutOfTime(Exception):
    """The limit of some work passed before a future was done. The caller that gave the limit translates it."""


class Source(Protocol):
    """A task or a request: the receiver of deliveries and of `over`. Called with the lock held."""

    def _receive_delivery(self, m: wire.Deliver) -> None: ...

    def _receive_over(self, m: wire.Over) -> None: ...

    def _session_ended(self, error: OmnibusError) -> None: ...


class ServedStage(Protocol):
    """A stage that this session serves. Called with the lock held."""

    def _open_task(self, m: wire.Open) -> Source: ...

    def _end_inputs(self, task: Any) -> None: ...

    def _on_change(self) -> None: ...


class Session(SessionBase):
    """A connection after its handshake. Safe from any thread of the process that made it."""

    def __init__(self, sock: socket.socket, welcome: wire.Welcome) -> None:
        super().__init__(sock)
        self.welcome = welcome
        self.draining = False
        self.host_said_bye = False
        self.reader = SocketReader(self, self.lock)
        self.questions = Questions(self)
        self.polled = PolledFutures(self)

        self.stages: dict[int, ServedStage] = {}
        self.sources: dict[int, Source] = {}
        self.requests = 0  # the number of the last request
        self.pending_submits: set[int] = set()  # numbers of requests that the host has not answered yet
        # A waiting submit was logged; reset when half of the pending ones are answered.
        self.warned_submit_waits = False
        self.host_segments = HostSegments()
        self.allocator = BlockAllocator(self.post)
        self.arena_bytes = 0  # bound of the arena for emissions; 0: the default
        self.largest_bytes = welcome.largest_mib << 20  # bound of a payload; 0: the host does not say
        if self.largest_bytes:
            self.allocator.max_bytes = self.largest_bytes + HOST_BYTES
        if welcome.segments:
            self.allocator.limit_segments(welcome.segments)
        self.inline_bytes = wire.MAX_INLINE_BYTES  # payloads up to this size travel in messages
        self.loop: Any = None  # the event loop that reads the socket; None: threads do
        self.gpu: Any = None  # a gpu.lane.Lane, created for the first tensors on a GPU
        self.gpu_options: Any = None  # gpu.Options
        self.scoreboard: Scoreboard | None = None  # created when the session serves its first stage
        self.sender: Any = None  # a gpu.sender.Sender, likewise

        answer = self.questions.on_answer
        # Called with the message, and its descriptor or a tuple of several.
        self._handlers: dict[type, Callable[[Any, Any], None]] = {
            wire.Failed: self.questions.on_failed,
            wire.Serving: answer,
            wire.Submitted: self._on_submitted,
            wire.Placed: answer,
            wire.Fetched: answer,
            wire.Cleaned: answer,
            wire.Published: answer,
            wire.Found: answer,
            wire.Reply: self.questions.on_reply,
            wire.Open: self._on_open,
            wire.Deliver: self._on_deliver,
            wire.End: self._on_end,
            wire.Over: self._on_over,
            wire.Segment: self.host_segments.on_segment,
            wire.Forget: self.host_segments.on_forget,
            wire.Returned: self._on_returned,
            wire.Spent: self._on_spent,
            wire.Drain: self._on_drain,
            wire.Refuse: self._on_refuse,
            wire.Bye: self._on_bye,
        }

    # Waiting.

    def fileno(self) -> int:
        """A descriptor that is readable when `process` has something to do."""
        return self.connection.fileno()

    def process(self) -> None:
        """Handle arrived messages. Does not wait."""
        with self.locked:
            self.receive()
            self.notify()  # also without messages: it may have been a `wake`

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `done()`, which is called with the lock held. Returns False after the timeout, in seconds.

        Raises the session's error if it ends first. A pool thread releases its run permit meanwhile.
        """
        self.check_process()  # before a forked child touches its copy of the thread pool
        if timeout is not None and timeout <= 0:
            self.process()  # messages that have arrived count as in time
        if self.corking_thread:
            with self.locked:
                self.corking_thread = 0  # releasing the lock sends the corked messages before this thread waits
        if in_pool():
            with blocking():
                return self.reader.wait(done, timeout)
        return self.reader.wait(done, timeout)

    def wait_as_standby(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """wait, for the standby thread, which reads only when no waiting thread does."""
        return self.reader.standby.wait(done, timeout)

    def read_until(self, done: Callable[[], bool]) -> bool:
        """wait. Returns False if the session has ended."""
        try:
            return self.reader.wait(done, None)
        except OmnibusError:
            return False

    def request_reader(self) -> None:
        """Make the standby thread read at once, unless another thread reads."""
        with self.locked:
            self.reader.standby.read_now()

    def wake_when_readable(self, fd: int) -> None:
        """Wake the reading thread when bytes arrive in a pipe, which the caller owns."""
        self.connection.wake_when_readable(fd)

    def notify(self) -> None:
        """Wake the waiting threads whose condition holds. The lock is held."""
        if self.polled:
            self.polled.poll()
        self.reader.notify()

    # Work and its futures.

    def run(self, work: Work[_T], limit: float | None = None) -> _T:
        """Run work and wait for its futures. Raises OutOfTime if one is not done by the limit, by time.monotonic."""
        try:
            a = next(work)
            while True:
                if not a.done:
                    self._await_future(work, a, limit)
                a = resume(work, a)
        except StopIteration as s:
            return s.value  # type: ignore[no-any-return]

    def _await_future(self, work: Work[Any], a: Future, limit: float | None) -> None:
        """Wait for a future that work has yielded."""
        soonest = min((t for t in (a.limit, limit) if t is not None), default=None)
        try:
            if not self.wait(lambda: a.done, None if soonest is None else max(soonest - time.monotonic(), 0)):
                if soonest == limit:
                    raise OutOfTime
                self.polled.expire(a)
        except BaseException:
            self.questions.abandon(a)
            work.close()
            raise

    # Receiving.

    def receive(self, done: Callable[[], bool] | None = None) -> None:
        """Handle arrived packets until `done()`. The lock is held, and the caller calls `notify`."""
        c = self.connection
        if c.woken:
            c.clear_wake()
        for _ in range(_PACKETS_A_TURN):
            if self.error is not None:
                return
            try:
                received = c.receive()
            except (HostGone, ProtocolError, OutOfMemory) as e:
                self._fail_by(e)
                return
            if received is None:
                return
            packet, fds = received
            try:
                self._handle_packet(packet, fds)
            except (ProtocolError, OutOfMemory) as e:
                self._fail_by(e)
            finally:
                for fd in fds:
                    os.close(fd)
            if done is not None and done():
                return
        # There may be more packets: the descriptor stays readable, and other threads get the lock.

    def _fail_by(self, e: OmnibusError) -> None:
        if not isinstance(e, HostGone):
            log.error("the connection ends: %s", e)
        self._fail(again(e))

    def _handle_packet(self, packet: bytes, fds: deque[int]) -> None:
        handlers = self._handlers
        for m, n in wire.decode(packet, len(fds)):
            handle = handlers.get(m.__class__)
            if m is None:  # of an unknown kind that the sender marked as skippable
                for _ in range(n):
                    os.close(fds.popleft())
                continue
            if handle is None:
                raise ProtocolError(f"{type(m).__name__.lower()} is not for a client")
            taken = None
            if n:
                several = tuple(fds.popleft() for _ in range(n))
                taken = several if n > 1 else several[0]
            handle(m, taken)
            if self.error is not None:
                return

    def _on_open(self, m: wire.Open, _: int | None) -> None:
        stage = self.stages.get(m.stage)
        if stage is None or m.task in self.sources:
            raise ProtocolError(f"task {m.task} at stage {m.stage}: no such stage, or the task is open")
        self.sources[m.task] = stage._open_task(m)

    def _on_deliver(self, m: wire.Deliver, _: int | None) -> None:
        source = self.sources.get(m.source)
        if source is None:
            raise ProtocolError(f"delivery {m.delivery} is for source {m.source}, which is not open")
        source._receive_delivery(m)

    def _on_end(self, m: wire.End, _: int | None) -> None:
        task = self.sources.get(m.task)
        stage = getattr(task, "_stage", None)
        if stage is None:
            raise ProtocolError(f"the end of task {m.task}, which is not open")
        stage._end_inputs(task)

    def _on_over(self, m: wire.Over, _: int | None) -> None:
        source = self.sources.get(m.source)
        # A task that ended at the same time may be forgotten already.
        if source is not None:
            source._receive_over(m)

    def _on_submitted(self, m: wire.Submitted, _: int | None) -> None:
        begun = getattr(self.sources.get(m.source), "_resolve_begin", None)
        if begun is None:
            raise ProtocolError(f"submitted names source {m.source}, which is no request that is open")
        begun()

    def _on_returned(self, m: wire.Returned, _: int | None) -> None:
        for put in m.puts:
            self.allocator.returned(put)

    def _on_spent(self, m: wire.Spent, _: int | None) -> None:
        self.allocator.spent(m.put, bool(m.flags & wire.SPENT_BYTES))

    def _on_drain(self, _m: wire.Drain, _: int | None) -> None:
        self.draining = True
        for stage in self.stages.values():
            stage._on_change()

    def _on_refuse(self, m: wire.Refuse, _: int | None) -> None:
        self._fail(Refused(m.code, m.text))

    def _on_bye(self, _m: wire.Bye, _: int | None) -> None:
        self.host_said_bye = True
        self._fail(HostGone("the host has said bye"))

    # The end.

    def _fail(self, error: OmnibusError) -> None:
        """End the session. The lock is held."""
        if self.error is not None:
            return
        self.error = error
        self.connection.close_socket()
        self.viewed_payloads.clear()
        self.host_segments.clear()
        self.gpu = self.sender = self.scoreboard = None
        self.questions.fail(error)
        self.polled.fail(error)
        self.allocator.session_ended()
        self.pending_submits.clear()
        sources, self.sources = self.sources, {}
        for source in sources.values():
            source._session_ended(error)
        for stage in self.stages.values():
            stage._on_change()
        self.notify()

    def close(self) -> None:
        """Close the connection. Sends `bye` only if no payload of the host is held. Idempotent."""
        with self.locked:
            if self.error is None:
                if self.sender is not None:
                    self.sender.report_locked()
                if not self.viewed_payloads and not any(getattr(s, "_holds_deliveries", False) for s in self.sources.values()):
                    self.post(wire.Bye())
                self.viewed_payloads.release_gone_locked()
                self.flush()
                self._fail(HostGone("the connection was closed here"))
            self.closed = True
            self.close_descriptors()

    def close_descriptors(self) -> None:
        """Close the descriptors of `fileno` and `wake` if the session is closed and no thread reads. The lock is held.
        """
        if self.closed and not self.reader.reading_thread:
            self.connection.close()


def resume(work: Work[_T], a: Future) -> Future:
    """Resume work with a future that is done. Returns the next future it waits for."""
    return work.send(a.value) if a.error is None else work.throw(again(a.error))
