"""Deadlines of requests: as the wire has them, as people have them, and until when a host is waited for."""

from __future__ import annotations

import math
import time

#: How long after a deadline the host may take to say that a request is past it.
SLACK = 1.0

#: From here on the wire cannot say it, in seconds.
_NEVER = 2**63 / 1e9


def deadline_ns(timeout: float | None, deadline: float | None) -> int:
    """A deadline as the wire has it; 0: none, as one is that never comes."""
    soonest = math.inf if deadline is None else deadline
    if timeout is not None:
        soonest = min(soonest, time.time() + timeout)
    return int(soonest * 1e9) if soonest < _NEVER else 0


def seconds(unix_ns: int) -> float | None:
    """A deadline of the wire, for people."""
    return unix_ns / 1e9 if unix_ns else None


def limit_of(deadline: float | None) -> float | None:
    """Until when a host is waited for, by time.monotonic: one that is stopped never says that the deadline is past."""
    return None if deadline is None else time.monotonic() + max(deadline - time.time(), 0) + SLACK
