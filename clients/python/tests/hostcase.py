"""The base class of client tests: a fake host, and clients connected to it."""

from __future__ import annotations

import threading
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from fakehost import FakeHost

import omnibus


class HostCase(unittest.TestCase):
    """A host, and a client that talks to it from another thread."""

    def setUp(self) -> None:
        self.host = FakeHost()
        self.addCleanup(self.host.close)
        self.patient_for(60.0)  # this host may be slow, and is to be waited for

    def patient_for(self, seconds: float) -> None:
        """For how long the host is waited for after a deadline."""
        patch = mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", seconds)
        patch.start()
        self.addCleanup(patch.stop)

    def connect(self) -> omnibus.Client:
        t = threading.Thread(target=self.host.welcome)
        t.start()
        client = omnibus.connect(self.host.path)
        t.join()
        self.addCleanup(client.close)
        return client

    def beside(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """Run f in a thread; the result, or the error, comes when it is asked for."""
        out: dict[str, Any] = {}

        def body() -> None:
            try:
                out["value"] = f()
            except BaseException as e:
                out["error"] = e

        t = threading.Thread(target=body, daemon=True)
        t.start()

        def result() -> Any:
            t.join(60)
            self.assertFalse(t.is_alive(), "it hangs")
            if "error" in out:
                raise out["error"]
            return out["value"]

        return result


class RequestCase(HostCase):
    """A client with a request under way, whose number is 3."""

    def setUp(self) -> None:
        super().setUp()
        self.client = self.connect()
        r = self.beside(self.client.stream)
        self.host.submitted(3)
        self.request = r()
