"""A real `omnibus exchange`, or `omnibus run`: $OMNIBUS_PROGRAM is the command, as `go build ./cmd/omnibus` makes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import fakehost

import omnibus

PROGRAM = os.environ.get("OMNIBUS_PROGRAM", "")


class Host:
    """A host, in a process of its own that can be killed."""

    def __init__(self) -> None:
        if not PROGRAM:
            raise unittest.SkipTest("OMNIBUS_PROGRAM does not say where the command omnibus is")
        self.folder = tempfile.mkdtemp(prefix="omnibus-host-")
        self.socket = os.path.join(self.folder, "x.sock")

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        self.process = subprocess.Popen(
            [PROGRAM, *self.command()], stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": fakehost.SOURCE}
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("ready:"):
                return
        raise AssertionError(f"the host ended with {self.process.wait()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder)


class Exchange(Host):
    """The exchange of a host."""

    def __init__(self) -> None:
        super().__init__()
        self.start()

    def command(self) -> list[str]:
        return ["exchange", "--socket", self.socket]

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


class Pipeline(Host):
    """The host of one stage in Python, which gives its inputs back unless it is another one."""

    def __init__(self, max_requests: int, max_inflight: int = 1, stage: str = "def echo(value):\n    return value\n") -> None:
        super().__init__()
        with open(os.path.join(self.folder, "stage.py"), "w") as f:
            f.write(f"from omnibus import run, stage\n\n@stage\n{stage}\nrun()\n")
        with open(os.path.join(self.folder, "pipeline.yaml"), "w") as f:
            f.write(
                "stages:\n"
                "  - stage_id: echo\n"
                "    final_output: true\n"
                "    final_output_type: text\n"
                f"    omnibus: {{exec: [{sys.executable}, stage.py], max_inflight: {max_inflight}}}\n"
                f"omnibus: {{name: echo, socket: {self.socket}, max_requests: {max_requests}}}\n"
            )
        self.start()

    def command(self) -> list[str]:
        return ["run", os.path.join(self.folder, "pipeline.yaml"), "--log-level", "error"]

    def kill(self) -> None:
        self.process.terminate()  # its stage ends with it
        self.process.communicate(timeout=60)
