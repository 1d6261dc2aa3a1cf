"""Memory that there is not is refused before it is taken."""

from __future__ import annotations

import os
import tempfile
import unittest
from unittest import mock

from fakehost import deliver
from stagecase import StageCase

import omnibus
from omnibus import headroom, wire
from omnibus.codec import encode
from omnibus.connector import OmnibusConnector
from omnibus.errors import OutOfMemory

GIB = 1 << 30


class LimitsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.proc, self.groups = os.path.join(folder.name, "proc"), os.path.join(folder.name, "cgroup")
        self.write(self.proc, "meminfo", "MemTotal: 99 kB\nMemAvailable: 10485760 kB\n")

    def write(self, root: str, name: str, text: object) -> None:
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(str(text))

    def check(self, size: int) -> None:
        headroom.check("a thing", size, self.proc, self.groups)

    def refused(self, size: int, why: str) -> None:
        with self.assertRaisesRegex(OutOfMemory, f"^a thing: .*{why}"):
            self.check(size)

    def test_machine_limit(self) -> None:
        self.check(9 * GIB)
        self.refused(9 * GIB + 1, "/proc/meminfo leaves 10737418240 bytes, of which 1073741824 stay free: Cannot allocate memory")
        self.refused(1 << 40, "/proc/meminfo")

    def test_limits_of_cgroup_version_2(self) -> None:
        self.write(self.proc, "self/cgroup", "0::/a/b\n")
        self.write(self.groups, "a/b/memory.max", "max")
        self.write(self.groups, "a/memory.max", 4 * GIB)
        self.write(self.groups, "a/memory.current", 3 * GIB)
        self.write(self.groups, "a/memory.stat", f"anon 5\ninactive_file {GIB}\n")
        self.check(GIB)
        self.refused(2 * GIB, "a/memory.max leaves 2147483648")

    def test_limits_of_cgroup_version_1(self) -> None:
        self.write(self.proc, "self/cgroup", "3:cpu:/x\n4:memory,hugetlb:/c\n")
        self.write(self.groups, "memory/memory.limit_in_bytes", 1 << 62)
        self.write(self.groups, "memory/memory.usage_in_bytes", 0)
        self.write(self.groups, "memory/c/memory.limit_in_bytes", GIB)
        self.write(self.groups, "memory/c/memory.usage_in_bytes", 2 * GIB)
        self.refused(1 << 20, "memory/c/memory.limit_in_bytes leaves 0 bytes")

    def test_unreadable_limits_are_ignored(self) -> None:
        headroom.check("a thing", 1 << 50, "/nowhere", "/nowhere")


class CopyTest(unittest.TestCase):
    """Values whose encoding is a copy, and segments, which are written to /dev/shm."""

    def test_more_than_the_machine_has(self) -> None:
        with mock.patch.object(headroom, "_limits", lambda *_: [("/proc/meminfo", 1 << 20)]):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, OmnibusConnector({"mode": "segment", "dir": folder}) as c:
                with self.assertLogs("omnibus", "ERROR") as logs:
                    self.assertEqual(c.put("0", "1", "k", bytes(2 << 20)), (False, 0, None))
                self.assertIn("no segment of 2097157 bytes: /proc/meminfo leaves", logs.output[0])
                self.assertEqual([n for n in os.listdir(folder) if not n.startswith(".")], [])
            with self.assertRaisesRegex(omnibus.OmnibusError, r"no copy of a view of 2097152 bytes: .*at \['a'\]"):
                OmnibusConnector.serialize_obj({"a": memoryview(bytearray(4 << 20))[::2]})
            try:
                import numpy as np
            except ImportError:
                return
            with self.assertRaisesRegex(omnibus.OmnibusError, r"no copy of an array of 2097152 bytes: .*at \['a'\]"):
                OmnibusConnector.serialize_obj({"a": np.broadcast_to(np.float64(1), (1 << 18,))})


class ReserveTest(StageCase):
    def refused(self, size: int, largest: int, kind: type[omnibus.OmnibusError], why: str) -> None:
        """Have a stage reserve so much. The stage goes on."""
        errors: list[str] = []

        @omnibus.stage
        def greedy(value: int, task: omnibus.Task) -> int:
            task._session.largest_bytes = largest
            try:
                task.reserve(size)
            except kind as e:
                errors.append(str(e))
            return value

        r = self.run_stage(greedy)
        self.host.send(deliver(1, 7, encode(1)))
        self.host.emitted()
        self.host.expect(wire.Finish)
        self.assertRegex(errors[0], why)
        self.bye(r)

    def test_more_than_the_bus_takes(self) -> None:
        self.refused((1 << 20) + 1, 1 << 20, omnibus.TooLarge, "1048577 bytes: this bus takes 1048576: see large_bytes")

    def test_more_than_the_machine_has(self) -> None:
        """Nothing is taken for it."""
        before = headroom._field("/proc/meminfo", "Shmem:")
        self.refused(1 << 40, 0, OutOfMemory, "no segment of .* bytes: .* leaves ")
        after = headroom._field("/proc/meminfo", "Shmem:")
        assert before is not None and after is not None
        self.assertLess(after - before, 1 << 20)  # KiB
