"""Values in a store that other programs share, Mooncake's or Yuanrong's, as vLLM-Omni's connectors put them.

An `Engine` is the client of such a store. `Values` adds what the stores lack: a value is got once, what was put is
taken back, and nothing is left of a put that failed. `Keeper` is what it has in common with `held.Held`, whose values
stay with their producer. `Store` is the transport of a connector over a keeper; the other user is `omnibus.bridge`.
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
    TIMEOUT, BadKey, BadMetadata, Damaged, Decode, Edge, Gone, Kind, Missing, NoRoom, Unavailable, whole,
)  # fmt: skip

_LATE_SECONDS = 5.0  # within which an engine that answers again has done what it was asked for before
_FIRST_PRUNE = 1024  # values that are remembered before it is asked which of them have been got


class TooLarge(NoRoom):
    """A value that the store can never take."""


class Engine(Protocol):
    """The client of a store. Safe from any thread. Its errors are those of `contract`, and name engine and address."""

    def key(self, edge: Edge, key: str) -> str:
        """What vLLM-Omni's connector calls a key. Raises BadKey for one that the store cannot have."""
        ...

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Store a payload, in place of any other under the key."""
        ...

    def get(self, key: str) -> Any:
        """A buffer with the payload, which stays what it is when the value is removed. Raises Missing."""
        ...

    def remove(self, keys: list[str]) -> list[bool]:
        """Remove values, and say which keys had none, where the store tells: False."""
        ...

    def present(self, keys: list[str]) -> list[bool]:
        """Which keys have a value."""
        ...

    def leave(self) -> None:
        """Take the client's memory out of the store, and what lies in it: for a process that ends at once."""
        ...

    def close(self) -> None:
        """leave, and end the client."""
        ...


class Name:
    """What a value is called: by its connector, and by the engine."""

    __slots__ = ("edge", "key", "engine_key")

    def __init__(self, edge: Edge, key: str, engine_key: str) -> None:
        self.edge, self.key, self.engine_key = edge, key, engine_key


class Keeper(Protocol):
    """What a process puts and takes. Safe from any thread. Its errors are those of `contract`."""

    def name(self, edge: Edge, key: str) -> Name:
        """Raises BadKey for a key that there cannot be."""
        ...

    def put(self, name: Name, parts: Sequence[Buffer]) -> dict[str, Any]:
        """Store a payload, in place of any other of the name, and return what a take may be told of it."""
        ...

    def take(self, name: Name, metadata: dict[str, Any] | None = None, most: int | None = None) -> tuple[Any, int]:
        """Take a value: its payload and its size. Above `most` bytes it stays for the next take, and there is none."""
        ...

    def back(self, name: Name, parts: Sequence[Buffer], metadata: dict[str, Any] | None) -> None:
        """Store what a take took in vain, for another of the same name and metadata."""
        ...

    def own(self) -> list[Name]:
        """What was put here and is not known to be gone."""
        ...

    def remove(self, names: list[Name]) -> None:
        """Take back values that were put here."""
        ...

    def present(self, names: list[Name]) -> list[bool]:
        """Which values have not been got. What has is forgotten."""
        ...

    def prune(self) -> None:
        """Forget what has been got."""
        ...

    def check(self) -> None:
        """Raise what is wrong, if something is."""
        ...

    def leave(self) -> None:
        """Take back all that was put here: for a process that ends at once."""
        ...

    def close(self) -> None:
        """leave, and end the engine."""
        ...


class Values:
    """What a process puts into a store and takes out of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._mu = threading.Lock()
        self._own: dict[str, Name] = {}  # put here, and not known to be gone
        # Of puts that failed, which may have been done all the same, and until when they are removed again and again.
        self._failed: dict[str, tuple[Name, float]] = {}
        self._taking: set[str] = set()
        self._prune_at = _FIRST_PRUNE

    def name(self, edge: Edge, key: str) -> Name:
        return Name(edge, key, self.engine.key(edge, key))

    def put(self, name: Name, parts: Sequence[Buffer]) -> dict[str, Any]:
        self._settle()
        with self._mu:
            self._own[name.engine_key] = name
            prune = len(self._own) >= self._prune_at
        try:
            self.engine.put(name.engine_key, parts)
        except BaseException as e:
            late = isinstance(e, Unavailable)
            with self._mu:
                self._failed[name.engine_key] = name, math.inf if late else 0
            if not late:  # else it is asked when there is something else to ask
                self._settle()
            raise
        with self._mu:
            self._failed.pop(name.engine_key, None)  # of another call
        if prune:
            self.prune()
        return {}

    def take(self, name: Name, metadata: dict[str, Any] | None = None, most: int | None = None) -> tuple[Any, int]:
        """Raises Missing also where another thread or, if the engine tells, another process takes it."""
        self._settle()
        key, size = name.engine_key, told_size(metadata)
        with self._mu:
            if key in self._taking:
                raise Missing(f"{name.key}: another call takes it")
            self._taking.add(key)
        try:
            payload = self.engine.get(key)
            found = len(payload)
            if size is not None and found != size:
                raise Damaged(
                    f"{name.key} has {found} bytes, and its metadata say {size}: another put replaced it, or the other "
                    "side is of another version"
                )
            if most is not None and found > most:
                return None, found
            if not self.engine.remove([key])[0]:
                raise Missing(f"{name.key}: another process has taken it")
            with self._mu:
                self._own.pop(key, None)
            return payload, found
        finally:
            with self._mu:
                self._taking.discard(key)

    def back(self, name: Name, parts: Sequence[Buffer], metadata: dict[str, Any] | None) -> None:
        if not self.engine.present([name.engine_key])[0]:  # else another has been put since
            self.put(name, parts)

    def own(self) -> list[Name]:
        with self._mu:
            return list(self._own.values())

    def remove(self, names: list[Name]) -> None:
        if names:
            self.engine.remove([n.engine_key for n in names])
        with self._mu:
            for n in names:
                self._own.pop(n.engine_key, None)
                self._failed.pop(n.engine_key, None)

    def present(self, names: list[Name]) -> list[bool]:
        there = self.engine.present([n.engine_key for n in names]) if names else []
        with self._mu:
            for n, is_there in zip(names, there):
                if not is_there and self._own.get(n.engine_key) is n:  # or it was put again meanwhile
                    del self._own[n.engine_key]
        return there

    def prune(self) -> None:
        self.present(self.own())
        with self._mu:
            self._prune_at = max(_FIRST_PRUNE, 2 * len(self._own))

    def _settle(self) -> None:
        """Remove what failed puts may have left, before anything else is done."""
        if not self._failed:
            return
        with self._mu:
            failed = dict(self._failed)
        self.engine.remove(list(failed))
        now = time.monotonic()
        with self._mu:
            for key, (name, until) in failed.items():
                if self._failed.get(key) != (name, until):
                    continue
                if until == math.inf:  # an engine that was stopped does what it was asked for meanwhile
                    self._failed[key] = name, now + _LATE_SECONDS
                elif now >= until:
                    del self._failed[key]
                    self._own.pop(key, None)

    def check(self) -> None:
        self.engine.present([self.engine.key(Edge("0", "0"), "health")])

    def leave(self) -> None:
        try:
            self.remove(self.own())
        finally:
            self.engine.leave()

    def close(self) -> None:
        try:
            self.remove(self.own())
        finally:
            self.engine.close()


def over(engine: Callable[[dict[str, Any]], Engine]) -> Callable[[dict[str, Any]], Keeper]:
    """What opens the values of a store."""
    return lambda config: Values(engine(config))


_POLL_SECONDS = (0.001, 0.02)  # at first, and at most


class Store:
    """The transport of a connector in this process."""

    def __init__(self, config: dict[str, Any], open_values: Callable[[dict[str, Any]], Keeper]) -> None:
        self._mu = threading.Lock()
        self._waiting: dict[str, set[threading.Event]] = {}
        self._closed = False
        self._values, self._pid = open_values(config), os.getpid()

    def _open(self) -> Keeper:
        if self._closed:
            raise OmnibusError("the connector is closed")
        if self._pid != os.getpid():
            raise Unavailable("the engines of connectors do not live on in a forked child: start the process by spawn, and open it there")
        return self._values

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        values = self._open()
        return values.put(values.name(edge, key), payload.pieces)

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        values = self._open()
        try:
            name = values.name(edge, key)
        except BadKey as e:  # so nothing lies there
            raise Missing(str(e)) from None
        payload, size = values.take(name, metadata)
        return decode(bytes(payload)), size  # views of it may outlive what the engine has room for

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
        values = self._open()
        values.remove([n for n in values.own() if n.key == key])

    def reap(self) -> None:
        self._open().prune()

    def health(self) -> dict[str, Any]:
        if self._closed:
            return {"status": "closed"}
        try:
            self._open().check()
        except OmnibusError as e:
            return {"status": f"unhealthy: {e}"}
        return {"status": "healthy"}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._pid == os.getpid():
                self._values.close()

    def drop(self) -> None:
        # The thread that is interrupted may have a lock of the engine's.
        threading.Thread(target=self.close, daemon=True).start()


def told_size(metadata: dict[str, Any] | None) -> int | None:
    """The size that metadata tell, if they do."""
    size = (metadata or {}).get("size")
    if size is not None and (type(size) is not int or size < 0):
        raise BadMetadata(f"size is {size!r}, not a whole number of at least 0: the other side is of another version")
    return size


#: A port, which vLLM-Omni has as text at times.
PORT = Kind("a whole number from 1 to 65535", lambda value: whole(1, 65535).read(int(value)))


class Settings:
    """Settings of an engine, checked."""

    def __init__(self, config: dict[str, Any], kinds: dict[str, tuple[Kind, Any]]) -> None:
        self._values: dict[str, Any] = {}
        for name, (kind, default) in {"timeout": (TIMEOUT, 30.0), **kinds}.items():
            value = config.get(name)
            try:
                self._values[name] = default if value is None else kind.read(value)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{name} must be {kind.want}, not {value!r}") from None

    def __getattr__(self, name: str) -> Any:
        return self._values[name]


def reach(what: str, address: str, start: str, timeout: float) -> None:
    """Raise Unavailable if nothing listens at an address: at once, where the engine's client would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except (OSError, ValueError) as e:
        raise Unavailable(f"{what} at {address} cannot be reached: {e}: start it ({start}), or correct the address") from None
