"""Requests over ZeroMQ to the listener of another process, each with a deadline.

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

_FIRST_CHECK_SECONDS, _MAX_CHECK_SECONDS = 0.25, 2.0  # seconds until the other side's liveness is checked
_MAX_IDLE = 64  # idle connections


def load_zmq(extra: str) -> Any:
    """The module zmq. Raises Unavailable if it is not installed."""
    try:
        return importlib.import_module("zmq")
    except ImportError as e:
        raise Unavailable(f"ZeroMQ cannot be loaded ({e}): install omnibus[{extra}]") from None


class Requester:
    """Sends requests, each of concurrent requests to an address over a connection of its own. Safe from any thread."""

    def __init__(self, zmq: Any, context: Any) -> None:
        self._zmq, self._context = zmq, context
        self._mu = threading.Lock()
        self._idle: list[tuple[str, _Connection]] = []  # the most recently used is last

    def request(self, address: str, message: bytes, deadline: float) -> bytes:
        """The answer of the listener at host:port.

        Raises Absent if nothing listens, and Unavailable if no answer comes by the deadline. The message is sent again
        when the connection ends, or after a while without an answer, so it must be idempotent.
        """
        begun, look = time.monotonic(), _FIRST_CHECK_SECONDS
        while True:
            left = deadline - time.monotonic()
            question = PendingReply(self, address, message, max(left, 0.01))
            try:
                answer = question.wait(min(look, left))
            except Absent:  # another process may listen at the address by now
                answer = None
            finally:
                question.close()
            if answer is not None:
                return answer
            if deadline - time.monotonic() <= 0:
                raise no_reply_error(address, time.monotonic() - begun)
            look = min(2 * look, _MAX_CHECK_SECONDS)

    def connect(self, address: str, left: float) -> _Connection:
        with self._mu:
            for i in range(len(self._idle) - 1, -1, -1):
                if self._idle[i][0] == address:
                    return self._idle.pop(i)[1]
        host, _, port = address.rpartition(":")
        try:  # ZeroMQ retries for ever, and does not report that nothing listens
            socket.create_connection((host.strip("[]"), int(port)), left).close()
        except TimeoutError:
            raise Unavailable(f"the sender at {address} cannot be reached within {left:.3g} s: is a firewall in the way?") from None
        except (OSError, OverflowError, UnicodeError) as e:
            raise Absent(f"no sender is at {address} ({e}): it is not started, or dead, or the address is wrong") from None
        return _Connection(self._zmq, self._context, address)

    def release(self, address: str, link: _Connection) -> None:
        with self._mu:
            self._idle.append((address, link))
            oldest = self._idle.pop(0)[1] if len(self._idle) > _MAX_IDLE else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        with self._mu:
            idle, self._idle = self._idle, []
        for _, link in idle:
            link.close()


class PendingReply:
    """The answer to one message, which was sent once. For one thread at a time."""

    def __init__(self, asker: Requester, address: str, message: bytes, left: float) -> None:
        self._asker, self._address = asker, address
        self._link: _Connection | None = asker.connect(address, left)
        try:
            self._link.send(message)
        except BaseException:
            self.close()
            raise

    def wait(self, seconds: float) -> bytes | None:
        """The answer, or None if none comes in time. Raises Absent if the other side closed the connection."""
        link = self._link
        assert link is not None
        try:
            answer = link.wait(seconds)
        except EOFError:
            raise Absent(f"the sender at {self._address} has ended the connection: it is dead, or was closed") from None
        if answer is not None:
            self._link = None
            self._asker.release(self._address, link)
        return answer

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


class _Connection:
    """A REQ socket, and a monitor that reports the end of its connection."""

    def __init__(self, zmq: Any, context: Any, address: str) -> None:
        self._zmq = zmq
        self._sock = context.socket(zmq.REQ)
        self._sock.linger = 0
        self._disconnects = self._sock.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._disconnects.linger = 0
        self._poller = zmq.Poller()
        self._poller.register(self._sock, zmq.POLLIN)
        self._poller.register(self._disconnects, zmq.POLLIN)
        self._sock.connect(f"tcp://{address}")

    def send(self, message: bytes) -> None:
        with self._zmq_errors():
            self._sock.send(message)

    def wait(self, seconds: float) -> bytes | None:
        with self._zmq_errors():
            there = dict(self._poller.poll(max(0, int(seconds * 1000))))
            if self._sock in there:
                answer: bytes = self._sock.recv()
                return answer
        if self._disconnects in there:
            raise EOFError
        return None

    @contextlib.contextmanager
    def _zmq_errors(self) -> Iterator[None]:
        try:
            yield
        except self._zmq.ZMQError as e:
            raise Unavailable(f"a sender cannot be asked: {e}") from None

    def close(self) -> None:
        with contextlib.suppress(self._zmq.ZMQError):
            self._sock.disable_monitor()
        self._disconnects.close(0)
        self._sock.close(0)


def no_reply_error(address: str, seconds: float) -> Unavailable:
    return Unavailable(f"the sender at {address} does not answer within {seconds:.3g} s: it is stopped, or another program")
