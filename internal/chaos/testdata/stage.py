"""Stages a and b in Python: they make the payload of the next level."""

import os

from faultpoint import hit
from omnibus import Delivery, Task, run, stage
from payload import A, B, INPUT, payload, verify

SMALL = 512  # what travels in messages

_level, _next = (INPUT, A) if os.environ.get("OMNIBUS_STAGE") == "a" else (A, B)


@stage
def derive(task: Task, delivery: Delivery) -> None:
    """Make the payload of the next level."""
    hit("stage-begin")
    with delivery.view() as view:
        tag = verify(view, _level, delivery.seq)
    out = payload(tag, _next, delivery.seq)
    if delivery.seq % 2 or len(out) <= SMALL:
        task.emit_bytes(out)
    else:
        with task.reserve(len(out) + out[0]) as buffer:
            half = len(out) // 2
            buffer.view[:half] = out[:half]
            hit("stage-half-written")
            buffer.view[half : len(out)] = out[half:]
            buffer.send(len(out))
    hit("stage-emitted")


# Several at a time, so that a kill finds more than one in hand.
run(threads=int(os.environ.get("OMNIBUS_CHAOS_THREADS", "4")), rejoin=bool(os.environ.get("OMNIBUS_CHAOS_REJOIN")))
