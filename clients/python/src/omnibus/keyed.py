"""Values under keys, which one process writes and many read: a cache that is filled once and read many times::

    store = KeyedStore.create(arena_bytes=1 << 30)      # the writer
    store.listen("/run/user/1000/images")
    try:
        handle = store.put(key, pixels)
    except Exists:
        handle = store.get_cached(key)                  # not written again

    reader = KeyedReader.dial("/run/user/1000/images")  # in each other process
    pixels = reader.get(handle)                         # a view, if it is a tensor

It is the Go package shmstore/keyed in Python, and each reads what the other writes. `put`, `get_cached` and `touch` charge
every reader: it gets the value, or drops the handle, once for each charge. A value that no reader owes for, or reads, goes
when its room is needed, the oldest first. A reader that has died, or was closed, owes nothing.

All may be called from any thread; no lock is held while a value is encoded. After an error nothing was put or charged.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from . import codec, handshake
from .errors import ForkedError, HostGone, OmnibusError, Untrusted
from .listening import Listener, close_in_children
from .memory import View
from .owner import Full, Object, Owner
from .store import Corrupt, Handle, NoDebt, Reader, Stale, attach
from .storelayout import MOST_SLOTS, OwnerGone, TooManyReaders

__all__ = [
    "Corrupt", "Exists", "Full", "Handle", "KeyedReader", "KeyedStore", "NoDebt", "NotFound", "Stale", "Stats", "OwnerGone",
    "TooManyReaders",
]  # fmt: skip

MAX_KEY_BYTES = 1024


class Exists(OmnibusError, ValueError):
    """The key has a value, or is being put. `get_cached` gives its handle."""


class NotFound(OmnibusError, KeyError):
    """The key has no value: it was not put, was deleted, or its value had to go."""

    __str__ = Exception.__str__  # KeyError's shows the text in quotes


@dataclass(frozen=True)
class Stats:
    """The figures of a store: of one moment, and since it was made."""

    keys: int
    objects: int  #: with those that have no key any more, and are still read
    used_bytes: int
    arena_bytes: int
    readers: int
    puts: int
    hits: int  #: of `get_cached` and `touch`
    misses: int
    bytes_written: int
    bytes_saved: int  #: of values that were not written again
    evicted: int


class KeyedStore:
    """The writer's end. It is made by `create`."""

    def __init__(self, arena_bytes: int, max_object_bytes: int, slots: int, max_readers: int) -> None:
        self._lock = threading.Lock()  # of all that follows, the owner included
        self._owner = Owner(arena_bytes, max_object_bytes, slots, max_readers, self._forget)
        self._by_key: dict[str, Object] = {}  # some are being written
        self._counts = [0] * 5  # puts, hits, misses, bytes written, bytes saved
        self._listener: Listener | None = None
        self._pid = os.getpid()
        self._closed = False

    @classmethod
    def create(
        cls,
        arena_bytes: int = 64 << 20,
        *,
        max_object_bytes: int | None = None,
        slots: int | None = None,
        max_readers: int = 63,
    ) -> KeyedStore:
        """An empty store, with room for so many bytes of values: of each up to `max_object_bytes`, without that a quarter.

        There are at most `slots` values, without it one for each KiB of room. Raises OutOfMemory, and OSError (ENOSYS) where
        it is not known how the processor orders accesses.
        """
        largest = max(arena_bytes // 4, 1) if max_object_bytes is None else max_object_bytes
        most = min(max(arena_bytes // 1024, 64), MOST_SLOTS) if slots is None else slots
        return cls(arena_bytes, largest, most, max_readers)

    def put(self, key: str, value: Any, codec_: int | None = None) -> Handle:
        """Encode a value into the store, under a new key, and charge each reader once.

        It is encoded as the codec says or, without, as an emission is, but for bytes, which lie in the store as they are.
        Raises Exists, Full, TooLarge, and PayloadError for a value that has no encoding.
        """
        if not isinstance(key, str) or not 0 < len(key.encode(errors="surrogatepass")) <= MAX_KEY_BYTES:
            raise ValueError(f"a key is a str of 1 to {MAX_KEY_BYTES} bytes, and this is {_shown(key)}")
        self._check()
        if key in self._by_key:
            raise _exists(key)
        if codec_ is None and type(value) is bytes:
            codec_ = codec.RAW
        way = codec.plan(value, codec_)
        with self._lock:
            if key in self._by_key:  # by now
                raise _exists(key)
            o = self._by_key[key] = self._owner.reserve(way.size, key)
        try:
            assert o.view is not None
            way.write(o.view)
            with self._lock:
                self._check()
                h = self._owner.commit(o, way.codec)
                self._counts[0] += 1
                self._counts[3] += way.size
            return h
        except BaseException:
            with self._lock:
                if o.handle is None:
                    self._owner.abort(o)
            raise

    def get_cached(self, key: str) -> Handle:
        """The handle of the value under a key. Each reader is charged once more. Raises NotFound."""
        self._check()
        with self._lock:
            return self._charged(key)

    def touch(self, key: str) -> None:
        """Charge each reader once more for the value under a key: it stays until they have read it. Raises NotFound."""
        self._check()
        with self._lock:
            self._charged(key)

    def __contains__(self, key: object) -> bool:
        """Whether there is a value under a key. It may be gone with the next `put`."""
        self._check()
        with self._lock:
            o = self._by_key.get(key)  # type: ignore[call-overload]
            return o is not None and o.handle is not None

    def delete(self, key: str) -> None:
        """Forget a key. Its value goes at once if no reader owes for it or reads it, and else later. Raises NotFound."""
        self._check()
        with self._lock:
            if key not in self._by_key:
                raise NotFound(f"nothing lies under {_shown(key)}")
            self._drop(key)

    def clear(self) -> None:
        """Forget all keys. Readers keep what they read, and get what they were charged for; all else goes at once."""
        self._check()
        with self._lock:
            for key in list(self._by_key):
                self._drop(key)

    def free_unused(self, nbytes: int | None = None) -> int:
        """Free the oldest values that no reader owes for, or reads, until they have so many bytes: all, without a number."""
        self._check()
        with self._lock:
            return self._owner.free(self._owner.geometry.arena if nbytes is None else nbytes)

    def stats(self) -> Stats:
        """The figures."""
        with self._lock:
            o, (puts, hits, misses, written, saved) = self._owner, self._counts
            return Stats(
                len(self._by_key), len(o.objects), o.used_bytes, o.geometry.arena, len(o.accounts), puts, hits, misses,
                written, saved, o.evicted,
            )  # fmt: skip

    def listen(self, path: str) -> None:
        """Admit the processes of this user that dial a path, until the store is closed.

        Raises `Taken` where another process listens there. A socket that a process has left behind is replaced.
        """
        self._check()
        with self._lock:
            if self._listener is not None:
                raise ValueError(f"the store listens at {self._listener.path} already")
            self._listener = Listener(path, self._arrived)
        self._listener.start()

    def admit(self, sock: socket.socket) -> int:
        """Make the process at the other end of a SOCK_SEQPACKET socket a reader: there, `KeyedReader.attach` is called.

        The socket is the store's from here on. It waits for the other process, for seconds at most. Raises TooManyReaders,
        ProtocolError, OSError. When that process has died, or has ended the connection, the reader is removed.
        """
        close_in_children(sock)
        try:
            try:
                self._check()
                with self._lock:
                    index = self._owner.invite()
            except (TooManyReaders, OwnerGone) as e:
                self._owner.refuse(sock, e)
                raise
            try:
                account = self._owner.exchange(sock, index)
                with self._lock:
                    self._check()
                    self._owner.join(account)
                self._owner.grant(sock, account)
            except BaseException:
                with self._lock:
                    self._owner.remove(index)
                raise
        except BaseException:
            sock.close()
            raise
        threading.Thread(target=self._watch, args=(sock, account.pid, index), name="omnibus-reader", daemon=True).start()
        return index

    def remove_reader(self, index: int) -> None:
        """End a reader: what it owes and reads is free, and what it views may be written over."""
        with self._lock:
            account = self._owner.accounts.get(index)
        if account is not None:
            account.end()

    def close(self) -> None:
        """End the store. Readers keep what they view, and get no more. Idempotent."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            accounts, listener = list(self._owner.accounts.values()), self._listener
        if listener is not None:
            listener.close()
        for a in accounts:
            a.end()

    def __enter__(self) -> KeyedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        """Raise where the store is not to be used. It comes before the lock, which a forked child may find taken for ever."""
        if os.getpid() != self._pid:
            raise ForkedError(f"the store belongs to process {self._pid}, and this is {os.getpid()}: attach here")
        if self._closed:
            raise OwnerGone("the store is closed")

    def _charged(self, key: str) -> Handle:
        o = self._by_key.get(key)
        if o is None or o.handle is None:
            self._counts[2] += 1
            raise NotFound(f"nothing lies under {_shown(key)}")
        self._owner.charge(o)
        self._counts[1] += 1
        self._counts[4] += o.size
        return o.handle

    def _drop(self, key: str) -> None:
        """Forget a key. The lock is held."""
        self._owner.evict(self._by_key.pop(key))

    def _forget(self, o: Object) -> None:
        """An object has gone, or was not finished. The lock is held."""
        if self._by_key.get(o.tag) is o:
            del self._by_key[o.tag]

    def _arrived(self, sock: socket.socket) -> None:
        with suppress(OmnibusError, OSError):  # a peer that does not attach is told by the end of its connection
            self.admit(sock)

    def _watch(self, sock: socket.socket, pid: int, index: int) -> None:
        _await_end(sock, pid)
        with self._lock:
            self._owner.remove(index)
        sock.close()


def _await_end(sock: socket.socket, pid: int | None) -> None:
    """Wait until a process has died, or has ended a connection over which nothing more is sent.

    Its connection alone stays open for as long as a child has it that it has forked.
    """
    died = None
    try:
        if pid is not None:
            died = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if died is not None:
            poll.register(died, select.POLLIN)
        poll.poll()
    except ProcessLookupError:
        pass  # it has died already
    finally:
        if died is not None:
            os.close(died)


def _exists(key: str) -> Exists:
    return Exists(f"there is a value under {_shown(key)}")


def _shown(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 64 else f"{text[:64]}..."


class KeyedReader:
    """A reader's end. A forked child dials anew."""

    def __init__(self, reader: Reader, sock: socket.socket, pid: int | None) -> None:
        self._reader, self._sock = reader, sock
        self._ended: list[str] = []  # why there is nothing more to get
        threading.Thread(target=_watch_owner, args=(sock, pid, self._ended), name="omnibus-store", daemon=True).start()

    @classmethod
    def dial(cls, path: str, allow_uids: Iterable[int] = ()) -> KeyedReader:
        """Become a reader of the store that listens at a path. Raises OwnerGone, and Untrusted, as `omnibus.connect` does."""
        try:
            sock = handshake.dial(path, allow_uids)
        except Untrusted:
            raise
        except HostGone as e:
            raise OwnerGone(f"no store listens at {path}: {e.__cause__}") from None
        pid, _, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return cls._attached(sock, pid or None)

    @classmethod
    def attach(cls, sock: socket.socket) -> KeyedReader:
        """Become a reader of the store whose owner is at the other end of a SOCK_SEQPACKET socket, which is this reader's from
        here on. Raises ProtocolError, TooManyReaders, OwnerGone, OSError."""
        return cls._attached(sock, None)

    @classmethod
    def _attached(cls, sock: socket.socket, pid: int | None) -> KeyedReader:
        try:
            reader = attach(sock)
            sock.settimeout(None)
            close_in_children(sock)  # or a child that closes, or drops, its copy of the reader would end this one
        except BaseException:
            sock.close()
            raise
        return cls(reader, sock, pid)

    def get(self, handle: Handle) -> Any:
        """Collect a value that this reader was charged for. Tensors are views: it counts as read when the last view is gone.

        Raises Stale, NoDebt, Corrupt, OwnerGone, and PayloadError.
        """
        self._check()
        if handle[5] in (codec.TENSOR, codec.BUNDLE):
            return codec.decode(self._reader.take(handle).data, handle[5])
        return self._reader.read(handle, lambda payload: codec.decode(payload, handle[5]))

    def view(self, handle: Handle) -> View:
        """Collect a value, and view its bytes as they are encoded. Raises what `get` does."""
        self._check()
        return self._reader.take(handle)

    def drop(self, handle: Handle) -> None:
        """Settle one charge without reading. Raises what `get` does."""
        self._check()
        self._reader.drop(handle)

    def close(self) -> None:
        """End the reader: at once, or when the last view is gone. Idempotent."""
        self._ended.append("the reader is closed")
        self._reader.close(self._hang_up)

    def _hang_up(self) -> None:
        with suppress(OSError):  # the thread that waits closes it
            self._sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> KeyedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ended"):
            self.close()

    def _check(self) -> None:
        if self._ended:
            raise OwnerGone(self._ended[0])


def _watch_owner(sock: socket.socket, pid: int | None, ended: list[str]) -> None:
    _await_end(sock, pid)
    ended.append("the writer of the store has ended, or has removed this reader: attach to a new store")
    sock.close()
