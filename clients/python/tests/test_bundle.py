"""Bundles: the vectors of the Go package, what is refused, and what an emission makes."""

from __future__ import annotations

import array
import ctypes
import json
import os
import random
import struct
import sys
import unittest
import unittest.mock
from typing import Any

from fakehost import deliver
from hostcase import RequestCase

import omnibus
from omnibus import bundle, codec, msgpack, wire
from omnibus.bundle import Placed
from omnibus.errors import PayloadError
from omnibus.msgpack import Ext, unpackb
from omnibus.tensor import DTYPES, Tensor

TESTDATA = os.path.join(os.path.dirname(__file__), "..", "..", "..", "codec", "bundle", "testdata", "vectors.json")


def load() -> dict[str, Any]:
    with open(TESTDATA, encoding="utf-8") as f:
        vectors: dict[str, Any] = json.load(f)
        return vectors


def described(d: list[Any]) -> Any:
    """The value that a vector describes."""
    kind, *rest = d
    if kind == "nil":
        return None
    if kind == "int":
        return int(rest[0])
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(rest[0]))[0]
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "list":
        return [described(e) for e in rest[0]]
    if kind == "dict":
        return {described(k): described(v) for k, v in rest[0]}
    if kind == "tensor":
        dtype, shape, data = rest
        return Tensor(dtype, tuple(shape), bytes.fromhex(data))
    if kind == "placed":
        dtype, shape, strides, place, offset, nbytes = rest
        return Placed(dtype, tuple(shape), place, offset, None if strides is None else tuple(strides), nbytes)
    assert kind in ("bool", "str"), kind
    return rest[0]


def places(v: dict[str, Any]) -> list[bundle.Place]:
    return [
        bundle.Place(
            p["kind"], p["bytes"], p["offset"], *(bytes.fromhex(p[k]) for k in ("device", "pool")),
            p["slot"], p["generation"], p["arena"], bytes.fromhex(p["handle"]),
        )
        for p in v["places"]
    ]


class VectorTest(unittest.TestCase):
    def test_encode(self) -> None:
        for v in load()["bundles"]:
            with self.subTest(v["name"]):
                plan = bundle.Plan(described(v["value"]))
                plan.places, plan.min_bytes = places(v), v["min_bytes"]
                out = bytearray(b"\xee") * plan.size()  # what was there before must not show
                plan.write(memoryview(out))
                self.assertEqual(out.hex(), v["hex"])

    def test_decode(self) -> None:
        for v in load()["bundles"]:
            with self.subTest(v["name"]):
                b = bundle.Bundle(bytes.fromhex(v["hex"]))
                self.assertEqual(b.value(), described(v["value"]))
                self.assertEqual(b.places, places(v))

    def test_malformed(self) -> None:
        vectors = load()["malformed"]
        self.assertGreater(len(vectors), 50)
        for v in vectors:
            with self.subTest(v["name"]), self.assertRaises(PayloadError):
                bundle.decode(bytes.fromhex(v["hex"]))


class DecodeTest(unittest.TestCase):
    def test_tensors_view_the_payload(self) -> None:
        payload = bundle.encode({"a": [Tensor("int16", (2,), b"abcd")]})
        t = bundle.decode(payload)["a"][0]
        payload[payload.index(b"abcd")] = ord("z")
        self.assertEqual(t.raw(), b"zbcd")

    def test_substitutes_replace_tensors(self) -> None:
        payload = bundle.encode([Tensor("int8", (1,), b"a"), 5, Tensor("int8", (2,), b"bc")])
        self.assertEqual(bundle.decode(payload, lambda t: t.shape), [(1,), 5, (2,)])
        with self.assertRaisesRegex(TypeError, "mine"):
            bundle.decode(payload, self.fails)

    @staticmethod
    def fails(_: Any) -> Any:
        raise TypeError("mine")

    def test_tensor_as_key_is_refused(self) -> None:
        payload = bytearray(bundle.encode([Tensor("int8", (1,), b"a"), 5]))
        payload[payload.index(b"\x92\xd6\x07")] = 0x81  # a dict of one pair
        with self.assertRaises(PayloadError):
            bundle.decode(payload)

    def test_dict_keys(self) -> None:
        value = {(1, ("a",)): 2, Ext(-1, bytes(4)): 3, b"b": 4}
        self.assertEqual(bundle.decode(bundle.encode([value, Tensor("int8", (1,), b"a")]))[0], value)
        payload = bundle.encode([{(1, ("a",)): 2}, Tensor("int8", (1,), b"a")])
        payload[payload.index(b"\x91\xa1a")] = 0x80  # an empty dict in the key
        with self.assertRaisesRegex(PayloadError, "key of a map"):
            bundle.decode(payload)

    def test_points_in_time(self) -> None:
        for good, data in (
            (True, bytes(4)), (True, struct.pack(">Q", 999_999_999 << 34)), (False, struct.pack(">Q", 1_000_000_000 << 34)),
            (True, struct.pack(">Iq", 0, -62_135_596_800)), (False, struct.pack(">Iq", 0, -62_135_596_801)),
            (True, struct.pack(">Iq", 0, 253_402_300_799)), (False, struct.pack(">Iq", 0, 253_402_300_800)),
            (False, bytes(5)),
        ):  # fmt: skip
            value = [Ext(-1, data), Tensor("int8", (1,), b"a")]
            with unittest.mock.patch.object(msgpack, "timestamp"):  # so that it is sent
                payload = bundle.encode(value)
            with self.subTest(data):
                if good:
                    self.assertEqual(bundle.encode(value), payload)
                    self.assertEqual(bundle.decode(payload)[0], Ext(-1, data))
                    continue
                for refused in (lambda: bundle.encode(value), lambda: bundle.decode(payload)):
                    with self.assertRaisesRegex(PayloadError, "timestamp"):
                        refused()

    def test_garbage(self) -> None:
        r = random.Random(4)
        seeds = [bytes.fromhex(v["hex"]) for v in load()["bundles"]]
        for _ in range(4000):
            good = r.choice(seeds)
            b = bytearray(good[: r.randrange(len(good) + 1)] if r.random() < 0.3 else good)
            for _ in range(r.randint(1, 3)):
                if b:
                    b[r.randrange(len(b))] = r.choice((0, 1, 7, 0x80, 0xFF, r.randrange(256)))
            try:
                got = bundle.Bundle(b)
                got.value()
            except PayloadError:
                continue
            inside = sum(t.nbytes for t in got.tensors if isinstance(t, Tensor))
            self.assertLessEqual(inside, len(b))


class EncodeTest(unittest.TestCase):
    def test_refused(self) -> None:
        for value in (object(), [1 << 64], {"x": object()}, [Tensor("int8", (0,), b""), Ext(5, b"")]):
            with self.subTest(value), self.assertRaises(PayloadError):
                bundle.encode(value)
        with self.assertRaises(PayloadError):
            bundle.encode([Placed("int8", (1,), 1, 0)])  # in a place that does not exist
        p = bundle.Place(bundle.POOL, 8)
        for t in (
            Placed("int16", (4,), 1, 1), Placed("int16", (4,), 1, 2), Placed("int8", (8,), 1, -1), Placed("int8", (2, 2), 1, 0, (8, 1)),
        ):  # fmt: skip
            plan = bundle.Plan(t)
            plan.places = [p]
            with self.subTest(t), self.assertRaises(PayloadError):
                plan.write(memoryview(bytearray(plan.size())))
        for q in (
            bundle.Place(3, 8), bundle.Place(bundle.POOL, -1), bundle.Place(bundle.POOL, 8, (1 << 63) - 1),
            bundle.Place(bundle.POOL, 8, handle=b"\1" * 64), bundle.Place(bundle.HANDLE, 8, arena=1),
        ):  # fmt: skip
            plan = bundle.Plan(None)
            plan.places = [q]
            with self.subTest(q), self.assertRaises(PayloadError):
                plan.write(memoryview(bytearray(plan.size())))
        with self.assertRaises(PayloadError):
            bundle.Plan(1).write(memoryview(bytearray(5)))

    def test_source_without_fill_is_left_to_the_caller(self) -> None:
        """A tensor elsewhere, such as on a GPU, is copied by the caller of `write`."""

        def of(value: Any) -> omnibus.sources.Source | None:
            return omnibus.sources.Source("float32", (2,), None) if isinstance(value, range) else None

        plan = bundle.Plan({"x": range(1), "y": range(1)}, of)
        plan.tensors[1].place, plan.tensors[1].offset = 1, 4
        plan.places = [bundle.Place(bundle.POOL, 64)]
        out = bytearray(plan.size())
        plan.write(memoryview(out))
        data = plan.tensors[0].data
        assert data is not None and plan.tensors[1].data is None
        data[:] = b"12345678"
        self.assertEqual(
            bundle.decode(out), {"x": Tensor("float32", (2,), b"12345678"), "y": Placed("float32", (2,), 1, 4)}
        )

    def test_buffers(self) -> None:
        for code, dtype in (("b", "int8"), ("H", "uint16"), ("i", "int32"), ("q", "int64"), ("l", "int64"), ("f", "float32"), ("d", "float64")):
            a = array.array(code, [1, 2, 3])
            t = bundle.decode(bundle.encode([a]))[0]
            self.assertEqual((t.dtype, t.shape, t.raw()), (dtype, (3,), a.tobytes()))
        self.assertEqual(bundle.decode(bundle.encode([array.array("f")]))[0].shape, (0,))
        with self.assertRaises(PayloadError):
            bundle.encode([(ctypes.c_longdouble * 2)()])
        # What was bytes stays bytes.
        self.assertEqual(bundle.decode(bundle.encode([b"a", bytearray(b"b"), memoryview(b"c")])), [b"a", b"b", b"c"])

    def test_numpy(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        a = np.arange(24, dtype="float32").reshape(4, 6)
        value = {"a": a, "t": a.T, "s": a[::2, ::3], "be": a.astype(">i4"), "0d": np.array(7, "int16"), "none": a[:0], "x": np.float32(0.5)}
        got = bundle.decode(bundle.encode(value))
        for name in ("a", "t", "s", "be", "0d", "none"):
            np.testing.assert_array_equal(got[name].numpy(), value[name])
        self.assertEqual(got["x"], 0.5)
        with self.assertRaises(PayloadError):
            bundle.encode({"c": np.array([1j], "clongdouble")})

    def test_every_dtype(self) -> None:
        value = [Tensor(name, (2, 1), bytes(range(2 * size))) for name, (_, size, _) in DTYPES.items()]
        self.assertEqual(bundle.decode(bundle.encode(value)), value)


class EmitTest(RequestCase):
    """What an emission makes of a value."""

    def small(self, value: Any, **options: Any) -> wire.Put:
        done = self.beside(lambda: self.request.send(value, **options))
        m = self.host.emitted()
        done()
        return m

    def test_small(self) -> None:
        t = Tensor("int8", (2,), b"ab")
        for value, number in (
            ({"x": 1}, codec.MSGPACK), ([Ext(5, b"x")], codec.MSGPACK), (b"raw", codec.MSGPACK), (t, codec.TENSOR),
            ({"x": [t]}, codec.BUNDLE), (array.array("f", [1]), codec.TENSOR), ([array.array("f", [1])], codec.BUNDLE),
        ):  # fmt: skip
            with self.subTest(value):
                m = self.small(value)
                self.assertEqual(m.codec, number)
        self.assertEqual(codec.decode(memoryview(m.payload), m.codec)[0].dtype, "float32")

    def test_bundle_codec_on_request(self) -> None:
        t = Tensor("int8", (2,), b"ab")
        m = self.small([t], codec=codec.MSGPACK)
        self.assertEqual((m.codec, unpackb(m.payload)), (codec.MSGPACK, [t.to_map()]))
        m = self.small({"x": 1}, codec=codec.BUNDLE)
        self.assertEqual((m.codec, bundle.decode(m.payload)), (codec.BUNDLE, {"x": 1}))
        m = self.small(t, codec=codec.BUNDLE)
        self.assertEqual((m.codec, bundle.decode(m.payload)), (codec.BUNDLE, t))

    def test_large_is_filled_in_place(self) -> None:
        value = {"a": Tensor("uint8", (70_000,), bytes(range(250)) * 280), "text": "x" * 1000, "b": [Tensor("int8", (1,), b"z")]}
        done = self.beside(lambda: self.request.send(value))
        m, payload = self.host.filled()
        done()
        self.assertEqual(m.codec, codec.BUNDLE)
        self.assertEqual(bundle.decode(payload), value)
        self.assertEqual(payload, bundle.encode(value))

    def test_failed_fill_frees_the_block(self) -> None:
        view = memoryview(bytes(50_000))
        t = Tensor("int8", (50_000,), view)
        source = omnibus.sources.of(t)
        with unittest.mock.patch("omnibus.sources.of", return_value=source):
            assert source is not None
            source.fill = lambda _: t.data[50_000]  # type: ignore[assignment]
            with self.assertRaises(IndexError):
                self.request.send(t)
        self.host.offered()
        self.host.nothing()
        self.assertTrue(all(s.free_list.empty for s in self.client._session.allocator._segments.values()))
        self.assertEqual(self.request._puts.in_flight, [[0, 0, 0]])

    def test_value_of_a_delivery(self) -> None:
        value = {"a": [Tensor("float32", (256,), bytes(1024)), 5]}
        payload = bytes(bundle.encode(value))
        self.host.segment(1, payload.ljust(4096, b"\0"))
        self.host.send(deliver(3, 1, flags=0, codec=codec.BUNDLE, segment=1, offset=0, size=len(payload)))
        d = next(self.request).keep()
        got = d.value()
        self.assertEqual(got, value)
        d.finish()
        m = self.host.expect(wire.Finish)
        self.assertEqual(m.flags, 1)  # the tensor keeps the payload
        self.assertTrue(got["a"][0].data.readonly)
        del got
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)


class OlderTest(unittest.TestCase):
    def test_from_map_accepts_tensors_of_a_bundle(self) -> None:
        t = Tensor("int8", (1,), b"a")
        self.assertIs(Tensor.from_map(t), t)


if __name__ == "__main__":
    sys.exit(unittest.main())
