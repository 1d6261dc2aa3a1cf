"""Finding a host, waiting for its messages, and the ends of a connection."""

from __future__ import annotations

import math
import os
import select
import threading
import unittest
from unittest import mock

from fakehost import deliver
from hostcase import HostCase

import omnibus
from omnibus import wire
from omnibus.codec import encode
from omnibus.errors import Code
from omnibus.handshake import socket_path


class SocketPathTest(unittest.TestCase):
    """Where a host is looked for: as TestSocketPath of the Go package bus has it."""

    def test_socket_path(self) -> None:
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
        with mock.patch.dict(os.environ, {}, clear=True), self.assertRaisesRegex(ValueError, "give the name of its bus, or the path of its socket, or set"):
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

    def test_missing_host_error_names_remedies(self) -> None:
        say = r"no host listens at /nowhere/a.sock: .*omnibus run FILE.*`omnibus exchange --socket /nowhere/a.sock`.*its bus, the path"
        with self.assertRaisesRegex(omnibus.HostGone, say):
            omnibus.connect("/nowhere/a.sock")
        # This one no host can ever listen at.
        with self.assertRaisesRegex(ValueError, r"200 bytes, and the system allows 107: use a shorter one"):
            omnibus.connect("/" + 199 * "a")


class WaitTest(HostCase):
    def test_stopped_reader_wakes_another(self) -> None:
        client = self.connect()
        for first in (0, 1, 2):
            answers = []
            for n in range(3):
                answers.append(self.beside(lambda: client.call("status")))
                while not client._session.reader.reading_thread or len(client._session.reader.waiters) < n:
                    pass  # one asks behind the other
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
                while not client._session.reader.reading_thread:
                    pass
                answers: list[int] = []
                waits = self.beside(lambda: client._session.wait(lambda: bool(answers), seconds))  # noqa: B023
                self.host.send(wire.Reply(token, 0, b"1"))
                answers.append(asked())
                client._session.wake()
                self.assertTrue(waits())
                submitted = self.beside(lambda: client.stream(timeout=seconds))  # noqa: B023
                m = self.host.expect(wire.Submit)
                self.host.refuse(m, Code.CLOSING, "another time")
                with self.assertRaises(omnibus.OmnibusError):
                    submitted()
                self.assertEqual(m.time_left > 0, seconds < 1e10)

    def test_close_while_a_thread_waits(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        client = self.connect()
        asked = self.beside(lambda: client.call("status"))
        self.host.expect(wire.Call)
        while not client._session.reader.reading_thread:
            pass
        client.close()
        with self.assertRaises(omnibus.HostGone):
            asked()
        self.host.close_socket()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_wake_during_clear_wake(self) -> None:
        """A wait after it sleeps: a `wake` that is never cleared would make the reader spin."""
        c = self.connect()._session.connection
        write = os.eventfd_write

        def looked_before(fd: int, n: int) -> None:
            c.clear_wake()
            write(fd, n)

        def looked_behind(fd: int, n: int) -> None:
            write(fd, n)
            c.clear_wake()

        for meanwhile in (looked_before, looked_behind):
            with self.subTest(meanwhile.__name__):
                with mock.patch("os.eventfd_write", meanwhile):
                    c.wake()
                c.clear_wake()
                self.assertEqual(select.select([c], [], [], 0)[0], [])


class EndTest(HostCase):
    def test_host_goes_away(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.submit("x", fail_fast=True))
        self.host.expect(wire.Submit)
        request = client.submit("y")
        self.host.close_socket()
        for ask in (r, lambda: next(request)):
            with self.assertRaises(omnibus.HostGone):
                ask()
        with self.assertRaises(ConnectionError):
            client.submit("y")
        self.assertTrue(client.closed)
        client.close()

    def test_results_before_the_host_died_are_read(self) -> None:
        client = self.connect()
        r = self.beside(client.stream)
        self.host.submitted(3)
        request = r()
        self.host.send(deliver(3, 1, encode("A")))
        self.host.close_socket()
        self.assertEqual(next(request).value(), "A")
        with self.assertRaises(omnibus.HostGone):
            next(request)

    def test_no_listener(self) -> None:
        with self.assertRaisesRegex(omnibus.HostGone, "nowhere.sock"):
            omnibus.connect("/tmp/nowhere.sock")

    def test_refuse(self) -> None:
        def host() -> None:
            self.host.listener.settimeout(60)
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

    def test_wake_after_close(self) -> None:
        """As by a thread of `run` that ends behind the client."""
        s = self.connect()._session
        s.wake()
        s.close()
        s.wake()
        s.process()

    def test_close_with_held_payloads_sends_no_bye(self) -> None:
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
            bytes(wire.encode(wire.Placed(77, 1))),  # answers nothing
            bytes(wire.encode(wire.Leave())),  # not for a client
            bytes(wire.encode(deliver(99, 1, b"x"))),  # no such source
            bytes(wire.encode(wire.End(4))),
        ]
        for packet in bad:
            self.host.close_socket()
            client = self.connect()
            r = self.beside(client.stream)
            self.host.expect(wire.Submit)
            with self.assertLogs("omnibus", "ERROR"):
                self.host.send_raw(packet)
                with self.assertRaises(omnibus.ProtocolError):
                    r()
            self.host.waiting.clear()

    def test_unexpected_descriptors_are_closed(self) -> None:
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


if __name__ == "__main__":
    unittest.main()
