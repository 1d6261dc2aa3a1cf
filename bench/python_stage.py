"""A stage that sends back a copy of its input."""

import os
import signal
import sys
import threading

from omnibus import run, stage


@stage
def peer(payload: memoryview, task, delivery) -> None:
    with task.reserve(len(payload)) as room:
        room.view[:] = payload
        room.send(len(payload))


def leave_with_parent() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=leave_with_parent, daemon=True).start()
run()
