"""The exchange: payloads under keys, which the host keeps for the processes attached to it.

One stage puts a payload under the key of an edge, and one gets it, alone. Payloads are
encoded straight into memory that the host grants, and read where they lie. What nobody gets is taken
back by `cleanup`, with the client that put it, or by the host after some time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from . import wire
from .delivery import View
from .errors import Code, HostError, Nothing, OutOfMemory, ProtocolError, again
from .session import Answer, Session, Work, resume

#: The size of the arena of a client that serves no stage.
ARENA_BYTES = 64 << 20

_owners = itertools.count(1)


class Exchange:
    """One end of the exchange. What it puts it can clean up. Safe from any thread."""

    def __init__(self, s: Session, arena_bytes: int = ARENA_BYTES) -> None:
        if s.welcome.version < 4:
            raise HostError(Code.VERSION, f"the host speaks version {s.welcome.version}, which has no exchange")
        self._session = s
        self._owner = next(_owners) & 0xFFFFFFFF
        self._arena_bytes = arena_bytes
        self._waiting: set[tuple[str, Answer]] = set()

    def put(
        self,
        source: str,
        target: str,
        key: str,
        size: int,
        write: Callable[[memoryview], object],
        timeout: float | None = None,
    ) -> None:
        """Put a payload of `size` bytes, which `write` fills in, in place of what lies under the key.

        Waits for room, until the timeout in seconds, and then raises OutOfMemory. After an error nothing was put.
        """
        if size <= self._session.welcome.inline_bytes:
            payload = bytearray(size)
            write(memoryview(payload))
            self._run(self._place(source, target, key, size, 0, payload), None)
            return
        self._run(self._put_work(source, target, key, size, write), timeout)

    def _put_work(
        self, source: str, target: str, key: str, size: int, write: Callable[[memoryview], object]
    ) -> Work[None]:
        s = self._session
        arena = s.have_arena or (yield from s.arena(self._arena_bytes))
        m, fd = yield s.ask(
            wire.Grant, lambda token: wire.Reserve(token, 0, 0, 0, 0, size), lambda m, fd: (m, fd), self._ungrant
        )
        try:
            if fd is not None:
                room = s.map_arena(m.segment, fd, None).view(m.offset, m.size)
            elif m.segment == arena.segment:
                room = arena.view(m.offset, m.size)
            else:
                raise s.broken(f"grant {m.grant} is in segment {m.segment}, which is not the arena")
            if m.size < size:
                raise s.broken(f"grant {m.grant} has {m.size} bytes, {size} were asked for")
            with room, room[:size] as payload:
                write(payload)
        except BaseException:
            s.tell_quietly(wire.Abort(m.grant))
            raise
        yield from self._place(source, target, key, size, m.grant, b"")

    def _ungrant(self, granted: tuple[wire.Grant, int | None]) -> None:
        self._session.close_descriptor(granted[1])
        self._session.post(wire.Abort(granted[0].grant))

    def _place(
        self, source: str, target: str, key: str, size: int, grant: int, payload: bytes | bytearray
    ) -> Work[None]:
        flags = 0 if grant else wire.INLINE
        try:
            yield self._session.ask(
                wire.Placed,
                lambda token: wire.Place(token, self._owner, grant, 0, flags, 0, 0, size, source, target, key, payload),
            )
        except ProtocolError:  # it could not be encoded, so the host does not know of it
            if grant:
                self._session.tell_quietly(wire.Abort(grant))
            raise

    def get(self, source: str, target: str, key: str) -> View:
        """Take the payload that lies under the key, in place. Raises Nothing when there is none.

        It goes back when the last view of it is gone.
        """
        return self._taken(self._fetch(source, target, key, 0), None)

    def wait(self, source: str, target: str, key: str, timeout: float | None = None) -> View:
        """get, once there is something. Raises Nothing when the time, in seconds, is up, or after `abandon`."""
        a = self._fetch(source, target, key, wire.WAIT)
        entry = (key, a)
        self._waiting.add(entry)
        try:
            return self._taken(a, timeout)
        finally:
            self._waiting.discard(entry)

    def _taken(self, a: Answer, timeout: float | None) -> View:
        f: _Fetched = self._answer(a, timeout)
        return f.take()

    def _fetch(self, source: str, target: str, key: str, flags: int) -> Answer:
        s = self._session

        def accept(m: wire.Fetched, _: int | None) -> _Fetched:
            return _Fetched(s, m)

        def unread(f: _Fetched) -> None:
            f.give_back(wire.UNREAD)

        return s.ask(wire.Fetched, lambda token: wire.Fetch(token, flags, source, target, key), accept, unread)

    def abandon(self, key: str) -> None:
        """End what waits for the key, in other threads: it raises Nothing."""
        for entry in list(self._waiting):
            a = entry[1]
            if entry[0] == key and a.token is not None and not a.done:
                self._session.tell_quietly(wire.Cancel(a.token))

    def cleanup(self, key: str) -> int:
        """Take back what was put here and nobody got: under the key, and all of the request of that name."""
        if not key:
            raise ValueError("cleanup takes a key: close takes everything back")
        return self._cleanup(key)

    def close(self) -> None:
        """Take back all that was put here and nobody got."""
        self._cleanup("")

    def _cleanup(self, key: str) -> int:
        a = self._session.ask(wire.Cleaned, lambda token: wire.Cleanup(token, self._owner, key))
        m: wire.Cleaned = self._answer(a, None)
        return m.count

    def _run(self, work: Work[None], timeout: float | None) -> None:
        """Do some work; a question that the host keeps for longer than the timeout is taken back."""
        s = self._session
        try:
            a = next(work)
            while True:
                if not a.done:
                    try:
                        well = s.wait(lambda: a.done, timeout)  # noqa: B023
                    except BaseException:
                        s.cancel(a)
                        work.close()
                        raise
                    if not well:
                        s.cancel(a)
                        work.close()
                        raise OutOfMemory(Code.MEMORY, f"there was no room for {timeout} seconds")
                a = resume(work, a)
        except StopIteration:
            pass

    def _answer(self, a: Answer, timeout: float | None) -> Any:
        s = self._session
        try:
            well = s.wait(lambda: a.done, timeout)
        except BaseException:
            s.cancel(a)
            raise
        if not well:
            s.cancel(a)
            raise Nothing(Code.NOTHING, "nothing was put in time")
        if a.error is not None:
            raise again(a.error)
        return a.value


class _Fetched:
    """A payload that was got and is not looked at yet. The session's lock is held, but in `take`."""

    __slots__ = ("_session", "_message", "_mapping")

    def __init__(self, s: Session, m: wire.Fetched) -> None:
        self._session = s
        self._message = m
        self._mapping = None if m.flags & wire.INLINE else s.segment(m)
        s.fetched.add(m.delivery)

    def take(self) -> View:
        """The payload. From here on it goes back with its last view; a copy goes back at once."""
        s, m = self._session, self._message
        with s.locked:
            if self._mapping is None:
                self.give_back(0)
                return View(memoryview(m.payload), None)
            view, window = self._mapping.window(m.offset, m.size, s.view_gone)
            s.fetched.discard(m.delivery)
            if s.error is None:
                s.keep_windows(wire.Finish(m.delivery), [window])
            return View(view, window)

    def give_back(self, flags: int) -> None:
        self._session.fetched.discard(self._message.delivery)
        self._session.post(wire.Finish(self._message.delivery, flags))
