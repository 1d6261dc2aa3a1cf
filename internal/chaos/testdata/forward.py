"""A stage that passes on what it gets, by reference."""

import os
import signal

from omnibus import Delivery, Task, run, stage
from payload import INPUT, verify

_point, _, _at = os.environ.get("OMNIBUS_FAULTPOINT", "").partition(":")
_left = int(_at or 1)


def hit(name: str) -> None:
    """As package faultpoint does."""
    global _left
    if name == _point:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@stage
def forward(task: Task, delivery: Delivery) -> None:
    """Pass the payload on."""
    hit("stage-begin")
    with delivery.view() as view:
        try:
            verify(view, INPUT, delivery.seq)
        except ValueError as e:
            print(f"broken delivery {delivery.seq}: {e}", flush=True)
            raise
    task.forward(delivery)
    hit("stage-emitted")


run(threads=4)
