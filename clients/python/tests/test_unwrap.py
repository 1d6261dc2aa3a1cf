"""Copies of what came, on a device of the reader's choice: over the library that plays CUDA's, and emulated."""

import ctypes
import gc
import mmap
import os
import unittest
from unittest import mock

from fakecuda import BIAS, UUID, FakeCase, until
from gpumessage import Payload, Producer
from omnibus import ForeignDevice, Poisoned, Tensor, dlpack, gpu
from omnibus.devices import cuda
from omnibus.devices.cuda import Cuda
from omnibus.gpu import ChunkTensor, DriverError, emul
from omnibus.gpu.lane import Lane

ARENA = 2 << 20
CONTENT = bytes(range(256)) * 16


def host(data=b"\1\2\3\4\5\6", shape=(2, 3)):
    return Tensor("uint8", shape, data)


class TestOnGPU(FakeCase):
    def setUp(self):
        super().setUp()
        self.other = Cuda(self.libcuda, 1)
        devices = {d.uuid: d for d in (self.device, self.other)}
        patch = mock.patch.object(cuda, "_devices", devices)
        patch.start()
        self.addCleanup(patch.stop)
        self.producer = Producer(UUID)
        self.addCleanup(self.producer.kill)
        self.lane = Lane(self.producer.find, lambda uuid: self.device)
        fd = os.memfd_create("fake-arena", os.MFD_CLOEXEC)
        os.ftruncate(fd, ARENA)
        os.pwrite(fd, CONTENT, 4096)
        self.producer.published[1] = fd, ARENA

    def bytes_of(self, t, device=None):
        """The content of a tensor, as a consuming stream reads it."""
        device = device or self.device
        page = mmap.mmap(-1, 4096)
        with device.context:
            stream = device._new_stream()
        capsule = t.__dlpack__(stream=stream, max_version=(1, 0))
        with device.context:
            device.call("cuMemcpyAsync", ctypes.addressof(ctypes.c_char.from_buffer(page)), t.pointer, t.nbytes, stream)
            device.synchronize(stream)
        del capsule
        return page[: t.nbytes]

    def test_unwrap_does_not_wait_and_readers_are_ordered_after_it(self):
        p = Payload(self.producer.place(offset=4096))
        t = p.open(self.lane)
        value = {"x": [t, ({"n": 7}, None, "text")], "h": host()}
        out = gpu.unwrap(value)  # it is not complete
        self.assertFalse(t.ready)
        x, rest = out["x"]
        self.assertEqual((rest, type(x), x.device, out["h"].device), (({"n": 7}, None, "text"), ChunkTensor, UUID, UUID))
        self.assertEqual((x.dtype, x.shape, out["h"].shape), (t.dtype, t.shape, (2, 3)))
        self.assertNotEqual(x.pointer, t.pointer)
        n = t.nbytes
        del t, value
        gc.collect()
        self.assertIsNotNone(p.alive())  # it is read still
        self.producer.ready(1, 1)
        self.assertEqual(self.bytes_of(x), CONTENT[:n])
        until(lambda: gc.collect() is not None and p.alive() is None)  # the copy does not keep it
        self.assertEqual(self.bytes_of(out["h"]), b"\1\2\3\4\5\6")
        del x, out
        gc.collect()
        until(lambda: self.fake.fake_count(b"cuMemFree_v2") == 1)
        self.assertEqual(self.fake.fake_count(b"wrong_version"), 0)

    def test_onto_another_gpu_and_the_host(self):
        t = Payload(self.producer.place(offset=4096)).open(self.lane)
        self.producer.ready(1, 1)
        for device in (1, "cuda:1", self.other.uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadae01"):
            out = gpu.unwrap([t, host()], device)
            self.assertEqual([x.device for x in out], [self.other.uuid] * 2)
            self.assertEqual(self.bytes_of(out[0], self.other), CONTENT[: t.nbytes])
        (out, h) = gpu.unwrap([t, host()], "cpu")
        self.assertEqual((type(out), out.dtype, out.shape, bytes(out.raw())), (Tensor, t.dtype, t.shape, CONTENT[: t.nbytes]))
        out.raw()[:1] = b"x"  # it is the reader's own
        self.assertEqual(bytes(h.raw()), b"\1\2\3\4\5\6")
        # Tensors in host memory alone go where they are told, or to the first GPU.
        self.assertEqual([gpu.unwrap(host(), d).device for d in (None, "cuda", 1)], [UUID, UUID, self.other.uuid])

    def test_copies_to_another_device_are_waited_for(self):
        """No stream waits for the words of another GPU."""
        wait, late = gpu.DeviceTensor.wait, CONTENT[::-1]

        def completes(t, timeout=None):
            os.pwrite(self.producer.published[1][0], late, 4096)
            self.producer.ready(1, 1)
            return wait(t, timeout)

        for device in ("cpu", 1):
            t = Payload(self.producer.place(offset=4096)).open(self.lane)
            with mock.patch.object(gpu.DeviceTensor, "wait", completes):
                out = gpu.unwrap(t, device)
            data = out.raw() if device == "cpu" else self.bytes_of(out, self.other)
            self.assertEqual(bytes(data), late[: t.nbytes])
            self.producer.ready(1, 0)
            os.pwrite(self.producer.published[1][0], CONTENT, 4096)

    def test_strides(self):
        """Strided tensors are packed."""
        rows, columns = 16, 256
        self.producer.ready(1, 1)
        shape, strides = (columns, rows), (1, columns)
        t = Payload(self.producer.place(offset=4096), "uint8", shape, strides=strides).open(self.lane)
        want = b"".join(CONTENT[c::columns][:rows] for c in range(columns))
        self.assertEqual(self.bytes_of(gpu.unwrap(t)), want)
        self.assertEqual(bytes(gpu.unwrap(t, "cpu").raw()), want)

    def test_nothing_to_copy(self):
        self.assertIsNone(gpu.unwrap(None, 0))
        out = gpu.unwrap({"e": host(b"", (0, 3)), "s": host(b"\7", ())}, 0)
        self.assertEqual((out["e"].shape, out["s"].shape, self.bytes_of(out["s"])), ((0, 3), (), b"\7"))

    def test_errors(self):
        t = Payload(self.producer.place(offset=4096)).open(self.lane)
        for device in ("cuda:x", "rocm:0", "GPU-12", "", 1.5):
            with self.assertRaisesRegex(ValueError, "cuda:0"):
                gpu.unwrap(t, device)
        for device in (2, bytes(16), "GPU-00000000-0000-0000-0000-000000000000"):
            with self.assertRaises(ForeignDevice):
                gpu.unwrap(t, device)
        self.fake.fake_inject(b"cuMemAlloc_v2", 2, 1)
        with self.assertRaisesRegex(DriverError, "cuMemAlloc_v2"):
            gpu.unwrap(t)
        self.producer.kill()
        for device in ("cpu", 1):
            with self.assertRaises(Poisoned):
                gpu.unwrap(t, device)


    def test_half_way(self):
        """What is being copied from elsewhere stays until it is, also when the next one cannot be."""
        fails = mock.patch.object(Cuda, "_copy", side_effect=[None, DriverError("cuMemcpyAsync", 1, "")])
        with fails, mock.patch.object(Cuda, "synchronize") as synchronize, self.assertRaises(DriverError):
            gpu.unwrap([host(), host()])
        synchronize.assert_called_once()


class TestWithoutGPU(unittest.TestCase):
    def test_nothing_to_copy(self):
        with mock.patch.object(cuda, "_devices", {}):
            self.assertIsNone(gpu.unwrap(None))
            self.assertEqual(gpu.unwrap({"n": [1, "text"]}), {"n": [1, "text"]})
            with self.assertRaises(ForeignDevice):
                gpu.unwrap(host())


class TestEmulated(unittest.TestCase):
    def test_copies(self):
        out = gpu.unwrap({"x": host()}, emul.uuid(4))
        self.assertEqual(bytes(dlpack.borrow(out["x"]).view()), b"\1\2\3\4\5\6")
        self.assertEqual(out["x"].device, emul.uuid(4))
        again = gpu.unwrap(out, "cpu")  # what was copied is no tensor of another's, and stays
        self.assertIs(again["x"], out["x"])


if __name__ == "__main__":
    unittest.main()
