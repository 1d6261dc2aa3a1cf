"""A caller against a fake host: requests, results, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import select
import threading
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from fakehost import EDGE_IN, EDGE_OUT, FakeHost, deliver, new_arena, over

import omnibus
from omnibus import wire
from omnibus.codec import encode
from omnibus.errors import Code
from omnibus.handshake import socket_path


class HostCase(unittest.TestCase):
    """A host, and a client that talks to it from another thread."""

    def setUp(self) -> None:
        self.host = FakeHost()
        self.addCleanup(self.host.close)
        self.patient_for(60.0)  # this host may be slow, and is to be waited for

    def patient_for(self, seconds: float) -> None:
        """For how long the host is waited for after a deadline."""
        patch = mock.patch.object(omnibus.request, "_SLACK", seconds)
        patch.start()
        self.addCleanup(patch.stop)

    def connect(self) -> omnibus.Client:
        t = threading.Thread(target=self.host.welcome)
        t.start()
        client = omnibus.connect(self.host.path)
        t.join()
        self.addCleanup(client.close)
        return client

    def beside(self, f: Callable[[], Any]) -> Callable[[], Any]:
        """Run f in a thread; the result, or the error, comes when it is asked for."""
        out: dict[str, Any] = {}

        def body() -> None:
            try:
                out["value"] = f()
            except BaseException as e:
                out["error"] = e

        t = threading.Thread(target=body, daemon=True)
        t.start()

        def result() -> Any:
            t.join(10)
            self.assertFalse(t.is_alive(), "it hangs")
            if "error" in out:
                raise out["error"]
            return out["value"]

        return result


class RequestCase(HostCase):
    """A client with a request under way, whose number is 3."""

    def setUp(self) -> None:
        super().setUp()
        self.client = self.connect()
        r = self.beside(self.client.stream)
        self.host.submitted(3)
        self.request = r()


class SocketPathTest(unittest.TestCase):
    """Where a host is looked for: as TestSocketPath of the Go package bus has it."""

    def test_where_a_host_listens(self) -> None:
        own = f"omnibus-{os.getuid()}/speech.sock"
        for environment, want in (
            ({"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/scratch"}, "/run/user/7/omnibus/speech.sock"),
            ({"TMPDIR": "/scratch"}, f"/scratch/{own}"),
            ({"TMPDIR": "/there/is/none"}, f"/there/is/none/{own}"),
            ({"XDG_RUNTIME_DIR": "", "TMPDIR": ""}, f"/tmp/{own}"),
            ({}, f"/tmp/{own}"),
            ({"OMNIBUS_SOCKET": "/a.sock"}, f"/tmp/{own}"),
        ):
            with self.subTest(environment), mock.patch.dict(os.environ, environment, clear=True):
                self.assertEqual(socket_path(bus="speech"), want)
        with mock.patch.dict(os.environ, {"OMNIBUS_BUS": "speech"}, clear=True):
            self.assertEqual(socket_path(), f"/tmp/{own}")
        with mock.patch.dict(os.environ, {"OMNIBUS_BUS": "speech", "OMNIBUS_SOCKET": "/a.sock"}, clear=True):
            self.assertEqual(socket_path(), "/a.sock")
            self.assertEqual(socket_path("/b.sock"), "/b.sock")
        with mock.patch.dict(os.environ, {}, clear=True), self.assertRaisesRegex(ValueError, "give path or bus"):
            socket_path()

    def test_a_name_that_is_a_path_is_refused(self) -> None:
        for name in ("../x", "/x", "x/"):
            for environment, bus in (({}, name), ({"OMNIBUS_BUS": name}, None), ({"OMNIBUS_SOCKET": "/a.sock"}, name)):
                want = f"^'{name}' is no name of a bus, but a path: give the path of its socket$"
                with (
                    self.subTest(environment, bus=bus),
                    mock.patch.dict(os.environ, environment, clear=True),
                    self.assertRaisesRegex(ValueError, want),
                ):
                    socket_path(bus=bus)

    def test_where_no_host_listens_it_says_what_to_do(self) -> None:
        with self.assertRaisesRegex(omnibus.HostGone, r"no host listens at /nowhere/a.sock: .*omnibus run FILE"):
            omnibus.connect("/nowhere/a.sock")
        # This one no host can ever listen at.
        with self.assertRaisesRegex(ValueError, r"200 bytes, and the system allows 107: use a shorter one"):
            omnibus.connect("/" + 199 * "a")


class WaitTest(HostCase):
    def test_whoever_stops_reading_has_another_read(self) -> None:
        client = self.connect()
        for first in (0, 1, 2):
            answers = []
            for n in range(3):
                answers.append(self.beside(lambda: client.call("status")))
                while len(client._session.reading.sleepers) < n:
                    pass
            tokens = [self.host.expect(wire.Call).token for _ in answers]
            for i in (first, (first + 1) % 3, (first + 2) % 3):
                self.host.send(wire.Reply(tokens[i], 0, str(i).encode()))
                self.assertEqual(answers[i](), i)

    def test_longest_waits(self) -> None:
        client = self.connect()
        for seconds in (1e9, 1e300, math.inf):
            with self.subTest(seconds):
                asked = self.beside(lambda: client.call("status"))
                token = self.host.expect(wire.Call).token
                while not client._session.reading.taken:
                    pass
                answers: list[int] = []
                waits = self.beside(lambda: client._session.wait(lambda: bool(answers), seconds))  # noqa: B023
                self.host.send(wire.Reply(token, 0, b"1"))
                answers.append(asked())
                client._session.poke()
                self.assertTrue(waits())
                submitted = self.beside(lambda: client.stream(timeout=seconds))  # noqa: B023
                m = self.host.expect(wire.Submit)
                self.host.send(wire.Failed(m.token, Code.CLOSING, "another time"))
                with self.assertRaises(omnibus.OmnibusError):
                    submitted()
                self.assertEqual(m.deadline > 0, seconds < 1e10)

    def test_close_while_somebody_waits(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        client = self.connect()
        asked = self.beside(lambda: client.call("status"))
        self.host.expect(wire.Call)
        while not client._session.reading.taken:
            pass
        client.close()
        with self.assertRaises(omnibus.HostGone):
            asked()
        self.host.hang_up()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)


class SubmitTest(HostCase):
    def submit(self, client: omnibus.Client, value: Any, source: int = 3) -> omnibus.Request:
        r = self.beside(lambda: client.submit(value))
        self.host.submitted(source)
        m = self.host.emitted()
        self.assertEqual((m.source, m.delivery, m.edge, m.flags), (source, 0, wire.ALL_EDGES, wire.LAST))
        return r()

    def test_a_request_and_its_results(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("hello", key="k", attrs={"a": "b"}, timeout=5))
        self.assertGreater(self.host.submitted(3).deadline, 1 << 60)
        m = self.host.emitted()
        self.assertEqual((m.codec, m.key, m.attrs, bytes(m.payload)), (2, "k", {"a": "b"}, encode("hello")))
        request = r()
        self.assertEqual(request.request, 1003)
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
        self.host.send(wire.Submitted(m.token, 3, 9), deliver(3, 1, encode(1)), over(3))
        with r() as request:
            self.assertEqual(request.values(), [1])

    def test_how_requests_end(self) -> None:
        client = self.connect()
        for source, (outcome, kind) in enumerate(
            [
                (wire.FAILED, omnibus.RequestFailed),
                (wire.ABORTED, omnibus.RequestAborted),
                (wire.PAST_DEADLINE, omnibus.DeadlineExceeded),
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

    def test_a_host_that_is_stopped_at_the_deadline(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.stream(deadline=1))
        self.host.submitted(3)
        request = r()
        with mock.patch.object(omnibus.request, "_SLACK", 0.01):
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not say how it ended"):
                next(request)
            self.host.send(deliver(3, 1, encode(1)), over(3, wire.PAST_DEADLINE, text="at a stage"))
            self.assertEqual(next(request).value(), 1)
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "at a stage"):
                next(request)

    def test_a_host_that_is_stopped_before_it_has_the_request(self) -> None:
        client = self.connect()
        with mock.patch.object(omnibus.request, "_SLACK", 0.01):
            for late in (lambda: client.stream(timeout=0), lambda: client.submit("x", deadline=1)):
                with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                    late()
        for source in (3, 4):  # it goes on, and nobody wants them any more
            m = self.host.submitted(source)
            self.assertEqual(self.host.expect(wire.Cancel).token, m.token)
        client.process()
        self.assertEqual([self.host.expect(wire.Close).source for _ in "12"], [3, 4])
        self.host.send(over(3, wire.ABORTED), over(4, wire.ABORTED))
        self.submit(client, "x", 5)

    def test_a_host_that_is_stopped_before_an_input(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.stream(deadline=1))
        self.host.submitted(3)
        request = r()
        with mock.patch.object(omnibus.request, "_SLACK", 0.01):
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                while True:  # as far as there is credit
                    request.send(bytes(100), to="upper")

    def test_no_place_by_the_deadline(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("a", deadline=1))
        m = self.host.expect(wire.Submit)
        self.host.send(wire.Failed(m.token, Code.OVER, "no place"))
        with self.assertRaisesRegex(omnibus.DeadlineExceeded, "past its deadline: no place"):
            r()
        self.host.nothing()

    def test_stream_of_inputs(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        for i in range(3):
            done = self.beside(lambda: request.send(i, to="upper"))
            m = self.host.emitted()
            self.assertEqual((m.edge, m.flags), (0, 0))
            done()
        with self.assertRaises(LookupError):
            request.send(1, to="nowhere")
        request.close_send()
        self.assertEqual(self.host.expect(wire.CloseSend).source, 3)
        with self.assertRaises(omnibus.Finished):
            request.send(4)
        request.abort("enough")
        self.assertEqual(self.host.expect(wire.AbortRequest).text, "enough")
        self.host.send(over(3, wire.ABORTED))
        with self.assertRaises(omnibus.RequestAborted):
            next(request)

    def test_close_gives_everything_back(self) -> None:
        client = self.connect()
        r = self.submit(client, "x")
        self.host.send(deliver(3, 1, encode(1)), deliver(3, 2, encode(2)))
        with r:
            next(r)
        self.assertEqual(sorted(self.host.expect(wire.Finish).delivery for _ in range(2)), [1, 2])
        self.assertEqual(self.host.expect(wire.Close).source, 3)
        self.host.send(deliver(3, 3, encode(3)), over(3, wire.ABORTED))
        client.process()
        while self.host.sock and not client._session.sources == {}:
            client.process()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 3)

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
            self.assertEqual(m.flags, 1)
            self.host.send(wire.Failed(m.token, code, "because"))
            with self.assertRaises(kind) as caught:
                r()
            self.assertEqual((str(caught.exception), caught.exception.code), ("because", code))

    def test_first_input_finds_the_request_over(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("x"))
        self.host.submitted(3)
        m = self.host.expect(wire.Emit)
        self.host.send(over(3, wire.FAILED, text="early"), wire.Failed(m.token, 9, "over"))
        with self.assertRaisesRegex(omnibus.RequestFailed, "early"):
            list(r())

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
        sources: dict[int, Any] = {}
        while answered < 8:
            m = self.host.receive()
            if isinstance(m, wire.Submit):
                sources[len(sources)] = None
                self.host.send(wire.Submitted(m.token, len(sources), 1))
            elif isinstance(m, wire.Emit):
                self.host.send(wire.Emitted(m.token), deliver(m.source, m.source, bytes(m.payload)), over(m.source))
            elif isinstance(m, wire.Finish):
                answered += 1
        self.assertEqual(sorted(r()[0] for r in results), list(range(8)))

    def test_large_payloads_go_through_the_arena(self) -> None:
        client = self.connect()
        payload = os.urandom(100_000)
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        for n in range(2):
            done = self.beside(lambda: request.send(payload, codec=omnibus.RAW, key="big", last=n == 1))
            if n == 0:
                self.host.give_arena()
            m = self.host.granted()
            self.assertEqual((m.source, m.edge, m.codec, m.size), (3, wire.ALL_EDGES, 1, 100_000))
            send, got = self.host.sent()
            done()
            self.assertEqual((send.grant, send.flags, send.key), (33, n, "big"))
            self.assertEqual(got, payload)

    def test_descriptors_that_find_no_room(self) -> None:
        """The connection ends, and says that it is the limit of this process that ended it."""
        client = self.connect()
        payload = os.urandom(100_000)
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        done = self.beside(lambda: request.send(payload, codec=omnibus.RAW))
        m = self.host.expect(wire.Arena)
        self.host.arena_fd = new_arena(1 << 20)
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            with self.assertLogs("omnibus", "ERROR") as logged:
                self.host.send(wire.ArenaAt(m.token, 90, 1 << 20), fds=(self.host.arena_fd,))
                with self.assertRaisesRegex(omnibus.OutOfMemory, "descriptors that came.*ulimit -n"):
                    done()
            self.assertIn("ulimit -n", logged.output[0])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def test_arena_that_finds_no_descriptor(self) -> None:
        """It is there when it is wanted next: the host gives no second one."""
        client = self.connect()
        payload = os.urandom(100_000)
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        done = self.beside(lambda: request.send(payload, codec=omnibus.RAW))
        m = self.host.expect(wire.Arena)
        self.host.arena_fd = new_arena(1 << 20)
        free = os.dup(0)
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # one is for what is received
        try:
            self.host.send(wire.ArenaAt(m.token, 90, 1 << 20), fds=(self.host.arena_fd,))
            with self.assertRaisesRegex(omnibus.OutOfMemory, "cannot map.*ulimit -n"):
                done()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        done = self.beside(lambda: request.send(payload, codec=omnibus.RAW))
        self.assertEqual(self.host.expect(wire.Sealed).segment, 90)
        self.host.granted()
        self.host.expect(wire.Send)
        done()

    def test_foreign_event_loop(self) -> None:
        client = self.connect()
        r = self.submit(client, "x")
        p = select.poll()
        p.register(client.fileno(), select.POLLIN)
        self.assertEqual(p.poll(0), [])
        self.host.send(deliver(3, 1, encode("A")), over(3))
        self.assertTrue(p.poll(5000))
        client.process()
        self.assertEqual(p.poll(0), [])
        self.assertEqual(r.values(), ["A"])


class EndTest(HostCase):
    def test_host_goes_away(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("x"))
        self.host.expect(wire.Submit)
        self.host.hang_up()
        with self.assertRaises(omnibus.HostGone):
            r()
        with self.assertRaises(ConnectionError):
            client.submit("y")
        self.assertTrue(client.closed)
        client.close()

    def test_results_before_the_host_went_are_read(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        self.host.send(deliver(3, 1, encode("A")))
        self.host.hang_up()
        self.assertEqual(next(request).value(), "A")
        with self.assertRaises(omnibus.HostGone):
            next(request)

    def test_nobody_listens(self) -> None:
        with self.assertRaisesRegex(omnibus.HostGone, "nowhere.sock"):
            omnibus.connect("/tmp/nowhere.sock")

    def test_refuse(self) -> None:
        def host() -> None:
            self.host.listener.settimeout(10)
            self.host.sock, _ = self.host.listener.accept()
            self.host.expect(wire.Hello)
            self.host.send(wire.Refuse(4, "not you"))

        t = threading.Thread(target=host)
        t.start()
        with self.assertRaisesRegex(omnibus.Refused, "not you") as caught:
            omnibus.connect(self.host.path)
        t.join()
        self.assertEqual(caught.exception.code, omnibus.Code.DENIED)

    def test_close_says_bye(self) -> None:
        client = self.connect()
        client.close()
        self.host.expect(wire.Bye)
        self.assertIsNone(self.host.receive())
        with self.assertRaises(omnibus.HostGone):
            client.stream()

    def test_close_with_payloads_held_says_nothing(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        r()
        self.host.send(deliver(3, 1, encode("A")))
        while not r()._results:
            client.process()
        client.close()
        self.assertIsNone(self.host.receive())

    def test_protocol_errors_end_the_session(self) -> None:
        bad = [
            b"\x08\0\0\0\x63\0\0\0",  # no such kind
            bytes(wire.encode(wire.Emitted(77))),  # answers nothing
            bytes(wire.encode(wire.Leave())),  # not for a client
            bytes(wire.encode(deliver(99, 1, b"x"))),  # no such source
            bytes(wire.encode(wire.End(4))),
        ]
        for packet in bad:
            self.host.hang_up()
            client = self.connect()
            r = self.beside(client.stream)
            self.host.expect(wire.Submit)
            with self.assertLogs("omnibus", "ERROR"):
                self.host.send_raw(packet)
                with self.assertRaises(omnibus.ProtocolError):
                    r()
            self.host.waiting.clear()

    def test_descriptors_nobody_expects_are_closed(self) -> None:
        client = self.connect()
        before = len(os.listdir("/proc/self/fd"))
        r, w = os.pipe()
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send_raw(bytes(wire.encode(wire.Drain())), (r, w))
            os.close(r)
            os.close(w)
            while not client.closed:
                client.process()
        with self.assertRaises(omnibus.ProtocolError):
            client.stream()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before - 1)  # without the socket

    def test_unsealed_segment_is_refused(self) -> None:
        client = self.connect()
        with self.assertLogs("omnibus", "ERROR"):
            self.host.segment(1, bytes(4096), seals=0x06)
            while not client.closed:
                client.process()
        with self.assertRaisesRegex(omnibus.ProtocolError, "seals"):
            client.stream()


class AsyncTest(HostCase):
    def test_async_caller(self) -> None:
        async def caller() -> list[Any]:
            async with await omnibus.aconnect(self.host.path) as bus:
                async with await bus.submit("hello") as r:
                    return [d.value() async for d in r]

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.submitted(3)
        self.host.emitted()
        self.host.send(deliver(3, 1, encode("A")), deliver(3, 2, encode("B")))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 1)
        self.host.send(over(3))
        self.assertEqual(r(), ["A", "B"])
        self.assertEqual(self.host.expect(wire.Finish).delivery, 2)
        self.host.expect(wire.Bye)

    def test_a_host_that_is_stopped_at_the_deadline(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                async with await bus.stream(deadline=1) as r:
                    self.patient_for(0.01)
                    with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not say how it ended"):
                        await r.values()

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.submitted(3)
        r()
        self.assertEqual(self.host.expect(wire.Close).source, 3)

    def test_a_host_that_is_stopped_before_it_has_the_request(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                for late in (bus.stream(timeout=0), bus.submit("x", deadline=1)):
                    with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                        await late
                async with await bus.stream() as r:
                    r.deadline = 1
                    with self.assertRaisesRegex(omnibus.DeadlineExceeded, "the host does not answer"):
                        while True:  # as far as there is credit
                            await r.send(bytes(100), to="upper")

        with mock.patch.object(omnibus.request, "_SLACK", 0.01):
            r = self.beside(lambda: asyncio.run(caller()))
            self.host.welcome()
            for _ in "12":
                m = self.host.expect(wire.Submit)
                self.assertEqual(self.host.expect(wire.Cancel).token, m.token)
            self.host.submitted(5)
            r()

    def test_cancelled_connect_leaves(self) -> None:
        async def caller() -> None:
            job = asyncio.ensure_future(omnibus.aconnect(self.host.path))
            while not connected.is_set():
                await asyncio.sleep(0)
            job.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await job
            cancelled.set()

        connected, cancelled = threading.Event(), threading.Event()
        r = self.beside(lambda: asyncio.run(caller()))
        self.host.sock, _ = self.host.listener.accept()
        self.host.sock.settimeout(10)
        connected.set()
        self.assertTrue(cancelled.wait(10))
        self.host.expect(wire.Hello)
        self.host.send(wire.Welcome(self.host.version, 1, 7, 512, "test", [EDGE_IN], [EDGE_OUT], []))
        self.host.expect(wire.Bye)
        r()

    def test_cancelled_submit_is_taken_back(self) -> None:
        async def caller() -> None:
            async with await omnibus.aconnect(self.host.path) as bus:
                job = asyncio.ensure_future(bus.submit("hello"))
                while not bus._session.questions:
                    await asyncio.sleep(0)
                job.cancel()
                try:
                    await job
                except asyncio.CancelledError:
                    pass
                asked.set()
                while bus._session.questions:
                    await asyncio.sleep(0)
                while bus._session.sources:
                    await asyncio.sleep(0)

        asked = threading.Event()
        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        m = self.host.expect(wire.Submit)
        asked.wait(10)
        self.assertEqual(self.host.expect(wire.Cancel).token, m.token)
        self.host.send(wire.Submitted(m.token, 3, 9))  # it crossed that
        self.assertEqual(self.host.expect(wire.Close).source, 3)
        self.host.send(over(3, wire.ABORTED))
        r()
        self.host.expect(wire.Bye)

    def test_cancelled_submit_waits_no_more(self) -> None:
        for version, cancels in [(wire.VERSION_MAX, True), (3, False)]:
            with self.subTest(version=version), contextlib.closing(FakeHost(version=version)) as host:

                async def caller(path: str = host.path) -> None:
                    async with await omnibus.aconnect(path) as bus:
                        job = asyncio.ensure_future(bus.submit("hello"))
                        while not bus._session.questions._open:
                            await asyncio.sleep(0)
                        job.cancel()
                        with self.assertRaises(asyncio.CancelledError):
                            await job
                        while bus._session.questions._open:
                            await asyncio.sleep(0)

                r = self.beside(lambda: asyncio.run(caller()))  # noqa: B023
                host.welcome()
                m = host.expect(wire.Submit)
                if cancels:
                    self.assertEqual(host.expect(wire.Cancel).token, m.token)
                host.send(wire.Failed(m.token, 15, "canceled"))
                r()
                host.expect(wire.Bye)

    def test_async_host_goes_away(self) -> None:
        async def caller() -> None:
            bus = await omnibus.aconnect(self.host.path)
            try:
                await bus.stream()
            finally:
                await bus.close()

        r = self.beside(lambda: asyncio.run(caller()))
        self.host.welcome()
        self.host.expect(wire.Submit)
        self.host.hang_up()
        with self.assertRaises(omnibus.HostGone):
            r()


if __name__ == "__main__":
    unittest.main()
