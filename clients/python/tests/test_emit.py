"""Emissions of a pull loop: in messages, in place, by reference."""

from __future__ import annotations

import struct
import unittest
from typing import Any

from fakehost import deliver
from hostcase import HostCase
from stagecase import opened

import omnibus
from omnibus import wire
from omnibus.codec import encode


class EmitTest(HostCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = self.connect()
        r = self.beside(lambda: self.client.deliveries("upper"))
        self.host.serve("upper")
        loop = r()
        self.host.send(opened(1), deliver(1, 7, encode(1)))
        self.delivery = next(loop)
        self.task: omnibus.Task = self.delivery.task  # type: ignore[assignment]

    def test_tensor_in_place(self) -> None:
        def fill(t: omnibus.Tensor) -> None:
            for i in range(6):
                t.data[i] = i

        self.task.emit_tensor("float32", (2, 3), fill)
        m, payload = self.host.filled()
        self.assertEqual((m.codec, m.size, m.flags), (3, 64 + 24, wire.INLINE))
        self.assertEqual(payload[:8], b"OTEN\x01\x0c\x02\x00")
        self.assertEqual(struct.unpack("<2Q", payload[8:24]), (2, 3))
        self.assertEqual(payload[24:64], bytes(40))
        self.assertEqual(struct.unpack("<6f", payload[64:]), (0, 1, 2, 3, 4, 5))
        for n in (2, 5000):  # in a message, and in place
            with self.task.emit_tensor("int64", (n,), last=True) as t:
                t.data[0], t.data[n - 1] = -1, 1 << 62
            m, payload = self.host.filled()
            self.assertEqual(m.flags, wire.LAST | (wire.INLINE if n == 2 else 0))
            self.assertEqual(struct.unpack(f"<{n}q", payload[64:]), (-1, *[0] * (n - 2), 1 << 62))

    def test_tensor_is_filled_once(self) -> None:
        filled = self.task.emit_tensor("int8", (2,), lambda t: None)
        self.host.filled()
        with self.assertRaises(omnibus.Finished):
            with filled:
                pass
        self.host.nothing()

    def test_error_while_filling_aborts(self) -> None:
        for size in (2000, 50_000):
            with self.assertRaises(KeyError), self.task.emit_tensor("int8", (size,)):
                raise KeyError("oops")
        self.host.offered()
        self.host.nothing()
        self.assertTrue(all(s.free_list.empty for s in self.client._session.allocator._segments.values()))
        self.assertEqual(self.task._puts.in_flight, [[0, 0, 0]])

    def test_reserve(self) -> None:
        for size in (1000, 50_000):
            with self.task.reserve(size, to="") as b:
                b.view[:5] = b"hello"
                b.send(5, key="k")
            m, payload = self.host.filled()
            self.assertEqual((m.edge, m.size, m.codec, m.key, payload), (0, 5, 1, "k", b"hello"))
            with self.assertRaises(omnibus.Finished):
                b.send()
            b.abort()
            with self.assertRaises(ValueError):
                b.view[0] = 1
        self.host.nothing()

    def test_waiting_emission_sends_a_copy(self) -> None:
        """It is copied when it has to wait: what the caller gave is the caller's again."""
        self.task._stage.outputs[:] = [wire.Edge("upper->caller", "", 1, 0)]
        self.task.emit_bytes(b"first")
        first = self.host.expect(wire.Put)
        data = bytearray(b"second")
        work = self.task._emit(data, self.task._envelope(7), omnibus.RAW)
        assert work is not None
        answer = next(work)
        data[:] = b"others"
        self.host.send(wire.Returned([first.put]))
        while not answer.done:
            self.client.process()
        with self.assertRaises(StopIteration):
            work.send(answer.value)
        self.assertEqual(self.host.expect(wire.Put).payload, b"second")

    def test_labels_are_checked_first(self) -> None:
        bad: list[tuple[str, dict[str, Any]]] = [
            ("key: text of 201 bytes, at most 200", {"key": "k" * 201}),
            ("key: text of 202 bytes, at most 200", {"key": "é" * 101}),
            ("key: text is not Unicode", {"key": "\ud800"}),
            ("attributes: 33 attributes, at most 32", {"attrs": {str(i): "v" for i in range(33)}}),
            ("attributes: text of 65 bytes, at most 64", {"attrs": {"n" * 65: "v"}}),
            ("attributes: text of 513 bytes, at most 512", {"attrs": {"n": "v" * 513}}),
            ("attributes: an attribute without a name", {"attrs": {"": "v"}}),
        ]
        for why, options in bad:
            with self.subTest(why):
                for emit in (
                    lambda: self.task.emit("small", **options),
                    lambda: self.task.emit_bytes(bytes(50_000), **options),
                    lambda: self.task.emit_tensor("int8", (50_000,), **options),
                    lambda: self.task.forward(self.delivery, **options),
                ):
                    with self.assertRaisesRegex(omnibus.LabelError, why):
                        emit()
        self.host.nothing()
        longest = {"key": "k" * 200, "attrs": {f"{i:064}": "v" * 512 for i in range(32)}}
        with self.task.reserve(1000) as b:
            for why, options in bad:
                with self.assertRaisesRegex(omnibus.LabelError, why):
                    b.send(**options)
            b.send(**longest)
        m, _ = self.host.filled()
        self.assertEqual((m.key, m.attrs), (longest["key"], longest["attrs"]))

    def test_forward(self) -> None:
        self.task.forward(self.delivery, to="", key="f")
        m = self.host.emitted()
        self.assertEqual((m.delivery, m.flags, m.edge, m.key, bytes(m.payload)), (7, 16, 0, "f", b""))
        self.delivery.finish()
        with self.assertRaises(omnibus.Finished):
            self.task.forward(self.delivery)

    def test_no_credit(self) -> None:
        self.task._stage.outputs[:] = [wire.Edge("upper->caller", "", 1, 0, 1)]
        self.task.emit(1)
        for size in (10, 50_000):
            with self.assertRaisesRegex(omnibus.WindowFull, "the window of upper->caller is full"):
                self.task.emit_bytes(bytes(size))

    def test_numpy(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        for rows in (50, 500):
            a = np.arange(40 * rows, dtype="float32").reshape(rows, 40)
            self.task.emit(a)
            _, payload = self.host.filled()
            np.testing.assert_array_equal(omnibus.tensor.view(payload).numpy(), a)


if __name__ == "__main__":
    unittest.main()
