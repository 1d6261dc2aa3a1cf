"""Payloads that are still viewed after their delivery was finished: they go back when the last view is gone.

The garbage collector says so, in any thread and in the middle of anything, and then nothing may wait. Open it for how
what it says gets to the host.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from . import wire

if TYPE_CHECKING:
    from .session import Session


class Windows:
    """The windows of a session, as weak references. Called with its lock held, but for `gone` and `settle`."""

    __slots__ = ("released", "_kept", "_s")

    def __init__(self, s: Session) -> None:
        self.released: deque[Any] = deque()  #: windows that are gone, and nobody has looked at yet
        self._kept: dict[int, tuple[Any, list[Any]]] = {}  # by id of the window: it, [message, windows left]
        self._s = s

    def __bool__(self) -> bool:
        """Whether a payload of the host's is kept."""
        return bool(self._kept)

    def keep(self, last: wire.Message, windows: list[Any]) -> None:
        """These still show a payload: `last` gives it back when they are gone."""
        left = [last, len(windows)]
        for w in windows:
            self._kept[id(w)] = (w, left)

    def forget(self, window: Any) -> None:
        """Undo `keep`, for one window alone."""
        self._kept.pop(id(window), None)

    def clear(self) -> None:
        """The session has ended: nothing goes back."""
        self._kept.clear()

    def settle_locked(self) -> None:
        """Give back what nobody views any more."""
        while self.released:
            window = self.released.popleft()
            kept = self._kept.pop(id(window), None)
            if kept is not None:
                left = kept[1]
                left[1] -= 1
                if left[1] == 0:
                    self._s.post(left[0])

    def gone(self, window: Any) -> None:
        """The last view of a window is gone. Called in any thread, in the middle of anything."""
        if id(window) not in self._kept:
            return  # nor will it be: what is kept is alive while `keep` is called
        self.released.append(window)
        if self._s.ours:
            self.settle()

    def settle(self) -> None:
        """settle_locked, or have somebody else do it, without waiting for the lock."""
        s = self._s
        while self.released and s.error is None:
            # By this thread, if it was in the middle of something.
            if s.lock._is_owned() or not s.lock.acquire(blocking=False):  # type: ignore[attr-defined]
                # Whoever holds the lock settles before or after it lets go,
                # and whoever reads does so if that one went to wait.
                s.poke()
                return
            try:
                self.settle_locked()
                s.flush()
            finally:
                s.lock.release()
