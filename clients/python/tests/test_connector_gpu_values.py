"""The settings of connectors whose tensors stay on a GPU, and what they put where there is none.

The Go tests `TestKeyedTensors...` of bus/node run them over a host, in processes of their own.
"""

from __future__ import annotations

import unittest
from typing import Any

from hostcase import HostCase

from omnibus import Tensor, dlpack, wire
from omnibus.bundle import MAGIC, Plan
from omnibus.connector import CudaIpcConnector, OmnibusConnector, encode
from omnibus.devices.contract import uuid_of, uuid_text
from omnibus.errors import PayloadError
from omnibus.gpu import Options, emul
from omnibus.gpu.chunk import Chunk, PrivateMemory
from omnibus.omni.decoder import decode
from omnibus.omni.encoder import BESIDE

GPU = {"device": uuid_text(emul.uuid(5))}


class Elsewhere:
    """A tensor on a CUDA device that is not visible to this process."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class SettingsTest(unittest.TestCase):
    def test_invalid_settings(self) -> None:
        for extra, says in (
            ({"tensor_transport": "cuda"}, "tensor_transport must be default or cuda_ipc or cuda_ipc_pool, not 'cuda'"),
            ({"tensor_transport": "cuda_ipc", "mode": "segment"}, "tensor_transport cuda_ipc needs .* use mode ring, not segment"),
            ({"min_bytes": "64KiB"}, "min_bytes must be a whole number of at least 0, not '64KiB'"),
            ({"gpu": {"device": "cuda"}}, "gpu must be a map of the options of omnibus.gpu.Options"),
            ({"gpu": {"device": True}}, "gpu must be a map"),
            ({"gpu": {"arenas": 3}}, "gpu must be a map"),
            ({"gpu": 3}, "gpu must be a map"),
        ):
            with self.subTest(extra), self.assertRaisesRegex(ValueError, says):
                OmnibusConnector({"socket": "/nowhere", **extra})
        for extra in ({"tensor_transport": "default"}, {"mode": "segment", "tensor_transport": "default"}):
            with self.subTest(extra), self.assertRaisesRegex(ValueError, "for default, take OmnibusConnector"):
                CudaIpcConnector({"socket": "/nowhere", **extra})

    def test_uuids(self) -> None:
        self.assertEqual(uuid_of(uuid_text(emul.uuid(3))), emul.uuid(3))
        for text in ("", "GPU-", "GPU-00", "cuda:0", "g" * 32):
            with self.subTest(text), self.assertRaises(ValueError):
                uuid_of(text)


class EncodingTest(unittest.TestCase):
    def test_external_tensors_are_numbered(self) -> None:
        beside: list[Any] = []

        def number(v: Any) -> int | None:
            if isinstance(v, Elsewhere):
                beside.append(v)
                return len(beside) - 1
            return None

        a, b = Elsewhere(), Elsewhere()
        payload = bytes(encode({"a": a, "n": [1, {"b": b}]}, number))
        self.assertEqual(decode(payload, beside=beside), {"a": a, "n": [1, {"b": b}]})
        for few in ([], [a]):
            with self.assertRaisesRegex(PayloadError, "came beside the payload"):
                decode(payload, beside=few)
        with self.assertRaisesRegex(PayloadError, f"extension {BESIDE} is unknown"):
            decode(payload)

    def test_no_value_is_taken_for_a_bundle(self) -> None:
        with self.assertRaises(PayloadError):  # a number, and more
            decode(MAGIC)
        plan = Plan([Tensor("uint8", (1,), b"x")])
        buffer = bytearray(plan.size())
        plan.write(memoryview(buffer))
        self.assertEqual(buffer[:4], MAGIC)

    def test_tensors_of_other_libraries(self) -> None:
        """An object with DLPack memory encodes as a tensor, which can be put again."""
        chunk = Chunk(PrivateMemory(emul.device(emul.uuid(5)), 64), 64)
        t = chunk.empty((2, 2), "int16")
        dlpack.borrow(t).view()[:] = bytes(range(8))
        want = bytes(encode({"x": Tensor("int16", (2, 2), bytes(range(8)))}))
        self.assertEqual(bytes(encode({"x": t})), want)


class WithoutDeviceTest(HostCase):
    """A connector with a tensor transport, in a process without a GPU."""

    def connector(self, kind: type[OmnibusConnector], **extra: Any) -> OmnibusConnector:
        made = self.beside(lambda: kind({"socket": self.host.path, "timeout": 0.2, **extra}))
        self.host.welcome()
        c: OmnibusConnector = made()
        self.addCleanup(c.close)
        self.addCleanup(self.host.close_socket)
        return c

    def test_supports_raw_data_with_a_tensor_transport(self) -> None:
        c = self.connector(CudaIpcConnector, gpu=GPU)
        self.assertTrue(c.supports_raw_data)
        self.assertFalse(OmnibusConnector({"mode": "segment"}).supports_raw_data)

    def test_values_without_tensors_are_the_same(self) -> None:
        c = self.connector(CudaIpcConnector, gpu=Options(device=emul.uuid(5)))
        value = {"host": Tensor("int16", (2,), b"abcd"), "n": [1, None, "x"], "b": b"raw"}
        done = self.beside(lambda: c.put("0", "1", "k", value))
        m = self.host.expect(wire.Place)
        self.host.send(wire.Placed(m.token, 7))
        want = bytes(encode(value))
        self.assertEqual((bytes(m.payload), done()), (want, (True, len(want), {"entry": "7", "size": len(want)})))

    def test_a_tensor_that_cannot_be_read_is_no_value(self) -> None:
        c = self.connector(CudaIpcConnector)
        with self.assertLogs("omnibus", "WARNING"):
            self.assertEqual(c.put("0", "1", "k", Elsewhere()), (False, 0, None))
        self.assertEqual(c.health()["error_kinds"], {"PayloadError": 1})


if __name__ == "__main__":
    unittest.main()
