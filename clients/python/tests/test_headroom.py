"""Memory that there is not is refused before it is taken."""

from __future__ import annotations

import os
import tempfile
import unittest

from fakehost import deliver
from stagecase import StageCase

import omnibus
from omnibus import headroom, wire
from omnibus.codec import encode
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

    def test_of_the_machine(self) -> None:
        self.check(9 * GIB)
        self.refused(9 * GIB + 1, "/proc/meminfo leaves 10737418240 bytes, of which 1073741824 stay free: Cannot allocate memory")
        self.refused(1 << 40, "/proc/meminfo")

    def test_of_groups_of_version_2(self) -> None:
        self.write(self.proc, "self/cgroup", "0::/a/b\n")
        self.write(self.groups, "a/b/memory.max", "max")
        self.write(self.groups, "a/memory.max", 4 * GIB)
        self.write(self.groups, "a/memory.current", 3 * GIB)
        self.write(self.groups, "a/memory.stat", f"anon 5\ninactive_file {GIB}\n")
        self.check(GIB)
        self.refused(2 * GIB, "a/memory.max leaves 2147483648")

    def test_of_groups_of_version_1(self) -> None:
        self.write(self.proc, "self/cgroup", "3:cpu:/x\n4:memory,hugetlb:/c\n")
        self.write(self.groups, "memory/memory.limit_in_bytes", 1 << 62)
        self.write(self.groups, "memory/memory.usage_in_bytes", 0)
        self.write(self.groups, "memory/c/memory.limit_in_bytes", GIB)
        self.write(self.groups, "memory/c/memory.usage_in_bytes", 2 * GIB)
        self.refused(1 << 20, "memory/c/memory.limit_in_bytes leaves 0 bytes")

    def test_what_cannot_be_read(self) -> None:
        headroom.check("a thing", 1 << 50, "/nowhere", "/nowhere")


class ReserveTest(StageCase):
    def test_more_than_the_machine_has(self) -> None:
        """Nothing is taken for it, and the stage goes on."""
        before = headroom._field("/proc/meminfo", "Shmem:")
        errors: list[str] = []

        @omnibus.stage
        def greedy(value: int, task: omnibus.Task) -> int:
            try:
                task.reserve(1 << 40)
            except OutOfMemory as e:
                errors.append(str(e))
            return value

        r = self.run_stage(greedy)
        self.host.send(deliver(1, 7, encode(1)))
        self.host.emitted()
        self.host.expect(wire.Finish)
        self.assertRegex(errors[0], "no segment of .* bytes: .* leaves ")
        after = headroom._field("/proc/meminfo", "Shmem:")
        assert before is not None and after is not None
        self.assertLess(after - before, 1 << 20)  # KiB
        self.bye(r)
