"""Tensors from and for other libraries: the same memory, and for how long."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import threading
import unittest
import unittest.mock
from typing import Any

from dlpackcase import as_it_is, need, without_donors, without_numpy

import omnibus
from omnibus import bundle, dlpack
from omnibus.errors import PayloadError
from omnibus.tensor import DTYPES, Tensor

SRC = os.path.dirname(os.path.dirname(os.path.abspath(omnibus.__file__)))


class Elsewhere:
    """An object of some library that has a capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (dlpack.CPU, 0)) -> None:
        self.capsule = capsule
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        if options:
            raise TypeError("it is from before version 1")
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class CapsuleTest(unittest.TestCase):
    """With the capsules of a library, where one is in the process."""

    def setUp(self) -> None:
        self.memory = bytearray(struct.pack("<6f", *range(6)))
        self.gone: list[int] = []

    def capsule(self, device: tuple[int, int] = (dlpack.CPU, 0), strides: Any = None, **options: Any) -> Any:
        at = dlpack.address(memoryview(self.memory))
        return dlpack.capsule(at, *device, "float32", (2, 3), strides, True, lambda: self.gone.append(1), **options)

    def test_capsule_fields(self) -> None:
        for version, readonly in ((None, False), ((0, 8), False), ((1, 0), True), ((2, 0), True)):
            b = dlpack.Borrowed(self.capsule((dlpack.CUDA, 3), (1, 2), max_version=version))
            self.assertEqual((b.device, b.dtype, b.shape, b.strides), ((dlpack.CUDA, 3), "float32", (2, 3), (1, 2)))
            self.assertIn(b.readonly, (readonly, False))  # libraries before version 1 cannot say it
            self.assertEqual(b.address, dlpack.address(memoryview(self.memory)))
        del b
        self.assertEqual(len(self.gone), 4)

    def test_unused_capsule_is_released(self) -> None:
        for version in (None, (1, 0)):
            c = self.capsule(max_version=version)
            self.assertEqual(self.gone, [])
            del c
            self.assertEqual(self.gone.pop(), 1)

    def test_capsule_is_consumed_once(self) -> None:
        c = self.capsule()
        b = dlpack.Borrowed(c)
        with self.assertRaises(PayloadError):
            dlpack.Borrowed(c)
        del c
        self.assertEqual(self.gone, [])
        del b
        self.assertEqual(self.gone, [1])
        with self.assertRaises(PayloadError):
            dlpack.Borrowed("no capsule")

    def test_views_keep_it(self) -> None:
        t = Tensor.from_dlpack(Elsewhere(self.capsule()))
        part = t.data[4:]
        self.memory[16:20] = struct.pack("<f", 42)
        del t
        gc.collect()
        self.assertEqual(self.gone, [])
        self.assertEqual(list(part), [42.0, 5.0])
        part.release()
        del part
        self.assertEqual(self.gone, [1])

    def test_released_in_another_thread(self) -> None:
        held = [dlpack.Borrowed(self.capsule())]
        t = threading.Thread(target=held.clear)
        t.start()
        t.join()
        self.assertEqual(self.gone, [1])

    def test_error_in_on_release(self) -> None:
        c = dlpack.capsule(0, dlpack.CPU, 0, "int8", (0,), None, False, lambda: 1 / 0)
        with self.assertLogs("omnibus", "ERROR"):
            del c

    def test_released_when_there_is_no_capsule(self) -> None:
        with self.assertRaises(KeyError):
            dlpack.capsule(0, 1, 0, "complex32", (1,), None, False, lambda: self.gone.append(1))
        self.assertEqual(self.gone, [1])

    def test_interpreter_ends_first(self) -> None:
        """A consumer may release a capsule after the interpreter has ended."""
        script = """if True:
            import atexit, ctypes, sys

            @atexit.register
            def last():  # what is registered first comes last
                for struct, _ in dlpack._ctypes_tensors.values():
                    assert not struct.deleter, "there will be no Python to run it"

            for name in sys.argv[1:]:
                __import__(name)
            from omnibus import Tensor, dlpack
            c = Tensor("int8", (3,), bytearray(3)).__dlpack__()
            held = dlpack.Borrowed(Tensor("int8", (3,), bytearray(3)).__dlpack__())
            for x in (c, held):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))  # for good
            dlpack.kept = Tensor.from_dlpack(Tensor("int8", (3,), bytearray(3)))
            """
        libraries: list[list[str]] = [[]]
        libraries += [[name] for name in ("numpy", "torch") if name in sys.modules]
        path = os.pathsep.join([SRC, *filter(None, sys.path)])
        for names in libraries:
            p = subprocess.run(
                [sys.executable, "-c", script, *names], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
            )
            self.assertEqual((p.returncode, p.stderr), (0, ""))


class StandInTest(CapsuleTest):
    """Where no library is in the process, or as if there were none."""

    def setUp(self) -> None:
        super().setUp()
        patch = without_donors()
        patch.start()
        self.addCleanup(patch.stop)

    def test_read_only_is_told(self) -> None:
        b = dlpack.Borrowed(self.capsule(max_version=(1, 0)))
        self.assertTrue(b.readonly)
        with self.assertRaises(TypeError):
            b.view()[0] = 1

    def tearDown(self) -> None:
        self.assertEqual(dlpack._ctypes_tensors, {})


class TensorTest(unittest.TestCase):
    def test_same_memory(self) -> None:
        for dtype, (_, size, _) in DTYPES.items():
            data = bytearray(range(6 * size))
            t = Tensor.from_dlpack(Tensor(dtype, (2, 3), data))
            self.assertEqual((t.dtype, t.shape), (dtype, (2, 3)))
            data[0] ^= 0xFF
            self.assertEqual(t.raw(), data)
        for shape, n in (((), 1), ((0, 3), 0), ((1,) * 32, 1)):
            t = Tensor.from_dlpack(Tensor("int16", shape, bytearray(2 * n)))
            self.assertEqual((t.shape, t.nbytes), (shape, 2 * n))

    def test_requested_version(self) -> None:
        t = Tensor("int8", (2,), bytearray(b"ab"))
        self.assertEqual(t.__dlpack_device__(), (dlpack.CPU, 0))
        for wrong in ({"stream": 1}, {"dl_device": (dlpack.CUDA, 0)}, {"dl_device": (dlpack.CPU, 1)}):
            with self.assertRaises(BufferError):
                t.__dlpack__(**wrong)
        same = dlpack.Borrowed(t.__dlpack__(dl_device=(dlpack.CPU, 0), copy=False, max_version=(1, 0)))
        copy = dlpack.Borrowed(Tensor("int8", (2,), b"ab").__dlpack__(copy=True))
        self.assertEqual((bytes(same.view()), bytes(copy.view())), (b"ab", b"ab"))
        self.assertEqual(same.address, dlpack.address(t.data))
        copy.view()[0] = 0  # it is the taker's own
        self.assertFalse(same.readonly)

    def test_data_released_in_between(self) -> None:
        t = Tensor("int8", (2,), bytearray(b"ab"))
        c = t.__dlpack__()
        t.data.release()
        self.assertEqual(bytes(dlpack.Borrowed(c).view()), b"ab")

    def test_other_devices_are_refused(self) -> None:
        e = Elsewhere(Tensor("int8", (1,), b"a").__dlpack__(), (dlpack.CUDA, 0))
        with self.assertRaisesRegex(PayloadError, r"^dlpack: a value of type Elsewhere on device \(2, 0\): copy"):
            Tensor.from_dlpack(e)
        with self.assertRaisesRegex(PayloadError, "device"):
            bundle.encode([e])

    def test_refused_exports(self) -> None:
        """Libraries refuse in many ways: here all are one."""
        for refusal in (BufferError, RuntimeError, AttributeError, ValueError, NotImplementedError):
            e = Elsewhere(None)
            e.__dlpack_device__ = unittest.mock.Mock(side_effect=refusal("no device"))  # type: ignore[method-assign]
            with self.assertRaisesRegex(PayloadError, "no device"):
                Tensor.from_dlpack(e)
            with self.assertRaisesRegex(PayloadError, "no device"):
                bundle.encode([e])

    def test_negative_views(self) -> None:
        """The sign is not in the memory."""
        e = Elsewhere(Tensor("int8", (1,), b"a").__dlpack__())
        e.is_neg = lambda: True  # type: ignore[attr-defined]
        with self.assertRaisesRegex(PayloadError, "^dlpack: a value of type Elsewhere that is .* resolve_neg"):
            Tensor.from_dlpack(e)
        e.is_neg = lambda: False  # type: ignore[attr-defined]
        self.assertEqual(Tensor.from_dlpack(e).raw(), b"a")

    def test_on_a_gpu_that_is_not_the_current_one(self) -> None:
        """Torch hands out tensors of its current GPU alone."""
        current = [0]

        class Switched:
            def __init__(self, ordinal: int) -> None:
                self.ordinal = ordinal

            def __enter__(self) -> None:
                self.before, current[0] = current[0], self.ordinal

            def __exit__(self, *_: object) -> None:
                current[0] = self.before

        class OnGPU(Elsewhere):
            def __dlpack__(self, **options: Any) -> Any:
                if current[0] != self.device[1]:
                    raise BufferError("it is on another GPU than the current one")
                return super().__dlpack__()

        torch = unittest.mock.Mock(Tensor=OnGPU, cuda=unittest.mock.Mock(device=Switched))
        for ordinal in (0, 1):
            c = dlpack.capsule(64, dlpack.CUDA, ordinal, "int8", (1,), None, False, None)
            with unittest.mock.patch.dict(sys.modules, {"torch": torch}):
                self.assertEqual(dlpack.borrow(OnGPU(c, (dlpack.CUDA, ordinal)), -1).device, (dlpack.CUDA, ordinal))
            self.assertEqual(current, [0])

    def test_strides(self) -> None:
        data = bytes(range(48))

        def strided(dtype: str, shape: Any, strides: Any) -> Elsewhere:
            held = memoryview(data)
            return Elsewhere(
                dlpack.capsule(dlpack.address(held), dlpack.CPU, 0, dtype, shape, strides, False, held.release)
            )

        for how in (as_it_is, without_numpy):
            with how():
                got = bundle.decode(bundle.encode([
                    strided("int16", (3, 2), (1, 3)), strided("int8", (2, 2, 3), (0, 24, 2)), strided("int32", (2, 3), (3, 1)), strided("int8", (), ()),
                ]))  # fmt: skip
                want = [[0, 3, 1, 4, 2, 5], [0, 2, 4, 24, 26, 28] * 2, range(6), [0]]
                for t, elements, size in zip(got, want, (2, 1, 4, 1)):
                    self.assertEqual(t.raw(), b"".join(data[i * size : (i + 1) * size] for i in elements))
        for wrong in (strided("int16", (3, 2), (1, 3)), strided("int8", (2, 2), (0, 1))):
            with self.assertRaisesRegex(PayloadError, "contiguous"):
                Tensor.from_dlpack(wrong)
        with self.assertRaisesRegex(PayloadError, "strides"):
            bundle.encode(strided("int8", (2,), (-1,)))

    def test_elements_without_a_dtype(self) -> None:
        np = need("numpy")
        with self.assertRaises(PayloadError):
            Tensor.from_dlpack(np.zeros(2, "clongdouble"))

    def test_codes(self) -> None:
        """As DLPack 1.1 has them: others read them."""
        for dtype, want in {
            "int16": (0, 16), "uint32": (1, 32), "float16": (2, 16), "bfloat16": (4, 16), "complex64": (5, 64),
            "complex128": (5, 128), "bool": (6, 8), "float8_e4m3fn": (10, 8), "float8_e5m2": (12, 8),
        }.items():  # fmt: skip
            b = dlpack.Borrowed(Tensor(dtype, (2,), bytes(want[1] // 4)).__dlpack__())
            self.assertEqual((b._managed.tensor.code, b._managed.tensor.bits, b._managed.tensor.lanes), (*want, 1))

    def test_complex(self) -> None:
        np = need("numpy")
        for dtype in ("complex64", "complex128"):
            a = np.array([[1 + 2j, 3], [4, -5j], [6, 7]], dtype)
            self.assertEqual(np.from_dlpack(Tensor.from_numpy(a)).tolist(), a.tolist())
            self.assertEqual(Tensor.from_dlpack(a).numpy().tolist(), a.tolist())
            turned = bundle.decode(bundle.encode(Offered(a.T)))  # with strides: copied element by element
            self.assertEqual(turned.numpy().tolist(), a.T.tolist())


class Offered:
    """An array that is nothing but an object with `__dlpack__`."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


if __name__ == "__main__":
    unittest.main()
