"""Aborts that reach handlers, and handlers that are coroutines."""

from __future__ import annotations

import asyncio
import threading
import unittest
from collections.abc import Iterator
from typing import Any

from fakehost import deliver, over
from stagecase import StageCase, opened

import omnibus
from omnibus import stages, wire
from omnibus.codec import encode


class AbortTest(StageCase):
    def test_over_reaches_a_running_handler(self) -> None:
        started = threading.Event()

        @omnibus.stage
        def slow(x: int, task: omnibus.Task) -> None:
            started.set()
            assert task.wait_aborted(60)
            assert task.aborted
            task.emit(x)

        r = self.run_stage(slow)
        self.host.send(deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        started.wait(60)
        self.host.send(over(1, wire.OUTCOME_DEADLINE))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)  # it had not begun
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.host.send(opened(2), deliver(2, 9, flags=wire.BARE | wire.LAST))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 9)  # and it goes on
        self.bye(r)

    def test_generator_stops(self) -> None:
        closed = threading.Event()

        @omnibus.stage
        def endless(x: int) -> Iterator[int]:
            try:
                while True:
                    yield x
            finally:
                closed.set()

        r = self.run_stage(endless)
        self.host.send(deliver(1, 7, encode(1)))
        self.outputs(2)
        self.host.send(over(1, wire.OUTCOME_ABORTED))
        while not isinstance(self.host.receive(), wire.Finish):
            pass
        self.assertTrue(closed.wait(60))
        self.bye(r)

    def test_coroutines_run_side_by_side_and_are_cancelled(self) -> None:
        log: list[Any] = []
        both = asyncio.Event()

        @omnibus.stage
        async def wait(x: int, task: omnibus.AsyncTask) -> int:
            log.append(x)
            if len(log) == 2:
                both.set()
            await both.wait()
            if x == 1:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    log.append("cancelled")
                    raise
            return x * 10

        r = self.run_stage(wait)
        self.host.send(opened(2), deliver(1, 7, encode(1)), deliver(2, 8, encode(2)), deliver(1, 9, encode(3)))
        self.assertEqual(self.outputs(1), [20])
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        self.host.send(over(1, wire.OUTCOME_ABORTED))
        self.assertEqual({self.host.expect(wire.Finish).delivery for _ in range(2)}, {7, 9})
        self.assertEqual(log, [1, 2, "cancelled"])
        self.host.send(wire.End(2))
        self.host.expect(wire.Ended)
        self.bye(r)

    def test_an_error_says_where_it_was_in_the_handler_alone(self) -> None:
        def plain(x: int) -> int:
            return 1 // x

        async def awaited(x: int) -> int:
            await asyncio.sleep(0)
            return 1 // x

        for f in (plain, awaited):
            with self.subTest(f.__name__), self.assertLogs("omnibus", "ERROR"):
                r = self.run_stage(omnibus.stage("upper")(f))
                self.host.send(deliver(1, 7, encode(0)))
                what, *where = self.host.expect(wire.Finish).text.splitlines()
                self.assertTrue(what.startswith("ZeroDivisionError"), what)
                self.assertEqual([line.split(":")[0] for line in where], ["  test_abort.py"])
                self.bye(r)
                stages._registered.clear()
                self.host.close_socket()

    def test_async_generator_and_end(self) -> None:
        @omnibus.stage
        async def twice(x: int) -> Any:
            yield x
            await asyncio.sleep(0)
            yield x + 1

        @twice.end
        async def end(task: omnibus.AsyncTask) -> None:
            await task.emit("end")

        r = self.run_stage(twice)
        self.host.send(deliver(1, 7, encode(1)))
        self.assertEqual(self.outputs(2), [1, 2])
        self.host.expect(wire.Finish)
        self.host.send(wire.End(1))
        self.assertEqual(self.outputs(1), ["end"])
        self.host.expect(wire.Ended)
        self.bye(r)

    def test_async_error(self) -> None:
        @omnibus.stage
        async def bad(x: int) -> None:
            raise KeyError("gone")

        r = self.run_stage(bad)
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send(deliver(1, 7, encode(1)))
            self.assertIn("KeyError: 'gone'", self.host.expect(wire.Finish).text)
        self.bye(r)

    def test_a_cancelled_error_of_its_own_fails_the_request(self) -> None:
        @omnibus.stage
        async def waits(x: int) -> None:
            job = asyncio.ensure_future(asyncio.sleep(60))
            job.cancel()
            await job

        r = self.run_stage(waits)
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send(deliver(1, 7, encode(1)))
            m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (7, 14))
        self.assertIn("was cancelled", m.text)
        self.bye(r)

    def test_a_cancelled_error_of_its_own_fails_the_batch(self) -> None:
        @omnibus.stage(batch=2)
        async def waits(values: list[int]) -> list[int]:
            if values == [1]:
                raise asyncio.CancelledError
            return values

        r = self.run_stage(waits)
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send(deliver(1, 7, encode(1)))
            m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (7, 14))
        self.host.send(opened(2), deliver(2, 8, encode(2)))
        self.assertEqual(self.outputs(1), [2])  # and it goes on
        self.host.expect(wire.Finish)
        self.bye(r)

    def test_the_end_of_another_request_is_an_error_like_any_other(self) -> None:
        def calls(x: int) -> None:  # as one does that submits requests of its own
            raise omnibus.RequestOver(omnibus.Code.OVER, "not this one")

        async def awaits(x: int) -> None:
            calls(x)

        for f in (calls, awaits):
            with self.subTest(f.__name__):
                r = self.run_stage(omnibus.stage("upper")(f))
                with self.assertLogs("omnibus", "ERROR"):
                    self.host.send(deliver(1, 7, encode(1)))
                    m = self.host.expect(wire.Finish)
                self.assertEqual((m.delivery, m.code), (7, 14))
                self.assertTrue(m.text.startswith("omnibus.errors.RequestOver: not this one\n  test_abort.py:"), m.text)
                self.bye(r)
                stages._registered.clear()
                self.host.close_socket()

    def test_a_batch_that_the_end_of_one_request_fails(self) -> None:
        @omnibus.stage(batch=2)
        def both(values: list[int], task: list[omnibus.Task]) -> None:
            started.set()
            assert task[0].wait_aborted(60)
            task[0].emit(values)

        started = threading.Event()
        r = self.run_stage(both, batch=2)
        with self.assertLogs("omnibus", "ERROR") as logged:
            self.host.send(opened(2), deliver(1, 7, encode(1)), deliver(2, 8, encode(2)))
            started.wait(60)
            self.host.send(over(1, wire.OUTCOME_ABORTED))
            verdicts = {m.delivery: m for m in (self.host.expect(wire.Finish) for _ in range(2))}
        self.assertEqual({n: m.code for n, m in verdicts.items()}, {7: 9, 8: 14})
        self.assertTrue(verdicts[8].text.startswith("omnibus.errors.RequestOver: the request is over\n"), verdicts[8].text)
        self.assertEqual(len(logged.records), 1)  # of the request that it fails
        self.bye(r)

    def test_async_batch(self) -> None:
        @omnibus.stage(batch=4)
        async def double(values: list[int]) -> list[int]:
            return [v * 2 for v in values]

        r = self.run_stage(double)
        self.host.send(deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        got = []
        while len(got) < 4:
            m = self.host.receive()
            got.append(bytes(m.payload)[0] if isinstance(m, wire.Put) else m.delivery)
            if isinstance(m, wire.Put):
                self.host.send(wire.Returned([m.put]))
        self.assertEqual(sorted(got), [2, 4, 7, 8])
        self.bye(r)


if __name__ == "__main__":
    unittest.main()
