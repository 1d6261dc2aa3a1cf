"""Questions to the listener of another process, over ZeroMQ, each with a deadline.

The listeners are those of vLLM-Omni's connectors: a ROUTER socket that answers each message of a REQ socket.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
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
        self._idle: list[tuple[str, Any]] = []  # the one used last stands last

    def ask(self, address: str, message: bytes, deadline: float) -> bytes:
        """The answer of the listener at host:port.

        Raises Absent where nothing listens, and Unavailable where no answer comes by the deadline. After a while without
        one it asks again, so the message must mean the same when it comes twice.
        """
        begun, look = time.monotonic(), _FIRST_LOOK
        while True:
            left = deadline - time.monotonic()
            sock = self._socket(address, max(left, 0.01))
            kept = False
            try:
                sock.send(message)
                if sock.poll(max(0, int(min(look, left) * 1000))):
                    answer: bytes = sock.recv()
                    kept = self._keep(address, sock)
                    return answer
            except self._zmq.ZMQError as e:
                raise Unavailable(f"the sender at {address} cannot be asked: {e}") from None
            finally:
                if not kept:
                    sock.close(0)
            if deadline - time.monotonic() <= 0:
                raise Unavailable(
                    f"the sender at {address} does not answer within {time.monotonic() - begun:.3g} s: it is stopped, or another program"
                )
            look = min(2 * look, _MOST_LOOK)

    def _socket(self, address: str, left: float) -> Any:
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
        sock = self._context.socket(self._zmq.REQ)
        sock.linger = 0
        sock.connect(f"tcp://{address}")
        return sock

    def _keep(self, address: str, sock: Any) -> bool:
        with self._mu:
            self._idle.append((address, sock))
            oldest = self._idle.pop(0)[1] if len(self._idle) > _MOST_IDLE else None
        if oldest is not None:
            oldest.close(0)
        return True

    def close(self) -> None:
        with self._mu:
            idle, self._idle = self._idle, []
        for _, sock in idle:
            sock.close(0)
