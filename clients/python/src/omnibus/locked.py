"""The lock of a session. Letting go of it sends what was posted.

What a signal's handler raises, such as KeyboardInterrupt, comes between any two steps: the books may be half written
then, or the lock not let go of, for no code of Python's can rule that out. The session ends in place of going on
with such books, or of waiting for ever. Open it for how that is noticed.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING

from .processes import current

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger("omnibus")


class Locked:
    """Has the lock while in a `with`."""

    __slots__ = ("s",)

    def __init__(self, s: Session) -> None:
        self.s = s

    def __enter__(self) -> None:
        s = self.s
        if current.pid != s._pid:
            s.check_process()
        if s.lock._is_owned():  # type: ignore[attr-defined]  # and nothing in here comes twice
            s.interrupted()
            s.lock.release()
        s.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        s = self.s
        calls = None
        try:
            if kind is not None and not issubclass(kind, Exception):
                s.interrupted()
            if s.windows.released:
                s.windows.settle_locked()
            if s.connection.outbox:
                s.flush()
            if s._calls:
                calls, s._calls = s._calls, []
        except BaseException as e:
            if not isinstance(e, Exception):
                s.interrupted()
            raise
        finally:
            if s.lock._is_owned():  # type: ignore[attr-defined]  # or a handler of a signal has come in here, too
                s.lock.release()
        if s.windows.released:
            s.windows.settle()
        if calls:
            for call in calls:
                try:
                    call()
                except RuntimeError as e:  # an event loop that is closed
                    log.debug("nobody is there to be told: %s", e)
