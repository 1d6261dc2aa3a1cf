"""The transport through the host of a bus: payloads in shared memory that the host accounts for.

All connectors of a process to one host share a connection. It is opened again in a forked child, and after the host was
restarted; the values of the old connection are lost then.

A worker of vLLM-Omni has one connector, that of its incoming edge, and also puts the values of its outgoing edge with it.
If only the outgoing edge is switched to Omnibus, the value lies in a segment. So a get that finds no value in the
exchange looks for a segment with that key.
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
from .contract import Busy, Decode, Edge, Missing, PutResult, entry_metadata, entry_number, setting
from .segment import Segments


class _HostConnection:
    """The connection of this process to one host."""

    def __init__(self, path: str, allow_uids: frozenset[int], gpu: Any) -> None:
        self.path, self.allow_uids, self.gpu = path, allow_uids, gpu
        self.users = 0
        self.reset()

    def reset(self) -> None:
        """Start without a connection, also in a forked child: an inherited connection belongs to the parent."""
        self.mu = threading.Lock()  # guards the client, and the exchanges of connectors over it
        self._client: Client | None = None

    def client(self) -> Client:
        """The connection, opened if there is none. Raises HostGone. Under the lock."""
        if self._client is None or self._client.closed:
            self._client = connect(self.path, name=f"connector {os.getpid()}", gpu=self.gpu, allow_uids=self.allow_uids)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


_hosts: dict[tuple[str, frozenset[int], Any], _HostConnection] = {}  # by path, users and gpu.Options
_hosts_mu = threading.Lock()


def _forked() -> None:
    global _hosts_mu
    _hosts_mu = threading.Lock()
    for host in _hosts.values():
        host.reset()


os.register_at_fork(after_in_child=_forked)


_PAUSE_SECONDS = 0.01  # until an unfinished segment is checked again
_DEFAULT_BUS = "exchange"  # the default bus of `omnibus exchange`


class Ring:
    """A transport over the exchange of a host: the configured one, else that of the environment, else `omnibus exchange`."""

    def __init__(self, config: dict[str, Any]) -> None:
        bus = setting(config, "bus", None)
        if bus is None and not os.environ.get("OMNIBUS_SOCKET"):
            bus = os.environ.get("OMNIBUS_BUS") or _DEFAULT_BUS
        path = socket_path(setting(config, "socket", None), bus)
        where = path, setting(config, "allow_uids", frozenset()), setting(config, "gpu", None)
        #: How tensors on a GPU travel.
        transport = setting(config, "tensor_transport", TRANSPORTS[0])
        self.tensors = wire.Tensors(TRANSPORTS.index(transport), setting(config, "min_bytes", 0))
        self._timeout = setting(config, "timeout", 30.0)
        self._arena_bytes = setting(config, "arena_bytes", None)
        self._exchange: tuple[Client, Exchange] | None = None
        self._pid = 0  # of the process that opened the exchange
        self._segments_fallback = _SegmentFallback(config)
        self._closed = False
        with _hosts_mu:
            self._host = _hosts.setdefault(where, _HostConnection(*where))
            self._host.users += 1
        try:
            self._open_exchange()
        except BaseException:
            self._release_host()
            raise

    def _open_exchange(self) -> Exchange:
        known = self._exchange
        if known is not None and not known[0].closed and self._pid == os.getpid():
            return known[1]
        if self._closed:
            raise OmnibusError("the connector is closed")
        with self._host.mu:  # two threads that reconnect at once share the new exchange, so that its cleanup covers both
            client = self._host.client()
            if self._exchange is None or self._exchange[0] is not client:
                self._exchange, self._pid = (client, client.exchange(self._arena_bytes)), os.getpid()
            return self._exchange[1]

    def put(self, edge: Edge, key: str, payload: Encoded, timeout: float | None = None) -> dict[str, Any]:
        exchange = self._open_exchange()
        entry = exchange.put(*edge, key, payload.size, payload.write, self._timeout if timeout is None else timeout)
        self._check_open(exchange)
        return entry_metadata(entry)

    def put_on_gpu(self, edge: Edge, key: str, value: Any) -> PutResult | Encoded:
        """Put a value whose tensors stay on a GPU, or else encode it."""
        from . import gpu_values  # imported only if needed

        exchange = self._open_exchange()
        placed = gpu_values.put_value(exchange, edge, key, value, self.tensors, self._timeout)
        self._check_open(exchange)
        return placed

    def _check_open(self, exchange: Exchange) -> None:
        if self._closed:  # another thread closed the connector meanwhile, and removed earlier values
            exchange.close()
            raise OmnibusError("the connector is closed")

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        exchange = self._open_exchange()
        if _in_segment(metadata):
            return self._segments_fallback.open_segments().get(edge, key, metadata, decode)
        entry = entry_number(metadata)
        try:
            view = exchange.get(*edge, key, entry)
        except Nothing as e:
            if not entry and self._segments_fallback.has_segment(key):
                return self._segments_fallback.open_segments().get(edge, key, None, decode)
            raise Missing(str(e)) from None
        return self._value(view, decode, time.monotonic() + self._timeout)

    def _value(self, view: FetchedPayload, decode: Decode, limit: float) -> tuple[Any, int]:
        if view.data[: len(bundle.MAGIC)] == bundle.MAGIC:  # no other payload has this prefix
            from . import gpu_values

            return gpu_values.take_value(view, limit)
        return decode(view.data), len(view.data)

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        if _in_segment(metadata):
            return self._segments_fallback.open_segments().wait(edge, key, metadata, decode, deadline)
        where, entry, unless = (*edge, key), entry_number(metadata), None
        if not entry:
            unless = partial(self._segments_fallback.has_segment, key)
        while True:
            left = deadline - time.monotonic()
            try:
                if left > 0:
                    view = self._open_exchange().wait(*where, left, entry, unless)
                else:  # past the deadline an existing value is still got, unless the host is stopped
                    view = self._open_exchange().get(*where, entry, deadlines.SLACK_SECONDS)
            except Nothing as e:
                again = deadline - time.monotonic()
                if unless is None or not unless():
                    raise Missing(str(e)) from None
                try:
                    return self._segments_fallback.open_segments().get(edge, key, None, decode)
                except (Missing, Busy):  # its writer has not finished, or has died
                    if again <= 0:
                        raise
                time.sleep(min(again, _PAUSE_SECONDS))
            else:
                return self._value(view, decode, max(deadline, time.monotonic() + deadlines.SLACK_SECONDS))

    def abandon(self, key: str) -> None:
        known = self._exchange
        if known is not None and self._pid == os.getpid():  # a forked child has no waits yet
            known[1].abandon(key)
        self._segments_fallback.abandon(key)

    def cleanup(self, key: str) -> None:
        self._open_exchange().cleanup(key)

    def reap(self) -> None:
        pass  # the host forgets them itself

    def health(self) -> dict[str, Any]:
        if self._closed:
            return {"status": "closed"}
        known = self._exchange
        if known is None or self._pid != os.getpid():
            return {"status": "unhealthy: not connected"}
        if not known[0].closed:
            known[0].process()  # reads a pending close of the host
        return {"status": "unhealthy: the host is gone" if known[0].closed else "healthy"}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._segments_fallback.close()
        try:
            if self._exchange is not None and not self._exchange[0].closed and self._pid == os.getpid():
                self._exchange[1].close()
        except HostGone:
            pass  # its values are lost with it
        finally:
            self._release_host()

    def close_nowait(self) -> None:
        # The interrupted thread may hold the connection's lock.
        threading.Thread(target=self.close, daemon=True).start()

    def _release_host(self) -> None:
        with _hosts_mu:
            self._host.users -= 1
            last = not self._host.users and _hosts.pop((self._host.path, self._host.allow_uids, self._host.gpu), None) is not None
        if last:
            self._host.close()


def _in_segment(metadata: dict[str, Any] | None) -> bool:
    """Whether metadata name a segment: a connector in mode segment put the value."""
    return "shm" in (metadata or {})


class _SegmentFallback:
    """Gets the values that a connector of another kind puts into segments. Opened with the first such value."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = {name: config.get(name) for name in ("dir", "timeout")}
        self._path = setting(config, "dir", "/dev/shm")
        # Only stages of vLLM-Omni need it. Their loader sets stage_id or role.
        self._enabled = config.get("stage_id") is not None or config.get("role") is not None
        self._mu, self._pid = threading.Lock(), os.getpid()
        self._segments: Segments | None = None
        self._closed = False

    def has_segment(self, key: str) -> bool:
        return self._enabled and os.path.lexists(os.path.join(self._path, key))

    def open_segments(self) -> Segments:
        if self._pid != os.getpid():  # a forked child: a thread of the parent may have held the lock
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
