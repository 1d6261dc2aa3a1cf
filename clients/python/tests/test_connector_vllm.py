"""vLLM-Omni's own factory makes the connector, by its name."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest

import fakehost  # noqa: F401  (finds the package)
import realvllm

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pyproject.toml")


class RegisterTest(unittest.TestCase):
    def test_the_real_factory(self) -> None:
        real = realvllm.Real()
        self.addCleanup(real.close)
        known, kinds, missing, stage, ok, got, status = real.ask("register", config={"mode": "segment", "stage_id": 3})
        # Its module is loaded there, so importing the connector was enough; twice is not an error.
        self.assertEqual(known, [True, True, True, True])
        self.assertEqual(kinds, [True, True, True])
        self.assertEqual(missing, [])
        self.assertEqual((stage, ok, got, status), (3, True, [{"x": 1}, 4], "healthy"))

    def test_without_vllm_omni(self) -> None:
        """vLLM-Omni is neither needed nor loaded."""
        code = (
            "import sys; from omnibus.connector import register, OmnibusConnector;"
            "assert not any(m.partition('.')[0] in ('vllm_omni', 'vllm', 'torch', 'numpy', 'PIL') for m in sys.modules);"
            "assert register() in (True, False)"
        )
        env = {**os.environ, "PYTHONPATH": os.path.join(os.path.dirname(PROJECT), "src")}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)

    def test_entry_points(self) -> None:
        try:
            import tomllib
        except ImportError:
            raise unittest.SkipTest("Python 3.10 reads no TOML") from None
        with open(PROJECT, "rb") as f:
            groups = tomllib.load(f)["project"]["entry-points"]
        for group in ("vllm.general_plugins", "vllm_omni.general_plugins"):
            module, _, function = groups[group]["omnibus_connector"].partition(":")
            self.assertTrue(callable(getattr(__import__(module, fromlist=[function]), function)))


if __name__ == "__main__":
    unittest.main()
