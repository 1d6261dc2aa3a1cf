"""msgpack and tensors: the bytes of the Go package, and no others."""

from __future__ import annotations

import math
import os
import random
import re
import struct
import sys
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)

from omnibus import PayloadError, Tensor, bundle, codec, msgpack, tensor
from omnibus.msgpack import Ext, packb, unpackb


class MsgpackTest(unittest.TestCase):
    VECTORS: list[tuple[Any, str]] = [
        (None, "c0"), (False, "c2"), (True, "c3"),
        (0, "00"), (127, "7f"), (128, "cc80"), (255, "ccff"), (256, "cd0100"), (65535, "cdffff"),
        (65536, "ce00010000"), (2**32 - 1, "ceffffffff"), (2**32, "cf0000000100000000"),
        (2**64 - 1, "cfffffffffffffffff"),
        (-1, "ff"), (-32, "e0"), (-33, "d0df"), (-128, "d080"), (-129, "d1ff7f"), (-32768, "d18000"),
        (-32769, "d2ffff7fff"), (-(2**31), "d280000000"), (-(2**31) - 1, "d3ffffffff7fffffff"),
        (-(2**63), "d38000000000000000"),
        (1.5, "cb3ff8000000000000"),
        ("", "a0"), ("a", "a161"), ("é" * 15, "be" + "c3a9" * 15), ("x" * 31, "bf" + "78" * 31),
        ("x" * 32, "d920" + "78" * 32), ("x" * 256, "da0100" + "78" * 256),
        (b"", "c400"), (b"ab", "c4026162"), (b"x" * 256, "c50100" + "78" * 256),
        ([], "90"), ([1, [2]], "92019102"), (list(range(16)), "dc0010" + bytes(range(16)).hex()),
        ({}, "80"), ({"a": 1}, "81a16101"), ({None: 1, "": 2}, "82c001a002"), ({(0, ("k",)): 1}, "81920091a16b01"), ({b"k": 1}, "81c4016b01"),
        (Ext(5, b"x"), "d40578"), (Ext(-1, bytes(4)), "d6ff00000000"), (Ext(5, b"abc"), "c70305616263"),
    ]  # fmt: skip

    def test_vectors(self) -> None:
        for value, encoded in self.VECTORS:
            with self.subTest(value):
                self.assertEqual(packb(value).hex(), encoded)
                got = unpackb(bytes.fromhex(encoded))
                self.assertEqual(got, value)
                self.assertIs(type(got), type(value))

    def test_decodes_wider_integers(self) -> None:
        for encoded, value in [("cc01", 1), ("d301" + "00" * 7, 1 << 56), ("ca3fc00000", 1.5), ("d90161", "a"),
                               ("c6000000026162", b"ab"), ("dd0000000101", [1]), ("df00000001a16101", {"a": 1}),
                               ("c900000001057a", Ext(5, b"z"))]:  # fmt: skip
            self.assertEqual(unpackb(bytes.fromhex(encoded)), value)
        self.assertTrue(math.isnan(unpackb(packb(math.nan))))

    def test_lengths_of_16_and_32_bits(self) -> None:
        for n in (65535, 65536):
            for v in ("x" * n, b"x" * n, [1] * n, dict.fromkeys(range(n), 0), Ext(1, bytes(n))):
                self.assertEqual(unpackb(packb(v)), v)

    def test_decoded_bytes_are_copies(self) -> None:
        src = bytearray(packb([b"abc", "def"]))
        v = unpackb(memoryview(src))
        src[:] = bytes(len(src))
        self.assertEqual(v, [b"abc", "def"])

    def test_depth(self) -> None:
        def nested(n: int, inner: Any) -> Any:
            for _ in range(n):
                inner = [inner]
            return inner

        deepest = nested(64, 1)
        self.assertEqual(unpackb(packb(deepest)), deepest)
        self.assertEqual(unpackb(packb(nested(64, []))), nested(64, []))  # the last has nothing in it
        for value in (nested(65, 1), nested(5000, 1)):
            with self.assertRaises(PayloadError):
                packb(value)
        for packed in (b"\x91" * 65 + b"\x01", b"\x91" * 100_000, b"\x81\x01" * 65 + b"\x01"):
            with self.assertRaises(PayloadError):
                unpackb(packed)

    def test_refused(self) -> None:
        for encoded in ["", "c1", "0000", "cc", "a261", "c402", "9201", "8101", "dd7fffffff", "dfffffffff", "dbffffffff01",
                        "a1ff", "d48000", "c7018061", "819180c0", "818001", "c9ffffffff05", "c70105"]:  # fmt: skip
            with self.subTest(encoded), self.assertRaises(PayloadError):
                unpackb(bytes.fromhex(encoded))
        for value in [2**64, -(2**63) - 1, object(), {1, 2}, 1j, "\ud800", Ext(-128, b""), Ext(200, b""), [object()]]:
            with self.subTest(value), self.assertRaises(PayloadError):
                packb(value)

    def test_error_names_the_unencodable_part(self) -> None:
        for value, path in (({"a": [0, 1, {2: 1j}]}, "['a'][2][2]"), ({"a": {frozenset(): 0}}, "['a'][frozenset()]"), ([[2**64]], "[0][0]")):
            for encode in (packb, bundle.encode):
                with self.assertRaisesRegex(PayloadError, f", at {re.escape(path)}$"):
                    encode(value)
        with self.assertRaisesRegex(PayloadError, "no encoding for a value of type complex: send .* or tensors$"):
            packb(1j)

    def test_too_many_values(self) -> None:
        before, msgpack.MAX_VALUES = msgpack.MAX_VALUES, 100
        try:
            unpackb(packb([0] * 99))
            for use in (lambda: packb([0] * 100), lambda: unpackb(b"\xdc\x00\x64" + bytes(100))):
                with self.assertRaises(PayloadError):
                    use()
        finally:
            msgpack.MAX_VALUES = before

    def test_garbage(self) -> None:
        r = random.Random(2)
        seeds = [packb({"a": [1, 2.5, None, b"x" * 40, "y" * 300], "b": {"c": Ext(3, b"abcd")}}), packb([[[1]]] * 20)]
        accepted = 0
        for _ in range(20_000):
            b = bytearray(r.choice(seeds)) if r.random() < 0.7 else bytearray(r.randbytes(r.randrange(40)))
            for _ in range(r.randint(0, 3)):
                if b:
                    b[r.randrange(len(b))] = r.randrange(256)
            try:
                v = unpackb(bytes(b))
            except PayloadError:
                continue
            accepted += 1
            packb(v)
        self.assertGreater(accepted, 1000)


class TensorTest(unittest.TestCase):
    def test_every_dtype(self) -> None:
        for name, (number, size, fmt) in tensor.DTYPES.items():
            with self.subTest(name):
                data = bytes(i % 2 for i in range(6 * size))
                t = Tensor(name, (2, 3), data)
                payload = tensor.encode(t)
                self.assertEqual(payload[:8], b"OTEN" + bytes([1, number, 2, 0]))
                self.assertEqual(len(payload), 64 + 6 * size)
                back = tensor.view(payload)
                self.assertEqual(back, t)
                self.assertEqual(back.data.format, fmt)
                self.assertEqual(len(back.data), 12 if name.startswith("complex") else 6)

    def test_shapes(self) -> None:
        for shape, n, at in [((), 1, 64), ((0,), 0, 64), ((3, 0, 2), 0, 64), ((1,) * 7, 1, 64), ((1,) * 8, 1, 128),
                             ((1,) * 32, 1, 320)]:  # fmt: skip
            t = Tensor("int16", shape, bytes(2 * n))
            payload = tensor.encode(t)
            self.assertEqual(len(payload), at + 2 * n)
            self.assertEqual(tensor.view(payload).shape, shape)

    def test_bad_shapes(self) -> None:
        for dtype, shape, data in [("int8", (2,), b"abc"), ("int8", (-1,), b""), ("int9", (1,), b"a"),
                                   ("int8", (1,) * 33, b"a"), ("int64", (1 << 62, 4, 0), b""),
                                   ("int8", (1 << 63,), b"")]:  # fmt: skip
            with self.subTest(shape), self.assertRaises(PayloadError):
                Tensor(dtype, shape, data)

    def test_refused_payloads(self) -> None:
        good = bytes(tensor.encode(Tensor("int32", (2, 3), bytes(24))))
        tensor.view(good)
        for at, value in [(0, b"X"), (4, b"\2"), (5, b"\0"), (5, b"\x0e"), (6, b"\x21"), (7, b"\1"), (8, b"\3"), (15, b"\x80"),
                          (24, b"\1"), (63, b"\1")]:  # fmt: skip
            bad = good[:at] + value + good[at + 1 :]
            with self.subTest(at), self.assertRaises(PayloadError):
                tensor.view(bad)
        for bad in (b"", good[:7], good[:63], good[:-1], good + b"\0"):
            with self.assertRaises(PayloadError):
                tensor.view(bad)

    def test_garbage(self) -> None:
        r = random.Random(3)
        good = bytes(tensor.encode(Tensor("int32", (2, 3), bytes(24))))
        for _ in range(5000):
            b = bytearray(good[: r.randrange(len(good) + 1)])
            for _ in range(r.randint(1, 3)):
                if b:
                    b[r.randrange(min(len(b), 40))] = r.randrange(256)
            try:
                t = tensor.view(b)
            except PayloadError:
                continue
            self.assertEqual(tensor.encode(t), b)

    def test_data_is_a_view(self) -> None:
        payload = tensor.encode(Tensor("float64", (2,), struct.pack("<2d", 1, 2)))
        t = tensor.view(payload)
        payload[64:72] = struct.pack("<d", 7)
        self.assertEqual(list(t.data), [7.0, 2.0])

    def test_tensor_inside_msgpack(self) -> None:
        t = Tensor("float16", (2,), b"abcd")
        m = unpackb(codec.encode({"x": t}))
        self.assertEqual(m, {"x": {"__tensor__": True, "dtype": "float16", "shape": [2], "data": b"abcd"}})
        self.assertEqual(Tensor.from_map(m["x"]), t)
        for bad in (None, {}, {"dtype": "int8", "shape": ["a"], "data": b""}, {"dtype": "int8", "shape": [2], "data": b"a"},
                    {"dtype": "int8", "shape": [True], "data": b"a"}, {"dtype": "int8", "shape": [1], "data": "a"},
                    {"dtype": "int8", "shape": [1], "data": [1]}):  # fmt: skip
            with self.assertRaises(PayloadError):
                Tensor.from_map(bad)

    def test_values_of_numpy_that_would_change(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        masked = np.ma.masked_array([1, 2], [True, False])
        for value, why in (
            (masked, "a masked array has a mask"),
            ([masked], "a masked array has a mask"),
            (np.datetime64(1, "ns"), "no encoding for a value of type datetime64"),
            (np.datetime64("NaT"), "no encoding for a value of type datetime64"),
            (np.timedelta64(1, "ns"), "no encoding for a value of type timedelta64"),
            (np.array(["2026"], "M8[ns]"), "no dtype"),
            *([(np.zeros((1,) * 33), "33 dimensions")] if np.__version__ >= "2" else []),
        ):
            for encode in (codec.encode, bundle.encode):
                with self.subTest(value, encode=encode), self.assertRaisesRegex(PayloadError, why):
                    encode(value)
        t = Tensor("int8", (np.int64(2), np.int32(1)), b"ab")
        self.assertEqual(codec.decode(memoryview(codec.encode({"t": t})), codec.MSGPACK)["t"]["shape"], [2, 1])
        self.assertEqual(bytes(codec.encode(memoryview(np.zeros((0, 3))))), b"\xc4\0")
        self.assertEqual(codec.encode(np.float32(1.5)), codec.encode(1.5))

    def test_numpy(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        for dtype in ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "complex128"):
            a = np.arange(12).reshape(3, 4).astype(dtype)
            t = codec.as_tensor(a)
            assert t is not None
            self.assertTrue(np.shares_memory(a, t.numpy()))
            back = tensor.view(tensor.encode(t)).numpy()
            np.testing.assert_array_equal(back, a)
            self.assertEqual(back.dtype, a.dtype)
            np.testing.assert_array_equal(tensor.view(tensor.encode(Tensor.from_numpy(a.T))).numpy(), a.T)
        self.assertEqual(Tensor.from_numpy(np.array(5, dtype="int32")).shape, ())
        np.testing.assert_array_equal(Tensor.from_numpy(np.array([1, 2], dtype=">i4")).numpy(), [1, 2])
        bf = Tensor.from_numpy(np.array([0x3F80], dtype="uint16"), dtype="bfloat16")
        self.assertEqual((bf.dtype, bf.numpy().dtype, bf.numpy()[0]), ("bfloat16", np.uint16, 0x3F80))
        for dtype in ("float8_e4m3fn", "float8_e5m2"):
            t = Tensor.from_numpy(np.array([1, 2], "uint8"), dtype)
            self.assertEqual((t.dtype, t.numpy().dtype, t.numpy().tolist()), (dtype, np.uint8, [1, 2]))
        pair = Tensor.from_numpy(np.array([1 + 2j], "complex64"))
        self.assertEqual(pair.data.tolist(), [1, 2])  # the real part first
        with self.assertRaises(PayloadError):
            Tensor.from_numpy(np.array([1j], "clongdouble"))
        self.assertEqual(unpackb(codec.encode([np.float32(1.5), np.int64(3)])), [1.5, 3])


class CodecTest(unittest.TestCase):
    def test_raw(self) -> None:
        self.assertEqual(codec.encode("é", codec.RAW), "é".encode())
        self.assertEqual(codec.decode(memoryview(b"ab"), codec.RAW), b"ab")
        with self.assertRaises(PayloadError):
            codec.encode(5, codec.RAW)

    def test_registered_codec(self) -> None:
        for taken in (-1, 0, codec.RAW, codec.MSGPACK, codec.TENSOR, codec.OMNI, codec.BUNDLE):
            with self.assertRaises(ValueError):
                codec.register(taken, str.encode, bytes)
        for number in (5, 255, 256, 300):
            for use in (lambda n: codec.decode(memoryview(b""), n), lambda n: codec.encode("", n)):
                with self.assertRaises(PayloadError):
                    use(number)
            codec.register(number, lambda v: v.encode("utf-16"), lambda p: bytes(p).decode("utf-16"))
            self.addCleanup(codec._own.clear)
            self.assertEqual(codec.decode(memoryview(codec.encode("hi", number)), number), "hi")


class OmniTest(unittest.TestCase):
    def test_values_of_connectors(self) -> None:
        value = {"text": "hello", "list": [1, 2.5, None], "data": b"x" * 10_000}
        payload = bytearray(codec.encode(value, codec.OMNI))
        got = codec.decode(memoryview(payload), codec.OMNI)
        payload[:] = bytes(len(payload))  # the value shares nothing with it
        self.assertEqual({k: bytes(v) if k == "data" else v for k, v in got.items()}, value)


class PackageTest(unittest.TestCase):
    def test_nothing_is_unpickled(self) -> None:
        folder = os.path.dirname(codec.__file__)
        for where, _, names in os.walk(folder):
            for name in (n for n in names if n.endswith(".py")):
                with open(os.path.join(where, name), encoding="utf-8") as f:
                    text = f.read()
                for word in ("import pick" + "le", "pick" + "le.", "mar" + "shal", " ev" + "al(", " ex" + "ec("):
                    self.assertNotIn(word, text, name)

    def test_standard_library_only(self) -> None:
        import subprocess

        script = "import sys; import omnibus; print(sorted(m for m in sys.modules if 'numpy' in m or 'site-packages' in (getattr(sys.modules[m], '__file__', '') or '')))"
        env = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(codec.__file__)))
        out = subprocess.run([sys.executable, "-S", "-c", script], env=env, capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.strip(), "[]")

    def test_asyncio_is_loaded_on_first_use(self) -> None:
        import subprocess

        script = (
            "import sys; import omnibus; before = 'asyncio' in sys.modules;"
            "print(before, [n for n in omnibus.__all__ if not hasattr(omnibus, n)], 'asyncio' in sys.modules,"
            "hasattr(omnibus, 'AsyncNothing'))"
        )
        env = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.dirname(codec.__file__)))
        out = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.strip(), "False [] True False")


if __name__ == "__main__":
    unittest.main()
