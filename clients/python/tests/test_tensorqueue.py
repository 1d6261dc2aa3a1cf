"""An end of a tensor queue against a fake owner: its messages, and in how many packets they travel."""

from __future__ import annotations

import os
import queue
import threading
import time
import unittest
import unittest.mock
from typing import Any

from fakehost import deliver, over
from gpumessage import Name, Payload, producer_of
from hostcase import HostCase

import omnibus
from omnibus import bundle, dlpack, tensorqueue, wire
from omnibus.codec import BUNDLE, decode, encode
from omnibus.errors import Code
from omnibus.gpu import Options, emul
from omnibus.puts import _Credit

class QueueCase(HostCase):
    options: dict[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        t = threading.Thread(target=self.host.welcome)
        t.start()
        self.queue = omnibus.TensorQueue(path=self.host.path, **self.options)
        t.join()
        self.addCleanup(self.queue.close)
        self.addCleanup(self.host.close_socket)

    def packet(self, *kinds: type) -> list[Any]:
        """The next packet, whole."""
        self.assertFalse(self.host.waiting)
        first = self.host.receive()
        messages = [first, *map(self.host.named, self.host.waiting)]
        self.host.waiting.clear()
        self.assertEqual([type(m) for m in messages], list(kinds))
        return messages

    def asked(self, source: int, word: str = "get") -> wire.Put:
        """The client sends a word, which is not answered."""
        (m,) = self.packet(wire.Put)
        self.assertEqual((m.source, decode(m.payload, m.codec)), (source, word))
        return m

    def hand(self, source: int, delivery: int, rid: str) -> None:
        item = bytes(bundle.encode({"rid": rid, "shm_name": "", "inputs": None}))
        self.host.send(deliver(source, delivery, item, codec=BUNDLE))

    def say(self, source: int, delivery: int, word: str) -> None:
        self.host.send(deliver(source, delivery, encode(word, 2)))

    def answer(self, m: wire.Submit, source: int) -> None:
        self.host.begin(m, source)

    def ahead(self, m: wire.Submit, source: int) -> None:
        """The next request is there before it is needed, and takes none of the time for it."""
        self.answer(m, source)
        self.queue._client.process()

    def first(self) -> wire.Submit:
        """A first get, of an item under request 3; the question for the next one comes with its end."""
        got = self.beside(self.queue.get)
        self.assertEqual(self.host.submitted(3).flags, wire.TELL)
        self.asked(3)
        self.hand(3, 1, "a")  # before the answer to the emission, for which the client does not wait
        self.assertEqual(got()[0], "a")
        finish, close, submit = self.packet(wire.Finish, wire.CloseSend, wire.Submit)
        self.assertEqual((finish.delivery, close.source, submit.flags), (1, 3, wire.FAIL_FAST | wire.TELL))
        return submit


class GetTest(QueueCase):
    def test_two_packets_an_item(self) -> None:
        submit = self.first()
        for source in range(4, 8):
            self.answer(submit, source)
            self.host.send(over(source - 1))
            got = self.beside(self.queue.get)
            self.asked(source)
            self.hand(source, source, str(source))
            self.assertEqual(got()[0], str(source))
            _, close, submit = self.packet(wire.Finish, wire.CloseSend, wire.Submit)
            self.assertEqual(close.source, source)

    def test_get_waits_for_the_submit_ahead(self) -> None:
        submit = self.first()
        got = self.beside(self.queue.get)
        self.answer(submit, 4)
        self.asked(4)
        self.hand(4, 2, "b")
        self.assertEqual(got()[0], "b")

    def test_no_permit_for_the_request(self) -> None:
        """A request that is submitted ahead takes no permit that other requests wait for."""
        submit = self.first()
        self.host.refuse(submit, Code.OVERLOADED, "no place")
        got = self.beside(self.queue.get)
        self.assertEqual(self.host.submitted(4).flags, wire.TELL)
        self.asked(4)
        self.hand(4, 2, "b")
        self.assertEqual(got()[0], "b")

    def test_it_is_over_before_it_is_used(self) -> None:
        self.answer(self.first(), 4)
        self.host.send(over(4, wire.OUTCOME_ABORTED, text="by a user"))
        got = self.beside(self.queue.get)
        self.host.submitted(5)
        self.asked(5)
        self.hand(5, 2, "b")
        self.assertEqual(got()[0], "b")

    def test_one_at_a_time(self) -> None:
        """However many threads get."""
        gets = []
        for source in (3, 4):
            gets.append(self.beside(self.queue.get))
            self.host.submitted(source)
            self.asked(source)
        self.hand(3, 1, "a")
        self.packet(wire.Finish, wire.CloseSend, wire.Submit)
        self.hand(4, 2, "b")
        self.packet(wire.Finish, wire.CloseSend)
        self.assertEqual([got()[0] for got in gets], ["a", "b"])

    def test_unknown_answer_is_refused(self) -> None:
        got = self.beside(self.queue.get)
        with unittest.mock.patch.object(_Credit, "acquire", side_effect=omnibus.WindowFull(Code.WINDOW_FULL, "no window")):
            self.host.submitted(3)
            with self.assertRaisesRegex(omnibus.WindowFull, "no window"):
                got()
        self.packet(wire.Close)

    def test_invalid_item_is_done(self) -> None:
        """It would come again, and again."""
        got = self.beside(self.queue.get)
        self.host.submitted(3)
        self.asked(3)
        self.host.send(deliver(3, 1, bytes(bundle.encode({"rid": "a"})), codec=BUNDLE))
        with self.assertRaisesRegex(omnibus.PayloadError, "without rid"):
            got()
        finish, close, _ = self.packet(wire.Finish, wire.CloseSend, wire.Submit)
        self.assertEqual((finish.delivery, close.source), (1, 3))

    def test_unreadable_item_is_put_back(self) -> None:
        """Another process may have the GPU that it lies on."""
        got = self.beside(self.queue.get)
        self.host.submitted(3)
        self.asked(3)
        elsewhere = unittest.mock.patch.object(tensorqueue, "_item", side_effect=omnibus.ForeignDevice("not here"))
        with elsewhere, self.assertRaises(omnibus.ForeignDevice):
            self.hand(3, 1, "a")
            got()
        self.assertEqual(self.asked(3, "back").flags, wire.INLINE | wire.LAST)
        (finish,) = self.packet(wire.Finish)
        self.assertEqual(finish.delivery, 1)

    def test_request_end_gives_the_reason(self) -> None:
        """And not that there was one."""
        got = self.beside(self.queue.get)
        self.host.submitted(3)
        self.asked(3)
        self.host.send(over(3, wire.OUTCOME_ABORTED, text="a user did it"))
        with self.assertRaisesRegex(omnibus.RequestAborted, "a user did it"):
            got()

    def test_timeout(self) -> None:
        self.ahead(self.first(), 4)
        got = self.beside(lambda: self.queue.get(0.01))
        m = self.asked(4)
        self.host.send(wire.Returned([m.put]))
        self.assertEqual(self.asked(4, "back").flags, wire.INLINE | wire.LAST)
        with self.assertRaises(queue.Empty):
            got()

    def test_it_ends_as_the_time_is_up(self) -> None:
        """No item came in time; the outcome of the request does not matter then."""
        self.ahead(self.first(), 4)
        got = self.beside(lambda: self.queue.get(0.01))
        self.asked(4)
        self.asked(4, "back")
        self.host.send(over(4, wire.OUTCOME_ABORTED, text="a user did it"))
        with self.assertRaises(queue.Empty):
            got()

    def test_no_permit_within_the_timeout(self) -> None:
        got = self.beside(lambda: self.queue.get(0.01))
        m = self.host.expect(wire.Submit)
        with self.assertRaises(queue.Empty):
            got()
        self.assertEqual(self.host.expect(wire.Close).source, m.source)

    def test_silent_owner(self) -> None:
        """To anything that a get asks."""
        with unittest.mock.patch.multiple(tensorqueue, _MIN_GET_SECONDS=0.01, _WITHDRAW_SECONDS=0.01):
            got = self.beside(lambda: self.queue.get(block=False))
            size = self.host.expect(wire.Call)
            with self.assertRaises(queue.Empty):
                got()
            self.host.send(wire.Reply(size.token, 0, b'{"size": 1}'))
            self.ahead(self.first(), 4)
            got = self.beside(lambda: self.queue.get(0.01))
            self.asked(4)
            self.asked(4, "back")
            with self.assertRaises(queue.Empty):
                got()


class PooledGetTest(QueueCase):
    """Of items with tensors on an emulated GPU, in memory of another process that is to be found."""

    def setUp(self) -> None:
        super().setUp()
        self.producer = producer_of(self, emul.uuid(5))
        payload = Payload(
            self.producer.place(offset=4096), value=lambda x: {"rid": "a", "shm_name": "", "inputs": {"x": x}}
        ).view
        self.size = len(payload)
        self.host.segment(70, payload)

    def be_late(self) -> None:
        """From now on a get's time is up just as its item has come."""
        limit, item = time.monotonic() + 100, tensorqueue._item

        def late(d: omnibus.Delivery, until: float | None) -> tensorqueue.Item:
            self.assertEqual(until, limit)
            return item(d, time.monotonic())

        for patch in (
            unittest.mock.patch.object(tensorqueue, "_limit", return_value=limit),
            unittest.mock.patch.object(tensorqueue, "_item", side_effect=late),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def hand_placed(self, source: int) -> None:
        self.host.send(deliver(source, source, codec=BUNDLE, flags=0, segment=70, size=self.size))

    def looked_for(self, number: int) -> wire.Find:
        m = self.host.expect(wire.Find)
        self.assertEqual((m.pool, m.number), (self.producer.pool, number))
        return m

    def found(self, m: wire.Find) -> None:
        with self.producer.find(Name(m.pool, m.number)) as f:
            self.host.send(wire.Found(m.token, 0, f.owner.pid, f.size), fds=(f.fd, f.owner.fileno()))

    def given_back(self, source: int) -> None:
        """With its payload, of which nothing is held any more."""
        self.assertEqual(self.asked(source, "back").flags, wire.INLINE | wire.LAST)
        (finish,) = self.packet(wire.Finish)
        self.assertEqual((finish.delivery, finish.flags), (source, 0))

    def test_not_found_in_time(self) -> None:
        """An owner that is stopped holds no get up beyond its time. The next one does not ask once more."""
        asked = None
        self.be_late()
        for source in (3, 4, 5):
            got = self.beside(self.queue.get)
            self.host.submitted(source)
            self.asked(source)
            if asked is not None:
                self.found(asked)
            self.hand_placed(source)
            if source < 5:
                asked = self.looked_for(source - 3)
                with self.assertRaises(queue.Empty):
                    got()
                self.given_back(source)
        rid, _, inputs = got()
        assert inputs is not None
        self.assertEqual((rid, dlpack.borrow(inputs["x"]).view()[:3]), ("a", b"\0\1\2"))

    def test_another_thread_looks_for_it(self) -> None:
        """A get without a timeout does not delay one with a timeout."""
        waits = self.beside(self.queue.get)
        self.host.submitted(3)
        self.asked(3)
        self.hand_placed(3)
        words = self.looked_for(0)
        self.be_late()
        got = self.beside(self.queue.get)
        self.host.submitted(4)
        self.asked(4)
        self.hand_placed(4)
        with self.assertRaises(queue.Empty):
            got()
        self.given_back(4)
        self.found(words)
        self.found(self.looked_for(1))
        self.assertEqual(waits()[0], "a")


class PutTest(QueueCase):
    def put(self, source: int, timeout: float | None = None) -> Any:
        """Put an item that the owner does not answer; the result."""
        put = self.beside(lambda: self.queue.put("a", "", None, timeout=timeout))
        if source == 3:
            self.host.submitted(3)
        (m,) = self.packet(wire.Put)
        self.assertEqual((m.source, m.flags, m.codec), (source, wire.INLINE, BUNDLE))
        return put

    def done(self, source: int, put: Any) -> wire.Submit:
        """It is in the queue; the question for the next request comes with that."""
        self.say(source, source, "queued")
        put()
        finish, close, submit = self.packet(wire.Finish, wire.CloseSend, wire.Submit)
        self.assertEqual((finish.delivery, close.source), (source, source))
        return submit

    def test_items_that_go_cannot_read_are_refused(self) -> None:
        """It is refused before anything is sent, and the queue stays usable."""
        bad: list[tuple[tuple[Any, ...], str]] = [
            ((7, "", None), "rid must be text, not 7"),
            (("a", None, None), "shm_name must be text, not None"),
            (("a", "", [1]), "mm_inputs must be a dict or None, not of type list"),
            (("a", "", {1: 2}), "the keys of mm_inputs must be text, not 1"),
        ]
        for item, why in bad:
            with self.subTest(why), self.assertRaisesRegex(TypeError, f"^{why}$"):
                self.queue.put(*item, timeout=0.01)
        self.done(3, self.put(3))

    def test_two_packets_an_item(self) -> None:
        for source in range(3, 6):
            self.answer(self.done(source, self.put(source)), source + 1)
        put = self.put(6)
        self.say(6, 6, "closed")
        with self.assertRaises(omnibus.Closing):
            put()

    def test_timeout(self) -> None:
        self.ahead(self.done(3, self.put(3)), 4)
        put = self.put(4, 0.01)
        self.assertEqual(self.asked(4, "back").flags, wire.INLINE | wire.LAST)
        self.say(4, 1, "full")
        with self.assertRaises(queue.Full):
            put()

    def test_no_space_within_the_timeout(self) -> None:
        """Neither for the first request, nor for one that was submitted ahead."""
        put = self.beside(lambda: self.queue.put("a", "", None, timeout=0.01))
        m = self.host.expect(wire.Submit)
        with self.assertRaises(queue.Full):
            put()
        self.assertEqual(self.host.expect(wire.Close).source, m.source)
        self.ahead(m, 3)  # it crossed
        put = self.beside(lambda: self.queue.put("a", "", None))
        self.host.submitted(4)
        self.packet(wire.Put)
        submit = self.done(4, put)
        with self.assertRaises(queue.Full):
            self.queue.put("a", "", None, timeout=0.01)
        self.assertEqual(self.host.expect(wire.Close).source, submit.source)

    def test_no_credit_within_the_timeout(self) -> None:
        self.ahead(self.done(3, self.put(3)), 4)
        self.queue._client.inputs[:] = [wire.Edge("caller->queue", "queue", 1, 0)]
        with self.queue._client._session.locked:
            r = self.queue._next_request.value  # type: ignore[union-attr]
            r._puts.in_flight[0][0] = 1
        with self.assertRaises(queue.Full):
            self.queue.put("b", "", None, timeout=0.01)
        self.packet(wire.Close)

    def test_it_was_put_just_in_time(self) -> None:
        """A getter may have taken it by now."""
        self.ahead(self.done(3, self.put(3)), 4)
        self.host.send(over(3))
        with unittest.mock.patch.object(tensorqueue, "_WITHDRAW_SECONDS", 60):
            put = self.put(4, 0.01)
            self.asked(4, "back")
            self.say(4, 1, "queued")
            put()
        self.packet(wire.Finish, wire.Submit)
        self.assertFalse(self.queue.drain(0))
        self.host.send(over(4))
        self.assertTrue(self.queue.drain(60))

    def test_an_owner_that_is_gone_before_all_was_got(self) -> None:
        self.ahead(self.done(3, self.put(3)), 4)
        self.host.close_socket()
        for _ in range(2):
            with self.assertRaises(omnibus.HostGone):
                self.queue.drain()

    def test_silent_owner(self) -> None:
        self.ahead(self.done(3, self.put(3)), 4)
        with unittest.mock.patch.object(tensorqueue, "_WITHDRAW_SECONDS", 0.01):
            put = self.put(4, 0.01)
            self.asked(4, "back")
            with self.assertRaises(queue.Full):
                put()
        self.packet(wire.Close)


class PooledPutTest(QueueCase):
    """With tensors on an emulated GPU, whose memory the owner is to find."""

    options = {
        "transport_mode": "cuda_ipc_pool",
        "gpu": Options(device=emul.uuid(5), arena_bytes=1 << 16, max_bytes=1 << 16),
    }

    def published(self, number: int) -> wire.Publish:
        m = self.host.expect(wire.Publish)
        os.close(self.host.fds.popleft())
        self.assertEqual(m.number, number)
        return m

    def test_no_name_in_time(self) -> None:
        """An owner that is stopped holds no put up beyond its time, and the next one does not ask once more."""
        self.ahead(self.first(), 4)
        with self.assertRaises(queue.Full):
            self.queue.put("a", "", {"x": self.queue.gpu.empty(4096, "uint8")}, timeout=0)
        words = self.published(0)
        self.host.expect(wire.Close)
        put = self.beside(lambda: self.queue.put("b", "", {"x": self.queue.gpu.empty(4096, "uint8")}))
        self.host.submitted(5)
        self.host.send(wire.Published(words.token))
        self.host.send(wire.Published(self.published(1).token))
        self.host.offered()
        m = self.host.expect(wire.Put)
        self.assertEqual((m.source, m.codec), (5, BUNDLE))
        self.say(5, 5, "queued")
        put()
        s = self.queue.gpu.stats
        self.assertEqual((s.cuda_ipc_pool.messages, s.fallbacks), (1, 0))


if __name__ == "__main__":
    unittest.main()
