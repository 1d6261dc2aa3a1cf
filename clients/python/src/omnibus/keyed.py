"""Values under keys, which one process writes and many read: a cache that is filled once and read many times::

    store = KeyedStore.create(arena_bytes=1 << 30)      # the writer
    store.listen("/run/user/1000/images")

    reader = KeyedReader.dial("/run/user/1000/images")  # in each other process

    try:                                                # the writer, when its readers are there
        handle = store.get_cached(key)                  # not written again
    except NotFound:
        handle = store.put(key, pixels)

    pixels = reader.get(handle)                         # a view, if it is a tensor

It is the Go package shmstore/keyed in Python, and each reads what the other writes: bundles where the Go program has their
serializer. `put`, `get_cached` and `touch` charge every reader that is there: it gets the value, or drops the handle, once
for each charge. A value that no reader owes for, or reads, goes when its room is needed, the oldest first. A reader that has
died, or was closed, owes nothing.

All may be called from any thread; no lock is held while a value is encoded: until it is, its key is `Exists` to `put` and
`NotFound` to `get_cached`. After an error nothing was put or charged. What a signal's handler raises in the middle of a call
of the writer ends the store. At a reader it loses nothing, but for the moment in which the last view of a value goes: that
value stays until the reader ends. In such a handler `close` alone may be called.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar

from . import codec, handshake
from .errors import ForkedError, HostGone, OmnibusError, Untrusted
from .listening import Listener, close_in_children
from .locked import current
from .memory import View
from .owner import Full, Object, Owner
from .store import Corrupt, Handle, NoDebt, Reader, Stale, attach
from .storelayout import MOST_SLOTS, OwnerGone, TooManyReaders

__all__ = [
    "Corrupt", "Exists", "Full", "Handle", "KeyedReader", "KeyedStore", "NoDebt", "NotFound", "Stale", "Stats", "OwnerGone",
    "TooManyReaders",
]  # fmt: skip

MAX_KEY_BYTES = 1024

_T = TypeVar("_T")


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
        self._lock = threading.RLock()  # of all that follows, the owner included
        self._owner = Owner(arena_bytes, max_object_bytes, slots, max_readers, self._forget)
        self._by_key: dict[str, Object] = {}  # some are being written
        self._counts = [0] * 5  # puts, hits, misses, bytes written, bytes saved
        self._listener: Listener | None = None
        self._pid = current.pid
        self._closed = ""  # why the store has ended

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
        Raises Exists, Full, TooLarge, OwnerGone, PayloadError for a value that has no encoding, and ValueError for a bad key.
        """
        if not 0 < len(_text(key)) <= MAX_KEY_BYTES // 4 and not _fits(key):
            raise _bad_key(key)
        if key in self._by_key:
            raise _exists(key)
        if codec_ is None and type(value) is bytes:
            codec_ = codec.RAW
        way = codec.plan(value, codec_)
        reserved: list[Object] = []
        try:
            self._locked(self._reserve, key, way.size, reserved)
            view = reserved[0].view
            assert view is not None
            way.write(view)
            return self._locked(self._commit, reserved[0], way)
        except BaseException:
            if reserved and not self._closed:
                self._locked(self._abort, reserved[0])
            raise

    def get_cached(self, key: str) -> Handle:
        """The handle of the value under a key. Each reader is charged once more. Raises NotFound."""
        return self._locked(self._charge, _text(key))

    def touch(self, key: str) -> None:
        """Charge each reader once more for the value under a key: it stays until they have read it. Raises NotFound."""
        self._locked(self._charge, _text(key))

    def __contains__(self, key: object) -> bool:
        """Whether there is a value under a key. It may be gone with the next `put`."""
        self._check()
        o = self._by_key.get(key)  # type: ignore[call-overload]
        return o is not None and o.handle is not None

    def delete(self, key: str) -> None:
        """Forget a key. Its value goes at once if no reader owes for it or reads it, and else later. Raises NotFound."""
        self._locked(self._drop, _text(key))

    def clear(self) -> None:
        """Forget all keys. Readers keep what they read, and get what they were charged for; all else goes at once."""
        self._locked(self._clear)

    def free_unused(self, nbytes: int | None = None) -> int:
        """Free the oldest values that no reader owes for, or reads, until they have so many bytes: all, without a number."""
        return self._locked(self._owner.free, self._owner.geometry.arena if nbytes is None else index(nbytes))

    def stats(self) -> Stats:
        """The figures."""
        self._check_process()
        with self._lock:
            o, (puts, hits, misses, written, saved) = self._owner, self._counts
            return Stats(
                len(self._by_key), len(o.objects), o.used_bytes, o.geometry.arena, len(o.accounts), puts, hits, misses,
                written, saved, o.evicted,
            )  # fmt: skip

    def listen(self, path: str | os.PathLike[str]) -> None:
        """Admit the processes of this user that dial a path, until the store is closed.

        Raises `Taken` where another process listens there. A socket that a process has left behind is replaced, and the
        folder is made, for this user alone, if only that is missing.
        """
        self._check()
        with self._lock:
            if self._listener is not None:
                raise ValueError(f"the store listens at {self._listener.path} already")
            listener = self._listener = Listener(os.fspath(path), self._arrived)
        listener.start()

    def admit(self, sock: socket.socket) -> int:
        """Make the process at the other end of a SOCK_SEQPACKET socket a reader: there, `KeyedReader.attach` is called.

        The socket is the store's from here on. It waits for the other process, for seconds at most. Raises TooManyReaders,
        ProtocolError, OSError. When that process has died, or has ended the connection, the reader is removed.
        """
        close_in_children(sock)
        try:
            self._check_process()
            try:
                reader = self._locked(self._owner.invite)
            except (TooManyReaders, OwnerGone) as e:
                self._owner.refuse(sock, e)
                raise
            try:
                account = self._owner.exchange(sock, reader)
                ending = _Ending(sock, account.pid)
                self._locked(self._owner.join, account)
                threading.Thread(target=self._watch, args=(ending, reader), name="omnibus-reader", daemon=True).start()
                self._owner.grant(sock, account)
                self._check()  # again, for what has ended the store meanwhile knows nothing of this reader
            except BaseException:
                with self._lock:
                    self._owner.remove(reader)
                raise
        except BaseException:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # the thread that watches it reads its end
            sock.close()
            raise
        return reader

    def remove_reader(self, reader: int) -> None:
        """End a reader: what it owes and reads is free, and what it views may be written over."""
        self._check_process()
        account = self._owner.accounts.get(reader)
        if account is not None:
            account.end()

    def close(self) -> None:
        """End the store. Readers keep what they view, and get no more. Idempotent, and safe in a signal's handler."""
        if current.pid == self._pid:
            self._end("the store is closed")

    def _end(self, why: str) -> None:
        self._closed = self._closed or why
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for a in list(self._owner.accounts.values()):
            a.end()

    def __enter__(self) -> KeyedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        """It comes before the lock, which a forked child may find taken for ever."""
        if current.pid != self._pid:
            raise ForkedError(f"the store belongs to process {self._pid}, and this is {current.pid}: attach here")

    def _check(self) -> None:
        self._check_process()
        if self._closed:
            raise OwnerGone(self._closed)

    def _locked(self, f: Callable[..., _T], *args: Any) -> _T:
        """Call f with the lock held. What a signal's handler raises in the middle of it leaves it half done: the store ends."""
        if current.pid != self._pid:
            self._check_process()
        try:
            with self._lock:
                if self._closed:
                    raise OwnerGone(self._closed)
                return f(*args)
        except OmnibusError:
            raise
        except BaseException:
            self._end("the store has ended: a signal came in the middle of a call; make a new one")
            raise

    def _reserve(self, key: str, size: int, reserved: list[Object]) -> None:
        if key in self._by_key:  # by now
            raise _exists(key)
        o = self._by_key[key] = self._owner.reserve(size, key)
        reserved.append(o)

    def _commit(self, o: Object, way: codec.Encoding) -> Handle:
        self._counts[0] += 1
        self._counts[3] += way.size
        return self._owner.commit(o, way.codec)

    def _abort(self, o: Object) -> None:
        if o.handle is None:
            self._owner.abort(o)

    def _charge(self, key: str) -> Handle:
        o = self._by_key.get(key)
        if o is None or o.handle is None:
            self._counts[2] += 1
            raise NotFound(f"nothing lies under {_shown(key)}")
        self._owner.charge(o)
        self._counts[1] += 1
        self._counts[4] += o.size
        return o.handle

    def _drop(self, key: str) -> None:
        if key not in self._by_key:
            raise NotFound(f"nothing lies under {_shown(key)}")
        self._owner.evict(self._by_key.pop(key))

    def _clear(self) -> None:
        for key in list(self._by_key):
            self._drop(key)

    def _forget(self, o: Object) -> None:
        """An object has gone, or was not finished. The lock is held."""
        if self._by_key.get(o.tag) is o:
            del self._by_key[o.tag]

    def _arrived(self, sock: socket.socket) -> None:
        if _peer(sock)[1] != os.geteuid():
            sock.close()
            return
        with suppress(OmnibusError, OSError):  # a peer that does not attach is told by the end of its connection
            self.admit(sock)

    def _watch(self, ending: _Ending, reader: int) -> None:
        try:
            ending.wait()
        finally:
            with self._lock:
                self._owner.remove(reader)


class _Ending:
    """The end of a connection over which nothing more is sent, or of the process at its other end.

    The connection alone stays open for as long as a child has it that the process has forked.
    """

    __slots__ = ("_sock", "_died")

    def __init__(self, sock: socket.socket, pid: int | None) -> None:
        """Watch a process; None: the connection alone. Raises ProcessLookupError where it has died, and OSError."""
        self._sock, self._died = sock, None if pid is None else os.pidfd_open(pid)

    def wait(self) -> None:
        """Wait for it, and close the connection."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        try:
            if self._died is not None:
                poll.register(self._died, select.POLLIN)
            poll.poll()
        finally:
            self._sock.close()
            if self._died is not None:
                os.close(self._died)


def _peer(sock: socket.socket) -> tuple[int, int]:
    """The process at the other end of a connection, and its user."""
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _exists(key: str) -> Exists:
    return Exists(f"there is a value under {_shown(key)}")


def _bad_key(key: object) -> ValueError:
    return ValueError(f"a key is a str of 1 to {MAX_KEY_BYTES} bytes, and this is {_shown(key)}")


def _text(key: str) -> str:
    """The key. It comes before the lock: what is raised under that, and is no error of this package's, ends the store."""
    if not isinstance(key, str):
        raise _bad_key(key)
    return key


def _fits(key: str) -> bool:
    return 0 < len(key.encode(errors="surrogatepass")) <= MAX_KEY_BYTES


def _shown(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 64 else f"{text[:64]}..."


class KeyedReader:
    """A reader's end. A forked child dials anew."""

    def __init__(self, reader: Reader, sock: socket.socket, ending: _Ending) -> None:
        self._reader, self._sock = reader, sock
        self._ended: list[str] = []  # why there is nothing more to get
        threading.Thread(target=_watch_owner, args=(ending, self._ended), name="omnibus-store", daemon=True).start()

    @classmethod
    def dial(cls, path: str | os.PathLike[str], allow_uids: Iterable[int] = ()) -> KeyedReader:
        """Become a reader of the store that listens at a path.

        Raises OwnerGone where none answers, TooManyReaders, and Untrusted, as `omnibus.connect` does.
        """
        try:
            sock = handshake.dial(os.fspath(path), allow_uids)
        except Untrusted:
            raise
        except HostGone as e:
            raise OwnerGone(f"no store answers at {path}: {e.__cause__}") from None
        return cls._attached(sock, _peer(sock)[0] or None, f"no store answers at {path}")

    @classmethod
    def attach(cls, sock: socket.socket) -> KeyedReader:
        """Become a reader of the store whose owner is at the other end of a SOCK_SEQPACKET socket, which is this reader's from
        here on. Raises OwnerGone, TooManyReaders, ProtocolError, OSError."""
        return cls._attached(sock, None, "the store's owner does not answer")

    @classmethod
    def _attached(cls, sock: socket.socket, pid: int | None, silent: str) -> KeyedReader:
        try:
            reader = attach(sock)
            sock.settimeout(None)
            close_in_children(sock)  # or a child that closes, or drops, its copy of the reader would end this one
            return cls(reader, sock, _Ending(sock, pid))
        except BaseException as e:
            sock.close()
            if isinstance(e, (ConnectionError, TimeoutError, ProcessLookupError)) and not isinstance(e, OmnibusError):
                raise OwnerGone(f"{silent}: {e}") from e
            raise

    def get(self, handle: Handle) -> Any:
        """Collect a value that this reader was charged for. Tensors are views: it counts as read when the last view is gone.

        Raises Stale, NoDebt, Corrupt, OwnerGone, and PayloadError.
        """
        h = self._checked(handle)
        if h.codec in (codec.TENSOR, codec.BUNDLE):
            return codec.decode(self._reader.take(h).data, h.codec)
        return self._reader.read(h, lambda payload: codec.decode(payload, h.codec))

    def view(self, handle: Handle) -> View:
        """Collect a value, and view its bytes as they are encoded. Raises what `get` does."""
        return self._reader.take(self._checked(handle))

    def drop(self, handle: Handle) -> None:
        """Settle one charge without reading. Raises what `get` does."""
        self._reader.drop(self._checked(handle))

    def close(self) -> None:
        """End the reader: at once, or when the last view is gone, and it is charged until then. Idempotent."""
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

    def _checked(self, handle: Handle) -> Handle:
        if self._ended:
            raise OwnerGone(self._ended[0])
        return Handle.of(handle)


def _watch_owner(ending: _Ending, ended: list[str]) -> None:
    try:
        ending.wait()
    finally:
        ended.append("the writer of the store has ended, or has removed this reader: attach to a new store")
