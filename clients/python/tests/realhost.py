"""A real `omnibus exchange`: $OMNIBUS_PROGRAM is the command, as `go build ./cmd/omnibus` makes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import unittest

import fakehost  # noqa: F401  (finds the package)

import omnibus

PROGRAM = os.environ.get("OMNIBUS_PROGRAM", "")


class Exchange:
    """The exchange of a host, in a process of its own that can be killed."""

    def __init__(self) -> None:
        if not PROGRAM:
            raise unittest.SkipTest("OMNIBUS_PROGRAM does not say where the command omnibus is")
        self.folder = tempfile.mkdtemp(prefix="omnibus-exchange-")
        self.socket = os.path.join(self.folder, "x.sock")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([PROGRAM, "exchange", "--socket", self.socket], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("ready:"):
                return
        raise AssertionError(f"the exchange ended with {self.process.wait()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def entries(self) -> int:
        """How many payloads lie there, or are being read."""
        with omnibus.connect(self.socket) as client:
            return len(client.call("leases") or ())

    def emptied(self) -> None:
        """Wait until nothing lies there any more."""
        limit = time.monotonic() + 60
        while self.entries():
            if time.monotonic() > limit:
                raise AssertionError("values stay in the exchange")
            time.sleep(0.01)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)
