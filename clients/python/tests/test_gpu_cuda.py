"""The backend for CUDA, over the library that plays libcuda.so.1 in the tests of the Go package cudaipc/cuda."""

import ctypes
import errno
import gc
import mmap
import os
import threading
import unittest
from unittest import mock

from fakecuda import BIAS, UUID, FakeCase, until
from gpumessage import Payload, Producer
from omnibus import Forged, PayloadError, Poisoned, bundle
from omnibus.bundle import HANDLE
from omnibus.devices import cuda
from omnibus.devices.libcuda import NOT_READY, Library
from omnibus.devices.words import Watcher
from omnibus.gpu import DeviceLost, DriverError, NoDriver
from omnibus.gpu.lane import Lane

ARENA = 2 << 20

class TestCuda(FakeCase):
    def setUp(self):
        super().setUp()
        self.producer = Producer(UUID)
        self.addCleanup(self.producer.kill)
        self.lane = Lane(self.producer.find, lambda uuid: self.device)
        self.make_arena(1)
        page = mmap.mmap(-1, 4096)
        base = ctypes.addressof(ctypes.c_char.from_buffer(page))
        with self.device.context:
            self.device.call("cuMemHostRegister_v2", base, 4096, 3)
            self.words_at = self.libcuda.number("cuMemHostGetDevicePointer_v2", base, 0)
        self.words = (ctypes.c_uint32 * 16).from_buffer(page)

    def make_arena(self, number):
        """An unmapped arena, as its producer creates it."""
        fd = os.memfd_create("fake-arena", os.MFD_CLOEXEC)
        os.ftruncate(fd, ARENA)
        os.pwrite(fd, bytes(range(256)) * 16, 4096)
        self.producer.published[number] = fd, ARENA

    def write(self, n, value):
        """Write a word on the reader's stream, after its earlier work."""
        with self.device.context:
            self.device.call("cuStreamWriteValue32_v2", self.stream, self.words_at + 4 * n, value, 0)

    def block(self, n, value):
        """Make the reader's stream wait for a word."""
        with self.device.context:
            self.device.call("cuStreamWaitValue32_v2", self.stream, self.words_at + 4 * n, value, 0)

    def test_the_uuid_and_the_number(self):
        self.assertEqual((self.device.uuid, self.device.dlpack), (UUID, (2, 0)))
        with self.assertRaises(NoDriver):
            Library("libnothere.so.1")

    def test_a_stream_waits_and_the_lease_follows_it(self):
        p = Payload(self.producer.place(offset=4096))
        t = p.open(self.lane)
        self.assertEqual(t.__dlpack_device__(), (2, 0))
        self.assertEqual(ctypes.string_at(t.pointer - BIAS, 256), bytes(range(256)))
        capsule = t.__dlpack__(stream=self.stream, max_version=(1, 0))
        self.write(0, 1)
        self.assertEqual(self.fake.fake_count(b"cuStreamWaitValue32_v2"), 1)
        self.assertEqual(self.words[0], 0)  # it waits: the tensor is not there
        self.producer.ready(1, 1)
        until(lambda: self.words[0] == 1)
        self.assertIsNone(t.error)

        self.block(1, 1)
        del t, capsule
        gc.collect()
        # Another message comes and goes, over another stream: the first one's lease stays.
        q = Payload(self.producer.place(slot=2))
        self.producer.ready(2, 1)
        with self.device.context:
            other = self.device._new_stream()
        q.open(self.lane).__dlpack__(stream=other)
        until(lambda: gc.collect() is not None and q.alive() is None)
        self.assertIsNotNone(p.alive())
        self.words[1] = 1
        until(lambda: p.alive() is None)
        self.assertEqual(self.fake.fake_count(b"wrong_version"), 0)

    def test_complete_memory_is_not_waited_for(self):
        self.producer.ready(1, 1)
        for _ in range(200):  # more than lines in a page
            p = Payload(self.producer.place())
            p.open(self.lane).__dlpack__(stream=self.stream)
            until(lambda: p.alive() is None)  # noqa: B023
        self.assertEqual(self.fake.fake_count(b"cuStreamWaitValue32_v2"), 0)
        self.assertEqual(self.fake.fake_count(b"cuMemMap"), 1)
        self.assertLessEqual(self.fake.fake_count(b"cuStreamCreate"), 4)

    def test_without_a_stream(self):
        """The wait is on the CPU, and the memory is released at once."""
        p = Payload(self.producer.place())
        t = p.open(self.lane)
        self.assertFalse(t.wait(0))
        self.producer.ready(1, 1)
        self.assertTrue(t.wait())
        del t
        gc.collect()
        self.assertIsNone(p.alive())

    def test_no_stream_waits_for_the_dead(self):
        t = Payload(self.producer.place()).open(self.lane)
        capsule = t.__dlpack__(stream=self.stream)
        self.write(0, 1)
        self.producer.child.kill()
        until(lambda: self.words[0] == 1)
        self.assertIsInstance(t.error, Poisoned)
        with self.assertRaises(Poisoned):
            t.__dlpack__(stream=self.stream)
        del capsule

    def test_a_device_that_is_lost(self):
        p = Payload(self.producer.place())
        t = p.open(self.lane)
        capsule = t.__dlpack__(stream=self.stream)
        self.fake.fake_poison(0, 700)
        until(lambda: self.device.lost is not None)
        until(lambda: t.error is not None)
        with self.assertRaises((DeviceLost, Poisoned)):
            t.__dlpack__(stream=self.stream)
        t = capsule = None
        until(lambda: gc.collect() is not None and p.alive() is None)

    def test_calls_that_fail(self):
        for call in ("cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"):
            left = self.fake.fake_left()
            self.fake.fake_inject(call.encode(), 304, 1)
            with self.assertRaisesRegex(Exception, call):
                Payload(self.producer.place()).open(self.lane)
            self.assertEqual(self.fake.fake_left(), left, call)
        t = Payload(self.producer.place()).open(self.lane)
        for call in ("cuMemHostRegister_v2", "cuStreamCreate", "cuEventCreate"):
            self.fake.fake_inject(call.encode(), 2, 1)
            with self.assertRaisesRegex(Exception, call):
                t.__dlpack__(stream=self.stream)
        t.__dlpack__(stream=self.stream)
        for stream in (0, -2, "a"):
            with self.assertRaises(BufferError):
                t.__dlpack__(stream=stream)
        self.producer.ready(1, 1)

    def test_a_reader_waits_although_a_call_failed_before(self):
        t = Payload(self.producer.place()).open(self.lane)
        self.fake.fake_inject(b"cuEventRecord", 2, 1)
        with self.assertRaisesRegex(DriverError, "cuEventRecord"):
            t.__dlpack__(stream=self.stream)
        capsule = t.__dlpack__(stream=self.stream)
        with self.device.context:
            self.assertEqual(self.libcuda.ask("cuStreamQuery", self.stream), NOT_READY)
        self.write(0, 1)
        self.producer.ready(1, 1)
        until(lambda: self.words[0] == 1)
        del capsule

    def test_memory_stays_when_no_word_says_that_streams_are_done(self):
        for call in ("cuStreamWriteValue32_v2", "cuEventRecord"):
            self.words[1] = 0
            self.producer.ready(1, 1)
            p = Payload(self.producer.place())
            t = p.open(self.lane)
            capsule = t.__dlpack__(stream=self.stream)
            self.block(1, 1)
            self.fake.fake_inject(call.encode(), 2, 1)
            with self.assertLogs("omnibus", "ERROR"):
                del t, capsule
                gc.collect()
            self.assertIsNotNone(p.alive(), call)
            # What the watcher was told later is over, and this is not.
            self.producer.ready(2, 1)
            q = Payload(self.producer.place(slot=2))
            with self.device.context:
                other = self.device._new_stream()
            q.open(self.lane).__dlpack__(stream=other)
            until(lambda: gc.collect() is not None and q.alive() is None)  # noqa: B023
            self.assertIsNotNone(p.alive(), call)
            self.words[1] = 1
            until(lambda: p.alive() is None)  # noqa: B023

    def test_a_failed_creation_leaks_nothing(self):
        t = Payload(self.producer.place()).open(self.lane)
        # The page that words are in stays, once it is there.
        for call, stays in (("cuMemHostGetDevicePointer_v2", 0), ("cuStreamCreate", 1), ("cuEventCreate", 0)):
            left = self.fake.fake_left()
            self.fake.fake_inject(call.encode(), 2, 1)
            with self.assertRaisesRegex(DriverError, call):
                t.__dlpack__(stream=self.stream)
            self.assertEqual(self.fake.fake_left() - left, stays, call)

    def test_memory_is_unregistered_before_it_is_unmapped(self):
        left = self.fake.fake_left()
        page = mmap.mmap(-1, 4096)
        base = ctypes.addressof(ctypes.c_char.from_buffer(page))
        self.fake.fake_inject(b"cuMemHostGetDevicePointer_v2", 2, 1)
        with self.assertRaisesRegex(DriverError, "cuMemHostGetDevicePointer"):
            self.device.register(base, 4096, page)
        self.assertEqual(self.fake.fake_left(), left)
        held = cuda._still_registered
        registered = self.device.register(base, 4096, page)
        self.fake.fake_inject(b"cuMemHostUnregister", 2, 1)
        del registered
        self.assertIs(held.pop(), page)

    def test_the_watcher_lives_without_descriptors(self):
        """A condition that raises is polled again."""
        watcher = Watcher()
        watcher.start()
        asked, over = [], threading.Event()

        def slowly():
            asked.append(None)
            if len(asked) < 3:
                raise OSError(errno.EMFILE, "too many open files")
            return True

        watcher.add(lambda: False, slowly, over.set)
        self.assertTrue(over.wait(60))

    def test_an_arena_of_another_size(self):
        fd, _ = self.producer.published[1]
        self.producer.published[2] = fd, 2 * ARENA
        with self.assertRaisesRegex(Exception, "cuMemMap"):
            Payload(self.producer.place(arena=2)).open(self.lane)
        with self.assertRaises(Forged):
            Payload(self.producer.place(offset=ARENA)).open(self.lane)

    def test_a_handle_by_value(self):
        handle = bytes(range(1, 65))
        with self.assertRaises(Poisoned):  # the fake looks at all of it
            Payload(self.producer.place(kind=HANDLE, arena=0, handle=handle)).open(self.lane)
        values, sizes = (ctypes.c_uint64 * 16)(), (ctypes.c_int * 16)()
        n = self.fake.fake_args(b"cuIpcOpenMemHandle_v2", values, sizes)
        self.assertEqual((n, bytes(values)[8:72], values[9], sizes[9]), (10, handle, 1, 4))

    def test_a_tensor_to_the_host(self):
        """A tensor on a GPU is copied into a host payload, ordered after the work that fills it."""
        t = Payload(self.producer.place(offset=4096)).open(self.lane)
        with mock.patch.object(cuda, "_devices", {UUID: self.device}):
            plan = bundle.Plan({"x": t})
            self.producer.ready(1, 1)
            payload = bytearray(plan.size())
            plan.write(memoryview(payload))
            self.assertEqual(bundle.decode(payload)["x"].raw(), bytes(range(256)) * 16)
            self.fake.fake_inject(b"cuMemcpyAsync", 2, 1)
            with self.assertRaisesRegex(DriverError, "cuMemcpyAsync"):
                plan.write(memoryview(payload))
        with mock.patch.object(cuda, "_devices", {}), self.assertRaisesRegex(PayloadError, "no GPU 0"):
            bundle.Plan({"x": t})


if __name__ == "__main__":
    unittest.main()
