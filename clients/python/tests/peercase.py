"""Processes that hand values over without a server, for tests: producers, and other programs in their place."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import fakehost  # noqa: F401  (finds the package)

POOL = 16 << 20

# Puts values of the sizes that it reads, a line each, and answers with their metadata.
CHILD = """
import sys, json
from omnibus.connector.contract import Edge
from omnibus.connector.drop_in import ENGINES
n = ENGINES[sys.argv[1]](json.loads(sys.argv[2]))
for line in sys.stdin:
    key, size = json.loads(line)
    print(json.dumps(n.put(n.name(Edge("thinker", "talker"), key), [b"x" * size])), flush=True)
n.close()
"""


class Child:
    """A producer in a process of its own."""

    def __init__(self, mode: str, extra: dict[str, Any], **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, mode, json.dumps({"memory_pool_size": POOL, **extra})], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        )  # fmt: skip

    def put(self, key: str, size: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([key, size]), file=self.process.stdin, flush=True)
        metadata: dict[str, Any] = json.loads(self.process.stdout.readline())
        return metadata

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError("it does not happen")
        time.sleep(0.01)


def plain(payload: Any, *, padded: bool = False) -> bytes:
    return bytes(payload)


@contextlib.contextmanager
def listener(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Another program in the place of a sender, at a port."""
    import zmq

    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        try:
            while True:
                identity, _, message = router.recv_multipart()
                router.send_multipart([identity, b"", answer(message)])
        except zmq.ContextTerminated:
            router.close(0)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield port
    finally:
        context.term()
        thread.join()
