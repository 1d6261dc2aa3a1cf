"""Listening at a path, as the Go package internal/peer does: under a lock, for this user alone."""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import socket
import stat
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from .errors import Code, Taken
from .handshake import MAX_PATH_BYTES

log = logging.getLogger("omnibus")

_RETRY_SECONDS = 0.1  # the pause after a failed accept


class Listener:
    """Accepts connections at a path, and calls `on_connection` with each in a thread of its own.

    The process holds a lock on the file `path`.lock. A socket file at which no process listens is replaced.
    """

    def __init__(self, path: str, on_connection: Callable[[socket.socket], object]) -> None:
        if not path:
            raise ValueError("the path is empty")
        path = os.path.abspath(path)
        if (size := len(os.fsencode(path))) > MAX_PATH_BYTES:
            raise ValueError(f"the path {path} has {size} bytes, and the system allows {MAX_PATH_BYTES}: use a shorter one")
        self.path, self._on_connection, self._closed = path, on_connection, threading.Event()
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        self._lock = _lock_file(f"{path}.lock")
        try:
            self._socket = _bind_socket(path)
        except BaseException:
            self._lock.close()
            raise
        self._file = os.lstat(path)
        close_in_children(self._lock, self._socket)

    def start(self) -> None:
        """Start accepting connections."""
        threading.Thread(target=self._accept, name="omnibus-listen", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and remove the socket's file. Called once."""
        self._closed.set()
        self._socket.shutdown(socket.SHUT_RDWR)  # the accepting thread closes the socket
        with suppress(OSError):  # the file is gone, or the folder
            now = os.lstat(self.path)
            if (now.st_dev, now.st_ino) == (self._file.st_dev, self._file.st_ino):
                os.unlink(self.path)
        self._lock.close()

    def _accept(self) -> None:
        with self._socket:
            while not self._closed.is_set():
                try:
                    sock, _ = self._socket.accept()
                    threading.Thread(target=self._on_connection, args=(sock,), name="omnibus-admit", daemon=True).start()
                except (OSError, RuntimeError) as e:  # no descriptors or threads left, most likely
                    if not self._closed.is_set():
                        log.warning("a process cannot be admitted at %s: %s", self.path, e)
                        self._closed.wait(_RETRY_SECONDS)


_closed_in_children: weakref.WeakSet[socket.socket | io.FileIO] = weakref.WeakSet()


def close_in_children(*files: socket.socket | io.FileIO) -> None:
    """Close these files in forked children, which would otherwise keep them open after this process has died."""
    _closed_in_children.update(files)


def _close_in_child() -> None:
    for file in list(_closed_in_children):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


def _lock_file(path: str) -> io.FileIO:
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(str(os.getpid()).encode())
    except BlockingIOError:
        pid = file.read(20).decode(errors="replace").strip() or "another"
        file.close()
        raise Taken(Code.TAKEN, f"{path.removesuffix('.lock')} is in use by process {pid}: stop it, or choose another path") from None
    except BaseException:
        file.close()
        raise
    return file


def _bind_socket(path: str) -> socket.socket:
    """Bind a listening socket. The lock file is locked."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(errno.EEXIST, "there is a file that is no socket: remove it, or choose another path", path)
        _check_unused(path)
        os.unlink(path)
    except FileNotFoundError:
        pass
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        os.fchmod(sock.fileno(), 0o600)  # the file's mode from its first moment on
        sock.bind(path)
        sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_unused(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except ConnectionRefusedError:
            return
        except OSError as e:
            raise Taken(Code.TAKEN, f"{path} is in use by another process ({e}): stop it, or choose another path") from None
    raise Taken(Code.TAKEN, f"{path} is in use by another process: stop it, or choose another path")
