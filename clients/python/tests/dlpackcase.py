"""What tests of tensors of other libraries begin with: the libraries, and how to go without."""

from __future__ import annotations

import sys
import unittest
import unittest.mock
from typing import Any

import fakehost  # noqa: F401  (finds the package)

from omnibus import dlpack


def need(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise unittest.SkipTest(f"{name} is not installed") from None


def as_it_is() -> Any:
    return unittest.mock.patch.dict(sys.modules)


def without_numpy() -> Any:
    return unittest.mock.patch.dict(sys.modules, {"numpy": None})


def without_donors() -> Any:
    return unittest.mock.patch.object(dlpack, "_library_capsule", lambda *_: None)
