"""A stage that sends back what it gets: a copy, or, with the argument "forward", itself."""

import os
import signal
import sys
import threading

from omnibus import run, stage

forward = "forward" in sys.argv


@stage
def peer(payload: memoryview, task, delivery) -> None:
    if forward:
        task.forward(delivery)
        return
    with task.reserve(len(payload)) as room:
        room.view[:] = payload
        room.send(len(payload))


def leave_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=leave_with_parent, daemon=True).start()
run()
