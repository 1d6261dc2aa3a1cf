"""The library that plays libcuda.so.1 in the tests of the Go package cudaipc/cuda, with one GPU."""

import ctypes
import glob
import os
import shutil
import subprocess
import tempfile
import time
import unittest

from omnibus.devices.cuda import Cuda
from omnibus.devices.libcuda import Library

FAKE = os.path.join(os.path.dirname(__file__), *[".."] * 3, "cudaipc", "cuda", "testdata", "fake")
BIAS = 1 << 60  # of its device addresses
UUID = bytes([*range(0xA0, 0xAF), 0])


def until(happened):
    limit = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < limit, "waited 60 s in vain"
        time.sleep(0.0005)


class FakeCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cc = shutil.which("cc")
        sources = glob.glob(os.path.join(FAKE, "*.c"))
        if cc is None or not sources:
            raise unittest.SkipTest("no C compiler, or not the whole repository: the library that plays CUDA's is not built")
        cls.dir = tempfile.TemporaryDirectory(prefix="omnibus-fake-")
        cls.addClassCleanup(cls.dir.cleanup)
        path = os.path.join(cls.dir.name, "libcuda.so.1")
        subprocess.run([cc, "-shared", "-fPIC", "-O1", "-pthread", "-o", path, *sources], check=True)
        cls.path = path

    def setUp(self):
        path = os.path.join(self.dir.name, f"{self.id()}.so")  # one of its own, for its state
        shutil.copy(self.path, path)
        self.fake = ctypes.CDLL(path)
        self.libcuda = Library(path)
        self.device = Cuda(self.libcuda, 0)
        with self.device.context:
            self.stream = self.device._new_stream()
