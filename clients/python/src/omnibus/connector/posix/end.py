"""One end of a store with a name: the one that puts, which creates it, or one that gets, which opens it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import OmnibusError
from ..contract import BadMetadata, Decode, Edge, Missing, Unavailable, entry_number, setting
from ..encoder import Encoded
from .files import Bell, Files
from .layout import check_name
from .owner import Options, Owner
from .reader import Reader

_BYTES = 64 << 20
_TIMEOUT, _TTL = 30.0, 600.0


class _Wait:
    """A thread that waits for a key."""

    __slots__ = ("key", "bell", "over")

    def __init__(self, key: str, bell: Bell) -> None:
        self.key, self.bell, self.over = key, bell, False


class Store:
    """A transport over a store with a name. The first put creates it, the first get opens it."""

    def __init__(self, config: dict[str, Any]) -> None:
        if sys.platform != "linux" or sys.byteorder != "little":
            raise Unavailable("stores with names are for Linux, on machines of little-endian byte order")
        self._options = Options(
            name=check_name(config["store"]),
            path=setting(config, "dir", "/dev/shm"),
            readers=setting(config, "readers", 1),
            size=setting(config, "ring_bytes", _BYTES),
            timeout=setting(config, "timeout", _TIMEOUT),
            ttl=setting(config, "ttl", _TTL),
        )
        self._closed = False
        self._begin()
        _ends.add(self)

    def _begin(self) -> None:
        self._mu = threading.Lock()
        self._owner: Owner | None = None
        self._reader: Reader | None = None
        self._waits: set[_Wait] = set()
        self._bells = threading.local()  # one for each thread that waits
        self._files = Files(self._options.path, self._options.name)

    # Putting.

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        bell = self._bell()  # first: a store that cannot be put into is not made
        with self._creator() as owner:
            return owner.put(edge, key, payload, bell)

    def _creator(self) -> Owner:
        with self._mu:
            self._check_open()
            if self._owner is None:
                if self._reader is not None and self._reader.alive:
                    raise Unavailable(
                        f"process {self._reader.record.pid} alone puts into the store {self._options.name}, which this "
                        "end has opened to get: put into a store of another name"
                    )
                self._leave()
                self._owner = Owner(self._files, self._options, self._wake)
            return self._owner

    # Getting.

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        number = self._number(metadata)
        with self._side() as side:
            value = side.take(edge, key, number)
        return decode(value), len(value)

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        number = self._number(metadata)
        if number:  # it was there: there is nothing to wait for
            return self.get(edge, key, metadata, decode)
        with self._waiting(key) as w:
            while True:
                w.bell.clear()
                # Each store has a first file of its own. Where there is none it is made later, and the directory tells.
                w.bell.directory(self._files.path)
                w.bell.file(os.path.join(self._files.path, self._files.head))
                if w.over:
                    raise Missing(key)
                value = self._take_or_wait(edge, key, w, deadline)
                if value is not None:
                    return decode(value), len(value)

    def _take_or_wait(self, edge: Edge, key: str, w: _Wait, deadline: float) -> bytes | None:
        """Get a value, or wait until something has changed. Raises Missing when the time is up."""
        with contextlib.ExitStack() as using:
            try:
                side = self._side()
                using.enter_context(side)
                if isinstance(side, Reader):
                    using.enter_context(side.waiting())
                return side.take(edge, key, 0)
            except Missing:
                if not w.bell.wait(deadline, self._files.head):
                    raise
                return None

    def _side(self) -> Owner | Reader:
        """The store to get from. Raises NoStore if there is none."""
        with self._mu:
            self._check_open()
            if self._owner is not None:
                return self._owner
            if self._reader is not None and not self._reader.alive:
                self._leave()
            if self._reader is None:
                self._reader = Reader(self._files)
            return self._reader

    def _leave(self) -> None:
        """Let go of a store whose creator is gone."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.finish()

    def _number(self, metadata: dict[str, Any] | None) -> int:
        """The number that metadata name, 0 if they name none. Those of other transports say nothing here."""
        name = (metadata or {}).get("store")
        if name is None:
            return 0
        if name != self._options.name:
            raise BadMetadata(f"the value was put into the store {name!r:.100}, and this is {self._options.name}")
        return entry_number(metadata)

    @contextmanager
    def _waiting(self, key: str) -> Iterator[_Wait]:
        w = _Wait(key, self._bell())
        with self._mu:
            self._waits.add(w)
        try:
            yield w
        finally:
            with self._mu:
                self._waits.discard(w)

    def _bell(self) -> Bell:
        bell = getattr(self._bells, "mine", None)
        if bell is None:
            bell = self._bells.mine = Bell()
        return bell

    def _wake(self) -> None:
        with self._mu:
            for w in self._waits:
                w.bell.nudge()

    def abandon(self, key: str) -> None:
        with self._mu:
            for w in self._waits:
                if w.key == key:
                    w.over = True
                    w.bell.nudge()

    # The rest.

    def cleanup(self, key: str) -> None:
        with self._mu:
            self._check_open()
            owner = self._owner
        if owner is not None:
            with owner:
                owner.cleanup(key)

    def reap(self) -> None:
        with self._mu:
            self._check_open()
            owner = self._owner
        if owner is not None:
            with owner:
                owner.reap()

    def health(self) -> dict[str, Any]:
        with self._mu:
            owner, reader = self._owner, self._reader
            if self._closed:
                status = "closed"
            elif owner is None and reader is not None and not reader.alive:
                status = "unhealthy: the store's creator is gone"
            else:
                status = "healthy"
        return {"status": status, "pending": 0 if owner is None else owner.pending}

    def _check_open(self) -> None:
        if self._closed:
            raise OmnibusError("the connector is closed")

    def close(self) -> None:
        with self._mu:
            if self._closed:
                return
            self._closed = True
            self._leave()
            for w in self._waits:
                w.bell.nudge()
        if self._owner is not None:
            self._owner.close()
        self._files.close()
        self._bells = threading.local()  # whose descriptors are not left to a collection

    def drop(self) -> None:
        self.close()  # nobody is in the middle of anything here: he would refer to it

    def _forked(self) -> None:
        """Begin anew in a child: descriptors that it keeps would keep the parent's locks."""
        for side in (self._owner, self._reader):
            if side is not None:
                side.forget()
        self._files.close()
        if self._closed:
            return
        try:
            self._begin()
        except OmnibusError:
            self._closed = True


_ends: weakref.WeakSet[Store] = weakref.WeakSet()


def _forked() -> None:
    for end in list(_ends):
        end._forked()


os.register_at_fork(after_in_child=_forked)
