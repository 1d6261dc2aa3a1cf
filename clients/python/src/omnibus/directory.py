"""The directory: descriptors under names, by which the processes of a bus share memory that is no segment.

The owner of such memory publishes its descriptor. A process that finds it gets a duplicate, and can wait for the
owner's death, with or without a host.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from . import wire
from .futures import Future
from .session import Session, Work
from .socketreader import LONGEST_SECONDS

MAX_SIZE = 1 << 46


class Name(NamedTuple):
    """The name of a descriptor: 16 random bytes that the publisher chooses, and a number."""

    pool: bytes
    number: int


class Owner:
    """The process that published a descriptor. Safe from any thread."""

    def __init__(self, pidfd: int, pid: int) -> None:
        """Takes the descriptor."""
        self.pid = pid
        self._fd = pidfd
        self._dead = False
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """A descriptor that is readable when the process is dead, for event loops. -1: closed."""
        return self._fd

    @property
    def dead(self) -> bool:
        """Whether the process is dead."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the process to be dead. Returns False after the timeout, in seconds."""
        with self._lock:
            if self._dead:
                return True
            if self._fd < 0:
                raise ValueError("the owner is no longer watched: its Found object was closed")
            if timeout is not None and timeout <= 0:  # without a duplicate
                self._dead = _readable(self._fd, 0)
                return self._dead
            fd = os.dup(self._fd)  # `_close` may run meanwhile
        try:
            dead = _readable(fd, timeout)
        finally:
            os.close(fd)
        self._dead = self._dead or dead
        return dead

    def _close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _readable(fd: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if timeout is None:
        return bool(poll.poll())
    limit = time.monotonic() + timeout
    while not poll.poll(min(max(timeout, 0), LONGEST_SECONDS) * 1000):
        timeout = limit - time.monotonic()
        if timeout <= 0:
            return False
    return True


class Found:
    """A descriptor that was found under a name, with its size and its owner.

    It keeps the descriptor, and the watch of the owner, open until `close`. `size` is the size that the owner stated.
    """

    def __init__(self, fd: int, size: int, owner: Owner) -> None:
        self.fd = fd  #: -1: closed, or taken
        self.size = size
        self.owner = owner

    def take(self) -> int:
        """Hand the descriptor over to the caller, which must close it."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Close the descriptor and the watch of the owner. Idempotent."""
        fd = self.take()
        if fd >= 0:
            os.close(fd)
        self.owner._close()

    def __enter__(self) -> Found:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "owner"):
            self.close()


def publish_work(s: Session, name: Name, fd: int, size: int) -> Work[None]:
    pool, number = _checked(s, name)
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"a descriptor of {size} bytes: use 1 to {MAX_SIZE}")

    def withdraw(_: None) -> None:
        s.post(wire.Withdraw(number, pool))

    a = Future(wire.Published, lambda m, _: None, withdraw)
    a.fd = os.dup(fd)
    try:
        with s.locked:
            s.questions.ask_locked(a, lambda token: wire.Publish(token, number, pool, size))
        yield a
    finally:
        os.close(a.fd)


def withdraw(s: Session, name: Name) -> None:
    pool, number = _checked(s, name)
    s.tell(wire.Withdraw(number, pool))


def find_work(s: Session, name: Name) -> Work[Found]:
    found: Found = yield ask_find(s, name, Found.close)
    return found


def ask_find(s: Session, name: Name, orphan: Callable[[Found], None] | None = None) -> Future:
    """Ask for the descriptor under a name."""
    pool, number = _checked(s, name)

    def accept(m: wire.Found, fds: tuple[int, int]) -> Found:
        return Found(fds[0], m.size, Owner(fds[1], m.pid))

    return s.questions.ask(wire.Found, lambda token: wire.Find(token, number, pool), accept, orphan)


def _checked(s: Session, name: Name) -> Name:
    pool, number = name
    if len(pool) != 16:
        raise ValueError(f"the pool of a name is 16 bytes, not {len(pool)}")
    return Name(bytes(pool), number)
