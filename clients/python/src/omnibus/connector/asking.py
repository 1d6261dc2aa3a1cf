"""Questions to the listener of another process, over ZeroMQ, each with a deadline.

The listeners are those of vLLM-Omni's connectors: a ROUTER socket that answers each message of a REQ socket.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from .contract import Absent, Unavailable

_FIRST_LOOK, _MOST_LOOK = 0.25, 2.0  # seconds until it is looked whether the other side is still there
_MOST_IDLE = 64  # sockets that are kept connected


def load(extra: str) -> Any:
    """ZeroMQ, or Unavailable."""
    try:
        return importlib.import_module("zmq")
    except ImportError as e:
        raise Unavailable(f"ZeroMQ cannot be loaded ({e}): install omnibus[{extra}]") from None


class Asker:
    """Asks, with as many sockets for an address as threads ask it at once. Safe from any thread."""

    def __init__(self, zmq: Any, context: Any) -> None:
        self._zmq, self._context = zmq, context
        self._mu = threading.Lock()
        self._idle: list[tuple[str, _Link]] = []  # the one used last stands last

    def ask(self, address: str, message: bytes, deadline: float) -> bytes:
        """The answer of the listener at host:port.

        Raises Absent where nothing listens, and Unavailable where no answer comes by the deadline. When the connection ends,
        or after a while without an answer, it asks again, so the message must mean the same when it comes twice.
        """
        begun, look = time.monotonic(), _FIRST_LOOK
        while True:
            left = deadline - time.monotonic()
            question = Question(self, address, message, max(left, 0.01))
            try:
                answer = question.wait(min(look, left))
            except Absent:  # or another is at the address meanwhile
                answer = None
            finally:
                question.close()
            if answer is not None:
                return answer
            if deadline - time.monotonic() <= 0:
                raise late(address, time.monotonic() - begun)
            look = min(2 * look, _MOST_LOOK)

    def link(self, address: str, left: float) -> _Link:
        with self._mu:
            for i in range(len(self._idle) - 1, -1, -1):
                if self._idle[i][0] == address:
                    return self._idle.pop(i)[1]
        host, _, port = address.rpartition(":")
        try:  # ZeroMQ would not say that nothing is there, and try for ever
            socket.create_connection((host.strip("[]"), int(port)), left).close()
        except TimeoutError:
            raise Unavailable(f"the sender at {address} cannot be reached within {left:.3g} s: is a firewall in the way?") from None
        except (OSError, OverflowError, UnicodeError) as e:
            raise Absent(f"no sender is at {address} ({e}): it is not started, or dead, or the address is wrong") from None
        return _Link(self._zmq, self._context, address)

    def keep(self, address: str, link: _Link) -> None:
        with self._mu:
            self._idle.append((address, link))
            oldest = self._idle.pop(0)[1] if len(self._idle) > _MOST_IDLE else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        with self._mu:
            idle, self._idle = self._idle, []
        for _, link in idle:
            link.close()


class Question:
    """One message, sent once. Its answer may come late. For one thread at a time."""

    def __init__(self, asker: Asker, address: str, message: bytes, left: float) -> None:
        self._asker, self._address = asker, address
        self._link: _Link | None = asker.link(address, left)
        try:
            self._link.send(message)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> bytes | None:
        """The answer, or None if none comes in time. Raises Absent when the other side has ended the connection."""
        link = self._link
        assert link is not None
        try:
            answer = link.wait(seconds)
        except EOFError:
            raise Absent(f"the sender at {self._address} has ended the connection: it is dead, or was closed") from None
        if answer is not None:
            self._link = None
            self._asker.keep(self._address, link)
        return answer

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class _Link:
    """A REQ socket, and what tells that its connection has ended."""

    def __init__(self, zmq: Any, context: Any, address: str) -> None:
        self._zmq = zmq
        self._sock = context.socket(zmq.REQ)
        self._sock.linger = 0
        self._ended = self._sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._ended.linger = 0
        self._poller = zmq.Poller()
        self._poller.register(self._sock, zmq.POLLIN)
        self._poller.register(self._ended, zmq.POLLIN)
        self._sock.connect(f"tcp://{address}")

    def send(self, message: bytes) -> None:
        with self._told():
            self._sock.send(message)

    def wait(self, seconds: float) -> bytes | None:
        with self._told():
            there = dict(self._poller.poll(max(0, int(seconds * 1000))))
            if self._sock in there:
                answer: bytes = self._sock.recv()
                return answer
        if self._ended in there:
            raise EOFError
        return None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self._zmq.ZMQError as e:
            raise Unavailable(f"a sender cannot be asked: {e}") from None

    def close(self) -> None:
        with contextlib.suppress(self._zmq.ZMQError):
            self._sock.disable_monitor()
        self._ended.close(0)
        self._sock.close(0)


def late(address: str, seconds: float) -> Unavailable:
    return Unavailable(f"the sender at {address} does not answer within {seconds:.3g} s: it is stopped, or another program")
