"""The connector over /dev/shm beside the real one."""

from __future__ import annotations

import json
import os
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)
import realvllm

from omnibus.connector import OmnibusConnector


class RealTest(unittest.TestCase):
    """The two connectors share an edge in both directions."""

    def setUp(self) -> None:
        self.real = realvllm.Real()
        self.addCleanup(self.real.close)
        self.ours = OmnibusConnector({"mode": "segment"})
        self.addCleanup(self.ours.close)
        self.key = f"omnibus-test-{os.getpid()}_0_0"

    def tearDown(self) -> None:
        self.assertFalse([n for n in os.listdir("/dev/shm") if self.key in n])

    def test_ours_to_real(self) -> None:
        for name, value in realvllm.values().items():
            if name == "request":
                continue
            for told in (False, True):
                with self.subTest(name, told=told):
                    ok, size, metadata = self.ours.put("0", "1", self.key, {"v": value})
                    self.assertTrue(ok)
                    got = self.real.ask("get", key=self.key, metadata=metadata if told else None)
                    want = json.loads(json.dumps(realvllm.describe(self.value_of({"v": value}))))
                    self.assertEqual(got, [want, size])
        self.assertIsNone(self.ours.get("0", "1", self.key))

    @staticmethod
    def value_of(value: Any) -> Any:
        return OmnibusConnector.deserialize_obj(OmnibusConnector.serialize_obj(value))

    def test_real_to_ours(self) -> None:
        for name, value in realvllm.values().items():
            for told in (False, True):
                with self.subTest(name, told=told):
                    ok, size, metadata = self.real.ask("put", key=self.key, name=name)
                    self.assertTrue(ok)
                    found = self.ours.get("0", "1", self.key, metadata if told else None)
                    assert found is not None
                    self.assertEqual(found[1], size)
                    if name != "request":
                        self.assertEqual(realvllm.describe(found[0]), realvllm.describe(self.value_of({"v": value})))
        self.assertIsNone(self.real.ask("get", key=self.key))

    def test_each_replaces_and_cleans_up(self) -> None:
        self.real.ask("put", key=self.key, name="plain")
        self.ours.put("0", "1", self.key, 1)
        self.real.ask("put", key=self.key, name="nothing")
        self.assertEqual(self.ours.get("0", "1", self.key), ({"v": None}, 4))
        self.ours.put("0", "1", self.key, 1)
        if self.real.ask("cleanup", key=self.key):
            self.assertIsNone(self.ours.get("0", "1", self.key))
        self.ours.put("0", "1", self.key, 1)
        self.ours.cleanup(self.key)
        self.assertIsNone(self.real.ask("get", key=self.key))


if __name__ == "__main__":
    unittest.main()
