"""One connection to the host, and who is told of what comes over it: tasks, requests, and whoever asked.

Here is the way of each message to its handler, and the end. The socket is in `connection`, the lock in `locked`, who
reads in `reading`, what was asked in `answers`, and shared memory in `room`.

There is no thread in here. All state is
behind one lock, which is never held while waiting for the host. Messages are
handled under the lock; functions that leave this package's hands are called after
it is let go.

Handlers of messages are methods `_on_…`. What is read from the host and breaks
the protocol ends the session, and so does the host's death: every question is
then answered with the error, and every task and request is told.
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
from .answers import Answer, Attempts, Questions
from .crew import away, in_crew
from .errors import HostGone, OmnibusError, OutOfMemory, ProtocolError, Refused, again
from .locked import Core
from .reading import Reading
from .room import HOST_BYTES, OwnRoom, Segments
from .scoreboard import Scoreboard

log = logging.getLogger("omnibus")

_T = TypeVar("_T")

#: Packets handled before others get the lock.
_PACKETS_A_TURN = 64

#: Work that asks questions, written once and run by threads and by event
#: loops: it yields an answer and is resumed when that is done.
Work = Generator[Answer, Any, _T]


class OutOfTime(Exception):
    """The limit of some work has come before an answer. Whoever gave the limit says what that means."""


class Source(Protocol):
    """A task or a request: what deliveries and `over` are about. Called with the lock held."""

    def _deliver(self, m: wire.Deliver) -> None: ...

    def _over(self, m: wire.Over) -> None: ...

    def _gone(self, error: OmnibusError) -> None: ...


class ServedStage(Protocol):
    """A stage that this session serves. Called with the lock held."""

    def _open(self, m: wire.Open) -> Source: ...

    def _end(self, task: Any) -> None: ...

    def _news(self) -> None: ...


class Session(Core):
    """A connection after its handshake. Safe from any thread of the process that made it."""

    def __init__(self, sock: socket.socket, welcome: wire.Welcome) -> None:
        super().__init__(sock)
        self.welcome = welcome
        self.draining = False
        self.said_bye = False
        self.reading = Reading(self, self.lock)
        self.questions = Questions(self)
        self.attempts = Attempts(self)

        self.stages: dict[int, ServedStage] = {}
        self.sources: dict[int, Source] = {}
        self.requests = 0  # how many were submitted: the number of the last one
        self.opening: set[int] = set()  # numbers of those of which the host has not been heard yet
        self.said_full = False  # the log says that they are too many: again when they have been half as many
        self.segments = Segments()
        self.room = OwnRoom(self.post)
        self.arena_bytes = 0  # of room, for what is emitted; 0: as much as there usually is
        self.largest_bytes = welcome.largest_mib << 20  # of a payload; 0: the host does not say
        if self.largest_bytes:
            self.room.most_bytes = self.largest_bytes + HOST_BYTES
        if welcome.segments:
            self.room.bound_segments(welcome.segments)
        self.inline_bytes = wire.MAX_INLINE_BYTES  # up to which payloads are put in messages
        self.loop: Any = None  # the event loop that reads, if it is one alone that does
        self.gpu: Any = None  # a gpu.lane.Lane, made with the first tensors on a GPU
        self.gpu_options: Any = None  # gpu.Options
        self.scoreboard: Scoreboard | None = None  # of a session that serves stages
        self.sender: Any = None  # a gpu.sender.Sender, likewise

        answer = self.questions.on_answer
        self._handlers: dict[type, Callable[[Any, Any], None]] = {  # with the descriptor, or a tuple of several
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
            wire.Segment: self.segments.on_segment,
            wire.Forget: self.segments.on_forget,
            wire.Returned: self._on_returned,
            wire.Spent: self._on_spent,
            wire.Drain: self._on_drain,
            wire.Refuse: self._on_refuse,
            wire.Bye: self._on_bye,
        }

    # Those who wait.

    def fileno(self) -> int:
        """A descriptor that is readable when `process` has something to do."""
        return self.connection.fileno()

    def process(self) -> None:
        """Handle what has arrived. Does not wait."""
        with self.locked:
            self.receive()
            self.notify()  # also without news: it may have been a poke

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `done()`, which is called with the lock held. False: the time is up.

        Raises the session's error if it ends first. A thread of a crew is away meanwhile.
        """
        self.check_process()  # before a child of the process wakes what it has of a crew
        if timeout is not None and timeout <= 0:
            self.process()  # what has come by now is in time
        if self.more:
            with self.locked:
                self.more = 0  # and what is to be sent leaves, before anybody waits for what comes of it
        if in_crew():
            with away():
                return self.reading.wait(done, timeout)
        return self.reading.wait(done, timeout)

    def stand_by(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """wait, for the one thread that reads only when those who wait have left the socket alone."""
        return self.reading.standby.wait(done, timeout)

    def watch_for(self, done: Callable[[], bool]) -> bool:
        """wait; False: the session has ended."""
        try:
            return self.reading.wait(done, None)
        except OmnibusError:
            return False

    def relieve(self) -> None:
        """Have the thread that stands by read at once, unless somebody does."""
        with self.locked:
            self.reading.standby.called()

    def wake_on(self, fd: int) -> None:
        """Have whoever reads look around when more has come to be read from a descriptor, the caller's."""
        self.connection.wake_on(fd)

    def notify(self) -> None:
        """Have those who wait look again. The lock is held."""
        if self.attempts:
            self.attempts.again()
        self.reading.notify()

    # Work and its answers.

    def run(self, work: Work[_T], limit: float | None = None) -> _T:
        """Do some work and wait for its answers. OutOfTime: not all were there by the limit, of time.monotonic."""
        try:
            a = next(work)
            while True:
                if not a.done:
                    self._await(work, a, limit)
                a = resume(work, a)
        except StopIteration as s:
            return s.value  # type: ignore[no-any-return]

    def _await(self, work: Work[Any], a: Answer, limit: float | None) -> None:
        """Wait for an answer that work waits for."""
        soonest = min((t for t in (a.limit, limit) if t is not None), default=None)
        try:
            if not self.wait(lambda: a.done, None if soonest is None else max(soonest - time.monotonic(), 0)):
                if soonest == limit:
                    raise OutOfTime
                self.attempts.expire(a)
        except BaseException:
            self.questions.abandon(a)
            work.close()
            raise

    # Receiving.

    def receive(self, done: Callable[[], bool] | None = None) -> None:
        """Handle what has arrived, until `done()`. The lock is held, and the caller notifies those who wait."""
        c = self.connection
        if c.was_poked:
            c.poked()
        for _ in range(_PACKETS_A_TURN):
            if self.error is not None:
                return
            try:
                received = c.receive()
            except (HostGone, ProtocolError, OutOfMemory) as e:
                self._end_by(e)
                return
            if received is None:
                return
            packet, fds = received
            try:
                self._packet(packet, fds)
            except (ProtocolError, OutOfMemory) as e:
                self._end_by(e)
            finally:
                for fd in fds:
                    os.close(fd)
            if done is not None and done():
                return
        # There may be more: the descriptor stays readable, and others get the lock.

    def _end_by(self, e: OmnibusError) -> None:
        if not isinstance(e, HostGone):
            log.error("the connection ends: %s", e)
        self._fail(again(e))

    def _packet(self, packet: bytes, fds: deque[int]) -> None:
        handlers = self._handlers
        for m, n in wire.decode(packet, len(fds)):
            handle = handlers.get(m.__class__)
            if m is None:  # its sender says that a client which does not know it can go on
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
        self.sources[m.task] = stage._open(m)

    def _on_deliver(self, m: wire.Deliver, _: int | None) -> None:
        source = self.sources.get(m.source)
        if source is None:
            raise ProtocolError(f"delivery {m.delivery} is for source {m.source}, which is not open")
        source._deliver(m)

    def _on_end(self, m: wire.End, _: int | None) -> None:
        task = self.sources.get(m.task)
        stage = getattr(task, "_stage", None)
        if stage is None:
            raise ProtocolError(f"the end of task {m.task}, which is not open")
        stage._end(task)

    def _on_over(self, m: wire.Over, _: int | None) -> None:
        source = self.sources.get(m.source)
        # A task that was ended in the same moment may be forgotten already.
        if source is not None:
            source._over(m)

    def _on_submitted(self, m: wire.Submitted, _: int | None) -> None:
        begun = getattr(self.sources.get(m.source), "_has_begun", None)
        if begun is None:
            raise ProtocolError(f"submitted names source {m.source}, which is no request that is open")
        begun()

    def _on_returned(self, m: wire.Returned, _: int | None) -> None:
        for put in m.puts:
            self.room.returned(put)

    def _on_spent(self, m: wire.Spent, _: int | None) -> None:
        self.room.spent(m.put, bool(m.flags & wire.SPENT_BYTES))

    def _on_drain(self, _m: wire.Drain, _: int | None) -> None:
        self.draining = True
        for stage in self.stages.values():
            stage._news()

    def _on_refuse(self, m: wire.Refuse, _: int | None) -> None:
        self._fail(Refused(m.code, m.text))

    def _on_bye(self, _m: wire.Bye, _: int | None) -> None:
        self.said_bye = True
        self._fail(HostGone("the host has said goodbye"))

    # The end.

    def _fail(self, error: OmnibusError) -> None:
        """End the session. The lock is held."""
        if self.error is not None:
            return
        self.error = error
        self.connection.hang_up()
        self.windows.clear()
        self.segments.clear()
        self.gpu = self.sender = self.scoreboard = None
        self.questions.fail(error)
        self.attempts.fail(error)
        self.room.lost()
        self.opening.clear()
        sources, self.sources = self.sources, {}
        for source in sources.values():
            source._gone(error)
        for stage in self.stages.values():
            stage._news()
        self.notify()

    def close(self) -> None:
        """Leave. Says goodbye only if nothing of the host's is held. Idempotent."""
        with self.locked:
            if self.error is None:
                if self.sender is not None:
                    self.sender.tell_locked()
                if not self.windows and not any(getattr(s, "_holds", False) for s in self.sources.values()):
                    self.post(wire.Bye())
                self.windows.settle_locked()
                self.flush()
                self._fail(HostGone("the connection was closed here"))
            self.closed = True
            self.close_descriptors()

    def close_descriptors(self) -> None:
        """Close what `fileno` and `poke` use, once nobody does. The lock is held."""
        if self.closed and not self.reading.taken:
            self.connection.close()


def resume(work: Work[_T], a: Answer) -> Answer:
    """Go on with work whose question is answered; its next question."""
    return work.send(a.value) if a.error is None else work.throw(again(a.error))
