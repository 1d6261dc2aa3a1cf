"""Deadlines of requests: conversions between the wire, the monotonic clock and the wall clock.

Inside this package a deadline is an instant of time.monotonic(), which does not change when the wall clock is set. A
message carries the nanoseconds that are left when it is encoded. The API takes and returns seconds since 1970.
"""

from __future__ import annotations

import math
import time

#: How many seconds after a deadline the host may take to end the request.
SLACK_SECONDS = 1.0

#: This many seconds from now, or more, means no deadline: a little less than the wire can express.
_NEVER = 9e9


def deadline_of(timeout: float | None, deadline: float | None) -> float | None:
    """The deadline of a request: the earlier of `timeout`, in seconds from now, and `deadline`, in seconds since 1970.
    None if there is neither, or both are infinite."""
    left = math.inf if deadline is None else deadline - time.time()
    given = math.inf if timeout is None else timeout
    if math.isnan(left) or math.isnan(given):
        raise ValueError(f"timeout={timeout}, deadline={deadline}: nan is not a time")
    left = min(left, given)
    return time.monotonic() + left if left < _NEVER else None


def to_wire(deadline: float | None) -> int:
    """A deadline for a message that is encoded now, in nanoseconds from now; 0: none."""
    if deadline is None:
        return 0
    left = min(max(deadline - time.monotonic(), -_NEVER), _NEVER)
    return int(left * 1e9) or -1  # 0 would mean no deadline


def from_wire(left: int) -> float | None:
    """The deadline of a message that is decoded now."""
    return time.monotonic() + left / 1e9 if left else None


def to_epoch(deadline: float | None) -> float | None:
    """A deadline in seconds since 1970, by the current wall clock."""
    return None if deadline is None else time.time() + deadline - time.monotonic()


def has_passed(deadline: float | None) -> bool:
    """Whether a deadline has passed, by this process's clock."""
    return deadline is not None and time.monotonic() >= deadline


def wait_limit(deadline: float | None) -> float | None:
    """Until when a call waits for the host, by time.monotonic: a stopped host never ends the request."""
    return None if deadline is None else max(deadline, time.monotonic()) + SLACK_SECONDS
