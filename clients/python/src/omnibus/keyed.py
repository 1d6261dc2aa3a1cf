"""Values under keys, which one process writes and many processes read: a cache that is filled once and read often::

    store = KeyedStore.create(arena_bytes=1 << 30)      # the writer
    store.listen("/run/user/1000/images")

    reader = KeyedReader.dial("/run/user/1000/images")  # in each other process

    try:                                                # the writer, when its readers are there
        handle = store.get_cached(key)                  # not written again
    except NotFound:
        handle = store.put(key, pixels)

    pixels = reader.get(handle)                         # a view, if it is a tensor

It is the Go package shmstore/keyed in Python, and each reads the other's values: bundles, if the Go program has their
serializer. `put`, `get_cached` and `touch` charge every attached reader, which gets the value, or drops the handle, once
for each charge. When space is needed, the oldest values without debts and pins are evicted. A reader that has died, or was
closed, has no debts.

All methods may be called from any thread. No lock is held while a value is encoded; until it is, its key is `Exists` to
`put` and `NotFound` to `get_cached`. After an error nothing was put or charged. An exception of a signal handler in the
middle of a writer's call ends the store. At a reader it loses nothing, except while the last view of a value is being
released: that value stays until the reader ends. Such a handler may call only `close`.
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
from .listener import Listener, close_in_children
from .memory import View
from .sessionbase import this_process
from .store import Corrupt, Handle, NoDebt, Reader, Stale, attach
from .storelayout import MAX_SLOTS, OwnerGone, TooManyReaders
from .storeowner import Full, Object, StoreOwner

__all__ = [
    "Corrupt", "Exists", "Full", "Handle", "KeyedReader", "KeyedStore", "NoDebt", "NotFound", "Stale", "Stats", "OwnerGone",
    "TooManyReaders",
]  # fmt: skip

MAX_KEY_BYTES = 1024

_T = TypeVar("_T")


class Exists(OmnibusError, ValueError):
    """The key has a value, or is being put. `get_cached` gives its handle."""


class NotFound(OmnibusError, KeyError):
    """The key has no value: none was put, or it was deleted or evicted."""

    __str__ = Exception.__str__  # KeyError's shows the text in quotes


@dataclass(frozen=True)
class Stats:
    """The current figures of a store, and its counters since it was created."""

    keys: int
    objects: int  #: including those without a key that are still read
    used_bytes: int
    arena_bytes: int
    readers: int
    puts: int
    hits: int  #: of `get_cached` and `touch`
    misses: int
    bytes_written: int
    bytes_saved: int  #: of values that `get_cached` and `touch` found
    evicted: int


class KeyedStore:
    """The writer's end. It is made by `create`."""

    def __init__(self, arena_bytes: int, max_object_bytes: int, slots: int, max_readers: int) -> None:
        self._lock = threading.RLock()  # guards all fields below, and the owner
        self._owner = StoreOwner(arena_bytes, max_object_bytes, slots, max_readers, self._forget)
        self._by_key: dict[str, Object] = {}  # including objects that are being written
        self._counts = [0] * 5  # puts, hits, misses, bytes written, bytes saved
        self._listener: Listener | None = None
        self._pid = this_process.pid
        self._closed = ""  # why the store has ended; empty: it has not

    @classmethod
    def create(
        cls,
        arena_bytes: int = 64 << 20,
        *,
        max_object_bytes: int | None = None,
        slots: int | None = None,
        max_readers: int = 63,
    ) -> KeyedStore:
        """Create an empty store of `arena_bytes` for values of up to `max_object_bytes` each, by default a quarter of it.

        It has at most `slots` values, by default one for each KiB. Raises OutOfMemory, and OSError (ENOSYS) on a machine
        whose memory order this package does not support.
        """
        largest = max(arena_bytes // 4, 1) if max_object_bytes is None else max_object_bytes
        most = min(max(arena_bytes // 1024, 64), MAX_SLOTS) if slots is None else slots
        return cls(arena_bytes, largest, most, max_readers)

    def put(self, key: str, value: Any, codec_: int | None = None) -> Handle:
        """Encode a value into the store, under a new key, and charge each reader once.

        It is encoded by the codec or, without one, as an emission, except bytes, which are stored raw.
        Raises Exists, Full, TooLarge, OwnerGone, PayloadError for a value without an encoding, and ValueError for a bad key.
        """
        if not 0 < len(_check_key_type(key)) <= MAX_KEY_BYTES // 4 and not _key_fits(key):
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
        return self._locked(self._charge, _check_key_type(key))

    def touch(self, key: str) -> None:
        """Charge each reader once more for the value under a key, which stays until they have read it. Raises NotFound.
        """
        self._locked(self._charge, _check_key_type(key))

    def __contains__(self, key: object) -> bool:
        """Whether there is a value under a key. The next `put` may evict it."""
        self._check()
        o = self._by_key.get(key)  # type: ignore[call-overload]
        return o is not None and o.handle is not None

    def delete(self, key: str) -> None:
        """Forget a key. Its value is evicted at once if no reader has a debt or a pin for it, else later. Raises
        NotFound."""
        self._locked(self._delete, _check_key_type(key))

    def clear(self) -> None:
        """Forget all keys. Values with debts or pins of readers stay for these; all others are evicted at once."""
        self._locked(self._clear)

    def free_unused(self, nbytes: int | None = None) -> int:
        """Evict the oldest values without debts and pins until `nbytes` are free; without a number, all. Returns the freed
        bytes."""
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

        Raises `Taken` if another process listens there. A socket file without a listener is replaced, and the last folder
        of the path is created, accessible only to this user, if it is missing.
        """
        self._check()
        with self._lock:
            if self._listener is not None:
                raise ValueError(f"the store listens at {self._listener.path} already")
            listener = self._listener = Listener(os.fspath(path), self._on_connection)
        listener.start()

    def admit(self, sock: socket.socket) -> int:
        """Make the process at the other end of a SOCK_SEQPACKET socket a reader: there, `KeyedReader.attach` is called.

        The store owns the socket from now on. This waits for the other process, for some seconds at most. Raises
        TooManyReaders, ProtocolError, OSError. When that process dies, or ends the connection, the reader is removed.
        """
        close_in_children(sock)
        try:
            self._check_process()
            try:
                reader = self._locked(self._owner.reserve_index)
            except (TooManyReaders, OwnerGone) as e:
                self._owner.send_refusal(sock, e)
                raise
            try:
                account = self._owner.negotiate(sock, reader)
                peer = _PeerWatch(sock, account.pid)
                self._locked(self._owner.add_reader, account)
                threading.Thread(target=self._remove_when_gone, args=(peer, reader), name="omnibus-reader", daemon=True).start()
                self._owner.send_grant(sock, account)
                self._check()  # again: a `close` in the meantime did not end this reader
            except BaseException:
                with self._lock:
                    self._owner.remove_reader(reader)
                raise
        except BaseException:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that watches the connection
            sock.close()
            raise
        return reader

    def remove_reader(self, reader: int) -> None:
        """End a reader: its debts and pins are gone, and objects that it still views may be overwritten."""
        self._check_process()
        account = self._owner.accounts.get(reader)
        if account is not None:
            account.end_connection()

    def close(self) -> None:
        """End the store. Readers keep their views, and get no more values. Idempotent, and safe in a signal handler."""
        if this_process.pid == self._pid:
            self._close_because("the store is closed")

    def _close_because(self, why: str) -> None:
        self._closed = self._closed or why
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        for a in list(self._owner.accounts.values()):
            a.end_connection()

    def __enter__(self) -> KeyedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        """Called before locking: in a forked child the lock may be held for ever."""
        if this_process.pid != self._pid:
            raise ForkedError(f"the store belongs to process {self._pid}, and this is {this_process.pid}: attach here")

    def _check(self) -> None:
        self._check_process()
        if self._closed:
            raise OwnerGone(self._closed)

    def _locked(self, f: Callable[..., _T], *args: Any) -> _T:
        """Call f with the lock held. An exception of a signal handler may leave f half done, so it ends the store."""
        if this_process.pid != self._pid:
            self._check_process()
        try:
            with self._lock:
                if self._closed:
                    raise OwnerGone(self._closed)
                return f(*args)
        except OmnibusError:
            raise
        except BaseException:
            self._close_because("the store has ended: a signal came in the middle of a call; make a new one")
            raise

    def _reserve(self, key: str, size: int, reserved: list[Object]) -> None:
        if key in self._by_key:  # checked again, under the lock
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
            raise NotFound(f"there is no value under {_shown(key)}")
        self._owner.charge(o)
        self._counts[1] += 1
        self._counts[4] += o.size
        return o.handle

    def _delete(self, key: str) -> None:
        if key not in self._by_key:
            raise NotFound(f"there is no value under {_shown(key)}")
        self._owner.evict(self._by_key.pop(key))

    def _clear(self) -> None:
        for key in list(self._by_key):
            self._delete(key)

    def _forget(self, o: Object) -> None:
        """An object was evicted or aborted. The lock is held."""
        if self._by_key.get(o.tag) is o:
            del self._by_key[o.tag]

    def _on_connection(self, sock: socket.socket) -> None:
        if _peer(sock)[1] != os.geteuid():
            sock.close()
            return
        with suppress(OmnibusError, OSError):  # the peer sees the end of its connection
            self.admit(sock)

    def _remove_when_gone(self, peer: _PeerWatch, reader: int) -> None:
        try:
            peer.wait()
        finally:
            with self._lock:
                self._owner.remove_reader(reader)


class _PeerWatch:
    """Watches for the end of a connection, over which nothing more is sent, or of the process at its other end.

    The connection alone would stay open as long as a forked child of that process has it.
    """

    __slots__ = ("_sock", "_died")

    def __init__(self, sock: socket.socket, pid: int | None) -> None:
        """Watch the connection and, unless `pid` is None, the process. Raises ProcessLookupError if it is dead, and
        OSError."""
        self._sock, self._died = sock, None if pid is None else os.pidfd_open(pid)

    def wait(self) -> None:
        """Wait for the end, and close the connection."""
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
    """The ids of the process at the other end of a connection, and of its user."""
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def _exists(key: str) -> Exists:
    return Exists(f"there is a value under {_shown(key)}")


def _bad_key(key: object) -> ValueError:
    return ValueError(f"a key is a str of 1 to {MAX_KEY_BYTES} bytes, and this is {_shown(key)}")


def _check_key_type(key: str) -> str:
    """The key, if it is a str. Called before locking: an error under the lock that is no OmnibusError ends the store.
    """
    if not isinstance(key, str):
        raise _bad_key(key)
    return key


def _key_fits(key: str) -> bool:
    return 0 < len(key.encode(errors="surrogatepass")) <= MAX_KEY_BYTES


def _shown(key: object) -> str:
    text = repr(key)
    return text if len(text) <= 64 else f"{text[:64]}..."


class KeyedReader:
    """A reader's end. A forked child dials anew."""

    def __init__(self, reader: Reader, sock: socket.socket, peer: _PeerWatch) -> None:
        self._reader, self._sock = reader, sock
        self._ended: list[str] = []  # why the reader has ended
        threading.Thread(target=_watch_owner, args=(peer, self._ended), name="omnibus-store", daemon=True).start()

    @classmethod
    def dial(cls, path: str | os.PathLike[str], allow_uids: Iterable[int] = ()) -> KeyedReader:
        """Become a reader of the store that listens at a path.

        Raises OwnerGone if no store answers, TooManyReaders, and Untrusted, as `omnibus.connect` does.
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
        """Become a reader of the store whose owner is at the other end of a SOCK_SEQPACKET socket. The reader owns the socket
        from now on. Raises OwnerGone, TooManyReaders, ProtocolError, OSError."""
        return cls._attached(sock, None, "the store's owner does not answer")

    @classmethod
    def _attached(cls, sock: socket.socket, pid: int | None, silent: str) -> KeyedReader:
        try:
            reader = attach(sock)
            sock.settimeout(None)
            close_in_children(sock)  # otherwise a forked child that closes its copy of the reader would end this one
            return cls(reader, sock, _PeerWatch(sock, pid))
        except BaseException as e:
            sock.close()
            if isinstance(e, (ConnectionError, TimeoutError, ProcessLookupError)) and not isinstance(e, OmnibusError):
                raise OwnerGone(f"{silent}: {e}") from e
            raise

    def get(self, handle: Handle) -> Any:
        """Collect a value that this reader was charged for. Tensors are views: the debt is settled when the last one is gone.

        Raises Stale, NoDebt, Corrupt, OwnerGone, and PayloadError.
        """
        h = self._check_handle(handle)
        if h.codec in (codec.TENSOR, codec.BUNDLE):
            return codec.decode(self._reader.take(h).data, h.codec)
        return self._reader.read(h, lambda payload: codec.decode(payload, h.codec))

    def view(self, handle: Handle) -> View:
        """Collect a value, and view its encoded bytes. Raises the errors of `get`."""
        return self._reader.take(self._check_handle(handle))

    def drop(self, handle: Handle) -> None:
        """Settle one charge without reading. Raises the errors of `get`."""
        self._reader.drop(self._check_handle(handle))

    def close(self) -> None:
        """End the reader, when its last view is gone; it is charged until then. Idempotent."""
        self._ended.append("the reader is closed")
        self._reader.close(self._close_socket)

    def _close_socket(self) -> None:
        with suppress(OSError):  # the watching thread closes the socket
            self._sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> KeyedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_ended"):
            self.close()

    def _check_handle(self, handle: Handle) -> Handle:
        if self._ended:
            raise OwnerGone(self._ended[0])
        return Handle.of(handle)


def _watch_owner(peer: _PeerWatch, ended: list[str]) -> None:
    try:
        peer.wait()
    finally:
        ended.append("the writer of the store has ended, or has removed this reader: attach to a new store")
