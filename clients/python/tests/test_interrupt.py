"""What a signal's handler raises, such as KeyboardInterrupt, in the middle of what a client does."""

from __future__ import annotations

import signal
import threading
import unittest
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest import mock

from hostcase import HostCase

import omnibus
from omnibus import wire
from omnibus.connection import Connection
from omnibus.socketreader import SocketReader


class InterruptTest(HostCase):
    """This thread waits, as the program's main thread, which signals are handled in."""

    def setUp(self) -> None:
        super().setUp()
        self.client = self.connect()
        self.fired = threading.Event()

    def interrupted_in(self, function: Callable[..., Any], caller: Callable[..., Any]) -> None:
        """Ask something, and be interrupted in a function that waits for it."""

        def on_signal(_: int, frame: FrameType | None) -> None:
            assert frame is not None and frame.f_back is not None
            there = (frame.f_code, frame.f_back.f_code) == (function.__code__, caller.__code__)
            if there and not self.fired.is_set():
                self.fired.set()
                raise KeyboardInterrupt

        def interrupt() -> None:
            # Again and again: one that comes just before a system call does not end it.
            while not self.fired.wait(0.001):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, on_signal)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        t = threading.Thread(target=interrupt)
        t.start()
        with self.assertRaises(KeyboardInterrupt):
            self.client.call("status")
        t.join()

    def works(self) -> None:
        r = self.beside(lambda: self.client.call("status"))
        while (m := self.host.expect(wire.Call)).token in self.given_up:
            pass
        self.host.send(wire.Reply(m.token, 0, b"1"))
        self.assertEqual(r(), 1)

    def ended(self) -> None:
        with self.assertRaisesRegex(omnibus.HostGone, "a signal came in the middle .*; connect again"):
            self.client.call("status")
        with self.assertRaises(omnibus.HostGone):
            self.beside(lambda: self.client.call("status"))()

    def test_at_the_socket(self) -> None:
        self.given_up = {0}
        self.interrupted_in(Connection.poll, SocketReader.read_packets)
        self.works()

    def test_while_another_thread_reads(self) -> None:
        self.given_up = {0, 1}
        other = self.beside(lambda: self.client.call("status"))
        token = self.host.expect(wire.Call).token
        while not self.client._session.reader.reading_thread:
            pass
        self.interrupted_in(threading.Condition.wait, SocketReader._sleep_until_notified)
        self.host.send(wire.Reply(token, 0, b"2"))
        self.assertEqual(other(), 2)
        self.works()

    def test_on_the_way_to_the_socket(self) -> None:
        self.given_up = {0}
        with mock.patch.object(SocketReader, "read_packets", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.client.call("status")
        self.works()

    def test_while_state_is_changed(self) -> None:
        def done() -> bool:
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.client._session.wait(done)
        self.ended()

    def test_while_something_is_sent(self) -> None:
        connection = self.client._session.connection
        with mock.patch.object(connection, "flush", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.client.call("status")
        self.ended()

    def test_handler_that_uses_the_client_while_state_is_changed(self) -> None:
        def done() -> bool:
            self.client.call("status")
            return True

        with self.assertRaises(omnibus.HostGone):
            self.client._session.wait(done)
        self.ended()

    def test_before_the_lock_is_released(self) -> None:
        self.client._session.locked.__enter__()
        self.ended()


if __name__ == "__main__":
    unittest.main()
