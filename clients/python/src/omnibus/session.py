"""One connection to the host: packets in and out, and who is told of them.

There is no thread in here. Whoever waits for something reads the socket; if
somebody reads already, the others wait until there is news. One thread may stand
by, and reads when nobody has for a moment. All state is
behind one lock, which is never held while waiting for the host. Messages are
handled under the lock; functions that leave this package's hands are called after
it is let go.

Handlers of messages are methods `_on_…`. What is read from the host and breaks
the protocol ends the session, and so does the host's death: every question is
then answered with the error, and every task and request is told.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Protocol, TypeVar

from . import wire
from .answers import Answer, Attempts
from .crew import away
from .errors import Code, ForkedError, HostGone, OmnibusError, OutOfMemory, ProtocolError, Refused, again, host_error
from .memory import Arena, Mapping
from .room import OwnRoom
from .standby import Standby

log = logging.getLogger("omnibus")

_T = TypeVar("_T")

#: Packets handled before others get the lock, and messages put into a packet.
_PACKETS_A_TURN = 64
_MESSAGES_A_PACKET = 64

_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_ANCILLARY_BYTES = socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * 4)


#: Work that asks questions, written once and run by threads and by event
#: loops: it yields an answer and is resumed when that is done.
Work = Generator[Answer, Any, _T]


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


class _Locked:
    """The session's lock. Letting go of it sends what was posted."""

    __slots__ = ("s",)

    def __init__(self, s: Session) -> None:
        self.s = s

    def __enter__(self) -> None:
        self.s.check_process()
        self.s._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        s = self.s
        calls = None
        try:
            if s._released:
                s._settle_locked()
            if s._outbox:
                s._flush()
            if s._calls:
                calls, s._calls = s._calls, []
        finally:
            s._lock.release()
        if s._released:
            s._settle()
        if calls:
            for call in calls:
                try:
                    call()
                except RuntimeError as e:  # an event loop that is closed
                    log.debug("nobody is there to be told: %s", e)


class Session:
    """A connection after its handshake. Safe from any thread of the process that made it."""

    def __init__(self, sock: socket.socket, welcome: wire.Welcome) -> None:
        self.welcome = welcome
        self.error: OmnibusError | None = None
        self.draining = False
        self.said_bye = False
        self.closed = False  # by `close`: the descriptors go with the last one that reads
        self.locked = _Locked(self)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reading = False
        self._readings = 0  # how often somebody who waits has begun to read
        self._sleepers: list[tuple[Callable[[], bool], threading.Condition]] = []  # wait while another reads
        self._standby = Standby(self)

        sock.setblocking(False)
        self._sock = sock
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # -1: closed
        self._wake_lock = threading.RLock()  # whoever pokes may be interrupted by one who does
        self._poked = False
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)

        # Bounded by what may be answered: questions, deliveries and grants.
        self._outbox: deque[tuple[bytearray, int]] = deque()  # and a descriptor that goes with it, or -1
        self._unheard = False  # the host has closed its end; what it said before is still to be read
        self._clogged = False  # the host does not read as fast as we write
        self._questions: dict[int, Answer] = {}
        self._waiting: deque[tuple[Answer, Callable[[int], Any]]] = deque()  # beyond the bound of open questions
        self._token = 0
        self._calls: list[Callable[[], object]] = []

        self.stages: dict[int, ServedStage] = {}
        self.sources: dict[int, Source] = {}
        self._segments: dict[int, Mapping] = {}
        self._released: deque[Any] = deque()  # windows that died, see view_gone
        self._kept: dict[int, tuple[Any, list[Any]]] = {}  # by id of the window: it, [message, windows left]
        self.room = OwnRoom(self.post)
        self.attempts = Attempts(self)
        self.have_arena: Arena | None = None
        self.arena_bytes = 0  # to ask for; 0: what the windows can need
        self._arena_asked: Answer | None = None
        self.gpu: Any = None  # a gpu.lane.Lane, made with the first tensors on a GPU
        self.gpu_options: Any = None  # gpu.Options
        self.sender: Any = None  # a gpu.sender.Sender, likewise

        self._handlers: dict[type, Callable[[Any, Any], None]] = {  # with the descriptor, or a tuple of several
            wire.Failed: self._on_failed,
            wire.Serving: self._on_answer,
            wire.Emitted: self._on_answer,
            wire.ArenaAt: self._on_answer,
            wire.Grant: self._on_answer,
            wire.Submitted: self._on_answer,
            wire.Placed: self._on_answer,
            wire.Fetched: self._on_answer,
            wire.Cleaned: self._on_answer,
            wire.Published: self._on_answer,
            wire.Found: self._on_answer,
            wire.Reply: self._on_reply,
            wire.Open: self._on_open,
            wire.Deliver: self._on_deliver,
            wire.End: self._on_end,
            wire.Over: self._on_over,
            wire.Segment: self._on_segment,
            wire.Forget: self._on_forget,
            wire.Returned: self._on_returned,
            wire.Spent: self._on_spent,
            wire.Drain: self._on_drain,
            wire.Refuse: self._on_refuse,
            wire.Bye: self._on_bye,
        }

    def __del__(self) -> None:
        # In a child this closes the child's own descriptors, and sends nothing.
        if getattr(self, "_wake", -1) >= 0:
            os.close(self._wake)

    # Processes and threads.

    def check_process(self) -> None:
        """Raise ForkedError in a child of the process that connected."""
        if os.getpid() != self._pid:
            raise ForkedError(f"the connection belongs to process {self._pid}, and this is {os.getpid()}: connect here")

    def fileno(self) -> int:
        """A descriptor that is readable when `process` has something to do."""
        return self._epoll.fileno()

    def process(self) -> None:
        """Handle what has arrived. Does not wait."""
        with self.locked:
            self._receive()
            self.attempts.again()  # it may have been a poke

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `done()`, which is called with the lock held. False: the time is up.

        Raises the session's error if it ends first. A thread of a crew is away meanwhile.
        """
        with away():
            return self._wait(done, timeout)

    def _wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        limit = None if timeout is None else time.monotonic() + timeout
        well = False
        try:
            while True:
                left = None if limit is None else limit - time.monotonic()
                with self.locked:
                    if done():
                        well = True
                        self._relieve()
                        return True
                    if self.error is not None:
                        raise again(self.error)
                    if left is not None and left <= 0:
                        return False
                    if self._reading:
                        self._sleep(done, left)
                        continue
                    self._reading = True
                    self._readings += 1
                if self._read(done, left):
                    well = True
                    return True
        finally:
            if not well:
                with self.locked:
                    self._relieve()

    def _read(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for packets and handle them, no more of them than it takes until `done()`. True: it is.

        Somebody else is to read then.
        """
        try:
            self._epoll.poll(timeout)
        finally:
            with self.locked:
                self._reading = False
                self._receive(done)
                self._close_descriptors()
                self.notify()  # also without news: it may be a poke
                well = done()
                if well:
                    self._relieve()
        return well

    def _sleep(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Sleep until `done()`, the session's end, or there is nobody who reads. The lock is held."""
        sleeper = done, threading.Condition(self._lock)
        self._sleepers.append(sleeper)
        try:
            sleeper[1].wait(timeout)
        finally:
            self._sleepers.remove(sleeper)

    def _relieve(self) -> None:
        """Have somebody else read, for the caller does not any more. The lock is held."""
        if self._reading:
            return
        if self._sleepers:
            self._sleepers[0][1].notify()
        else:
            self._standby.left()

    def stand_by(self, done: Callable[[], bool]) -> None:
        """wait, for the one thread that reads only when those who wait have left the socket alone."""
        self._standby.wait(done)

    def watch_for(self, done: Callable[[], bool]) -> bool:
        """wait; False: the session has ended."""
        try:
            return self._wait(done, None)
        except OmnibusError:
            return False

    def relieve(self) -> None:
        """Have the thread that stands by read at once, unless somebody does."""
        with self.locked:
            self._standby.called()

    def wake_on(self, fd: int) -> None:
        """Have whoever reads look around when more has come to be read from a descriptor, the caller's."""
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def poke(self) -> None:
        """Have whoever reads look around. Safe in a signal handler."""
        self._poked = True
        with self._wake_lock:
            try:
                os.eventfd_write(self._wake, 1)
            except OSError:
                pass  # it is readable already, or closed

    def notify(self) -> None:
        """Have those who wait look again. The lock is held."""
        self.attempts.again()
        for done, awake in self._sleepers:
            if self.error is not None or done():
                awake.notify()
        self._standby.news()
        if self._reading:
            self.poke()  # one of them waits at the socket

    def call_later(self, f: Callable[[], object]) -> None:
        """Call f when the lock is let go. The lock is held."""
        self._calls.append(f)

    # Questions.

    def ask(
        self,
        kind: type,
        question: Callable[[int], wire.Message],
        accept: Callable[[Any, Any], Any] | None = None,
        orphan: Callable[[Any], None] | None = None,
    ) -> Answer:
        """Send a question; `question` makes the message, given the token."""
        with self.locked:
            return self.ask_locked(Answer(kind, accept, orphan), question)

    def ask_locked(self, a: Answer, question: Callable[[int], wire.Message]) -> Answer:
        """ask, with the lock held."""
        if self.error is not None:
            raise again(self.error)
        if len(self._questions) >= wire.MAX_QUESTIONS:
            self._waiting.append((a, question))
            return a
        token = self._token
        while token in self._questions:
            token = (token + 1) & 0xFFFFFFFF
        self._pose(a, question(token))  # raises if it cannot be sent, and then it was not asked
        self._token = (token + 1) & 0xFFFFFFFF
        self._questions[token] = a
        a.token = token
        return a

    def _pose(self, a: Answer, m: wire.Message) -> None:
        if a.fd < 0:
            self.post(m)
            return
        try:
            fd = os.dup(a.fd)
        except OSError as e:
            raise OutOfMemory(Code.MEMORY, f"no descriptor to send: {e.strerror}") from e
        try:
            self.post(m, fd)
        except BaseException:
            os.close(fd)
            raise

    @property
    def open_questions(self) -> int:
        """How many questions are not answered. The lock is held."""
        return len(self._questions) + len(self._waiting)

    def run(self, work: Work[_T]) -> _T:
        """Do some work and wait for its answers."""
        try:
            a = next(work)
            while True:
                if not a.done:
                    try:
                        left = None if a.limit is None else max(a.limit - time.monotonic(), 0)
                        if not self.wait(lambda: a.done, left):  # noqa: B023
                            self.attempts.expire(a)
                    except BaseException:
                        self.abandon(a)
                        work.close()
                        raise
                a = resume(work, a)
        except StopIteration as s:
            return s.value  # type: ignore[no-any-return]

    def watch(self, a: Answer, f: Callable[[], object]) -> None:
        """Call f, in any thread, when an answer is there."""
        with self.locked:
            if a.done:
                self._calls.append(f)
            else:
                a.watchers.append(f)

    def abandon(self, a: Answer) -> None:
        """Nobody waits for the answer any more: what it brings is given back."""
        if os.getpid() != self._pid:
            return
        with self.locked:
            if a.fd >= 0 and not a.shared:  # which the asker closes now
                self._waiting = deque(w for w in self._waiting if w[0] is not a)
            self.abandon_locked(a)

    def abandon_locked(self, a: Answer) -> None:
        """abandon, with the lock held."""
        a.abandoned = True
        if a.done and a.error is None and a.orphan is not None:
            a.orphan(a.value)

    def cancel(self, a: Answer) -> None:
        """abandon, and have the host forget a question of the exchange that it keeps."""
        if os.getpid() != self._pid:
            return
        with self.locked:
            if a.token is not None and not a.done and a.kind is wire.Fetched:
                self.post(wire.Cancel(a.token))
            self._waiting = deque(w for w in self._waiting if w[0] is not a)
            self.abandon_locked(a)

    def answered(self, a: Answer, value: Any, error: OmnibusError | None) -> None:
        """An answer is there. The lock is held."""
        a.value, a.error, a.done = value, error, True
        if error is not None:
            if a.void is not None:
                a.void()
        elif a.abandoned and a.orphan is not None:
            a.orphan(value)
        self._calls += a.watchers
        while self._waiting and len(self._questions) < wire.MAX_QUESTIONS and self.error is None:
            nxt, question = self._waiting.popleft()
            try:
                self.ask_locked(nxt, question)
            except OmnibusError as e:
                self.answered(nxt, None, e)

    # Sending.

    def post(self, m: wire.Message, fd: int = -1) -> None:
        """Put a message into the outbox. The lock is held; letting it go sends it. Takes the descriptor."""
        if self.error is None and not self._unheard:
            self._outbox.append((wire.encode(m, self.welcome.version, int(fd >= 0)), fd))
        elif fd >= 0:
            os.close(fd)

    def tell(self, m: wire.Message, then: Callable[[], None] | None = None) -> None:
        """Send a message that has no answer. `then` is called with the lock held."""
        with self.locked:
            if self.error is not None:
                raise again(self.error)
            self.post(m)
            if then is not None:
                then()

    def tell_quietly(self, m: wire.Message) -> None:
        """tell, when it does not matter any more if the host is gone."""
        with self.locked:
            self.post(m)

    @staticmethod
    def close_descriptors(fds: int | tuple[int, ...] | None) -> None:
        """Close what a message brought and nobody uses."""
        for fd in (fds,) if isinstance(fds, int) else fds or ():
            os.close(fd)

    def broken(self, text: str) -> ProtocolError:
        """End the session because the host broke the protocol; returns the error."""
        with self.locked:
            self._fail(ProtocolError(text))
        return ProtocolError(text)

    def _flush(self) -> None:
        while self._outbox and self.error is None:
            packet: list[bytearray] = []
            size = 0
            for m, fd in self._outbox:
                size += len(m)
                if packet and (size > wire.MAX_PACKET_BYTES or len(packet) == _MESSAGES_A_PACKET or fd >= 0):
                    break
                packet.append(m)
                if fd >= 0:
                    break
            fd = self._outbox[0][1] if len(packet) == 1 else -1
            try:
                self._sock.sendmsg(packet, _rights(fd), _SEND_FLAGS)
            except OSError as e:
                if e.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._clog(True)
                elif e.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._unheard = True
                    self._drop_outbox()
                else:
                    self._lost(e)
                return
            for _ in packet:
                self._outbox.popleft()
            if fd >= 0:
                os.close(fd)
        self._clog(False)

    def _drop_outbox(self) -> None:
        for _, fd in self._outbox:
            if fd >= 0:
                os.close(fd)
        self._outbox.clear()

    def _clog(self, clogged: bool) -> None:
        if clogged != self._clogged and self.error is None:
            self._clogged = clogged
            self._epoll.modify(self._sock, select.EPOLLIN | (select.EPOLLOUT if clogged else 0))

    # Receiving.

    def _receive(self, done: Callable[[], bool] | None = None) -> None:
        if self._poked:
            self._poked = False
            try:
                os.eventfd_read(self._wake)
            except OSError:
                pass  # somebody read it before, or it is closed
        reset = False
        for _ in range(_PACKETS_A_TURN):
            if self.error is not None:
                return
            try:
                packet, ancillary, flags, _ = self._sock.recvmsg(
                    wire.MAX_PACKET_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS
                )
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno == errno.ECONNRESET and not reset:
                    reset = True  # it is reported before the last packets
                    continue
                self._lost(e)
                return
            if not packet and not ancillary:
                self._fail(HostGone("the host has closed the connection"))
                return
            fds = descriptors(ancillary)
            try:
                if flags & _CUT_SHORT:
                    raise ProtocolError("a packet is too long, or brings too many descriptors")
                self._packet(packet, fds)
            except (ProtocolError, OutOfMemory) as e:
                log.error("the connection ends: %s", e)
                self._fail(again(e))
            finally:
                for fd in fds:
                    os.close(fd)
            if done is not None and done():
                return
        # There may be more: the descriptor stays readable, and others get the lock.

    def _packet(self, packet: bytes, fds: deque[int]) -> None:
        for m, n in wire.decode(packet, len(fds), self.welcome.version):
            handle = self._handlers.get(type(m))
            if handle is None:
                raise ProtocolError(f"{type(m).__name__.lower()} is not for a client")
            taken = tuple(fds.popleft() for _ in range(n))
            handle(m, taken if n > 1 else taken[0] if n else None)
            if self.error is not None:
                return
        self.notify()

    def _on_failed(self, m: wire.Failed, _: int | None) -> None:
        self.answered(self._question(m.token), None, host_error(m.code, m.text))

    def _on_answer(self, m: Any, fds: int | tuple[int, ...] | None) -> None:
        try:
            a = self._question(m.token)
            if a.kind is not type(m):
                raise ProtocolError(f"{type(m).__name__.lower()} answers another question")
        except ProtocolError:
            self.close_descriptors(fds)
            raise
        if a.accept is None:
            self.answered(a, m, None)
            return
        try:
            value = a.accept(m, fds)
        except OmnibusError as e:
            self.answered(a, None, again(e))
            if not isinstance(e, OutOfMemory):
                raise
        else:
            self.answered(a, value, None)

    def _on_reply(self, m: wire.Reply, _: int | None) -> None:
        a = self._questions.get(m.token)
        if a is None or a.kind is not wire.Reply:
            raise ProtocolError("reply answers no question")
        a.pieces.append(m.piece)
        if not m.flags & wire.MORE_PIECES:
            del self._questions[m.token]
            self.answered(a, b"".join(a.pieces), None)

    def _question(self, token: int) -> Answer:
        a = self._questions.pop(token, None)
        if a is None:
            raise ProtocolError(f"an answer to question {token}, which is not open")
        return a

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

    def _on_segment(self, m: wire.Segment, fd: int | None) -> None:
        assert fd is not None
        try:
            if m.segment in self._segments:
                raise ProtocolError(f"segment {m.segment} is there already")
            self._segments[m.segment] = Mapping(fd, m.bytes)
        finally:
            os.close(fd)

    def _on_forget(self, m: wire.Forget, _: int | None) -> None:
        # Its deliveries and views keep the mapping for as long as they last.
        self._segments.pop(m.segment, None)

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

    def segment(self, m: wire.Deliver | wire.Fetched) -> Mapping:
        """The segment that a delivery names, with its payload in bounds."""
        mapping = self._segments.get(m.segment)
        if mapping is None:
            raise ProtocolError(f"delivery {m.delivery} is in segment {m.segment}, which is not here")
        mapping.check(m.offset, m.size)
        return mapping

    # The end.

    def _lost(self, e: OSError) -> None:
        self._fail(HostGone(f"the host is gone: {e.strerror or e}"))

    def _fail(self, error: OmnibusError) -> None:
        """End the session. The lock is held."""
        if self.error is not None:
            return
        try:
            self._epoll.unregister(self._sock)
        except (OSError, ValueError):
            pass
        self.error = error
        self._sock.close()
        self._drop_outbox()
        self._kept.clear()
        self._segments.clear()  # what is still viewed stays mapped
        self.gpu = self.sender = None
        self.have_arena = None
        questions, self._questions = self._questions, {}
        waiting, self._waiting = self._waiting, deque()
        for a in [*questions.values(), *(a for a, _ in waiting)]:
            self.answered(a, None, error)
        self.attempts.fail(error)
        self.room.lost()
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
                if not self._kept and not any(getattr(s, "_holds", False) for s in self.sources.values()):
                    self.post(wire.Bye())
                self._settle_locked()
                self._flush()
                self._fail(HostGone("the connection was closed here"))
            self.closed = True
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        """Close what `fileno` and `poke` use. The lock is held."""
        if not self.closed or self._reading:
            return
        self._epoll.close()
        with self._wake_lock:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    # Views.

    def keep_windows(self, last: wire.Message, windows: list[Any]) -> None:
        """These windows (weak references) still show a payload: `last` gives it back when they are gone."""
        left = [last, len(windows)]
        for w in windows:
            self._kept[id(w)] = (w, left)

    def forget_window(self, window: Any) -> None:
        """Undo keep_windows, for one window alone. The lock is held."""
        self._kept.pop(id(window), None)

    def view_gone(self, window: Any) -> None:
        """The last view of a window is gone. Called in any thread, in the middle of anything."""
        self._released.append(window)
        if os.getpid() == self._pid:
            self._settle()

    def _settle(self) -> None:
        while self._released and self.error is None:
            if not self._lock.acquire(blocking=False):
                # Whoever holds the lock settles before or after it lets go,
                # and whoever reads does so if that one went to wait.
                self.poke()
                return
            try:
                self._settle_locked()
                self._flush()
            finally:
                self._lock.release()

    def _settle_locked(self) -> None:
        while self._released:
            window = self._released.popleft()
            kept = self._kept.pop(id(window), None)
            if kept is not None:
                left = kept[1]
                left[1] -= 1
                if left[1] == 0:
                    self.post(left[0])

    # Memory to write.

    def arena(self) -> Work[Arena]:
        """The arena, asked for once."""

        def accept(m: wire.ArenaAt, fd: int) -> Arena:
            self._arena_asked = None
            self.have_arena = self.map_arena(m.segment, fd, m.bytes)
            self.post(wire.Sealed(m.segment))
            return self.have_arena

        with self.locked:
            if self.have_arena is not None:
                return self.have_arena
            if self._arena_asked is None or self._arena_asked.error is not None:
                a = Answer(wire.ArenaAt, accept, None)
                self._arena_asked = self.ask_locked(a, lambda token: wire.Arena(token, self.arena_bytes))
            a = self._arena_asked
        arena: Arena = yield a  # several may wait for the one answer
        return arena

    def map_arena(self, segment: int, fd: int, size: int | None) -> Arena:
        """Map and seal memory to write; without a size, all of it. Takes the descriptor."""
        try:
            return Arena(segment, fd, os.fstat(fd).st_size if size is None else size)
        finally:
            os.close(fd)


def resume(work: Work[_T], a: Answer) -> Answer:
    """Go on with work whose question is answered; its next question."""
    return work.send(a.value) if a.error is None else work.throw(again(a.error))


def _rights(fd: int) -> list[tuple[int, int, bytes]]:
    """What sends a descriptor along."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))] if fd >= 0 else []


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> deque[int]:
    """The descriptors of a packet. The caller closes them."""
    fds: deque[int] = deque()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            fds.extend(memoryview(data)[:whole].cast("i"))
    return fds
