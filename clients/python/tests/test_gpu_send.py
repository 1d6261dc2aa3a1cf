"""Pools of GPU memory, chunks that are filled in place, and copies to them, over the library that plays CUDA's."""

import ctypes
import gc
import random
import threading
import time
import unittest
from unittest import mock

from fakecuda import BIAS, FakeCase, until

from omnibus import Finished, dlpack
from omnibus.bundle import HANDLE, POOL, Plan
from omnibus.devices.cuda import packed
from omnibus.devices.words import READY
from omnibus.errors import PayloadError
from omnibus.gpu import DeviceLost, DriverError, Options, emul
from omnibus.gpu.chunk import Chunk, PrivateMemory
from omnibus.gpu.layout import Layout
from omnibus.gpu.pool import Pool
from omnibus.memory import FreeList

ARENA = 2 << 20


class Other:
    """A tensor of another library on the fake GPU, filled on a stream."""

    def __init__(self, device, memory, dtype, shape, strides=None, stream=0, offset=0):
        self.device, self.memory, self.stream = device, memory, stream
        self.of = (memory.address + offset, 2, 0, dtype, shape, strides, False)
        self.dropped = []

    def __dlpack__(self, *, stream=None, max_version=None):
        if self.stream and stream not in (None, -1):
            with self.device.context:
                event = self.device._new_event()
                self.device.call("cuEventRecord", event, self.stream)
                self.device.call("cuStreamWaitEvent", stream, event, 0)
        return dlpack.capsule(*self.of, lambda: self.dropped.append(1), max_version=max_version)

    def __dlpack_device__(self):
        return 2, 0


class TestGaps(unittest.TestCase):
    def test_allocations_do_not_overlap_and_are_all_freed(self):
        r = random.Random(7)
        for _ in range(40):
            gaps, out = FreeList(1 << 12), {}
            for _ in range(300):
                if out and r.random() < 0.48:
                    at = r.choice(list(out))
                    gaps.free(at, out.pop(at))
                else:
                    size = r.choice((1, 3, 8, 64, 500))
                    at = gaps.allocate(size)
                    if at is None:  # no gap is that large
                        bounds = sorted((a, a + n) for a, n in out.items())
                        ends = [0] + [e for _, e in bounds]
                        starts = [s for s, _ in bounds] + [1 << 12]
                        self.assertLess(max(s - e for s, e in zip(starts, ends)), size)
                        continue
                    out[at] = size
                bounds = sorted((a, a + n) for a, n in out.items())
                self.assertTrue(all(e <= s for (_, e), (s, _) in zip(bounds, bounds[1:])), bounds)
            for at, size in out.items():
                gaps.free(at, size)
            self.assertTrue(gaps.empty)


class TestPool(unittest.TestCase):
    """On an emulated GPU."""

    def pool(self, **options):
        self.poked = []
        options = {"arena_bytes": 1 << 16, "max_bytes": 1 << 17, "slots": 8} | options
        return Pool(emul.device(emul.uuid(3)), Options(**options), lambda: self.poked.append(1))

    def test_slots_and_generations(self):
        pool = self.pool(slots=2)
        a, b = pool.allocate(1), pool.allocate(1 << 15)
        self.assertEqual((a.slot, a.generation, b.slot, b.generation), (0, 1, 1, 1))
        self.assertIsNone(pool.allocate(1))
        self.assertIsNone(pool.allocate_lent())
        del a
        self.assertTrue(self.poked)
        a = pool.allocate(1)
        self.assertEqual((a.slot, a.generation, a.is_settled), (0, 2, False))
        self.assertEqual((a._reservation.ready.value, a._reservation.fault.value), (1, 0))
        a.mark_complete()
        self.assertEqual((a._reservation.ready.value, a.is_settled), (2, True))
        a.mark_failed()  # it is complete
        self.assertEqual(a._reservation.fault.value, 0)
        del a
        pool._generations[0] = (1 << 32) - 1
        a = pool.allocate(1)
        self.assertEqual((a.generation, a._reservation.ready.value), (1, 0))  # never 0
        a.mark_failed()
        self.assertEqual((a._reservation.ready.value, a._reservation.fault.value), (1, 1))

    def test_memory_is_freed_with_the_last_reference(self):
        pool = self.pool()
        taken = [pool.allocate(1 << 15) for _ in range(4)]
        self.assertEqual({p.chunk_place(1).arena for p in taken}, {1, 2})
        self.assertIsNone(pool.allocate(256))
        self.assertIsNone(pool.allocate((1 << 15) + 1))
        t = Chunk(taken.pop(), 1 << 15).empty(16, "uint8")
        view = dlpack.borrow(t).view()
        del t
        self.assertIsNone(pool.allocate(256))  # it is viewed
        view[:] = b"x" * 16
        del view
        self.assertIsNotNone(pool.allocate(256))

    def test_a_device_without_memory(self):
        pool = self.pool()
        pool.device = mock.Mock(wraps=pool.device)
        pool.device.new_arena.side_effect = DriverError("cuMemCreate", 2, "no memory")
        with self.assertRaises(DriverError):
            pool.allocate(1)
        pool.device.new_arena.side_effect = None
        first = [pool.allocate(1 << 15) for _ in range(2)]
        pool.device.new_arena.side_effect = DriverError("cuMemCreate", 2, "no memory")
        self.assertIsNone(pool.allocate(1))  # there is room when the first go
        del first
        self.assertIsNotNone(pool.allocate(1))

    def test_a_view_is_in_its_chunk(self):
        pool = self.pool()
        a, b = pool.allocate(300), pool.allocate(300)
        self.assertIs(pool.piece_at(b.pointer + 100, 200), b)
        self.assertIsNone(pool.piece_at(a.pointer, 513))
        self.assertIsNone(pool.piece_at(1 << 20, 1))
        at = b.pointer
        del b
        self.assertIsNone(pool.piece_at(at, 1))

    def test_options(self):
        for options in ({"when_full": "never"}, {"arena_bytes": 1}, {"max_bytes": 1 << 15}, {"slots": 0}):
            with self.assertRaises(ValueError):
                Options(**options)
        self.assertEqual((Options().wait_seconds, Options(when_full="block").wait_seconds), (0.02, None))

    def test_chunks(self):
        c = Chunk(self.pool().allocate(1000), 1000)
        a, b = c.empty((3, 5), "bfloat16"), c.empty(7)
        self.assertEqual((a.nbytes, a.offset, b.nbytes, b.offset), (30, 0, 28, 256))
        with self.assertRaisesRegex(ValueError, "488 of 1000 left"):
            c.empty(489, "uint8")
        with self.assertRaises(PayloadError):
            c.empty(1, "complex32")
        for options in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}):
            with self.assertRaises(BufferError):
                a.__dlpack__(**options)
        self.assertFalse(dlpack.borrow(a).readonly)
        c._memory.sent = True
        with self.assertRaises(Finished):
            a.__dlpack__()


class TestPacked(unittest.TestCase):
    def test_like_numpy(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("NumPy is not installed")
        r = random.Random(3)
        memory = np.arange(4096, dtype=np.int16)
        for _ in range(300):
            a = memory[: r.choice((0, 24, 120, 720))]
            shape = r.choice(((-1,), (2, 3, -1), (4, -1), (2, 3, 4, -1), (1, 2, -1)))
            a = a.reshape(shape if a.size else (0, 3))
            a = a.transpose(r.sample(range(a.ndim), a.ndim))
            cut = [slice(None, None, r.choice((1, 1, 2))) for _ in a.shape]
            a = a[tuple(cut)]
            out = np.zeros(a.size, np.int16)
            strides = [s // 2 for s in a.strides]
            for to, at, width, rows, pitch in packed(0, 0, 2, a.shape, strides):
                for row in range(rows):
                    n, m = (to + row * width) // 2, (at + row * pitch) // 2
                    out[n : n + width // 2] = memory[m : m + width // 2]
            self.assertEqual(out.tolist(), a.ravel().tolist(), (a.shape, a.strides))

    def test_too_many_copies(self):
        with self.assertRaisesRegex(PayloadError, "contiguous"):
            list(packed(0, 0, 1, (1 << 9, 1 << 9, 2), (1, 1 << 9, 1 << 20)))


class TestCudaPool(FakeCase):
    def setUp(self):
        super().setUp()
        self.pool = Pool(self.device, Options(arena_bytes=ARENA, max_bytes=ARENA), lambda: None)
        self.block = self.pool.word(4000, READY)  # a word to hold a stream up by
        self.block_at = self.pool.registered.address + 64 * 4000

    def hold(self, stream, value=1):
        with self.device.context:
            self.device.call("cuStreamWaitValue32_v2", stream, self.block_at, value, 0)

    def look(self, address, n):
        return ctypes.string_at(address - BIAS, n)

    def other(self, content, **more):
        memory = self.device.new_memory(len(content))
        ctypes.memmove(memory.address - BIAS, content, len(content))
        return Other(self.device, memory, **{"dtype": "uint8", "shape": (len(content),), **more})

    def test_ready_is_ordered_after_all_filling_streams(self):
        piece = self.pool.allocate(4096)
        t = Chunk(piece, 4096).empty(4096, "uint8")
        self.assertEqual((t.__dlpack_device__(), t.pointer), ((2, 0), piece.pointer))
        capsule = t.__dlpack__(stream=self.stream)
        self.hold(self.stream)
        with self.device.context:
            other = self.device._new_stream()
        t.chunk.wait_for(other)
        self.device.start_fill(piece).complete()
        with self.assertRaises(BufferError):
            t.__dlpack__(stream=0)
        self.assertFalse(piece.is_settled)
        self.block.value = 1
        until(lambda: piece.is_settled)
        self.assertEqual(piece._reservation.fault.value, 0)
        # A stream that was given it may be at it still: the room is free when that is done.
        self.hold(other, 2)
        del piece, t, capsule
        gc.collect()
        later = self.pool.allocate(1)
        self.device.add_stream(later, self.stream)
        slot = later.slot
        del later
        until(lambda: self.pool.allocate(1).slot == slot)
        self.assertEqual(self.pool.in_use, 1)
        self.block.value = 2
        until(lambda: self.pool.in_use == 0)
        self.assertEqual(self.fake.fake_count(b"wrong_version"), 0)

    def test_copies_are_in_order_and_keep_what_they_read(self):
        content = bytes(range(256)) * 16
        source = self.other(content, stream=self.stream)
        self.hold(self.stream)
        piece = self.pool.allocate(4096)
        sending = self.device.start_fill(piece)
        sending.copy(piece.pointer, sending.borrow(source))
        sending.complete()
        self.assertEqual((piece.is_settled, source.dropped), (False, []))
        self.block.value = 1
        until(lambda: source.dropped)
        self.assertTrue(piece.is_settled)
        self.assertEqual(self.look(piece.pointer, 4096), content)
        place = piece.chunk_place(4096)
        self.assertEqual((place.kind, place.arena, place.offset, place.generation), (POOL, 1, 0, 1))

    def test_strided_copies(self):
        for shape, strides in (((16, 8), (1, 16)), ((4, 8), (32, 1)), ((2, 4, 4), (64, 1, 8))):
            content = bytes(range(128))
            source = self.other(content, shape=shape, strides=strides)
            piece = self.pool.allocate(128)
            sending = self.device.start_fill(piece)
            sending.copy(piece.pointer, sending.borrow(source))
            sending.complete()
            until(lambda: piece.is_settled)  # noqa: B023
            want = [0]
            for n, s in zip(shape, strides):
                want = [w + i * s for w in want for i in range(n)]
            self.assertEqual(self.look(piece.pointer, len(want)), bytes(content[i] for i in want))

    def test_a_handle(self):
        source = self.other(bytes(8192), offset=4096, shape=(100,))
        at = dlpack.borrow(source, -1).address
        handle, offset, size = self.device.export(at)
        self.assertEqual((offset, at - offset), (4096, source.memory.address))
        self.assertGreaterEqual(size, 8192)
        piece = self.pool.allocate_lent()
        sending = self.device.start_fill(piece)
        sending.borrow(source)
        sending.complete()
        place = piece.handle_place(handle, offset, 100)
        self.assertEqual((place.kind, place.handle, place.offset, place.arena), (HANDLE, handle, 4096, 0))
        until(lambda: piece.is_settled)
        self.assertEqual(len(source.dropped), 1)  # that of the look; the message keeps the other
        del piece, sending
        until(lambda: gc.collect() is not None and len(source.dropped) == 2)
        chunk = self.pool.allocate(1)
        with self.assertRaisesRegex(DriverError, "no|could"):
            self.device.export(chunk.pointer)

    def layout(self, piece):
        """A layout whose payload was written, with its tensors in a piece."""
        layout = Layout(None, Plan([]), 1)
        layout._pool, layout.pieces = self.pool, [piece]
        return layout

    def test_a_value_is_settled_when_its_streams_are(self):
        piece = self.pool.allocate(64)
        Chunk(piece, 64).empty(64, "uint8").__dlpack__(stream=self.stream)
        self.hold(self.stream)
        self.device.start_fill(piece).complete()
        napping, sleep = threading.Event(), time.sleep
        waits = threading.Thread(target=self.layout(piece).wait_complete)
        with mock.patch.object(time, "sleep", lambda s: (napping.set() if threading.current_thread() is waits else None, sleep(s))):
            waits.start()
            self.assertTrue(napping.wait(60), "it does not wait")
            self.assertFalse(piece.is_settled)
            self.block.value = 1
            waits.join(60)
        self.assertEqual((waits.is_alive(), piece.is_settled), (False, True))

    def test_a_value_on_a_device_that_is_lost_is_not_settled(self):
        for told in (True, False):  # by a call of this process's, or by its words alone
            piece = self.pool.allocate(64)
            piece.mark_failed()
            if told:
                self.device.lost = DeviceLost("cuMemGetInfo", 700, "an illegal address")
            with self.assertRaisesRegex(DeviceLost, "illegal address" if told else "never completed"):
                self.layout(piece).wait_complete()
            self.device.lost = None

    def test_a_device_that_is_lost(self):
        piece = self.pool.allocate(64)
        Chunk(piece, 64).empty(64, "uint8").__dlpack__(stream=self.stream)
        self.hold(self.stream)
        self.device.start_fill(piece).complete()
        self.fake.fake_poison(0, 700)
        until(lambda: piece.is_settled)
        self.assertEqual(piece._reservation.fault.value, piece.generation)

    def test_calls_that_fail(self):
        for call in (
            "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve",
            "cuMemMap", "cuMemSetAccess",
        ):  # fmt: skip
            left = self.fake.fake_left()
            self.fake.fake_inject(call.encode(), 304, 1)
            with self.assertRaisesRegex(DriverError, call):
                self.pool.allocate(1)
            self.assertEqual(self.fake.fake_left(), left, call)
        self.fake.fake_inject(b"cuMemAlloc_v2", 2, 1)
        with self.assertRaisesRegex(DriverError, "cuMemAlloc"):
            PrivateMemory(self.device, 64)
        spare = Chunk(PrivateMemory(self.device, 64), 64)
        self.assertFalse(spare.pooled)
        spare.empty(64, "uint8").__dlpack__(stream=self.stream)
        piece = self.pool.allocate(1)
        self.fake.fake_inject(b"cuStreamWriteValue32_v2", 1, 1)
        with self.assertRaisesRegex(DriverError, "cuStreamWriteValue32"):
            self.device.start_fill(piece).complete()

    def test_dropped_memory_is_freed(self):
        left = self.fake.fake_left()
        pool = Pool(self.device, Options(arena_bytes=ARENA, max_bytes=ARENA), lambda: None)
        piece = pool.allocate(100)
        spare = PrivateMemory(self.device, 100)
        self.assertNotEqual(self.fake.fake_left(), left)
        del piece, spare, pool
        until(lambda: gc.collect() is not None and self.fake.fake_left() == left)


if __name__ == "__main__":
    unittest.main()
