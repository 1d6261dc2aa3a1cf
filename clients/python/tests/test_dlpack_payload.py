"""Payloads of deliveries as tensors of other libraries: they stay until the last of these is gone."""

from __future__ import annotations

import gc
import os
import struct
import threading
import unittest

from dlpackcase import as_it_is, need, without_donors
from fakehost import deliver, over
from hostcase import RequestCase

import omnibus
from omnibus import dlpack, memory, wire
from omnibus.tensor import Tensor, encode


class PayloadTest(RequestCase):
    """A tensor that is a view of a payload."""

    def setUp(self) -> None:
        super().setUp()
        payload = encode(Tensor("float32", (2, 3), struct.pack("<6f", *range(6))))
        self.host.segment(1, bytes(payload).ljust(4096, b"\0"))
        self.host.send(deliver(3, 1, flags=0, codec=3, segment=1, size=len(payload)))
        self.delivery = next(self.request).keep()

    def finish(self) -> None:
        self.delivery.finish()
        self.assertEqual(self.host.expect(wire.Finish).flags, 1)
        gc.collect()
        self.host.nothing()

    def released(self) -> None:
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)

    def test_unused_capsule_releases_the_payload(self) -> None:
        c = self.delivery.tensor().__dlpack__()
        self.finish()
        del c
        self.released()

    def test_view_in_another_thread(self) -> None:
        held = [Tensor.from_dlpack(self.delivery.tensor()).data[3:]]
        self.finish()
        self.assertEqual(list(held[0]), [3, 4, 5])
        t = threading.Thread(target=held.clear)
        t.start()
        self.released()
        t.join()

    def test_view_while_the_lock_is_held(self) -> None:
        t = Tensor.from_dlpack(self.delivery.tensor())
        self.finish()
        with self.client._session.locked:
            del t  # as the collector may, in the middle of anything
        self.released()

    def test_client_is_closed(self) -> None:
        t = self.delivery.tensor()
        a = Tensor.from_dlpack(t)
        self.delivery.finish()
        self.host.expect(wire.Finish)
        self.host.send(over(3))
        while self.client._session.sources:
            self.client.process()
        self.client.close()
        b = Tensor.from_dlpack(t)
        self.assertEqual(list(a.data), list(b.data))
        del a, t
        self.assertEqual(b.data[5], 5)

    def test_forked(self) -> None:
        t = self.delivery.tensor()
        taken = Tensor.from_dlpack(t)
        pid = os.fork()
        if pid == 0:
            try:
                t.__dlpack__()
            except omnibus.ForkedError:
                del taken, t
                gc.collect()
                os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.host.nothing()
        self.assertEqual(taken.data[1], 1)

    def test_arena_forked(self) -> None:
        room = memory._Memory(-1, 4096)
        room.process = os.getpid() + 1
        with self.assertRaises(omnibus.ForkedError):
            Tensor("int8", (8,), memoryview(room)[:8]).__dlpack__()

    def test_numpy(self) -> None:
        np = need("numpy")
        t = self.delivery.tensor()
        a = np.from_dlpack(t)
        self.assertEqual(a.ctypes.data, dlpack.address(t.data))
        self.assertEqual(a.tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertFalse(a.flags.writeable)
        part = a[1:, ::2]
        del a, t
        self.finish()
        self.assertEqual(part.tolist(), [[3, 5]])
        del part
        self.released()

    def test_numpy_in_an_exception(self) -> None:
        """A release during an exception keeps the exception."""
        np = need("numpy")
        with self.assertRaises(ZeroDivisionError):
            print(np.from_dlpack(self.delivery.tensor()), 1 / 0)
        with self.assertRaises((RuntimeError, BufferError)):
            np.from_dlpack(Tensor("bfloat16", (2,), bytes(4)))
        self.finish_at_once()

    def test_torch(self) -> None:
        torch = need("torch")
        t = self.delivery.tensor()
        x = torch.from_dlpack(t)
        self.assertEqual((x.data_ptr(), x.dtype), (dlpack.address(t.data), torch.float32))
        self.assertEqual(x.tolist(), [[0, 1, 2], [3, 4, 5]])
        part = x[1].detach()
        del x, t
        self.finish()
        self.assertEqual(part.tolist(), [3, 4, 5])
        del part
        self.released()

    def test_torch_releases_without_the_gil(self) -> None:
        """What was kept for a gradient goes in the middle of C++."""
        torch = need("torch")
        for how in (as_it_is, without_donors):
            with how():
                weights = torch.ones(2, 3, requires_grad=True)
                held = [torch.from_dlpack(self.delivery.tensor())]
                total = (weights * held.pop()).sum()
                gc.collect()
                total.backward()
                self.assertEqual(weights.grad.tolist(), [[0, 1, 2], [3, 4, 5]])
        del total, weights
        self.finish_at_once()

    def finish_at_once(self) -> None:
        """The payload has no view any more."""
        self.delivery.finish()
        self.assertEqual(self.host.expect(wire.Finish).flags, 0)

    def test_torch_in_an_exception(self) -> None:
        torch = need("torch")
        with self.assertRaises(ZeroDivisionError):
            print(torch.from_dlpack(self.delivery.tensor()), 1 / 0)
        self.finish_at_once()


if __name__ == "__main__":
    unittest.main()
