"""Deadlines of requests: as the wire has them, by this process's monotonic clock, and until when a host is waited for.

A deadline is an instant of time.monotonic(), which does not change when the wall clock is set. On the wire it is the
time that is left when the message is encoded, in nanoseconds. Users give and get it in seconds since 1970.
"""

from __future__ import annotations

import math
import time

#: How long after a deadline the host may take to say that a request is past it.
SLACK = 1.0

#: So many seconds from now is never: a little less than the wire can say.
_NEVER = 9e9


def deadline_of(timeout: float | None, deadline: float | None) -> float | None:
    """The deadline of a request, given in seconds from now, in seconds since 1970, or both: the earlier one.
    None: there is none, as for one that never comes."""
    left = math.inf if deadline is None else deadline - time.time()
    given = math.inf if timeout is None else timeout
    if math.isnan(left) or math.isnan(given):
        raise ValueError(f"timeout={timeout}, deadline={deadline}: nan is no time")
    left = min(left, given)
    return time.monotonic() + left if left < _NEVER else None


def time_left(deadline: float | None) -> int:
    """A deadline as the wire has it in a message that is encoded now. 0: there is none."""
    if deadline is None:
        return 0
    left = min(max(deadline - time.monotonic(), -_NEVER), _NEVER)
    return int(left * 1e9) or -1  # 0 would be none


def of_wire(left: int) -> float | None:
    """The deadline of a message that has come now."""
    return time.monotonic() + left / 1e9 if left else None


def seconds(deadline: float | None) -> float | None:
    """A deadline in seconds since 1970, by the wall clock as it stands."""
    return None if deadline is None else time.time() + deadline - time.monotonic()


def over(deadline: float | None) -> bool:
    """Whether it is over, by this process's clock."""
    return deadline is not None and time.monotonic() >= deadline


def limit_of(deadline: float | None) -> float | None:
    """Until when a host is waited for: one that is stopped never says that the deadline is past."""
    return None if deadline is None else max(deadline, time.monotonic()) + SLACK
