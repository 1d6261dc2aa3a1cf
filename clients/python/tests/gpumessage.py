"""What a producer of tensors on a GPU does, made by hand: words, places, and a process that owns them."""

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
import weakref

from omnibus import bundle
from omnibus.directory import Found, Name, Owner
from omnibus.errors import Code, Nothing

ADD_SEALS, SHRINK, GROW, FUTURE_WRITE = 1033, 2, 4, 16


def memfd(size, seals=SHRINK | GROW):
    """Memory of its own, mapped, and its descriptor."""
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    mapped = mmap.mmap(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd, mapped


class Producer:
    """Words and arenas under names, owned by a child that may be killed."""

    pool = bytes(range(16))

    def __init__(self, device, slots=64):
        self.device = device
        fd, self.words = memfd(64 * slots, SHRINK | GROW | FUTURE_WRITE)
        self.published = {0: (fd, 64 * slots)}
        self.child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
        self.asked = []

    def find(self, name, limit=None):
        self.asked.append(name)
        if name.pool != self.pool or name.number not in self.published:
            raise Nothing(Code.NOTHING, "nothing has this name")
        fd, size = self.published[name.number]
        return Found(os.dup(fd), size, Owner(os.pidfd_open(self.child.pid), self.child.pid))

    def arena(self, number, size):
        fd, mapped = memfd(size)
        self.published[number] = fd, size
        return mapped

    def word(self, slot, at):
        return ctypes.c_uint32.from_buffer(self.words, 64 * slot + at)

    def ready(self, slot, generation):
        self.word(slot, 0).value = generation

    def fault(self, slot, generation):
        self.word(slot, 4).value = generation

    def place(self, **fields):
        of = {"kind": bundle.POOL, "nbytes": 4096, "device": self.device, "pool": self.pool, "slot": 1,
              "generation": 1, "arena": 1}  # fmt: skip
        return bundle.Place(**(of | fields))

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()


class Payload:
    """A bundle with one tensor in a place, and whether it is referenced."""

    def __init__(self, place, dtype="uint8", shape=(4096,), value=lambda x: {"x": x}, **fields):
        plan = bundle.Plan(value(bundle.Placed(dtype, shape, 1, 0, **fields)))
        plan.places.append(place)
        size = plan.size()
        exporter = (ctypes.c_ubyte * size)()
        plan.write(memoryview(exporter).cast("B"))
        self.alive = weakref.ref(exporter)
        self.view = memoryview(exporter).toreadonly().cast("B")

    def open(self, lane):
        """The tensor, which alone keeps the payload from now on."""
        view, self.view = self.view, None
        return lane.decode(bundle.Bundle(view), view)["x"]


__all__ = ["Name", "Payload", "Producer", "memfd"]


def producer_of(case, device):
    """A producer for as long as a test runs, of one complete piece, 4096 bytes behind the beginning of its arena."""
    producer = Producer(device)
    case.addCleanup(producer.kill)
    producer.arena(1, 1 << 16)[4096:8192] = bytes(range(256)) * 16
    producer.ready(1, 1)
    return producer
