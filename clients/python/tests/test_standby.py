"""The reader of a stage's socket: an idle thread, or the standby thread."""

from __future__ import annotations

import os
import threading
import time
import unittest
from typing import Any

from fakehost import deliver, over
from hostcase import HostCase
from stagecase import NARROW, StageCase, opened

import omnibus
from omnibus import wire
from omnibus.codec import encode


class WakeTest(HostCase):
    def test_signal_wakes_the_reader(self) -> None:
        """What signal.set_wakeup_fd writes is not left until the next packet."""
        session = self.connect()._session
        r, w = os.pipe2(os.O_NONBLOCK)
        session.wake_when_readable(r)
        for _ in range(2):
            come = threading.Event()
            waits = self.beside(lambda: session.wait(come.is_set))  # noqa: B023
            while not session.reader.reading_thread:
                time.sleep(0.001)
            come.set()
            os.write(w, b"\x0f")
            self.assertTrue(waits())
        os.close(r)
        os.close(w)

    def test_many_signals_do_not_fill_the_pipe(self) -> None:
        """The pipe is drained: a full pipe would report no more signals."""
        connection = self.connect()._session.connection
        r, w = os.pipe2(os.O_NONBLOCK)
        connection.wake_when_readable(r)
        for _ in range(2):
            with self.assertRaises(BlockingIOError):
                while True:
                    os.write(w, bytes(4096))
            connection.poll(0)
            self.assertEqual(os.write(w, b"\x0f"), 1)
            connection.poll(0)
        os.close(r)
        os.close(w)


class StandbyTest(StageCase):
    def setUp(self) -> None:
        super().setUp()
        self.session: Any = None
        self.handlers: set[int] = set()
        self.busy = threading.Event()

        @omnibus.stage
        def work(x: int, task: omnibus.Task) -> None:
            self.session = task._session
            self.handlers.add(threading.get_ident())
            if x == 0:
                return
            if x == 1:
                task.emit(x)
                return
            self.busy.set()
            limit = time.monotonic() + 60
            while not task.aborted and time.monotonic() < limit:
                time.sleep(0.001)

        self.work = work

    def handle(self, delivery: int, x: int = 0) -> None:
        self.host.send(deliver(1, delivery, encode(x)))
        if x == 1:
            self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, delivery)

    def until_asleep(self) -> None:
        """Wait until the thread that stands by sleeps without an end."""
        reading = self.session.reader
        while not reading.standby.asleep:
            if reading.waiters:  # it reads itself, since the handling thread was slow: a `wake` makes them change roles
                self.session.wake()
            time.sleep(0.001)

    def test_busy_handler_sees_the_abort(self) -> None:
        for asleep in (False, True):
            with self.subTest(asleep=asleep):
                self.busy.clear()
                r = self.run_stage(self.work)
                if asleep:
                    self.handle(7)
                    self.until_asleep()
                self.host.send(deliver(1, 8, encode(2)))
                self.assertTrue(self.busy.wait(60))
                self.host.send(over(1, wire.OUTCOME_ABORTED))
                self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
                self.bye(r)
                self.host.close_socket()

    def test_idle_stage_sees_the_drain(self) -> None:
        r = self.run_stage(self.work)
        self.handle(7)
        self.host.send(wire.End(1))
        self.host.expect(wire.Ended)
        self.until_asleep()
        self.host.send(wire.Drain())
        self.assertIsInstance(self.host.receive(), wire.Bye)
        r()

    def test_idle_threads_do_not_wake(self) -> None:
        r = self.run_stage(self.work)
        self.handle(7)
        self.until_asleep()
        readings = self.session.reader.read_count
        time.sleep(0.05)
        self.assertTrue(self.session.reader.standby.asleep)
        self.assertEqual(self.session.reader.read_count, readings)
        self.bye(r)

    def test_reading_thread_handles_the_delivery(self) -> None:
        r = self.run_stage(self.work)
        for n in range(100):
            self.handle(10 + n, n % 2)
        self.assertEqual(len(self.handlers), 1)
        self.bye(r)

    def test_more_threads_take_turns_at_the_socket(self) -> None:
        tasks = range(1, 5)
        r = self.run_stage(self.work, threads=2, outputs=NARROW)
        self.host.send(*[opened(n) for n in tasks[1:]])
        first = self.full(*tasks, value=1)
        self.host.send(*[deliver(n, n, encode(1)) for n in tasks])
        while len(self.session.polled._waiting) < len(tasks):
            pass  # until each waits in a thread of its own
        self.host.send(*[wire.Returned([m.put]) for m in first.values()])
        puts = [m for m in (self.host.receive() for _ in range(2 * len(tasks))) if isinstance(m, wire.Put)]
        self.host.send(wire.Returned([m.put for m in puts]))
        for n in range(100):
            self.handle(10 + n, n % 2)
        self.host.send(deliver(1, 200, encode(2)))  # one has a long job, and another takes the rest
        self.assertTrue(self.busy.wait(60))
        for n in range(20):
            self.host.send(deliver(2, 210 + n, encode(0)))
            self.assertEqual(self.host.expect(wire.Finish).delivery, 210 + n)
        self.host.send(over(1, wire.OUTCOME_ABORTED))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 200)
        self.bye(r)


if __name__ == "__main__":
    unittest.main()
