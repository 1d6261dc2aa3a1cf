"""The exchange: payloads under keys, which the host keeps for the processes attached to it.

One stage puts a payload under the key of an edge, and one gets it, alone. Payloads are
encoded straight into memory that the others read in place. What nobody gets is taken
back by `cleanup`, with the client that put it, or by the host after some time.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import wire
from .answers import Answer, Attempt
from .delivery import View
from .errors import Code, Nothing, OutOfMemory, Overloaded, TooLarge, again
from .puts import Kept
from .room import NOTHING, Out, Room
from .session import Session

if TYPE_CHECKING:
    from .gpu.layout import Layout

#: The room that a client makes for what it puts, as it is needed, where the host does not say how large a payload may be.
ARENA_BYTES = 256 << 20

_owners = itertools.count(1)
_LOOK_SECONDS = 0.02


class Exchange:
    """One end of the exchange. What it puts it can clean up. Safe from any thread.

    The host answers at once what is asked of it, so that is waited for without an end: also for as long as it is
    stopped. `get` and `wait` alone wait no longer than their timeout; that of `put` is for room.
    """

    def __init__(self, s: Session, arena_bytes: int | None = None) -> None:
        """`arena_bytes` bounds the room of what this process puts, up to what the host takes; None: that alone does."""
        self._session = s
        self._owner = next(_owners) & 0xFFFFFFFF
        self._arena_bytes = arena_bytes or max(s.largest_bytes, ARENA_BYTES)
        s.room.keep_bytes = max(s.room.keep_bytes, arena_bytes or 0)
        self._waiting: dict[Answer, str] = {}  # questions that the host keeps, and their keys; the session's lock

    def put(
        self,
        source: str,
        target: str,
        key: str,
        size: int,
        write: Callable[[memoryview], object],
        timeout: float | None = None,
    ) -> int:
        """Put a payload of `size` bytes, which `write` fills in, in place of what lies under the key.

        Returns its number, which is never another's.

        Waits for room, until the timeout in seconds, and then raises OutOfMemory. After an error nothing was put.
        """
        if size <= wire.MAX_INLINE_BYTES:
            payload = bytearray(size)
            write(memoryview(payload))
            place = wire.Place(0, self._owner, 0, wire.INLINE, 0, 0, size, source, target, key, payload)
            try:
                return self._place(place, None, NOTHING)
            except Overloaded:  # the host has no room for it: this process may have
                if not size:
                    raise

            def copy(view: memoryview) -> None:
                view[:] = payload

            write = copy

        def filled(view: memoryview) -> Out:
            write(view)
            return NOTHING

        entry = self._put_in_place(source, target, key, size, filled, timeout)
        assert entry is not None
        return entry

    def put_on_gpu(
        self, source: str, target: str, key: str, layout: Layout, how: wire.Tensors, timeout: float | None = None
    ) -> int | None:
        """put, of a value whose tensors stay on a GPU until the payload is not needed any more. None: nothing was put,
        for they have to go through host memory.

        Waits until the tensors are complete: so is what lies under a key, and memory that was copied may be
        used again. Raises DeviceLost where they never will be.
        """
        s = self._session

        def fill(view: memoryview) -> Out | None:
            if not s.run(layout.fill_work(view)):
                return None
            layout.settle()
            return Kept(s, layout.pieces)

        entry = None
        try:
            if s.run(layout.choose_work(how)):
                entry = self._put_in_place(source, target, key, layout.plan.size(), fill, timeout)
        finally:
            layout.sent(entry is not None)
        if entry is not None:
            layout.count()
        return entry

    def _put_in_place(
        self, source: str, target: str, key: str, size: int, fill: Callable[[memoryview], Out | None],
        timeout: float | None,
    ) -> int | None:  # fmt: skip
        """Put a payload into room of the client's own. None: it was not filled."""
        room = self._room(size, timeout)
        out = None
        try:
            with room.view, room.view[:size] as view:
                out = fill(view)
        finally:
            if out is None:
                with self._session.locked:
                    self._give(room)
        if out is None:
            return None
        where = room.segment, room.offset, size
        return self._place(wire.Place(0, self._owner, 0, 0, *where, source, target, key, b""), room, out)

    def _room(self, size: int, timeout: float | None) -> Room:
        s = self._session
        if 0 < s.largest_bytes < size:
            raise TooLarge(Code.TOO_LARGE, f"a payload of {size} bytes: this bus takes {s.largest_bytes}")
        with s.locked:
            room = s.room.take(size, self._arena_bytes) if s.error is None else None
        if room is not None:
            return room
        # Whoever reads the socket tries for the others, too: what is wrong with that is for the one who asked.
        a = Attempt(lambda: s.room.take(size, self._arena_bytes), object(), self._give)
        try:
            found: Room = self._answer(s.attempts.make(a), timeout)
        except Nothing:
            with s.locked:
                used, segments, most = *s.room.used(), s.room.most_segments
            raise OutOfMemory(
                Code.MEMORY,
                f"there was no room for {size} bytes in {timeout} seconds: values that this process has put, and views of them, "
                f"take {used} bytes in {segments} segments, of at most {self._arena_bytes} bytes and {most} segments: let stages get "
                f"the values, or clean them up{'' if segments >= most else ', or raise arena_bytes'}",
            ) from None
        return found

    def _give(self, room: Room) -> None:
        """Take room back that nothing was put in, for those who wait for it. The lock is held."""
        self._session.room.give(room)
        self._session.notify()

    def _place(self, place: wire.Place, room: Room | None, out: Out) -> int:
        """Place what is in the message, or lies in room of the client's own."""
        s = self._session
        put = 0

        def void() -> None:
            if room is not None and s.error is None:
                s.room.returned(put)

        a = Answer(wire.Placed, lambda m, _: m.entry, void=void)
        with s.locked:
            if room is not None:
                put = s.room.put(room, out)
            try:
                s.questions.ask_locked(a, lambda token: place._replace(token=token, put=put))
            except BaseException:
                void()
                s.notify()  # those who wait for room
                raise
        entry: int = self._answer(a, None)
        return entry

    def get(self, source: str, target: str, key: str, entry: int = 0, timeout: float | None = None) -> Taken:
        """Take the payload that lies under the key, in place. Raises Nothing when there is none, or the host does not
        say so in time.

        With the number of an entry, only that payload will do. It goes back when the last view of it is gone.
        """
        s = self._session
        with s.locked:
            a = self._fetch(source, target, key, 0, entry)
        return self._taken(a, timeout)

    def wait(
        self, source: str, target: str, key: str, timeout: float | None = None, entry: int = 0,
        unless: Callable[[], bool] | None = None,
    ) -> Taken:  # fmt: skip
        """get, once there is something. Raises Nothing when the time, in seconds, is up, after `abandon`, and when `unless`
        is true, which is looked at now and then.

        An entry with a number was there, so it is not waited for.
        """
        s = self._session
        with s.locked:
            a = self._fetch(source, target, key, wire.WAIT, entry)
            self._waiting[a] = key
        try:
            if unless is not None and timeout is not None:
                until, timeout = time.monotonic() + timeout, 0
                while (left := until - time.monotonic()) > 0 and not unless():
                    if s.wait(lambda: a.done, min(left, _LOOK_SECONDS)):
                        break
            return self._taken(a, timeout)
        finally:
            with s.locked:
                del self._waiting[a]

    def _fetch(self, source: str, target: str, key: str, flags: int, entry: int) -> Answer:
        """The lock is held."""
        s = self._session

        def accept(m: wire.Fetched, _: int | None) -> _Fetched:
            return _Fetched(s, m)

        return s.questions.ask_locked(
            Answer(wire.Fetched, accept, _Fetched.unread),
            lambda token: wire.Fetch(token, flags, entry, source, target, key),
        )

    def _taken(self, a: Answer, timeout: float | None) -> Taken:
        f: _Fetched = self._answer(a, timeout)
        return f.take()

    def abandon(self, key: str) -> None:
        """End what waits for the key, in other threads: it raises Nothing."""
        with self._session.locked:
            for a, waited in self._waiting.items():
                if waited == key and a.token is not None and not a.done:
                    self._session.post(wire.Cancel(a.token))

    def cleanup(self, key: str) -> int:
        """Take back the payloads that were put here under exactly this key, on any edge, and were not got.

        Returns their number.
        """
        if not key:
            raise ValueError("cleanup takes a key: close takes everything back")
        return self._cleanup(key)

    def close(self) -> None:
        """Take back all that was put here and nobody got."""
        self._cleanup("")

    def _cleanup(self, key: str) -> int:
        a = self._session.questions.ask(wire.Cleaned, lambda token: wire.Cleanup(token, self._owner, key))
        m: wire.Cleaned = self._answer(a, None)
        return m.count_

    def _answer(self, a: Answer, timeout: float | None) -> Any:
        s = self._session
        try:
            well = s.wait(lambda: a.done, timeout)
        except BaseException:
            s.questions.cancel(a)
            raise
        if not well:
            s.questions.cancel(a)
            raise Nothing(Code.NOTHING, "nothing was put in time")
        if a.error is not None:
            raise again(a.error)
        return a.value


class Taken(View):
    """A payload that was got. It goes back with its last view; one that was in the message has gone back."""

    __slots__ = ("_session", "_delivery")

    def __init__(self, s: Session, delivery: int, data: memoryview, window: weakref.ref[Any] | None) -> None:
        super().__init__(data, window)
        self._session = s
        self._delivery = delivery

    @property
    def in_message(self) -> bool:
        """Whether it is a copy of this process's own."""
        return self._window is None

    def put_back(self) -> None:
        """Have it lie under its key again, unless another does: for a process that cannot read it. It must not be
        looked at any more. One that was in the message stays here.
        """
        if not self.in_message:
            with self._session.locked:
                self._unread()

    def _unread(self) -> None:
        """Have the host put it back. The session's lock is held."""
        s = self._session
        if self._window is not None:
            s.windows.forget(self._window)
        if s.error is None:
            s.post(wire.Finish(self._delivery, wire.UNREAD))


class _Fetched:
    """A payload that was got, on its way to those who asked."""

    __slots__ = ("view",)

    def __init__(self, s: Session, m: wire.Fetched) -> None:
        """The session's lock is held."""
        if m.flags & wire.INLINE:
            self.view = Taken(s, m.delivery, memoryview(m.payload), None)
        else:
            view, window = s.segments.of(m).window(m.offset, m.size, s.windows.gone)
            self.view = Taken(s, m.delivery, view, window)
            s.windows.keep(wire.Finish(m.delivery), [window])

    def take(self) -> Taken:
        view = self.view
        if view.in_message:
            view._session.tell_quietly(wire.Finish(view._delivery))
        return view

    def unread(self) -> None:
        """Nobody takes it. The session's lock is held."""
        self.view._unread()
