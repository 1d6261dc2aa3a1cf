import errno
import fcntl
import gc
import mmap
import os
import struct
import threading
import unittest
from unittest import mock

from gpumessage import ADD_SEALS, FUTURE_WRITE, GROW, SHRINK, Payload, Producer, memfd

from omnibus import ForeignDevice, Forged, Nothing, PayloadError, Poisoned, dlpack
from omnibus.devices.mapping_cache import MappingCache
from omnibus.devices.words import reached
from omnibus.gpu.layout import LentAllocation, lent_allocations
from omnibus.gpu.lane import BY_HANDLE, TIDY_SECONDS, Lane

EMULATED = b"emul" + bytes(11) + b"\1"


class TestWords(unittest.TestCase):
    def test_circle(self):
        last = (1 << 32) - 1
        for word, value, want in [
            (0, 0, True), (1, 0, True), (0, 1, False), (last, 1, False), (1, last, True), (0, last, True),
            (1 << 31, 1, True), ((1 << 31) + 1, 1, False), (0, (1 << 31) + 1, True), (0, 1 << 31, False),
        ]:  # fmt: skip
            self.assertEqual(reached(word, value), want, (word, value))


class TestEmulated(unittest.TestCase):
    def setUp(self):
        self.producer = Producer(EMULATED)
        self.addCleanup(self.producer.kill)
        self.lane = Lane(self.producer.find)
        self.memory = self.producer.arena(1, 1 << 16)

    def open(self, **fields):
        return Payload(self.producer.place(**fields)).open(self.lane)

    def test_reads_in_place(self):
        self.memory[4096:8192] = bytes(range(256)) * 16
        p = Payload(self.producer.place(offset=4096))
        t = p.open(self.lane)
        self.assertFalse(t.ready)
        self.assertFalse(t.wait(0))
        self.producer.ready(1, 1)
        self.assertTrue(t.ready)
        b = dlpack.borrow(t)
        self.assertEqual((b.address, b.readonly, b.device), (t.pointer, True, (1, 0)))
        view = b.view()
        self.assertEqual(view[:3], b"\0\1\2")
        self.memory[4096] = 77  # it is the same memory
        self.assertEqual(view[0], 77)
        del t, b
        gc.collect()
        self.assertIsNotNone(p.alive())
        del view
        gc.collect()
        self.assertIsNone(p.alive())

    def test_waits(self):
        t = self.open()
        timer = threading.Timer(0.01, self.producer.ready, (1, 1))
        timer.start()
        dlpack.borrow(t)
        timer.join()

    def test_generations_count_in_a_circle(self):
        last = (1 << 32) - 1
        self.producer.ready(1, last - 1)
        t = self.open(generation=last)
        self.assertFalse(t.ready)
        self.producer.ready(1, last)
        self.assertTrue(t.ready)
        self.producer.ready(1, 0)  # as the slot is given out again
        after = self.open(generation=1)
        self.assertFalse(after.ready)
        self.producer.ready(1, 1)
        self.assertTrue(after.ready)
        with self.assertRaises(Forged):
            self.open(generation=last)

    def test_nothing_is_opened_twice(self):
        for _ in range(3):
            self.open()
        self.assertEqual([n.number for n in self.producer.asked], [0, 1])
        self.producer.arena(2, 1 << 16)
        fds = os.listdir("/proc/self/fd")
        del self.producer.published[1]
        self.open(arena=2)
        self.assertEqual(len(os.listdir("/proc/self/fd")), len(fds))
        with self.assertRaises(Nothing):  # which was withdrawn, and is mapped no more
            self.open()

    def test_withdrawn_memory_is_dropped_at_an_interval(self):
        """Withdrawn memory, and that of dead processes, is dropped with a later message, unless it is read."""
        other = Producer(EMULATED)
        self.addCleanup(other.kill)
        other.pool = bytes(16)
        other.arena(1, 1 << 16)
        self.lane._find = lambda name, limit: (other if name.pool == other.pool else self.producer).find(name)
        self.producer.ready(1, 1)
        read = self.open()
        pool = self.lane._pools[self.producer.pool]
        Payload(other.place()).open(self.lane)
        del self.producer.published[1]
        asked = len(self.producer.asked)
        Payload(other.place()).open(self.lane)
        self.assertEqual((len(self.producer.asked), len(pool.arenas)), (asked, 1))
        self.lane._tidied -= TIDY_SECONDS
        Payload(other.place()).open(self.lane)
        self.assertEqual((len(self.producer.asked), pool.arenas), (asked + 1, {}))
        self.producer.kill()
        self.lane._tidied -= TIDY_SECONDS
        Payload(other.place()).open(self.lane)
        self.assertEqual(list(self.lane._pools), [other.pool])
        self.assertEqual(dlpack.borrow(read).view()[:4], bytes(4))

    def test_a_death_is_seen_without_a_descriptor_left(self):
        t = self.open()
        with mock.patch("os.dup", side_effect=OSError(errno.EMFILE, "too many open files")):
            self.assertFalse(t.ready)
            self.producer.kill()
            with self.assertRaises(Poisoned):
                t.wait()

    def test_memory_being_unmapped_is_not_found(self):
        """A get during the destructor of a mapping, as from another thread, returns another mapping."""
        opened = []

        class Mapped:
            address, size = 4096, 4096

            def __init__(self, handle):
                opened.append(handle)

            def __del__(self):
                if len(opened) == 1:
                    again.append(shared.get(b"handle"))

        again = []
        shared = MappingCache(Mapped)
        first = shared.get(b"handle")
        self.assertIs(shared.get(b"handle"), first)
        del first
        gc.collect()
        self.assertEqual((opened, again[0].address), ([b"handle"] * 2, 4096))
        self.assertIs(shared.get(b"handle"), again[0])

    def test_poisoned_by_a_fault(self):
        t = self.open()
        self.producer.fault(1, 1)
        self.assertFalse(t.ready)
        self.producer.ready(1, 1)
        for look in (lambda: t.ready, t.wait, t.__dlpack__):
            with self.assertRaises(Poisoned):
                look()
        self.assertIsInstance(t.error, Poisoned)

    def test_poisoned_by_a_death(self):
        done, lost = self.open(slot=1), self.open(slot=2)
        self.producer.ready(1, 1)
        timer = threading.Timer(0.01, self.producer.child.kill)
        timer.start()
        with self.assertRaises(Poisoned):
            dlpack.borrow(lost)
        timer.join()
        self.assertTrue(done.ready)

    def test_forged_places(self):
        big = (1 << 63) - 1
        for fields in (
            {"slot": 64}, {"slot": (1 << 32) - 1}, {"arena": 0}, {"offset": 1 << 16}, {"offset": (1 << 16) - 4095},
            {"offset": big - 4096}, {"nbytes": big}, {"nbytes": 1 << 17},
            {"kind": 2, "arena": 0, "handle": b"x" * 64}, {"kind": 2, "arena": 0},
        ):  # fmt: skip
            with self.assertRaises(Forged, msg=str(fields)):
                self.open(**fields)
        for fields in ({"arena": 9}, {"pool": bytes(16)}):
            with self.assertRaises(Nothing, msg=str(fields)):
                self.open(**fields)
        for at in (2, (1 << 32) - 1, 1 << 31):  # what is over, and what is to come
            self.producer.ready(1, at)
            with self.assertRaises(Forged, msg=str(at)):
                self.open(generation=1)

    def test_an_own_buffer_of_another_gpu(self):
        own = LentAllocation(EMULATED[:-1] + b"\2", 4096, 1 << 16)
        handle = bytes(64)
        lent_allocations[handle] = own
        with self.assertRaisesRegex(Forged, "another GPU"):
            self.open(kind=2, arena=0, handle=handle)

    def test_memory_that_may_shrink(self):
        self.producer.published[2] = memfd(1 << 16, 0)[0], 1 << 16
        self.producer.published[3] = memfd(1 << 12)[0], 1 << 16
        self.producer.published[4] = os.open("/dev/zero", os.O_RDWR), 1 << 16
        for arena in (2, 3, 4):
            with self.assertRaises(Forged):
                self.open(arena=arena)
        self.producer.published[0] = memfd(4096)[0], 4096  # words that others may write
        with self.assertRaises(Forged):
            Payload(self.producer.place()).open(Lane(self.producer.find))

    def test_arenas_with_handles(self):
        nonce, size = b"n" * 16, 1 << 16
        fd = os.memfd_create(f"omnibus-emul-handle-{nonce.hex()}", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        fcntl.fcntl(fd, ADD_SEALS, SHRINK | GROW)
        namespace = os.stat("/proc/self/ns/pid").st_ino
        handle = struct.pack("<8sIIQ16s16sQ", b"omniemu\1", os.getpid(), fd, size, nonce, EMULATED, namespace)

        def publish(number, magic=b"omnihdl\1", size=size - 4096, offset=4096, length=96, handle=handle):
            published, mapped = memfd(length, SHRINK | GROW | FUTURE_WRITE)
            mapped[:] = struct.pack("<8sQQ8x64s", magic, size, offset, handle).ljust(length, b"\0")
            self.producer.published[BY_HANDLE | number] = published, length

        publish(1)
        memory[8192:12288] = bytes(range(256)) * 16
        self.producer.ready(1, 1)
        for _ in range(3):
            t = self.open(arena=BY_HANDLE | 1, offset=4096)
            self.assertEqual(dlpack.borrow(t).view()[:3], b"\0\1\2")
        self.assertEqual([n.number for n in self.producer.asked], [0, BY_HANDLE | 1])
        with self.assertRaises(Forged):
            self.open(arena=BY_HANDLE | 1, offset=size - 8191)
        for number, fields in enumerate((
            {"magic": b"x" * 8}, {"size": size}, {"offset": size + 1}, {"size": (1 << 64) - 1}, {"length": 97},
            {"handle": b"x" * 64},
        ), 2):  # fmt: skip
            publish(number, **fields)
            with self.assertRaises(Forged, msg=str(fields)):
                self.open(arena=BY_HANDLE | number)
        gone = struct.pack("<8sIIQ16s16sQ", b"omniemu\1", os.getpid(), fd, size, b"m" * 16, EMULATED, namespace)
        publish(8, handle=gone)
        for fields in ({"arena": BY_HANDLE | 8}, {"kind": 2, "arena": 0, "handle": gone}):
            with self.assertRaises(Poisoned, msg=str(fields)):
                self.open(**fields)
        self.producer.published[BY_HANDLE | 9] = memfd(96)[0], 96  # that others may write
        with self.assertRaises(Forged):
            self.open(arena=BY_HANDLE | 9)

    def test_refusals(self):
        self.producer.ready(1, 1)
        t = self.open()
        for options in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                t.__dlpack__(**options)

    def test_a_gpu_that_is_not_there(self):
        with self.assertRaises(ForeignDevice):
            self.open(device=bytes(range(16)))

    def test_the_size_of_a_place_is_checked(self):
        with self.assertRaises(PayloadError):
            Payload(self.producer.place(nbytes=1))


if __name__ == "__main__":
    unittest.main()
