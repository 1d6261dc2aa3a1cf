"""The report of a caller in Python."""

import json
import sys
import threading
from zlib import crc32

from omnibus import MSGPACK, DeadlineExceeded, Delivery, Finished, RequestAborted, RequestOver

_writing = threading.Lock()


def _say(line: str) -> None:
    with _writing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def opened(number: int) -> None:
    """Start the report of a request."""
    _say(f"open {number}")


def ended(number: int, outcome: str, sums: list[int]) -> None:
    """End the report of a request, with the checksums of its results."""
    _say(f"end {number} {json.dumps(outcome)} {','.join(map(str, sums))}")


def checksum(d: Delivery) -> int:
    """The checksum of a result's payload. A value returned by a function in Python is msgpack."""
    if d.codec == MSGPACK:
        return crc32(d.value())
    with d.view() as view:
        return crc32(view)


def says_full(error: Exception) -> bool:
    """Whether the error is that of an edge whose policy is fail."""
    text = str(error)
    return "window full" in text or "the window of " in text and " is full" in text


def outcome_of(error: Exception | None, end: str, fired: bool) -> str:
    """The outcome of a request, for the checker."""
    if error is None:
        return "closed" if fired and end == "close" else "completed"
    if says_full(error):
        return "window full"
    if isinstance(error, DeadlineExceeded):
        return "deadline"
    if fired and isinstance(error, (RequestAborted, Finished, RequestOver)):
        return "closed" if end == "close" else "aborted"
    return f"{type(error).__name__}: {error}"
