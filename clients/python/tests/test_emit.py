"""What a pull loop emits: in place, in room that is granted, by reference."""

from __future__ import annotations

import os
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
    """Granted room."""

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

        done = self.beside(lambda: self.task.emit_tensor("float32", (2, 3), fill))
        self.host.give_arena()
        m = self.host.granted()
        self.assertEqual((m.codec, m.size), (3, 64 + 24))
        send, payload = self.host.sent()
        done()
        self.assertEqual(payload[:8], b"OTEN\x01\x0c\x02\x00")
        self.assertEqual(struct.unpack("<2Q", payload[8:24]), (2, 3))
        self.assertEqual(payload[24:64], bytes(40))
        self.assertEqual(struct.unpack("<6f", payload[64:]), (0, 1, 2, 3, 4, 5))

        def block() -> None:
            with self.task.emit_tensor("int64", (2,), last=True) as t:
                t.data[0], t.data[1] = -1, 1 << 62

        done = self.beside(block)
        self.host.granted()
        send, payload = self.host.sent()
        done()
        self.assertEqual((send.flags, struct.unpack("<2q", payload[64:])), (1, (-1, 1 << 62)))

    def test_tensor_is_filled_once(self) -> None:
        filling = self.beside(lambda: self.task.emit_tensor("int8", (2,), lambda t: None))
        self.host.give_arena()
        self.host.granted()
        self.host.sent()
        filled = filling()
        with self.assertRaises(omnibus.Finished):
            with filled:
                pass
        self.host.nothing()

    def test_error_while_filling_aborts(self) -> None:
        def block() -> None:
            with self.task.emit_tensor("int8", (2000,)):
                raise KeyError("oops")

        done = self.beside(block)
        self.host.give_arena()
        self.host.granted()
        self.assertEqual(self.host.expect(wire.Abort).grant, 33)
        with self.assertRaises(KeyError):
            done()

    def test_reserve(self) -> None:
        def fill() -> omnibus.Buffer:
            with self.task.reserve(1000, to="") as b:
                b.view[:5] = b"hello"
                b.send(5, key="k")
            return b

        done = self.beside(fill)
        self.host.give_arena()
        m = self.host.granted()
        self.assertEqual((m.edge, m.size, m.codec), (0, 1000, 1))
        send, payload = self.host.sent()
        self.assertEqual((send.size, send.key, payload), (5, "k", b"hello"))
        b = done()
        with self.assertRaises(omnibus.Finished):
            b.send()
        b.abort()
        with self.assertRaises(ValueError):
            b.view[0] = 1
        self.host.nothing()

    def test_labels_are_checked_before_anything_is_done(self) -> None:
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

        def fill() -> None:
            with self.task.reserve(1000) as b:
                for why, options in bad:
                    with self.assertRaisesRegex(omnibus.LabelError, why):
                        b.send(**options)
                b.send(**longest)

        done = self.beside(fill)
        self.host.give_arena()
        self.host.granted()
        send, _ = self.host.sent()
        done()
        self.assertEqual((send.key, send.attrs), (longest["key"], longest["attrs"]))

    def test_grant_with_a_segment_of_its_own(self) -> None:
        from fakehost import new_arena

        payload = os.urandom(50_000)
        done = self.beside(lambda: self.task.emit_bytes(payload))
        self.host.give_arena()
        m = self.host.expect(wire.Reserve)
        fd = new_arena(1 << 16)
        self.host.send(wire.Grant(m.token, 44, 91, 0, 50_000), fds=(fd,))
        self.assertEqual(self.host.expect(wire.Sealed).segment, 91)
        send = self.host.expect(wire.Send)
        done()
        self.assertEqual(send.grant, 44)
        self.assertEqual(os.pread(fd, 50_000, 0), payload)
        os.close(fd)

    def test_forward(self) -> None:
        done = self.beside(lambda: self.task.forward(self.delivery, to="", key="f"))
        m = self.host.emitted()
        done()
        self.assertEqual((m.delivery, m.flags, m.edge, m.key, bytes(m.payload)), (7, 16, 0, "f", b""))
        self.delivery.finish()
        with self.assertRaises(omnibus.Finished):
            self.task.forward(self.delivery)

    def test_no_credit(self) -> None:
        done = self.beside(lambda: self.task.emit_bytes(bytes(50_000)))
        self.host.give_arena()
        m = self.host.expect(wire.Reserve)
        self.host.send(wire.Failed(m.token, 7, "too large for the edge"))
        with self.assertRaisesRegex(omnibus.TooLarge, "for the edge"):
            done()

    def test_numpy(self) -> None:
        try:
            import numpy as np
        except ImportError:
            self.skipTest("numpy is not installed")
        a = np.arange(2000, dtype="float32").reshape(50, 40)
        done = self.beside(lambda: self.task.emit(a))
        self.host.give_arena()
        self.host.granted()
        _, payload = self.host.sent()
        done()
        np.testing.assert_array_equal(omnibus.tensor.view(payload).numpy(), a)


if __name__ == "__main__":
    unittest.main()
