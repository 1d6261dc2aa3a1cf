"""What tests of stores with names begin with: a directory of their own, and ends of a store in it."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)

from omnibus.connector.contract import Edge
from omnibus.connector.encoder import Encoded
from omnibus.connector.posix import Store

EDGE = Edge("thinker", "talker")
MIB = 1 << 20


class StoreCase(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = tempfile.mkdtemp(dir="/dev/shm", prefix="omnibus-test-")
        self.addCleanup(os.rmdir, self.dir)  # fails if anything is left
        logging.getLogger("omnibus").disabled = True
        self.addCleanup(setattr, logging.getLogger("omnibus"), "disabled", False)
        self.kids: list[int] = []
        self.addCleanup(self.reap_kids)

    def reap_kids(self) -> None:
        for pid in self.kids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def config(self, **more: Any) -> dict[str, Any]:
        return {"store": "speech", "dir": self.dir, "ring_bytes": MIB, "timeout": 10, **more}

    def store(self, **more: Any) -> Store:
        s = Store(self.config(**more))
        self.addCleanup(s.close)
        return s

    def child(self, do: Any) -> tuple[int, int]:
        """A process that does something, says so, and stays until it is killed: its id, and what it says it on."""
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(heard)
                do()
                os.write(said, b"1")
                signal.pause()
            finally:
                os._exit(1)
        os.close(said)
        self.kids.append(pid)
        return pid, heard

    def done(self, heard: int) -> None:
        said = os.read(heard, 1)
        os.close(heard)
        self.assertEqual(said, b"1", "the other process failed")

    def kill(self, pid: int) -> None:
        self.kids.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def files(self) -> list[str]:
        return sorted(os.listdir(self.dir))


def put(s: Store, key: str, value: bytes, edge: Edge = EDGE) -> dict[str, Any]:
    return s.put(edge, key, Encoded([value]))


def get(s: Store, key: str, metadata: dict[str, Any] | None = None, edge: Edge = EDGE) -> bytes:
    value, size = s.get(edge, key, metadata, bytes)  # type: ignore[arg-type]
    assert isinstance(value, bytes) and size == len(value)
    return value
