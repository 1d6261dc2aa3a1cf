"""Through the host of a bus: payloads in shared memory that it keeps the books of.

All connectors of a process that go to one host share a connection. It is made anew in a forked child,
and when the host is back after it was gone; what the old one kept is gone then.

A worker of vLLM-Omni has one connector, that of its incoming edge, and puts by it what its outgoing edge's connector
gets. Where only the outgoing edge is switched, the value lies in a segment: so a get that finds nothing in the exchange
looks for a segment of that key.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import Any

from .. import bundle, deadlines, wire
from ..client import Client, connect
from ..errors import HostGone, Nothing, OmnibusError
from ..exchange import Exchange, FetchedPayload
from ..handshake import socket_path
from ..omni.encoder import Encoded
from ..puts import MODES as TRANSPORTS
from .contract import Busy, Decode, Edge, Missing, Placed, entry_metadata, entry_number, setting
from .segment import Segments


class _Host:
    """The connection of this process to one host."""

    def __init__(self, path: str, allow_uids: frozenset[int], gpu: Any) -> None:
        self.path, self.allow_uids, self.gpu = path, allow_uids, gpu
        self.users = 0
        self.renew()

    def renew(self) -> None:
        """Begin anew, also in a child: what that has inherited is the parent's."""
        self.mu = threading.Lock()  # of the client, and of the exchanges that connectors have of it
        self._client: Client | None = None

    def client(self) -> Client:
        """The connection, which is made if there is none. Raises HostGone. The lock is held."""
        if self._client is None or self._client.closed:
            self._client = connect(self.path, name=f"connector {os.getpid()}", gpu=self.gpu, allow_uids=self.allow_uids)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


_hosts: dict[tuple[str, frozenset[int], Any], _Host] = {}  # by path, users and gpu.Options
_hosts_mu = threading.Lock()


def _forked() -> None:
    global _hosts_mu
    _hosts_mu = threading.Lock()
    for host in _hosts.values():
        host.renew()


os.register_at_fork(after_in_child=_forked)


_PAUSE_SECONDS = 0.01  # until a segment is looked at again that its writer has not finished
_BUS = "exchange"  # that `omnibus exchange` has by default


class Ring:
    """A transport over the exchange of a host: the one that is named, else that of the environment, else `omnibus exchange`."""

    def __init__(self, config: dict[str, Any]) -> None:
        bus = setting(config, "bus", None)
        if bus is None and not os.environ.get("OMNIBUS_SOCKET"):
            bus = os.environ.get("OMNIBUS_BUS") or _BUS
        path = socket_path(setting(config, "socket", None), bus)
        where = path, setting(config, "allow_uids", frozenset()), setting(config, "gpu", None)
        #: How tensors on a GPU travel.
        transport = setting(config, "tensor_transport", TRANSPORTS[0])
        self.tensors = wire.Tensors(TRANSPORTS.index(transport), setting(config, "min_bytes", 0))
        self._timeout = setting(config, "timeout", 30.0)
        self._arena_bytes = setting(config, "arena_bytes", None)
        self._exchange: tuple[Client, Exchange] | None = None
        self._pid = 0  # of the process that it is of
        self._neighbour = _Neighbour(config)
        self._closed = False
        with _hosts_mu:
            self._host = _hosts.setdefault(where, _Host(*where))
            self._host.users += 1
        try:
            self._open()
        except BaseException:
            self._leave()
            raise

    def _open(self) -> Exchange:
        known = self._exchange
        if known is not None and not known[0].closed and self._pid == os.getpid():
            return known[1]
        if self._closed:
            raise OmnibusError("the connector is closed")
        with self._host.mu:  # two threads that find the host gone have one exchange again, which cleans up for both
            client = self._host.client()
            if self._exchange is None or self._exchange[0] is not client:
                self._exchange, self._pid = (client, client.exchange(self._arena_bytes)), os.getpid()
            return self._exchange[1]

    def put(self, edge: Edge, key: str, payload: Encoded, timeout: float | None = None) -> dict[str, Any]:
        exchange = self._open()
        entry = exchange.put(*edge, key, payload.size, payload.write, self._timeout if timeout is None else timeout)
        self._check_open(exchange)
        return entry_metadata(entry)

    def put_on_gpu(self, edge: Edge, key: str, value: Any) -> Placed | Encoded:
        """Put a value whose tensors stay on a GPU, or else encode it."""
        from . import on_gpu  # for those alone who have one

        exchange = self._open()
        placed = on_gpu.put(exchange, edge, key, value, self.tensors, self._timeout)
        self._check_open(exchange)
        return placed

    def _check_open(self, exchange: Exchange) -> None:
        if self._closed:  # meanwhile, and what had been put by then was taken back
            exchange.close()
            raise OmnibusError("the connector is closed")

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        exchange = self._open()
        if _in_segment(metadata):
            return self._neighbour.open().get(edge, key, metadata, decode)
        entry = entry_number(metadata)
        try:
            view = exchange.get(*edge, key, entry)
        except Nothing as e:
            if not entry and self._neighbour.has(key):
                return self._neighbour.open().get(edge, key, None, decode)
            raise Missing(str(e)) from None
        return self._value(view, decode, time.monotonic() + self._timeout)

    def _value(self, view: FetchedPayload, decode: Decode, limit: float) -> tuple[Any, int]:
        if view.data[: len(bundle.MAGIC)] == bundle.MAGIC:  # no other value begins like that
            from . import on_gpu

            return on_gpu.take(view, limit)
        return decode(view.data), len(view.data)

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        if _in_segment(metadata):
            return self._neighbour.open().wait(edge, key, metadata, decode, deadline)
        where, entry, unless = (*edge, key), entry_number(metadata), None
        if not entry:
            unless = partial(self._neighbour.has, key)
        while True:
            left = deadline - time.monotonic()
            try:
                if left > 0:
                    view = self._open().wait(*where, left, entry, unless)
                else:  # what lies there is got all the same, if the host is not stopped
                    view = self._open().get(*where, entry, deadlines.SLACK_SECONDS)
            except Nothing as e:
                again = deadline - time.monotonic()
                if unless is None or not unless():
                    raise Missing(str(e)) from None
                try:
                    return self._neighbour.open().get(edge, key, None, decode)
                except (Missing, Busy):  # its writer is at work, or has left it
                    if again <= 0:
                        raise
                time.sleep(min(again, _PAUSE_SECONDS))
            else:
                return self._value(view, decode, max(deadline, time.monotonic() + deadlines.SLACK_SECONDS))

    def abandon(self, key: str) -> None:
        known = self._exchange
        if known is not None and self._pid == os.getpid():  # in a forked child nothing waits yet
            known[1].abandon(key)
        self._neighbour.abandon(key)

    def cleanup(self, key: str) -> None:
        self._open().cleanup(key)

    def reap(self) -> None:
        pass  # the host does

    def health(self) -> dict[str, Any]:
        if self._closed:
            return {"status": "closed"}
        known = self._exchange
        if known is None or self._pid != os.getpid():
            return {"status": "unhealthy: not connected"}
        if not known[0].closed:
            known[0].process()  # it may have said goodbye
        return {"status": "unhealthy: the host is gone" if known[0].closed else "healthy"}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._neighbour.close()
        try:
            if self._exchange is not None and not self._exchange[0].closed and self._pid == os.getpid():
                self._exchange[1].close()
        except HostGone:
            pass  # and all that was put with it
        finally:
            self._leave()

    def drop(self) -> None:
        # Whoever is interrupted may have the connection's lock.
        threading.Thread(target=self.close, daemon=True).start()

    def _leave(self) -> None:
        with _hosts_mu:
            self._host.users -= 1
            last = not self._host.users and _hosts.pop((self._host.path, self._host.allow_uids, self._host.gpu), None) is not None
        if last:
            self._host.close()


def _in_segment(metadata: dict[str, Any] | None) -> bool:
    """Whether metadata name a segment: a connector of segments put the value."""
    return "shm" in (metadata or {})


class _Neighbour:
    """The segments in which a connector of another kind puts values for this process. They are opened when one is there."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = {name: config.get(name) for name in ("dir", "timeout")}
        self._path = setting(config, "dir", "/dev/shm")
        # Stages of vLLM-Omni alone have such neighbours: its loader says which stage, or which role, this is.
        self._there = config.get("stage_id") is not None or config.get("role") is not None
        self._mu, self._pid = threading.Lock(), os.getpid()
        self._segments: Segments | None = None
        self._closed = False

    def has(self, key: str) -> bool:
        return self._there and os.path.lexists(os.path.join(self._path, key))

    def open(self) -> Segments:
        if self._pid != os.getpid():  # a forked child: a thread of the parent may have had the lock
            self._mu, self._pid = threading.Lock(), os.getpid()
        with self._mu:
            if self._closed:
                raise OmnibusError("the connector is closed")
            if self._segments is None:
                self._segments = Segments(self._config)
            return self._segments

    def abandon(self, key: str) -> None:
        if self._segments is not None:
            self._segments.abandon(key)

    def close(self) -> None:
        with self._mu:
            self._closed, segments = True, self._segments
        if segments is not None:
            segments.close()
