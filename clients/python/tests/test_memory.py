"""Views of payloads: when they go back, and what keeps them."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import unittest
from typing import Any

from fakehost import deliver, over
from hostcase import RequestCase

import omnibus
from omnibus import wire
from omnibus.tensor import Tensor, encode


class ViewTest(RequestCase):
    """Results that lie in a segment."""

    def setUp(self) -> None:
        super().setUp()
        tensor = encode(Tensor("float32", (4,), bytes(16)))
        self.content = bytes(range(256)) * 32 + bytes(tensor) + bytes(4096 - len(tensor))
        self.host.segment(1, self.content)

    def result(self, number: int = 1, **more: Any) -> omnibus.Delivery:
        fields = dict(flags=0, codec=1, segment=1, offset=256, size=4096)
        self.host.send(deliver(3, number, **{**fields, **more}))
        return next(self.request).keep()

    def finished(self, number: int, keeps: bool) -> None:
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.flags), (number, int(keeps)))

    @staticmethod
    def mapped() -> int:
        gc.collect()
        with open("/proc/self/maps", encoding="utf-8") as f:
            return f.read().count("/memfd:segment")

    def test_copy(self) -> None:
        d = self.result()
        self.assertEqual(d.bytes, self.content[256 : 256 + 4096])
        self.assertEqual(d.value(), d.bytes)
        d.finish()
        self.finished(1, False)
        self.host.nothing()

    def test_view_is_read_only_and_in_place(self) -> None:
        d = self.result(offset=10, size=5)
        with d.view() as v:
            self.assertEqual(bytes(v), bytes(range(10, 15)))
            self.assertTrue(v.readonly)
            with self.assertRaises(TypeError):
                v[0] = 1
        with self.assertRaises(ValueError):
            v[0]
        d.finish()
        self.finished(1, False)

    def test_a_slice_keeps_the_payload(self) -> None:
        d = self.result()
        view = d.view()
        part = view.data[1:3].cast("H")
        with self.assertRaises(BufferError):
            view.release()
        d.finish()
        self.finished(1, True)
        with self.assertRaises(BufferError):
            view.release()
        self.host.nothing()
        self.assertEqual(bytes(part), bytes([1, 2]))
        part.release()
        del part
        view.release()
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)

    def test_last_slice_returns_the_payload(self) -> None:
        d = self.result()
        a, b = d.view().data[:10], d.view().data[10:]
        d.finish()
        self.finished(1, True)
        del a
        gc.collect()
        self.host.nothing()
        del b
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)

    def test_views_gone_before_finish(self) -> None:
        d = self.result()
        view = d.view()
        view.release()
        d.finish()
        self.finished(1, False)
        self.host.nothing()

    def test_release_while_the_lock_is_held(self) -> None:
        d = self.result()
        view = d.view().data
        d.finish()
        self.finished(1, True)
        with self.client._session.locked:
            del view  # as the collector may, in the middle of anything
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)

    def test_release_while_another_thread_waits(self) -> None:
        d = self.result()
        view = d.view().data
        d.finish()
        self.finished(1, True)
        r = self.beside(lambda: next(self.request))
        del view
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)
        self.host.send(over(3, wire.OUTCOME_ABORTED))
        with self.assertRaises(omnibus.RequestAborted):
            r()

    def test_release_from_many_threads(self) -> None:
        n = 40
        views = []
        for i in range(n):
            d = self.result(i + 1)
            views.append([d.view().data])
            d.finish()
            self.finished(i + 1, True)
        threads = [threading.Thread(target=v.clear) for v in views]
        for t in threads:
            t.start()
        got = sorted(self.host.expect(wire.Release).delivery for _ in range(n))
        for t in threads:
            t.join()
        self.assertEqual(got, list(range(1, n + 1)))

    def test_tensor_views_the_payload(self) -> None:
        d = self.result(codec=3, offset=8192, size=80)
        t = d.value()
        self.assertEqual((t.dtype, t.shape, list(t.data)), ("float32", (4,), [0.0] * 4))
        d.finish()
        self.finished(1, True)
        del t
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)

    def test_numpy_views_the_payload(self) -> None:
        try:
            import numpy  # noqa: F401
        except ImportError:
            self.skipTest("numpy is not installed")
        d = self.result(codec=3, offset=8192, size=80)
        a = d.tensor().numpy()[1:]
        self.assertFalse(a.flags.writeable)
        d.finish()
        self.finished(1, True)
        self.assertEqual(a.sum(), 0)
        del a
        self.assertEqual(self.host.expect(wire.Release).delivery, 1)

    def test_forget_leaves_views_alone(self) -> None:
        d = self.result()
        e = self.result(2)
        v = d.view()
        self.host.send(wire.Forget(1))
        while self.client._session.host_segments.mapped:
            self.client.process()
        self.assertEqual(v.data[0], 0)
        self.assertEqual(e.bytes[:3], b"\0\1\2")
        before = self.mapped()
        v.release()
        d.finish()
        self.assertEqual(self.mapped(), before)
        e.finish()
        self.assertEqual(self.mapped(), before - 1)

    def test_payload_beyond_its_segment(self) -> None:
        with self.assertLogs("omnibus", "ERROR"), self.assertRaisesRegex(omnibus.ProtocolError, "segment of"):
            self.result(offset=len(self.content) - 10, size=11)

    def test_unknown_segment(self) -> None:
        with self.assertLogs("omnibus", "ERROR"), self.assertRaises(omnibus.ProtocolError):
            self.result(segment=9)

    def test_views_outlive_the_host(self) -> None:
        d = self.result()
        v = d.view()
        self.host.close_socket()
        while not self.client.closed:
            self.client.process()
        self.assertEqual(v.data[5], 5)
        d.finish()
        v.release()
        self.client.close()

    def test_close_with_a_view_says_no_bye(self) -> None:
        d = self.result()
        v = d.view()
        d.finish()
        self.finished(1, True)
        self.host.send(over(3))
        while self.client._session.sources:
            self.client.process()
        self.client.close()
        self.assertIsNone(self.host.receive())
        self.assertEqual(v.data[5], 5)


class ForkTest(RequestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.segment(1, bytes(4096))
        self.host.send(deliver(3, 1, flags=0, codec=1, segment=1, size=4096))
        self.delivery = next(self.request)

    def everything(self) -> None:
        """What a child must not do, and that it does not."""
        c, r, d = self.client, self.request, self.delivery
        calls = [
            lambda: c.submit(1), c.stream, c.process, c.fileno, c.close, c.leave, lambda: c.call("status"),
            lambda: c.deliveries("x"), lambda: r.send(1), r.abort, r.close, r.close_send, lambda: next(r),
            d.finish, d.view, d.tensor, lambda: d.bytes, d.value,
        ]  # fmt: skip
        for call in calls:
            try:
                call()
            except omnibus.ForkedError:
                continue
            raise AssertionError(f"{call} did not raise ForkedError")

    def test_fork(self) -> None:
        view = self.delivery.view()
        held = threading.Event()
        let_go = threading.Event()

        def hold_the_lock() -> None:
            with self.client._session.locked:
                held.set()
                let_go.wait(60)

        t = threading.Thread(target=hold_the_lock)
        t.start()
        held.wait(60)
        pid = os.fork()
        if pid == 0:
            try:
                self.everything()
                del view
                self.client = self.request = self.delivery = None  # type: ignore[assignment]
                gc.collect()
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        let_go.set()
        t.join()
        _, status = os.waitpid(pid, 0)
        self.assertEqual(status, 0)
        self.host.nothing()
        self.assertEqual(view.data[0], 0)  # still mapped here
        view.release()
        self.delivery.finish()
        self.assertEqual(self.host.expect(wire.Finish).flags, 0)

    def test_multiprocessing(self) -> None:
        p = multiprocessing.get_context("fork").Process(target=self.everything)
        p.start()
        p.join()
        self.assertEqual(p.exitcode, 0)
        self.host.nothing()
        self.delivery.finish()
        self.host.expect(wire.Finish)

    def test_descriptors_are_not_inherited_by_programs(self) -> None:
        import subprocess
        import sys

        script = "import os; print(sorted(os.readlink(f'/proc/self/fd/{f}') for f in os.listdir('/proc/self/fd') if f > '2' and os.path.exists(f'/proc/self/fd/{f}')))"
        out = subprocess.run([sys.executable, "-c", script], close_fds=False, capture_output=True, text=True).stdout
        for what in ("socket", "memfd", "eventpoll", "eventfd"):
            self.assertNotIn(what, out)


if __name__ == "__main__":
    unittest.main()
