"""A caller against a fake host: requests, results, and how they end."""

from __future__ import annotations

import os
import resource
import select
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from fakehost import deliver, over
from hostcase import HostCase, RequestCase

import omnibus
from omnibus import wire
from omnibus.codec import encode
from omnibus.errors import Code


class SubmitTest(HostCase):
    def submit(self, client: omnibus.Client, value: Any, source: int = 3) -> omnibus.Request:
        r = self.beside(lambda: client.submit(value))
        self.host.submitted(source)
        m = self.host.emitted()
        self.assertEqual((m.source, m.delivery, m.edge, m.flags), (source, 0, wire.ALL_EDGES, wire.INLINE | wire.LAST))
        return r()

    def test_a_request_and_its_results(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("hello", key="k", attrs={"a": "b"}, timeout=5))
        self.assertIn(self.host.submitted(3).time_left, range(1, 5_000_000_001))
        m = self.host.emitted()
        self.assertEqual((m.codec, m.key, m.attrs, bytes(m.payload)), (2, "k", {"a": "b"}, encode("hello")))
        request = r()
        self.assertEqual(request.request, 1 << 32 | 1)
        self.host.send(deliver(3, 1, encode("A"), key="x"), deliver(3, 2, encode("B"), seq=1), over(3))
        got = []
        for d in request:
            got.append((d.key, d.seq, d.value(), d.edge.name))
        self.assertEqual(got, [("x", 0, "A", "upper->caller"), ("", 1, "B", "upper->caller")])
        self.assertEqual(self.host.expect(wire.Finish).delivery, 1)
        self.assertEqual(self.host.expect(wire.Finish).delivery, 2)
        request.close()
        self.host.nothing()

    def test_everything_in_one_packet(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        m = self.host.expect(wire.Submit)
        self.host.begin(m, 3, deliver(3, 1, encode(1)), over(3))
        with r() as request:
            self.assertEqual(request.values(), [1])

    def test_how_requests_end(self) -> None:
        client = self.connect()
        for source, (outcome, kind) in enumerate(
            [
                (wire.OUTCOME_FAILED, omnibus.RequestFailed),
                (wire.OUTCOME_ABORTED, omnibus.RequestAborted),
                (wire.OUTCOME_DEADLINE, omnibus.DeadlineExceeded),
            ],
            start=3,
        ):
            r = self.submit(client, "x", source)
            self.host.send(over(source, outcome, stage="talk", edge="think->talk", key="k", seq=4, text="no"))
            with self.assertRaises(kind) as caught:
                list(r)
            e = caught.exception
            self.assertEqual((e.stage, e.edge, e.key, e.seq, e.text), ("talk", "think->talk", "k", 4, "no"))
        self.assertIsInstance(e, TimeoutError)

    def test_end_is_raised_once(self) -> None:
        client = self.connect()
        for source, (outcome, text, want) in enumerate(
            [
                (wire.OUTCOME_ABORTED, "bus: request aborted: enough", "the request was aborted: enough"),
                (wire.OUTCOME_ABORTED, "bus: request aborted", "the request was aborted"),
                (wire.OUTCOME_DEADLINE, "bus: deadline exceeded: 2s after", "the request is past its deadline: 2s after"),
                (wire.OUTCOME_FAILED, "bus: request aborted", "the request failed: bus: request aborted"),
            ],
            start=3,
        ):
            r = self.submit(client, "x", source)
            self.host.send(over(source, outcome, text=text))
            with self.assertRaises(omnibus.RequestEnded) as caught:
                list(r)
            self.assertEqual((str(caught.exception), caught.exception.text), (want, text))

    def test_a_host_that_is_stopped_at_the_deadline(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.stream(deadline=1))
        self.host.submitted(3)
        request = r()
        with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not say how it ended"):
                next(request)
            self.host.send(deliver(3, 1, encode(1)), over(3, wire.OUTCOME_DEADLINE, text="at a stage"))
            self.assertEqual(next(request).value(), 1)
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "at a stage"):
                next(request)

    def test_a_host_that_is_stopped_before_it_has_the_request(self) -> None:
        client = self.connect()
        with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
            for late in (lambda: client.stream(timeout=0), lambda: client.submit("x", deadline=1, fail_fast=True)):
                with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                    late()
            with client.submit("x", deadline=1) as r:
                with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not say how it ended"):
                    next(r)
        for source in (3, 4, 5):  # the host goes on, but the client has closed them
            self.host.submitted(source)
            if source == 5:
                self.host.emitted()
            self.host.given_up(source)
        self.host.send(over(3, wire.OUTCOME_ABORTED), over(4, wire.OUTCOME_ABORTED), over(5, wire.OUTCOME_ABORTED))
        self.submit(client, "x", 6)

    def test_a_host_that_is_stopped_before_an_input(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.stream(deadline=1))
        self.host.submitted(3)
        request = r()
        with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0.01):
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                while True:  # as far as there is credit
                    request.send(bytes(100), to="upper")

    def test_no_permit_by_the_deadline(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.stream(deadline=1))
        self.host.refuse(self.host.expect(wire.Submit), Code.OVER, "no place")
        with self.assertRaisesRegex(omnibus.DeadlineExceeded, "past its deadline: no place"):
            r()
        request = client.submit("a", deadline=1)
        self.host.refuse(self.host.expect(wire.Submit), Code.OVER, "no place")
        with self.assertRaisesRegex(omnibus.DeadlineExceeded, "past its deadline: no place"):
            next(request)
        self.host.emitted()
        request.close()
        self.host.nothing()

    def test_stream_of_inputs(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        for i in range(3):
            done = self.beside(lambda: request.send(i, to="upper"))
            m = self.host.emitted()
            self.assertEqual((m.edge, m.flags), (0, wire.INLINE))
            done()
        with self.assertRaises(LookupError):
            request.send(1, to="nowhere")
        request.close_send()
        self.assertEqual(self.host.expect(wire.CloseSend).source, 3)
        with self.assertRaises(omnibus.Finished):
            request.send(4)
        request.abort("enough")
        self.assertEqual(self.host.expect(wire.AbortRequest).text, "enough")
        self.host.send(over(3, wire.OUTCOME_ABORTED))
        with self.assertRaises(omnibus.RequestAborted):
            next(request)

    def test_a_last_input_that_was_not_sent_ends_nothing(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        with self.assertRaises(omnibus.PayloadError):
            request.send(object(), last=True)
        client.inputs[:] = [wire.Edge("caller->upper", "upper", 1, 0, 1)]
        request.send(1)
        self.host.expect(wire.Put)
        with self.assertRaises(omnibus.WindowFull):
            request.send(1, last=True)
        request.close_send()
        self.assertEqual(self.host.expect(wire.CloseSend).source, 3)
        request.close_send()
        with self.assertRaises(omnibus.Finished):
            request.send(2)
        self.host.nothing()

    def test_close_finishes_all_results(self) -> None:
        client = self.connect()
        r = self.submit(client, "x")
        self.host.send(deliver(3, 1, encode(1)), deliver(3, 2, encode(2)))
        with r:
            next(r)
        self.assertEqual(sorted(self.host.expect(wire.Finish).delivery for _ in range(2)), [1, 2])
        self.assertEqual(self.host.expect(wire.Close).source, 3)
        self.host.send(deliver(3, 3, encode(3)), over(3, wire.OUTCOME_ABORTED))
        client.process()
        while self.host.sock and not client._session.sources == {}:
            client.process()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 3)

    def test_close_ends_the_loop_of_another_thread(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        waits = self.beside(lambda: next(request))
        while not client._session.reader.reading_thread:
            pass
        request.close()
        with self.assertRaisesRegex(omnibus.Finished, "the request was closed"):
            waits()
        self.assertEqual(self.host.expect(wire.Close).source, 3)  # which the host has not answered yet

    def test_kept_results_outlive_the_loop(self) -> None:
        client = self.connect()
        r = self.submit(client, "x")
        self.host.send(deliver(3, 1, encode(1)), over(3))
        (d,) = [d.keep() for d in r]
        r.close()
        self.host.nothing()
        self.assertEqual(d.value(), 1)
        d.finish()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 1)
        for use in (d.value, d.view, d.tensor, d.finish, lambda: d.bytes):
            with self.assertRaises(omnibus.Finished):
                use()

    def test_refusals(self) -> None:
        client = self.connect()
        for code, kind in [(11, omnibus.Overloaded), (10, omnibus.Closing), (14, omnibus.HostError)]:
            r = self.beside(lambda: client.submit("x", fail_fast=True))
            m = self.host.expect(wire.Submit)
            self.assertEqual(m.flags, wire.FAIL_FAST | wire.TELL)
            self.host.refuse(m, code, "because")
            with self.assertRaises(kind) as caught:
                r()
            self.assertEqual((str(caught.exception), caught.exception.code), ("because", code))
            self.host.nothing()  # as its input is sent once it has begun
            with client.submit("x") as request:
                m = self.host.expect(wire.Submit)
                self.assertEqual(m.flags, 0)
                self.host.emitted()
                self.host.refuse(m, code, "because")
                with self.assertRaises(kind) as caught:
                    next(request)
            self.assertEqual((str(caught.exception), caught.exception.code), ("because", code))
        self.host.nothing()

    def test_a_request_and_its_input_leave_in_one_packet(self) -> None:
        client = self.connect()
        for value, messages in (("x", 2), (bytes(100_000), 1)):  # memory that is offered goes alone
            r = client.submit(value, codec=omnibus.RAW if messages == 1 else None)
            m = self.host.expect(wire.Submit)
            self.assertEqual(len(self.host.waiting) + 1, messages)
            self.host.begin(m, 3)
            self.host.filled()
            r.close()
            self.assertEqual(self.host.expect(wire.Close).source, 3)

    def test_numbers_rise(self) -> None:
        client = self.connect()
        numbers = []
        for _ in range(3):
            client.submit("x")
            numbers.append(self.host.expect(wire.Submit).source)
            self.host.expect(wire.Put)
        self.assertEqual(numbers, [wire.OWN_SOURCE | n for n in (1, 2, 3)])

    def test_unanswered_requests_are_bounded(self) -> None:
        """They stay within MAX_QUESTIONS. From half of it on each submit has the flag TELL."""
        client = self.connect()
        with mock.patch.object(wire, "MAX_QUESTIONS", 4):
            for flags in (0, 0, wire.TELL, wire.TELL):
                client.submit("x")
                m = self.host.expect(wire.Submit)
                self.assertEqual(m.flags, flags)
                self.host.emitted()
            waits = self.beside(lambda: client.submit("y"))
            while not client._session.polled:
                self.assertLessEqual(len(client._session.pending_submits), 4)
            self.host.nothing()
            self.host.begin(m, 3)
            self.host.submitted(4)
            waits()

    def test_submitted_for_an_unknown_request(self) -> None:
        client = self.connect()
        with self.assertLogs("omnibus", "ERROR"), self.assertRaisesRegex(omnibus.ProtocolError, "no request that is open"):
            self.host.send(wire.Submitted(wire.OWN_SOURCE | 7, 9))
            client.call("status")

    def test_first_input_crosses_the_end_of_the_request(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("x"))
        self.host.submitted(3)
        m = self.host.expect(wire.Put)
        self.host.send(over(3, wire.OUTCOME_FAILED, text="early"), wire.Returned([m.put]))
        with self.assertRaisesRegex(omnibus.RequestFailed, "early"):
            list(r())

    def test_first_input_comes_when_the_request_is_known_to_be_over(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("x", fail_fast=True))
        m = self.host.expect(wire.Submit)
        self.host.begin(m, 3, over(3, wire.OUTCOME_FAILED, text="early"))
        with self.assertRaisesRegex(omnibus.RequestFailed, "early"):
            list(r())
        self.host.nothing()

    def test_send_for_a_request_that_is_over(self) -> None:
        client = self.connect()
        for source, (outcome, why) in enumerate({wire.OUTCOME_COMPLETED: "is complete", wire.OUTCOME_FAILED: "failed: early"}.items(), 3):
            r = self.beside(client.stream)
            m = self.host.expect(wire.Submit)
            self.host.begin(m, source, over(source, outcome, text="early"))
            request = r()
            with self.assertRaisesRegex(omnibus.RequestOver, why):
                request.send("x")
            request.close_send()
            request.close()
            with self.assertRaises(omnibus.Finished):
                request.send("x")
        self.host.nothing()

    def test_a_result_is_finished_though_another_thread_reads(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        self.host.send(deliver(3, 1, encode("A")))
        self.assertEqual(next(request).value(), "A")
        reads = self.beside(lambda: client.call("status"))
        call = self.host.expect(wire.Call)
        while not client._session.reader.reading_thread:
            pass
        following = self.beside(lambda: next(request).value())
        self.assertEqual(self.host.expect(wire.Finish).delivery, 1)  # and what it waits for may come of that alone
        self.host.send(deliver(3, 2, encode("B"), seq=1), wire.Reply(call.token, 0, b"{}"))
        self.assertEqual(following(), "B")
        reads()

    def test_call(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.call("abort", {"request": 4}))
        m = self.host.expect(wire.Call)
        self.assertEqual((m.method, m.arguments), ("abort", b'{"request": 4}'))
        self.host.send(wire.Reply(m.token, 1, b'{"a": '), wire.Reply(m.token, 0, b"[1]}"))
        self.assertEqual(r(), {"a": [1]})

    def test_many_threads(self) -> None:
        client = self.connect()
        results = [self.beside(lambda i=i: client.submit(i).values()) for i in range(8)]
        answered = 0
        while answered < 8:
            m = self.host.receive()
            if isinstance(m, wire.Put):
                self.host.send(wire.Returned([m.put]), deliver(m.source, m.put, bytes(m.payload)), over(m.source))
            elif isinstance(m, wire.Finish):
                answered += 1
        self.assertEqual(sorted(r()[0] for r in results), list(range(8)))

    def test_large_payloads_lie_in_memory_of_the_client(self) -> None:
        client = self.connect()
        payload = os.urandom(100_000)
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        for n in range(2):
            request.send(payload, codec=omnibus.RAW, key="big", last=n == 1)
            m, got = self.host.filled()
            self.assertEqual((m.source, m.edge, m.codec, m.size), (3, wire.ALL_EDGES, 1, 100_000))
            self.assertEqual((m.flags, m.key), (n, "big"))
            self.assertEqual(got, payload)

    def test_foreign_event_loop(self) -> None:
        client = self.connect()
        r = self.submit(client, "x")
        client.process()  # the credit of its input is returned
        p = select.poll()
        p.register(client.fileno(), select.POLLIN)
        self.assertEqual(p.poll(0), [])
        self.host.send(deliver(3, 1, encode("A")), over(3))
        self.assertTrue(p.poll(5000))
        client.process()
        self.assertEqual(p.poll(0), [])
        self.assertEqual(r.values(), ["A"])


class DescriptorsTest(RequestCase):
    """Descriptors beyond the limit of this process."""

    @contextmanager
    def room_for(self, descriptors: int) -> Iterator[None]:
        """No more descriptors than that can be opened."""
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + descriptors, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_received_descriptors_beyond_the_limit(self) -> None:
        """The connection ends, and its error names the limit of this process."""
        with self.assertLogs("omnibus", "ERROR") as logged:
            fd = os.memfd_create("segment", os.MFD_CLOEXEC)
            with self.room_for(0):
                self.host.send(wire.Segment(1, 4096), fds=(fd,))
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                said = rf"received descriptors.*process {os.getpid()} may have {most} .*ulimit -n, or LimitNOFILE="
                with self.assertRaisesRegex(omnibus.OutOfMemory, said):
                    next(self.request)
            os.close(fd)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ulimit -n", logged.output[0])

    def test_segment_without_a_descriptor(self) -> None:
        """The emission fails, and the next one is made."""
        payload = bytes(100_000)
        for descriptors in (0, 1):  # for the memory, and for its mapping
            with self.room_for(descriptors), self.assertRaisesRegex(omnibus.OutOfMemory, "ulimit -n"):
                self.request.send(payload, codec=omnibus.RAW)
            self.assertEqual(self.request._puts.in_flight, [[0, 0, 0]])
        self.request.send(payload, codec=omnibus.RAW)
        self.assertEqual(self.host.filled()[1], payload)


if __name__ == "__main__":
    unittest.main()
