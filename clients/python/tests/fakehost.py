"""A host for the tests: it follows the node protocol and believes nothing.

It listens on a socket of its own and talks to one client at a time. A test
reads what the client sent with `expect`, in order, and answers with `send`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import sys
import tempfile
from collections import deque
from typing import Any, TypeVar

SOURCE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "src"))
sys.path.insert(0, SOURCE)

from omnibus import wire  # noqa: E402
from omnibus.errors import Code  # noqa: E402
from omnibus.memory import F_ADD_SEALS, F_GET_SEALS  # noqa: E402
from omnibus.wire.packet import by_class  # noqa: E402

T = TypeVar("T")
EDGE_IN = wire.Edge("caller->upper", "upper")
EDGE_OUT = wire.Edge("upper->caller", "")


class FakeHost:
    def __init__(self, inline_bytes: int = 512, largest_mib: int = 0) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "bus.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.inline_bytes, self.largest_mib = inline_bytes, largest_mib
        self.ends_unasked = False  # whether the client sends `ended` without the host's `end`
        self.client_pid = os.getpid()  # also of a host in a child of its client
        self.sock: socket.socket | None = None
        self.waiting: deque[Any] = deque()
        self.numbers: dict[int, int] = {}  # the client's of its requests, by those that the test gives them
        self.memory: dict[int, mmap.mmap] = {}  # of the client, by segment
        self.fds: deque[int] = deque()  # that came with messages
        self.figures: list[bytes] = []  # that the client told, whenever it did

    def close(self) -> None:
        self.close_socket()
        self.listener.close()
        while self.fds:
            os.close(self.fds.popleft())
        self.folder.cleanup()

    def close_socket(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def welcome(self) -> None:
        self.listener.settimeout(60)
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(60)
        self.numbers.clear()
        hello = self.expect(wire.Hello)
        assert hello.magic == wire.MAGIC and hello.pid == self.client_pid, hello
        assert hello.version_min == hello.version_max == wire.VERSION, hello
        self.send(wire.Welcome(wire.VERSION, 0, 1, 7, self.inline_bytes, self.largest_mib, "test", [EDGE_IN], [EDGE_OUT], []))

    def send(self, *messages: Any, fds: tuple[int, ...] = ()) -> None:
        assert self.sock is not None
        packet = bytearray()
        for m in messages:
            if getattr(m, "source", None) in self.numbers:
                m = m._replace(source=self.numbers[m.source])
            takes = by_class[type(m)].descriptors if fds else 0
            packet += wire.encode(m, takes)
        socket.send_fds(self.sock, [packet], list(fds))

    def send_raw(self, packet: bytes, fds: tuple[int, ...] = ()) -> None:
        assert self.sock is not None
        socket.send_fds(self.sock, [packet], list(fds))

    def receive(self) -> Any:
        """The next message of the client; None when it hung up."""
        while not self.waiting:
            assert self.sock is not None
            packet, fds, _, _ = socket.recv_fds(self.sock, wire.MAX_PACKET_BYTES, wire.MAX_DESCRIPTORS)
            if not packet:
                return None
            self.waiting += self._asked(packet, fds)
        return self.named(self.waiting.popleft())

    def named(self, m: Any) -> Any:
        """A message of the client, with the test's number for its request."""
        for name, number in self.numbers.items():
            if not isinstance(m, wire.Submit) and getattr(m, "source", None) == number:
                return m._replace(source=name)
        return m

    def _asked(self, packet: bytes, fds: list[int]) -> list[Any]:
        """What is in a packet, but for figures, which come in their own time, and the scoreboard."""
        messages, left = [], list(fds)
        for m, n in wire.decode(packet, len(fds)):
            taken, left = left[:n], left[n:]
            if isinstance(m, wire.Scoreboard):
                os.close(taken[0])
                continue
            self.fds += taken
            if isinstance(m, wire.Call) and m.method == "tensors":
                self.figures.append(m.arguments)
            else:
                messages.append(m)
        return messages

    def expect(self, kind: type[T]) -> T:
        m = self.receive()
        assert isinstance(m, kind), f"want {kind.__name__}, got {m!r}"
        return m

    def nothing(self) -> None:
        """The client has sent nothing that was not expected."""
        assert self.sock is not None
        self.sock.setblocking(False)
        try:
            assert not self.waiting, self.waiting
            while packet := self.sock.recv(wire.MAX_PACKET_BYTES):
                assert not (more := self._asked(packet, [])), more
            raise AssertionError("hung up")
        except BlockingIOError:
            pass
        finally:
            self.sock.settimeout(60)

    # Pieces of conversations.

    def segment(self, number: int, content: bytes, seals: int = 0x16) -> None:
        """Give the client a segment to read."""
        fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            os.write(fd, content)
            fcntl.fcntl(fd, F_ADD_SEALS, seals)
            self.send(wire.Segment(number, len(content)), fds=(fd,))
        finally:
            os.close(fd)

    def serve(self, stage: str = "upper", **more: Any) -> None:
        """Answer `serve`: the stage has number 5."""
        m = self.expect(wire.Serve)
        assert m.stage == stage, m
        self.ends_unasked = m.flags == wire.ENDS_UNASKED
        self.send(serving(m.token, **more))

    def submitted(self, source: int) -> wire.Submit:
        m = self.expect(wire.Submit)
        self.begin(m, source)
        return m

    def begin(self, m: wire.Submit, source: int, *more: Any) -> None:
        """The request has begun; the test calls it by another number than the client. More comes in the same packet."""
        self.numbers[source] = m.source
        told = [wire.Submitted(source, 1000 + source)] if m.flags & wire.TELL else []
        if told or more:
            self.send(*told, *more)

    def refuse(self, m: wire.Submit, code: int, text: str) -> None:
        """The request does not begin."""
        self.send(over(m.source, wire.OUTCOME_REFUSED, code=code, text=text))

    def given_up(self, source: int) -> None:
        """The client has given up a request, whose deadline is over by its clock."""
        m = self.expect(wire.AbortRequest)
        assert (m.source, m.code) == (source, Code.OVER), m
        assert self.expect(wire.Close).source == source

    def emitted(self) -> wire.Put:
        """The client emits a payload, and the host returns its credit at once."""
        m = self.expect(wire.Put)
        self.send(wire.Returned([m.put]))
        return m

    def filled(self) -> tuple[wire.Put, bytes]:
        """The client emits something, in its own memory or in the message, and has it still to be returned."""
        m = self.receive()
        if isinstance(m, wire.Offer):
            self.waiting.appendleft(m)
            self.memory[m.segment] = self.offered()[1]
            m = self.receive()
        assert isinstance(m, wire.Put), m
        if m.flags & wire.INLINE:
            return m, bytes(m.payload)
        return m, self.memory[m.segment][m.offset : m.offset + m.size]

    def offered(self) -> tuple[wire.Offer, mmap.mmap]:
        """The client offers memory of its own, sealed against shrinking and against writes by other processes."""
        m = self.expect(wire.Offer)
        fd = self.fds.popleft()
        try:
            assert fcntl.fcntl(fd, F_GET_SEALS) & 0x17 == 0x17
            st = os.fstat(fd)
            assert st.st_size == m.bytes and st.st_blocks * 512 >= m.bytes, st
            return m, mmap.mmap(fd, m.bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)


def serving(token: int, **more: Any) -> wire.Serving:
    fields: dict[str, Any] = dict(
        stage=5, replica=0, max_inflight=4, state=0, join=0, batch=0, inputs=[EDGE_IN], outputs=[EDGE_OUT],
        tensors=[],
    )  # fmt: skip
    fields.update(more)
    return wire.Serving(token, **fields)


def deliver(source: int, delivery: int, payload: bytes = b"", **more: Any) -> wire.Deliver:
    """A delivery with its payload in the message, unless `more` sets its position."""
    fields: dict[str, Any] = dict(
        edge=0, flags=wire.INLINE, codec=2, attempt=0, seq=0, dropped=0, segment=0, offset=0, size=len(payload),
        key="", attrs={},
    )  # fmt: skip
    fields.update(more)
    return wire.Deliver(source, delivery, **fields, payload=payload)


def over(source: int, outcome: int = wire.OUTCOME_COMPLETED, **more: Any) -> wire.Over:
    fields: dict[str, Any] = dict(stage="", edge="", key="", seq=0, text="")
    fields.update(more)
    return wire.Over(source, outcome, **fields)
