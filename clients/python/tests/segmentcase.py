"""Test cases with segments: a directory of their own, and connectors over it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)

from omnibus.connector import OmnibusConnector
from omnibus.connector.segment import Segments


VALUE = {"a": [1, 2, 3], "b": b"x" * 10_000}


class SegmentCase(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="omnibus-test-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, self.dir)
        logging.getLogger("omnibus").disabled = True
        self.addCleanup(setattr, logging.getLogger("omnibus"), "disabled", False)

    def connector(self, **config: Any) -> OmnibusConnector:
        c = OmnibusConnector({"mode": "segment", "dir": self.dir, "timeout": 5, **config})
        self.addCleanup(c.close)
        return c

    def by_hand(self, c: OmnibusConnector) -> OmnibusConnector:
        """Stop the sweeper thread, which would run at a mocked time. The test sweeps itself."""
        assert isinstance(c._transport, Segments)
        c._transport._sweeper.stop()
        return c

    def left(self) -> list[str]:
        """The files in the directory except the journals."""
        return sorted(n for n in os.listdir(self.dir) if not n.startswith(".omnibus-"))

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)
