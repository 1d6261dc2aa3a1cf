"""Values in a store that other programs share, Mooncake's or Yuanrong's, as vLLM-Omni's connectors put them.

A `StoreClient` is the client of such a store. `SharedStore` adds semantics that the stores lack: a value is got once, a
process removes its values, and a failed put leaves nothing. `ValueStore` is the interface that it shares with
`peer_store.PeerStore`, whose values stay with their producer. `StoreTransport` is the transport of a connector over a
value store; `omnibus.bridge` is the other user.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..errors import OmnibusError
from ..omni.encoder import Buffer, Encoded
from .contract import (
    TIMEOUT, BadKey, BadMetadata, Damaged, Decode, Edge, Gone, SettingType, Missing, NoRoom, Unavailable, integer,
)  # fmt: skip

_LATE_PUT_SECONDS = 5.0  # within which a store that was stopped performs an earlier put
_FIRST_PRUNE = 1024  # values of this process before the first check which of them have been got


class TooLarge(NoRoom):
    """A value that is too large for the store at any time."""


class StoreClient(Protocol):
    """The client of a store. Safe from any thread. Its errors are those of `contract`, and name the store and its address."""

    def key(self, edge: Edge, key: str) -> str:
        """The key as vLLM-Omni's connector has it. Raises BadKey for one that the store refuses."""
        ...

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store a payload, in place of any other under the key."""
        ...

    def get(self, key: str) -> Any:
        """A buffer with the payload, which stays valid after the value is removed. Raises Missing."""
        ...

    def remove(self, keys: list[str]) -> list[bool]:
        """Remove values, and return for each key whether it had one; True if the store does not report that."""
        ...

    def present(self, keys: list[str]) -> list[bool]:
        """Which keys have a value."""
        ...

    def withdraw(self) -> None:
        """Remove the client's memory from the store, with the values in it, before the process exits."""
        ...

    def close(self) -> None:
        """Withdraw, and close the client."""
        ...


class Name:
    """The name of a value: its edge and key, and the key in the backend."""

    __slots__ = ("edge", "key", "backend_key")

    def __init__(self, edge: Edge, key: str, backend_key: str) -> None:
        self.edge, self.key, self.backend_key = edge, key, backend_key


class ValueStore(Protocol):
    """Puts and takes values. Safe from any thread. Its errors are those of `contract`."""

    def name(self, edge: Edge, key: str) -> Name:
        """The name of a value. Raises BadKey for an invalid key."""
        ...

    def put(self, name: Name, parts: Sequence[Buffer]) -> dict[str, Any]:
        """Store a payload, in place of any other of the name, and return its metadata, which a take may pass."""
        ...

    def take_value(self, name: Name, metadata: dict[str, Any] | None = None, most: int | None = None) -> tuple[Any, int]:
        """Take a value: its payload and its size. A value above `most` bytes stays, and its payload is None."""
        ...

    def put_back(self, name: Name, parts: Sequence[Buffer], metadata: dict[str, Any] | None) -> None:
        """Store a payload that was taken, for another take with the same name and metadata."""
        ...

    def own_names(self) -> list[Name]:
        """The names of values that were put here and may still exist."""
        ...

    def remove(self, names: list[Name]) -> None:
        """Remove values that were put here."""
        ...

    def present(self, names: list[Name]) -> list[bool]:
        """Whether each value still exists. Those that do not are forgotten."""
        ...

    def forget_taken(self) -> None:
        """Forget the values that have been taken."""
        ...

    def check_health(self) -> None:
        """Raise the current problem, if there is one."""
        ...

    def withdraw(self) -> None:
        """Remove all values that were put here, before the process exits."""
        ...

    def close(self) -> None:
        """Withdraw, and close the backend."""
        ...


class SharedStore:
    """The values that a process puts into a store and takes out of it."""

    def __init__(self, engine: StoreClient) -> None:
        self.client = engine
        self._mu = threading.Lock()
        self._own: dict[str, Name] = {}  # put here, and not known to be taken
        # Failed puts, which the store may perform later, and until when they are removed repeatedly.
        self._failed: dict[str, tuple[Name, float]] = {}
        self._taking: set[str] = set()
        self._prune_at = _FIRST_PRUNE

    def name(self, edge: Edge, key: str) -> Name:
        return Name(edge, key, self.client.key(edge, key))

    def put(self, name: Name, parts: Sequence[Buffer]) -> dict[str, Any]:
        self._remove_failed_puts()
        with self._mu:
            self._own[name.backend_key] = name
            prune = len(self._own) >= self._prune_at
        try:
            self.client.put(name.backend_key, parts)
        except BaseException as e:
            late = isinstance(e, Unavailable)
            with self._mu:
                self._failed[name.backend_key] = name, math.inf if late else 0
            if not late:  # an unavailable store is asked at the next call
                self._remove_failed_puts()
            raise
        with self._mu:
            self._failed.pop(name.backend_key, None)  # of an earlier put
        if prune:
            self.forget_taken()
        return {}

    def take_value(self, name: Name, metadata: dict[str, Any] | None = None, most: int | None = None) -> tuple[Any, int]:
        """Raises Missing also if another thread, or as far as the store reports it another process, takes the value."""
        self._remove_failed_puts()
        key, size = name.backend_key, metadata_size(metadata)
        with self._mu:
            if key in self._taking:
                raise Missing(f"{name.key}: another call takes it")
            self._taking.add(key)
        try:
            payload = self.client.get(key)
            found = len(payload)
            if size is not None and found != size:
                raise Damaged(
                    f"{name.key} has {found} bytes, and its metadata say {size}: another put replaced it, or the other "
                    "side is of another version"
                )
            if most is not None and found > most:
                return None, found
            if not self.client.remove([key])[0]:
                raise Missing(f"{name.key}: another process has taken it")
            with self._mu:
                self._own.pop(key, None)
            return payload, found
        finally:
            with self._mu:
                self._taking.discard(key)

    def put_back(self, name: Name, parts: Sequence[Buffer], metadata: dict[str, Any] | None) -> None:
        if not self.client.present([name.backend_key])[0]:  # else another has been put since
            self.put(name, parts)

    def own_names(self) -> list[Name]:
        with self._mu:
            return list(self._own.values())

    def remove(self, names: list[Name]) -> None:
        if names:
            self.client.remove([n.backend_key for n in names])
        with self._mu:
            for n in names:
                self._own.pop(n.backend_key, None)
                self._failed.pop(n.backend_key, None)

    def present(self, names: list[Name]) -> list[bool]:
        there = self.client.present([n.backend_key for n in names]) if names else []
        with self._mu:
            for n, is_there in zip(names, there):
                if not is_there and self._own.get(n.backend_key) is n:  # unless it was put again meanwhile
                    del self._own[n.backend_key]
        return there

    def forget_taken(self) -> None:
        self.present(self.own_names())
        with self._mu:
            self._prune_at = max(_FIRST_PRUNE, 2 * len(self._own))

    def _remove_failed_puts(self) -> None:
        """Remove the values that failed puts may have left."""
        if not self._failed:
            return
        with self._mu:
            failed = dict(self._failed)
        self.client.remove(list(failed))
        now = time.monotonic()
        with self._mu:
            for key, (name, until) in failed.items():
                if self._failed.get(key) != (name, until):
                    continue
                if until == math.inf:  # a store that was stopped performs the put when it continues
                    self._failed[key] = name, now + _LATE_PUT_SECONDS
                elif now >= until:
                    del self._failed[key]
                    self._own.pop(key, None)

    def check_health(self) -> None:
        self.client.present([self.client.key(Edge("0", "0"), "health")])

    def withdraw(self) -> None:
        try:
            self.remove(self.own_names())
        finally:
            self.client.withdraw()

    def close(self) -> None:
        try:
            self.remove(self.own_names())
        finally:
            self.client.close()


def shared_store(engine: Callable[[dict[str, Any]], StoreClient]) -> Callable[[dict[str, Any]], ValueStore]:
    """A function that opens a SharedStore with a client."""
    return lambda config: SharedStore(engine(config))


_POLL_SECONDS = (0.001, 0.02)  # at first, and at most


class StoreTransport:
    """The transport of a connector in this process."""

    def __init__(self, config: dict[str, Any], open_values: Callable[[dict[str, Any]], ValueStore]) -> None:
        self._mu = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = {}
        self._closed = False
        self._store, self._pid = open_values(config), os.getpid()

    def _open_store(self) -> ValueStore:
        if self._closed:
            raise OmnibusError("the connector is closed")
        if self._pid != os.getpid():
            raise Unavailable("the engines of connectors do not live on in a forked child: start the process by spawn, and open it there")
        return self._store

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        values = self._open_store()
        return values.put(values.name(edge, key), payload.pieces)

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        values = self._open_store()
        try:
            name = values.name(edge, key)
        except BadKey as e:  # so there is no value
            raise Missing(str(e)) from None
        payload, size = values.take_value(name, metadata)
        return decode(bytes(payload)), size  # views of the value may outlive the backend's buffer

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        ended = threading.Event()
        with self._mu:
            self._waiting.setdefault(key, set()).add(ended)
        try:
            pause, most = _POLL_SECONDS
            while True:
                try:
                    return self.get(edge, key, metadata, decode)
                except Gone:
                    raise
                except Missing:
                    left = deadline - time.monotonic()
                    if left <= 0 or ended.wait(min(pause, left)):
                        raise
                pause = min(2 * pause, most)
        finally:
            with self._mu:
                self._waiting[key].discard(ended)
                if not self._waiting[key]:
                    del self._waiting[key]

    def abandon(self, key: str) -> None:
        with self._mu:
            for ended in self._waiting.get(key, ()):
                ended.set()

    def cleanup(self, key: str) -> None:
        values = self._open_store()
        values.remove([n for n in values.own_names() if n.key == key])

    def reap(self) -> None:
        self._open_store().forget_taken()

    def health(self) -> dict[str, Any]:
        if self._closed:
            return {"status": "closed"}
        try:
            self._open_store().check_health()
        except OmnibusError as e:
            return {"status": f"unhealthy: {e}"}
        return {"status": "healthy"}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                self._store.close()

    def close_nowait(self) -> None:
        # The interrupted thread may hold a lock of the backend.
        threading.Thread(target=self.close, daemon=True).start()


def metadata_size(metadata: dict[str, Any] | None) -> int | None:
    """The size in metadata, None if they have none."""
    size = (metadata or {}).get("size")
    if size is not None and (type(size) is not int or size < 0):
        raise BadMetadata(f"size is {size!r}, not a whole number of at least 0: the other side is of another version")
    return size


#: A port, which vLLM-Omni may write as text.
PORT = SettingType("a whole number from 1 to 65535", lambda value: integer(1, 65535).parse(int(value)))


class Settings:
    """Settings of an engine, checked."""

    def __init__(self, config: dict[str, Any], kinds: dict[str, tuple[SettingType, Any]]) -> None:
        self._values: dict[str, Any] = {}
        for name, (kind, default) in {"timeout": (TIMEOUT, 30.0), **kinds}.items():
            value = config.get(name)
            try:
                self._values[name] = default if value is None else kind.parse(value)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{name} must be {kind.description}, not {value!r}") from None

    def __getattr__(self, name: str) -> Any:
        return self._values[name]


def check_reachable(what: str, address: str, start: str, timeout: float) -> None:
    """Raise Unavailable if nothing listens at an address: at once, where the backend's client would retry for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except (OSError, ValueError) as e:
        raise Unavailable(f"{what} at {address} cannot be reached: {e}: start it ({start}), or correct the address") from None
