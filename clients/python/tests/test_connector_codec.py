"""The format of vLLM-Omni's OmniSerializer: vectors, the real one, and garbage."""

from __future__ import annotations

import array
import datetime
import itertools
import json
import os
import random
import unittest
from typing import Any
from unittest import mock

import fakehost  # noqa: F401  (finds the package)
import realvllm
from omnibus import PayloadError, Tensor, msgpack
from omnibus.omni import decoder, marks
from omnibus.omni.decoder import decode
from omnibus.omni.encoder import Encoded, encode

try:
    import numpy as np
except ImportError:
    np = None  # type: ignore[assignment]

TESTDATA = os.path.join(os.path.dirname(__file__), "..", "..", "..", "codec", "omni", "testdata", "vectors.txt")

F32 = array.array("f", [1, 2, 3, 4]).tobytes()

#: Made by OmniSerializer itself.
VECTORS: list[tuple[str, Any]] = [
    ("84aa5f5f74656e736f725f5fc3a56474797065a7666c6f61743332a57368617065920202a464617461c410"
     "0000803f000000400000404000008040",
     Tensor("float32", (2, 2), F32)),
    ("82a36b6579a576616c7565a46c69737493010203", {"key": "value", "list": [1, 2, 3]}),
    ("81a5736d616c6ca464617461", {"small": "data"}),
    ("84aa5f5f74656e736f725f5fc3a56474797065a7666c6f61743332a573686170659100a464617461c400",
     Tensor("float32", (0,), b"")),
]  # fmt: skip


def same(v: Any) -> Any:
    return realvllm.describe(v)


def without_torch() -> Any:
    return mock.patch.dict(marks._modules, {"torch": None})


class VectorTest(unittest.TestCase):
    def test_vectors(self) -> None:
        for text, value in VECTORS:
            with self.subTest(text[:30]), without_torch():
                self.assertEqual(bytes(encode(value)).hex(), text)
                self.assertEqual(same(decode(bytes.fromhex(text))), same(value))

    def test_vectors_of_the_go_package(self) -> None:
        """Lines of a name and bytes. Decoded values encode to the same bytes."""
        if not os.path.exists(TESTDATA):
            raise unittest.SkipTest(f"{TESTDATA} comes with the repository")
        with open(TESTDATA, encoding="utf-8") as f:
            vectors = [line.split(":") for line in f if not line.startswith("#")]
        self.assertGreater(len(vectors), 5)
        for name, text in vectors:
            payload = bytes.fromhex(text)
            if np is None and b"__ndarray__" in payload:
                continue  # without NumPy an array is a tensor
            with self.subTest(name), without_torch():
                self.assertEqual(bytes(encode(decode(payload))), payload)


class EncodedTest(unittest.TestCase):
    def test_large_data_is_not_gathered(self) -> None:
        data = bytearray(10_000)
        e = encode({"a": data, "b": Tensor("uint8", (10_000,), data)})
        self.assertEqual(sum(p is data for p in e.pieces), 1)
        self.assertLess(e.size - 20_000, 100)
        room = bytearray(e.size)
        data[5] = 7  # it lies where it lay
        e.write(memoryview(room))
        self.assertEqual(bytes(room), bytes(e))
        self.assertEqual(decode(room)["a"][5], 7)

    def test_size_is_exact(self) -> None:
        for n in (0, 1, 31, 32, 255, 256, 4095, 4096, 65_535, 65_536):
            e = encode([b"x" * n, "y" * n, list(range(n))])
            self.assertEqual(e.size, len(bytes(e)))
            self.assertEqual(decode(bytes(e)), [b"x" * n, "y" * n, list(range(n))])

    def test_refused(self) -> None:
        ring: list[Any] = []
        ring.append(ring)
        for value in (object(), 1j, 1 << 64, "\ud800", {"x": [object]}, ring, lambda: 0, range(3)):
            with self.subTest(type(value).__name__), self.assertRaises(PayloadError):
                encode(value)

    def test_times(self) -> None:
        utc = datetime.timezone.utc
        for t in (
            datetime.datetime(2020, 1, 1, tzinfo=utc),
            datetime.datetime(2020, 1, 1, microsecond=5, tzinfo=utc),
            datetime.datetime(1901, 1, 1, microsecond=5, tzinfo=utc),
            datetime.datetime(2600, 1, 1, tzinfo=utc),
        ):
            self.assertEqual(decode(bytes(encode(t))), t)
        self.assertEqual(decode(bytes(encode(datetime.date(2020, 1, 2)))), "2020-01-02")


class BadInputTest(unittest.TestCase):
    """Any bytes decode to a value or raise PayloadError."""

    @staticmethod
    def marked(mark: str, **fields: Any) -> bytes:
        return bytes(msgpack.packb({mark: True, **fields}))

    def test_marks(self) -> None:
        t, a, p = "__tensor__", "__ndarray__", "__pil_image__"
        f32 = {"dtype": "float32", "shape": [2], "data": b"12345678"}
        bad = {
            "short data": self.marked(t, **{**f32, "data": b"1234567"}),
            "long data": self.marked(t, **{**f32, "data": b"123456789"}),
            "no data": self.marked(t, **{**f32, "data": b""}),
            "text data": self.marked(t, **{**f32, "data": "12345678"}),
            "negative dimension": self.marked(t, **{**f32, "shape": [-2]}),
            "huge dimension": self.marked(t, **{**f32, "shape": [1 << 63, 4]}),
            "float dimension": self.marked(t, **{**f32, "shape": [2.0]}),
            "true dimension": self.marked(t, **{**f32, "shape": [True, 2]}),
            "many dimensions": self.marked(t, **{**f32, "shape": [1] * 40 + [2]}),
            "shape is a number": self.marked(t, **{**f32, "shape": 2}),
            "unknown dtype": self.marked(t, **{**f32, "dtype": "float33"}),
            "attribute as a dtype": self.marked(t, **{**f32, "dtype": "load"}),
            "dtype is a number": self.marked(t, **{**f32, "dtype": 5}),
            "objects": self.marked(a, dtype="|O", shape=[1], data=b"12345678"),
            "objects of eight bytes": self.marked(a, dtype="|O8", shape=[1], data=b"12345678"),
            "records": self.marked(a, dtype="<i4,<i4", shape=[1], data=b"12345678"),
            "dtype by another name": self.marked(a, dtype="float64", shape=[1], data=b"12345678"),
            "empty text": self.marked(a, dtype="<U0", shape=[8], data=b"12345678"),
            "much empty text": self.marked(a, dtype="<U0", shape=[1 << 33], data=b""),
            "empty bytes": self.marked(a, dtype="|S0", shape=[], data=b""),
            "mode": self.marked(p, mode="F", shape=[1, 2], data=b"12345678"),
            "bands": self.marked(p, mode="RGB", shape=[2, 4], data=b"12345678"),
            "pixels": self.marked(p, mode="RGB", shape=[1, 2, 3], data=b"12345"),
        }
        for name, payload in bad.items():
            with self.subTest(name), without_torch(), self.assertRaises(PayloadError):
                decode(payload)

    def test_invalid_bytes_raise(self) -> None:
        for text in ("", "c1", "92 01", "a5 61", "a1 ff", "81 80 01", "c7 01 05 00", "c7 01 01 80", "d4 02 80",
                     "c6 ff ff ff ff", "dd ff ff ff ff 00", "df ff ff ff ff", "01 02", "d6 ff 00 00 00",
                     "c7 03 ff 00 00 00", "d7 ff ff ff ff ff ff ff ff ff", "91" * 100 + "00",
                     "c7 0c ff 00 00 00 00 ff ff ff f1 88 6e 08 ff", "c7 0c ff 00 00 00 00 00 00 00 3a ff f4 41 80",
                     "81 91 80 01", "81 81 01 02 03"):  # fmt: skip
            with self.subTest(text[:30]), self.assertRaises(PayloadError):
                decode(bytes.fromhex(text.replace(" ", "")))

    def test_marked_entries_in_any_order(self) -> None:
        fields = {"__tensor__": True, "dtype": "uint8", "shape": [2], "data": b"ab"}
        for names in itertools.permutations(fields):
            payload = bytes(msgpack.packb({name: fields[name] for name in names}))
            for _ in range(2):  # the second time it may be known
                with self.subTest(names), without_torch():
                    self.assertEqual(decode(payload), Tensor("uint8", (2,), b"ab"))

    def test_the_cache_of_heads_is_bounded(self) -> None:
        for t in (Tensor("uint8", (), b"a"), Tensor("uint8", (1,), b"a")):
            marked = bytes(encode(t))
            with without_torch():
                self.assertEqual(decode(marked), t)
                least = 62 if t.shape else 63  # the dictionary is a container, and so is a shape that is not empty
                decode(b"\x91" * least + marked)
                with self.assertRaisesRegex(PayloadError, "deeper"):
                    decode(b"\x91" * (least + 1) + marked)
                count = 7 + len(t.shape) + 2  # keys, mark, dtype, shape, data, and the dictionary itself
                for most in (1 + count, count):
                    with mock.patch.object(msgpack, "MAX_VALUES", most), mock.patch.object(decoder, "MAX_VALUES", most):
                        if most > count:
                            decode(b"\x91" + marked)
                        else:
                            with self.assertRaisesRegex(PayloadError, "values"):
                                decode(b"\x91" + marked)

    def test_bounds_of_what_is_sent(self) -> None:
        """The bounds of encoding are those of decoding."""
        for t in (Tensor("uint8", (), b"a"), Tensor("uint8", (1, 1), b"a")):
            most = 64 - 1 - bool(t.shape)  # for the dictionary, and its shape
            for levels in (most, most + 1):
                value: Any = t
                for _ in range(levels):
                    value = [value]
                if levels == most:
                    with without_torch():
                        decode(bytes(encode(value)))
                else:
                    with self.assertRaisesRegex(PayloadError, r"nested deeper than 64, at \[0\]"):
                        encode(value)
            values = 1 + 2 * (9 + len(t.shape))
            with mock.patch.object(msgpack, "MAX_VALUES", values), mock.patch.object(decoder, "MAX_VALUES", values):
                with without_torch():
                    decode(bytes(encode([t, t])))
                with self.assertRaisesRegex(PayloadError, "more than"):
                    encode([t, t, None])

    def test_the_path_into_a_list_of_numbers(self) -> None:
        with self.assertRaisesRegex(PayloadError, r", at \['a'\]\[20\]$"):
            encode({"a": [0] * 20 + [1 << 64]})

    def test_padding(self) -> None:
        payload = bytes(encode([1, 2]))
        self.assertEqual(decode(payload + bytes(4000), padded=True), [1, 2])
        for rest in (b"\0", b"\1"):
            with self.assertRaises(PayloadError):
                decode(payload + rest, padded=rest == b"\1")

    def test_noise(self) -> None:
        r = random.Random(5)
        seeds = [bytes.fromhex(v) for v, _ in VECTORS] + [bytes(encode({"a": list(range(200)), "b": b"x" * 5000}))]
        with without_torch():
            for _ in range(3000):
                b = bytearray(r.choice(seeds))
                for _ in range(r.randint(1, 4)):
                    b[r.randrange(len(b))] = r.randrange(256)
                try:
                    decode(b[: r.randint(1, len(b))])
                except PayloadError:
                    pass


@unittest.skipIf(np is None, "NumPy is not here")
class ArrayTest(unittest.TestCase):
    def test_large_arrays_are_views(self) -> None:
        a = np.arange(5000, dtype=np.float32).reshape(50, 100)
        room = bytearray(bytes(encode({"a": a})))
        v = decode(room)["a"]
        self.assertTrue(np.shares_memory(v, np.frombuffer(room, np.uint8)))
        self.assertFalse(v.flags.writeable)
        np.testing.assert_array_equal(v, a)

    def test_small_ones_are_copies(self) -> None:
        room = bytearray(bytes(encode({"a": np.arange(10), "b": bytes(5000)})))
        got = decode(room)
        self.assertFalse(np.shares_memory(got["a"], np.frombuffer(room, np.uint8)))
        self.assertIs(type(got["b"]), bytes)

    def test_without_numpy(self) -> None:
        payload = bytes(encode({"a": np.arange(10, dtype=np.int16), "c": 1}))
        with mock.patch.dict(marks._modules, {"numpy": None}):
            t = decode(payload)["a"]
        self.assertIsInstance(t, Tensor)
        self.assertEqual((t.dtype, t.shape, list(t.data)), ("int16", (10,), list(range(10))))

    def test_refused(self) -> None:
        for a in (np.array([object()]), np.zeros(3, "i4,f4")):
            with self.assertRaises(PayloadError):
                encode(a)
        self.assertEqual(decode(bytes(encode([np.float32(1.5), np.int64(3)]))), [1.5, 3])


class RealTest(unittest.TestCase):
    """Each side reads the other's output, and both write the same bytes."""

    real: realvllm.Real

    @classmethod
    def setUpClass(cls) -> None:
        cls.real = realvllm.Real()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.real.close()

    def test_same_bytes(self) -> None:
        for name, value in realvllm.values().items():
            if name == "request":  # its fields differ from version to version
                continue
            with self.subTest(name):
                self.assertEqual(bytes(encode(value)).hex(), self.real.encode(name).hex())

    def test_same_values(self) -> None:
        for name, value in realvllm.values().items():
            if name == "request":
                continue
            with self.subTest(name):
                payload = bytes(encode(value))
                self.assertEqual(same_json(decode(payload)), self.real.describe(payload))

    def test_outputs_are_recognised(self) -> None:
        ours = bytes(encode(realvllm.values()["request"]))
        self.assertEqual(self.real.describe(ours)[0], "RequestOutput")
        payload = self.real.encode("request")
        self.assertIsInstance(decode(payload), dict)
        modules = {
            "vllm.outputs": mock.Mock(RequestOutput=realvllm.RequestOutput, CompletionOutput=realvllm.Completion)
        }
        with mock.patch.dict("sys.modules", modules):
            got = decode(payload)
            self.assertEqual(same_json(got), self.real.describe(payload))

    def test_a_dictionary_with_the_keys_of_an_output_stays_one(self) -> None:
        outputs = mock.Mock(RequestOutput=mock.Mock(side_effect=TypeError), CompletionOutput=realvllm.Completion)
        for value in (
            {"index": "first", "text": "", "token_ids": [], "finish_reason": None, "multimodal_output": 1},
            {"request_id": 1, "prompt": 2, "prompt_token_ids": 3, "outputs": 4, "finished": 5, "multimodal_output": 6},
        ):
            with mock.patch.dict("sys.modules", {"vllm.outputs": outputs}):
                self.assertEqual(decode(bytes(encode(value))), value)

    def test_tensor(self) -> None:
        for dtype, shape, data in (("float32", (2, 2), F32), ("bfloat16", (4,), F32[:8]), ("bool", (1,), b"\1")):
            t = Tensor(dtype, shape, data)
            self.assertEqual(self.real.describe(bytes(encode(t))), same_json(t))


def same_json(v: Any) -> Any:
    return json.loads(json.dumps(same(v)))


class TorchTest(unittest.TestCase):
    def test_torch(self) -> None:
        try:
            import torch  # type: ignore[import-not-found]
        except ImportError:
            raise unittest.SkipTest("torch is not installed") from None
        for t in (torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.tensor(True), torch.zeros(0, 3),
                  torch.arange(20_000, dtype=torch.float32)[::2],
                  torch.tensor([1 + 2j, 3]).conj(), torch.tensor([1 + 2j, 3]).conj().imag,
                  torch._neg_view(torch.ones(3))):  # fmt: skip
            got = decode(bytes(encode(t)))
            self.assertTrue(torch.equal(got, t) and got.dtype == t.dtype)
            got.zero_()  # its own memory
        with self.assertRaisesRegex(PayloadError, "complex32 has no encoding"):
            encode(torch.empty(2, dtype=torch.complex32))

    def test_a_dtype_that_this_torch_lacks(self) -> None:
        torch = mock.Mock(spec_set=["dtype"], dtype=type("dtype", (), {}))
        t = Tensor("float8_e5m2", (2,), b"ab")
        with mock.patch.dict(marks._modules, {"torch": torch}):
            self.assertEqual(decode(bytes(encode({"t": t}))), {"t": t})

    def test_no_memory_for_a_shape_alone(self) -> None:
        try:
            import torch
        except ImportError:
            raise unittest.SkipTest("torch is not installed") from None
        payload = bytes(msgpack.packb({"__tensor__": True, "dtype": "int8", "shape": [1 << 40], "data": b""}))
        with mock.patch.object(torch, "empty", wraps=torch.empty) as empty, self.assertRaisesRegex(PayloadError, "takes"):
            decode(payload)
        self.assertEqual({call.args[0] for call in empty.call_args_list}, {()})


class PillowTest(unittest.TestCase):
    def test_images(self) -> None:
        try:
            from PIL import Image
        except ImportError:
            raise unittest.SkipTest("Pillow is not installed") from None
        for mode in ("L", "RGB", "RGBA", "CMYK"):
            m = Image.new(mode, (40, 30), 77)
            got = decode(bytes(encode(m)))
            self.assertEqual((got.mode, got.size, got.tobytes()), (m.mode, m.size, m.tobytes()))
        with self.assertRaises(PayloadError):
            encode(Image.new("F", (2, 2)))

    def test_without_pillow_an_image_stays_a_dictionary(self) -> None:
        fields = {"__pil_image__": True, "mode": "RGB", "shape": [1, 2, 3], "data": b"123456"}
        payload = bytes(Encoded([bytes(encode(fields))]))
        with mock.patch.dict(marks._modules, {"PIL.Image": None}):
            self.assertEqual(decode(payload), fields)


if __name__ == "__main__":
    unittest.main()
