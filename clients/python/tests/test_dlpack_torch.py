"""Tensors from and for torch, of any supported version."""

from __future__ import annotations

import gc
import inspect
import math
import unittest

from dlpackcase import as_it_is, need, without_donors, without_numpy

from omnibus import bundle, dlpack
from omnibus.errors import PayloadError
from omnibus.gpu import emul
from omnibus.gpu.chunk import Chunk, PrivateMemory
from omnibus.tensor import DTYPES, Tensor


class TorchTest(unittest.TestCase):
    def setUp(self) -> None:
        self.torch = need("torch")

    def test_bfloat16(self) -> None:
        torch = self.torch
        t = Tensor("bfloat16", (2, 2), bytearray(8))
        x = torch.from_dlpack(t)
        x[0, 1] = 1.5
        self.assertEqual((x.dtype, list(t.data)), (torch.bfloat16, [0, 0x3FC0, 0, 0]))
        back = Tensor.from_dlpack(x)
        self.assertEqual((back.dtype, back.shape), ("bfloat16", (2, 2)))
        x[1, 1] = -2
        self.assertEqual(back.data[3], 0xC000)

    def test_all_elements(self) -> None:
        """With the deleter of torch, and with one in Python."""
        for how in (as_it_is, without_numpy, without_donors):
            with how():
                for dtype in self.known():
                    for shape in ((), (2, 3), (0, 4)):
                        data = bytearray(i % 2 for i in range(math.prod(shape) * DTYPES[dtype][1]))
                        t = Tensor(dtype, shape, data)
                        x = self.torch.from_dlpack(t)
                        self.assertEqual((str(x.dtype), x.shape), (f"torch.{dtype}", shape))
                        back = Tensor.from_dlpack(x)
                        self.assertEqual((back.dtype, back.shape, back.raw()), (dtype, shape, t.raw()))
                        if data:
                            self.assertEqual({x.data_ptr(), dlpack.address(back.data)}, {dlpack.address(t.data)})

    def known(self) -> list[str]:
        """What torch has by this protocol."""
        lacks: set[str] = set()
        if not self.asks():
            lacks |= {"float8_e4m3fn", "float8_e5m2"}
        if not hasattr(self.torch, "uint64"):  # before 2.3
            lacks |= {"bool", "uint16", "uint32", "uint64"}
        return [name for name in DTYPES if name not in lacks]

    def asks(self) -> bool:
        """Whether it has version 1 of the protocol, and so asks for a copy, or for a device."""
        try:
            return "copy" in inspect.signature(self.torch.from_dlpack).parameters
        except ValueError:  # a function of C's
            return False

    def test_requested_version(self) -> None:
        torch = self.torch
        if not self.asks():
            raise unittest.SkipTest(f"torch {torch.__version__} asks for nothing")
        t = Tensor("int16", (2,), bytearray(4))
        for device in ({}, {"device": "cpu"}):
            for copy in ({}, {"copy": False}, {"copy": True}):
                x = torch.from_dlpack(t, **device, **copy)
                x[0] += 1
                self.assertEqual((x[0] == t.data[0], t.data[0] == 0), (not copy.get("copy"), bool(copy.get("copy"))))
                t.data[0] = 0
        out = Chunk(PrivateMemory(emul.device(emul.uuid(5)), 256), 256).empty(2, "int16")
        with self.assertRaisesRegex(BufferError, "in place"):
            torch.from_dlpack(out, copy=True)

    def test_read_only(self) -> None:
        wrapper = getattr(self.torch.utils.dlpack, "ReadOnlyTensorWrapper", None)
        if wrapper is None:
            raise unittest.SkipTest(f"torch {self.torch.__version__} has no tensors that are read only")
        x = self.torch.arange(4.0)
        t = Tensor.from_dlpack(wrapper(x))
        self.assertTrue(t.data.readonly)
        self.assertEqual(list(t.data), [0, 1, 2, 3])
        self.assertFalse(Tensor.from_dlpack(x).data.readonly)

    def test_without_numpy(self) -> None:
        with without_numpy():
            t = Tensor("bfloat16", (4,), bytearray(8))
            x = self.torch.from_dlpack(t)
            x[3] = 1
            self.assertEqual(t.data[3], 0x3F80)

    def test_emitted(self) -> None:
        torch = self.torch
        x = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
        got = bundle.decode(bundle.encode({"x": x, "t": x.t(), "0": torch.tensor(7), "none": x[:0]}))
        for name, want in (("x", x), ("t", x.t()), ("0", torch.tensor(7)), ("none", x[:0])):
            have = torch.from_dlpack(got[name])
            self.assertTrue(torch.equal(have, want), name)
            self.assertEqual(have.dtype, want.dtype)

    def test_refused_exports(self) -> None:
        torch = self.torch
        z = torch.tensor([1 + 2j, 3])
        for x in (
            torch.zeros(2, requires_grad=True), z.conj(), z.conj().imag, torch.zeros(2).to_sparse(), torch.zeros(2, device="meta"),
            z.to(torch.complex32),
        ):  # fmt: skip
            with self.assertRaises(PayloadError):
                bundle.encode([x])

    def test_a_producer_fills_a_chunk(self) -> None:
        """On an emulated GPU, where it is read."""
        torch = self.torch
        c = Chunk(PrivateMemory(emul.device(emul.uuid(5)), 4096), 4096)
        out = c.empty((2, 3), torch.bfloat16)
        x = torch.from_dlpack(out)
        self.assertEqual((x.data_ptr(), x.dtype, x.shape), (out.pointer, torch.bfloat16, (2, 3)))
        torch.mul(torch.arange(6.0).reshape(2, 3), 2, out=x)
        there = dlpack.borrow(out)
        self.assertEqual(list(there.view().cast("H")), [0, 0x4000, 0x4080, 0x40C0, 0x4100, 0x4120])
        del out, c, there
        gc.collect()
        x += 1  # the last view keeps the memory
        self.assertEqual(x.tolist(), [[1, 3, 5], [7, 9, 11]])


if __name__ == "__main__":
    unittest.main()
