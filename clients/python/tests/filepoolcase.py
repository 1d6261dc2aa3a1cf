"""Test cases with pooled files. Run as a program it is another process, which executes the commands it reads."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import sys
from multiprocessing import shared_memory
from typing import Any
from unittest import mock

from segmentcase import SegmentCase

from omnibus.connector import OmnibusConnector, journal, segment, file_pool
from omnibus.connector.segment import Segments
from omnibus.connector.file_pool import FilePool


class FilePoolCase(SegmentCase):
    #: Until an idle file is closed: longer than a test waits for a processor, or for another process to start.
    idle_seconds = 3600.0

    def setUp(self) -> None:
        super().setUp()
        for module in (file_pool, segment):
            patch = mock.patch.object(module, "IDLE_SECONDS", self.idle_seconds)
            patch.start()
            self.addCleanup(patch.stop)

    def kept(self, c: OmnibusConnector) -> FilePool:
        assert isinstance(c._transport, Segments)
        return c._transport._files

    def second_names(self) -> list[str]:
        return sorted(n for n in os.listdir(self.path(journal.journals_name())) if n.startswith("spare-"))

    def put(self, c: OmnibusConnector, key: str, value: Any = b"x" * 10_000) -> int:
        """Put a value, and return the inode of its file."""
        ok, _, metadata = c.put("0", "1", key, value)
        self.assertTrue(ok)
        assert metadata is not None
        return os.stat(self.path(metadata["shm"]["name"])).st_ino

    def put_and_get(self, c: OmnibusConnector, key: str, value: Any = b"x" * 10_000) -> int:
        inode = self.put(c, key, value)
        self.assertEqual(self.got(c, key), value)
        return inode

    def got(self, c: OmnibusConnector, key: str) -> Any:
        found = c.get("0", "1", key)
        return found and found[0]


class Other:
    """Another process, with a connector of its own."""

    def __init__(self, test: FilePoolCase) -> None:
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), test.dir],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        test.addCleanup(self.end)

    def ask(self, *words: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Serving:
    """The commands of that process."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._connector = OmnibusConnector({"mode": "segment", "dir": directory})
        self._has: Any = None

    def put(self, key: str) -> str:
        return str(self._connector.put("0", "1", key, b"y" * 10_000)[0])

    def get(self, key: str) -> str:
        return str(self._connector.get("0", "1", key) is not None)

    def open(self, key: str) -> str:
        self._has = open(os.path.join(self._directory, key), "rb", buffering=0)
        return "True"

    def map(self, key: str) -> str:
        with open(os.path.join(self._directory, key), "rb", buffering=0) as f:
            self._has = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        return "True"

    def read(self) -> str:
        self._has.seek(0)
        return digest(self._has.read())

    def close(self) -> str:
        self._has.close()
        return "True"

    def attach(self, name: str) -> str:
        """Attach as vLLM-Omni's readers do."""
        self._has = shared_memory.SharedMemory(name=name)
        return digest(bytes(self._has.buf))

    def unlink(self) -> str:
        self._has.close()
        self._has.unlink()
        return "True"


if __name__ == "__main__":
    serving = Serving(sys.argv[1])
    for line in sys.stdin:
        what, *words = line.split()
        print(getattr(serving, what)(*words), flush=True)
