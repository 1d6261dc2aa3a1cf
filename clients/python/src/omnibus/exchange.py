"""The exchange: payloads under keys, which the host keeps for its clients.

One stage puts a payload under a key of an edge, and one stage gets it, which removes it. Payloads are encoded
straight into shared memory, where getters read them in place. A payload that is not got is removed by `cleanup`, at
the end of the client that put it, or by the host after some time.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import wire
from .delivery import View
from .errors import Code, Nothing, OutOfMemory, Overloaded, TooLarge, again
from .futures import Future, PolledFuture
from .puts import RetainingPut
from .segments import PLAIN_PUT, Block, OutstandingPut
from .session import Session

if TYPE_CHECKING:
    from .gpu.layout import Layout

#: Bound of a client's segments for puts, where the host states no largest payload. Segments are created as needed.
ARENA_BYTES = 256 << 20

_owners = itertools.count(1)
_POLL_SECONDS = 0.02


class Exchange:
    """One end of the exchange. It can clean up its own puts. Safe from any thread.

    The host answers questions at once, so calls wait for its answer without a timeout, also while the host is stopped.
    Only `get` and `wait` have a timeout for the answer; the timeout of `put` is for space.
    """

    def __init__(self, s: Session, arena_bytes: int | None = None) -> None:
        """`arena_bytes` bounds the segments of this process, within the host's bound; None: only the host's bound
        applies."""
        self._session = s
        self._owner = next(_owners) & 0xFFFFFFFF
        self._arena_bytes = arena_bytes or max(s.largest_bytes, ARENA_BYTES)
        s.allocator.keep_bytes = max(s.allocator.keep_bytes, arena_bytes or 0)
        self._waiting: dict[Future, str] = {}  # waiting fetches, and their keys; guarded by the session's lock

    def put(
        self,
        source: str,
        target: str,
        key: str,
        size: int,
        write: Callable[[memoryview], object],
        timeout: float | None = None,
    ) -> int:
        """Put a payload of `size` bytes, which `write` fills in. It replaces a payload under the same key.

        Returns the entry's number, which is unique.

        Waits for space, and raises OutOfMemory after the timeout, in seconds. After an error nothing was put.
        """
        if size <= wire.MAX_INLINE_BYTES:
            payload = bytearray(size)
            write(memoryview(payload))
            place = wire.Place(0, self._owner, 0, wire.INLINE, 0, 0, size, source, target, key, payload)
            try:
                return self._place(place, None, PLAIN_PUT)
            except Overloaded:  # the host has no space for it; this process may have
                if not size:
                    raise

            def copy(view: memoryview) -> None:
                view[:] = payload

            write = copy

        def filled(view: memoryview) -> OutstandingPut:
            write(view)
            return PLAIN_PUT

        entry = self._put_in_place(source, target, key, size, filled, timeout)
        assert entry is not None
        return entry

    def put_on_gpu(
        self, source: str, target: str, key: str, layout: Layout, how: wire.Tensors, timeout: float | None = None
    ) -> int | None:
        """put, for a value whose tensors stay on a GPU until the payload is needed no more. Returns None, and puts nothing,
        if they have to go through host memory.

        Waits until the tensors are complete, so values under keys always are, and copied memory may be reused. Raises
        DeviceLost if they never will be.
        """
        s = self._session

        def fill(view: memoryview) -> OutstandingPut | None:
            if not s.run(layout.fill_work(view)):
                return None
            layout.wait_complete()
            return RetainingPut(s, layout.pieces)

        entry = None
        try:
            if s.run(layout.choose_work(how)):
                entry = self._put_in_place(source, target, key, layout.plan.size(), fill, timeout)
        finally:
            layout.mark_sent(entry is not None)
        if entry is not None:
            layout.count()
        return entry

    def _put_in_place(
        self, source: str, target: str, key: str, size: int, fill: Callable[[memoryview], OutstandingPut | None],
        timeout: float | None,
    ) -> int | None:  # fmt: skip
        """Put a payload in a block of the client's own. Returns None if `fill` did not fill it."""
        block = self._allocate(size, timeout)
        out = None
        try:
            with block.view, block.view[:size] as view:
                out = fill(view)
        finally:
            if out is None:
                with self._session.locked:
                    self._free(block)
        if out is None:
            return None
        where = block.segment, block.offset, size
        return self._place(wire.Place(0, self._owner, 0, 0, *where, source, target, key, b""), block, out)

    def _allocate(self, size: int, timeout: float | None) -> Block:
        s = self._session
        if 0 < s.largest_bytes < size:
            raise TooLarge(Code.TOO_LARGE, f"a payload of {size} bytes: this bus takes {s.largest_bytes}")
        with s.locked:
            block = s.allocator.allocate(size, self._arena_bytes) if s.error is None else None
        if block is not None:
            return block
        # The thread that reads the socket polls the futures of other threads, too: an error belongs to the asker.
        a = PolledFuture(lambda: s.allocator.allocate(size, self._arena_bytes), object(), self._free)
        try:
            found: Block = self._await_answer(s.polled.add(a), timeout)
        except Nothing:
            with s.locked:
                used, segments, most = *s.allocator.used(), s.allocator.max_segments
            raise OutOfMemory(
                Code.MEMORY,
                f"there was no space for {size} bytes in {timeout} seconds: values that this process has put, and views of them, "
                f"take {used} bytes in {segments} segments, of at most {self._arena_bytes} bytes and {most} segments: let stages get "
                f"the values, or clean them up{'' if segments >= most else ', or raise arena_bytes'}",
            ) from None
        return found

    def _free(self, block: Block) -> None:
        """Free a block without a put, and wake the threads that wait for space. The lock is held."""
        self._session.allocator.free(block)
        self._session.notify()

    def _place(self, place: wire.Place, block: Block | None, out: OutstandingPut) -> int:
        """Place a payload that is in the message, or in a block of the client's own."""
        s = self._session
        put = 0

        def on_error() -> None:
            if block is not None and s.error is None:
                s.allocator.returned(put)

        a = Future(wire.Placed, lambda m, _: m.entry, on_error=on_error)
        with s.locked:
            if block is not None:
                put = s.allocator.register_put(block, out)
            try:
                s.questions.ask_locked(a, lambda token: place._replace(token=token, put=put))
            except BaseException:
                on_error()
                s.notify()  # for threads that wait for space
                raise
        entry: int = self._await_answer(a, None)
        return entry

    def get(self, source: str, target: str, key: str, entry: int = 0, timeout: float | None = None) -> FetchedPayload:
        """Take the payload under the key, in place. Raises Nothing if there is none, or the host does not answer within
        the timeout.

        With an entry's number, only that payload is taken. It is returned when the last view of it is gone.
        """
        s = self._session
        with s.locked:
            a = self._fetch(source, target, key, 0, entry)
        return self._await_fetched(a, timeout)

    def wait(
        self, source: str, target: str, key: str, timeout: float | None = None, entry: int = 0,
        unless: Callable[[], bool] | None = None,
    ) -> FetchedPayload:  # fmt: skip
        """get, but wait for a payload. Raises Nothing after the timeout, in seconds, after `abandon`, and when `unless`,
        which is polled, returns true.

        With an entry's number it does not wait: that entry was put before.
        """
        s = self._session
        with s.locked:
            a = self._fetch(source, target, key, wire.WAIT, entry)
            self._waiting[a] = key
        try:
            if unless is not None and timeout is not None:
                until, timeout = time.monotonic() + timeout, 0
                while (left := until - time.monotonic()) > 0 and not unless():
                    if s.wait(lambda: a.done, min(left, _POLL_SECONDS)):
                        break
            return self._await_fetched(a, timeout)
        finally:
            with s.locked:
                del self._waiting[a]

    def _fetch(self, source: str, target: str, key: str, flags: int, entry: int) -> Future:
        """Ask for the payload under a key. The lock is held."""
        s = self._session

        def accept(m: wire.Fetched, _: int | None) -> _FetchedReply:
            return _FetchedReply(s, m)

        return s.questions.ask_locked(
            Future(wire.Fetched, accept, _FetchedReply.unread),
            lambda token: wire.Fetch(token, flags, entry, source, target, key),
        )

    def _await_fetched(self, a: Future, timeout: float | None) -> FetchedPayload:
        f: _FetchedReply = self._await_answer(a, timeout)
        return f.collect()

    def abandon(self, key: str) -> None:
        """Make the waits for the key in other threads raise Nothing."""
        with self._session.locked:
            for a, waited in self._waiting.items():
                if waited == key and a.token is not None and not a.done:
                    self._session.post(wire.Cancel(a.token))

    def cleanup(self, key: str) -> int:
        """Remove the payloads that this end has put under exactly this key, on any edge, and that were not got.

        Returns their number.
        """
        if not key:
            raise ValueError("cleanup takes a key: close takes everything back")
        return self._cleanup(key)

    def close(self) -> None:
        """Remove all payloads that this end has put and that were not got."""
        self._cleanup("")

    def _cleanup(self, key: str) -> int:
        a = self._session.questions.ask(wire.Cleaned, lambda token: wire.Cleanup(token, self._owner, key))
        m: wire.Cleaned = self._await_answer(a, None)
        return m.count_

    def _await_answer(self, a: Future, timeout: float | None) -> Any:
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


class FetchedPayload(View):
    """A fetched payload. It is returned with its last view; an inline one is returned already."""

    __slots__ = ("_session", "_delivery")

    def __init__(self, s: Session, delivery: int, data: memoryview, window: weakref.ref[Any] | None) -> None:
        super().__init__(data, window)
        self._session = s
        self._delivery = delivery

    @property
    def is_inline(self) -> bool:
        """Whether it was in the message, and so is a copy of this process."""
        return self._view_ref is None

    def put_back(self) -> None:
        """Put the payload back under its key, unless the key has another payload by now: for a process that cannot
        read it. Its views must not be used any more. An inline payload stays here.
        """
        if not self.is_inline:
            with self._session.locked:
                self._send_unread()

    def _send_unread(self) -> None:
        """Tell the host to put it back. The session's lock is held."""
        s = self._session
        if self._view_ref is not None:
            s.viewed_payloads.untrack(self._view_ref)
        if s.error is None:
            s.post(wire.Finish(self._delivery, wire.UNREAD))


class _FetchedReply:
    """The answer to a fetch, until the asker collects it."""

    __slots__ = ("view",)

    def __init__(self, s: Session, m: wire.Fetched) -> None:
        """The session's lock is held."""
        if m.flags & wire.INLINE:
            self.view = FetchedPayload(s, m.delivery, memoryview(m.payload), None)
        else:
            view, window = s.host_segments.of(m).tracked_view(m.offset, m.size, s.viewed_payloads.on_view_gone)
            self.view = FetchedPayload(s, m.delivery, view, window)
            s.viewed_payloads.track(wire.Finish(m.delivery), [window])

    def collect(self) -> FetchedPayload:
        view = self.view
        if view.is_inline:
            view._session.tell_unless_ended(wire.Finish(view._delivery))
        return view

    def unread(self) -> None:
        """Put it back: the asker has given up. The session's lock is held."""
        self.view._send_unread()
