"""What tests of segments begin with: a directory of their own, and connectors over it."""

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
        """Have the test alone sweep: a thread would come after some seconds, in the middle of a time that is mocked."""
        assert isinstance(c._transport, Segments)
        c._transport._sweeper.stop()
        return c

    def left(self) -> list[str]:
        """What lies in the directory, journals apart."""
        return sorted(n for n in os.listdir(self.dir) if not n.startswith(".omnibus-"))

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)
