"""Stages against a fake host: handlers, aborts, batches, joins, the pull loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any

from fakehost import EDGE_IN, EDGE_OUT, deliver, over
from test_submit import HostCase

import omnibus
from omnibus import stages, wire
from omnibus.codec import encode


def opened(task: int, **more: Any) -> wire.Open:
    fields: dict[str, Any] = dict(stage=5, request=100 + task, attempt=0, deadline=0, trace=wire.Trace())
    fields.update(more)
    return wire.Open(task, **fields)


class StageCase(HostCase):
    def setUp(self) -> None:
        super().setUp()
        stages._registered.clear()
        os.environ.pop("OMNIBUS_STAGE", None)

    def run_stage(self, *functions: omnibus.StageFunction, **more: Any) -> Callable[[], Any]:
        """Start `run` and open task 1."""
        options = {k: more.pop(k) for k in ("threads", "rejoin") if k in more}
        r = self.beside(lambda: omnibus.run(*functions, path=self.host.path, **options))
        self.host.welcome()
        self.host.serve(functions[0].name, **more)
        self.host.send(opened(1))
        return r

    def bye(self, r: Callable[[], Any]) -> None:
        self.host.send(wire.Bye())
        r()

    def outputs(self, n: int) -> list[Any]:
        from omnibus.msgpack import unpackb

        return [unpackb(bytes(self.host.emitted().payload)) for _ in range(n)]


class HandlerTest(StageCase):
    def test_function(self) -> None:
        @omnibus.stage
        def upper(text: str) -> str:
            return text.upper()

        self.assertEqual(upper("direct"), "DIRECT")
        r = self.run_stage(upper)
        self.host.send(deliver(1, 7, encode("hello"), key="k"))
        m = self.host.emitted()
        self.assertEqual((m.source, m.delivery, m.edge, m.flags), (1, 7, wire.ALL_EDGES, 0))
        self.assertEqual(bytes(m.payload), encode("HELLO"))
        f = self.host.expect(wire.Finish)
        self.assertEqual((f.delivery, f.flags, f.code), (7, 0, 0))
        self.host.send(deliver(1, 8, flags=wire.BARE | wire.LAST, seq=1))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        self.host.send(wire.End(1))
        m = self.host.expect(wire.Ended)
        self.assertEqual((m.task, m.code), (1, 0))
        self.bye(r)

    def test_last_input_makes_the_last_output(self) -> None:
        @omnibus.stage
        def upper(text):  # type: ignore[no-untyped-def]
            return text.upper()

        r = self.run_stage(upper)
        self.host.send(deliver(1, 7, encode("x"), flags=wire.INLINE | wire.LAST))
        self.assertEqual(self.host.emitted().flags, wire.LAST)
        self.bye(r)

    def test_none_emits_nothing_and_raw_text_is_text(self) -> None:
        seen = []

        @omnibus.stage
        def sink(text: str) -> None:
            seen.append(text)

        r = self.run_stage(sink)
        self.host.send(deliver(1, 7, b"raw", codec=1))
        self.host.expect(wire.Finish)
        self.assertEqual(seen, ["raw"])
        self.bye(r)

    def test_generator_state_and_end(self) -> None:
        @omnibus.stage
        def words(text: str, task: omnibus.Task) -> Iterator[str]:
            for w in text.split():
                task.state["n"] = task.state.get("n", 0) + 1
                yield w

        @words.end
        def finish(task: omnibus.Task) -> int:
            return task.state["n"]

        r = self.run_stage(words)
        self.host.send(deliver(1, 7, encode("a b")), deliver(1, 8, encode("c"), flags=wire.INLINE | wire.LAST))
        self.assertEqual(self.outputs(2), ["a", "b"])
        self.host.expect(wire.Finish)
        m = self.host.emitted()
        self.assertEqual((m.delivery, m.flags), (8, 0))  # not the last: the end emits
        self.host.expect(wire.Finish)
        self.host.send(wire.End(1))
        m = self.host.emitted()
        self.assertEqual((m.delivery, bytes(m.payload)), (0, encode(3)))
        self.host.expect(wire.Ended)
        self.bye(r)

    def test_class_has_an_object_for_each_request(self) -> None:
        @omnibus.stage("sum")
        class Sum:
            def __init__(self) -> None:
                self.total = 0

            def __call__(self, n: int) -> None:
                self.total += n

            def end(self, task: omnibus.Task) -> int:
                return self.total

        r = self.run_stage(Sum)
        self.host.send(opened(2))
        self.host.send(*[deliver(1 + i % 2, 10 + i, encode(i)) for i in range(6)])
        for _ in range(6):
            self.host.expect(wire.Finish)
        for task, total in ((1, 6), (2, 9)):
            self.host.send(wire.End(task))
            self.assertEqual(self.outputs(1), [total])
            self.host.expect(wire.Ended)
        self.bye(r)

    def test_errors_fail_the_request(self) -> None:
        @omnibus.stage
        def bad(x: int) -> int:
            raise ZeroDivisionError("by nothing " + "é" * 5000)

        r = self.run_stage(bad)
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send(deliver(1, 7, encode(1)))
            m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (7, 14))
        self.assertTrue(m.text.startswith("ZeroDivisionError: by nothing é"), m.text)
        self.assertIn("in bad", m.text)
        self.assertLessEqual(len(m.text.encode()), 4096)
        with self.assertLogs("omnibus", "ERROR"):
            self.host.send(deliver(1, 8, b"\xc1"))  # no msgpack
            self.assertEqual(self.host.expect(wire.Finish).code, 14)
        self.bye(r)

    def test_what_cannot_be_sent_says_what_can(self) -> None:
        @omnibus.stage
        def bad(x: int) -> Any:
            return {1, 2}

        r = self.run_stage(bad)
        with self.assertLogs("omnibus", "ERROR") as logged:
            self.host.send(deliver(1, 7, encode(1)))
            text = self.host.expect(wire.Finish).text
        self.assertRegex(text, r"^omnibus.errors.PayloadError: msgpack: no encoding for a set: send None, [^\n]*$")
        self.assertIn(f"stage bad, request {101:016x}", logged.output[0])  # as omnibus status has it
        self.bye(r)

    def test_exit_of_a_handler_is_told(self) -> None:
        @omnibus.stage
        def leaves(x: int) -> None:
            raise SystemExit(4)

        r = self.run_stage(leaves)
        with self.assertLogs("omnibus", "ERROR") as logged:
            self.host.send(deliver(1, 7, encode(1)))
            with self.assertRaises(SystemExit):
                r()
        self.assertIn("the handler raised SystemExit(4), which ends this process", logged.output[0])

    def test_task_is_described(self) -> None:
        seen: list[Any] = []

        @omnibus.stage("talk")
        def f(value, task, delivery):  # type: ignore[no-untyped-def]
            seen.append((task.stage, task.request, task.replica, task.deadline, task.aborted, task.attempt))
            seen.append((delivery.key, delivery.seq, delivery.attrs, delivery.request, delivery.deadline))

        r = self.beside(lambda: omnibus.run(f, path=self.host.path))
        self.host.welcome()
        self.host.serve("talk", replica=2)
        self.host.send(opened(1, deadline=2_500_000_000, attempt=1))
        self.host.send(deliver(1, 7, encode(1), key="k", seq=3, attrs={"a": "b"}))
        self.host.expect(wire.Finish)
        self.assertEqual(seen, [("talk", 101, 2, 2.5, False, 1), ("k", 3, {"a": "b"}, 101, 2.5)])
        self.bye(r)

    def test_join_takes_the_parts(self) -> None:
        @omnibus.stage
        def both(a: str, b: str) -> str:
            return a + b

        other = wire.Edge("b->both", "b")
        r = self.run_stage(both, join=1, inputs=[EDGE_IN, other])
        self.host.send(deliver(1, 7, encode("x"), flags=wire.INLINE | wire.MORE_PARTS))
        self.host.send(deliver(1, 8, encode("y"), edge=1))
        self.assertEqual(self.outputs(1), ["xy"])
        self.assertEqual([self.host.expect(wire.Finish).delivery for _ in range(2)], [7, 8])
        self.bye(r)

    def test_batch_of_several_requests(self) -> None:
        go = threading.Event()
        sizes = []

        @omnibus.stage(batch=3)
        def double(values: list[int], tasks: list[omnibus.Task]) -> list[int | None]:
            go.wait(10)
            sizes.append(len(values))
            return [None if v == 3 else v * 2 for v in values]

        r = self.run_stage(double)
        self.host.send(opened(2), *[deliver(1 + i % 2, 10 + i, encode(i)) for i in range(5)])
        go.set()
        got = {}
        finished = []
        while len(finished) < 5:
            m = self.host.receive()
            if isinstance(m, wire.Emit):
                got[m.delivery] = (m.source, bytes(m.payload)[0])
                self.host.send(wire.Emitted(m.token))
            else:
                finished.append(m.delivery)
        self.assertEqual(got, {10: (1, 0), 11: (2, 2), 12: (1, 4), 14: (1, 8)})
        self.assertEqual([n for n in finished if n % 2 == 0], [10, 12, 14])
        self.assertEqual([n for n in finished if n % 2 == 1], [11, 13])
        self.assertLessEqual(max(sizes), 3)
        self.bye(r)

    def test_keep(self) -> None:
        kept: list[omnibus.Delivery] = []

        @omnibus.stage
        def later(delivery: omnibus.Delivery) -> None:
            kept.append(delivery.keep())
            if len(kept) == 2:
                for d in reversed(kept):
                    d.emit(d.value() + 1)
                    d.finish()

        r = self.run_stage(later)
        self.host.send(deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        for number, value in ((8, 3), (7, 2)):
            m = self.host.emitted()
            self.assertEqual((m.delivery, bytes(m.payload)), (number, encode(value)))
            self.assertEqual(self.host.expect(wire.Finish).delivery, number)
        self.bye(r)

    def test_threads_serve_requests_side_by_side(self) -> None:
        meet = threading.Barrier(2, timeout=10)

        @omnibus.stage
        def wait(x: int) -> int:
            meet.wait()
            return x

        r = self.run_stage(wait, threads=2)
        self.host.send(opened(2), deliver(1, 7, encode(1)), deliver(2, 8, encode(2)))
        got = set()
        for _ in range(4):
            m = self.host.receive()
            if isinstance(m, wire.Emit):
                got.add(m.source)
                self.host.send(wire.Emitted(m.token))
        self.assertEqual(got, {1, 2})
        self.bye(r)

    def test_stage_of_the_environment(self) -> None:
        @omnibus.stage
        def anything(x: int) -> int:
            return x

        os.environ["OMNIBUS_STAGE"] = "12"
        self.addCleanup(os.environ.pop, "OMNIBUS_STAGE")
        self.assertEqual([n for n, _ in stages.choose(())], ["12"])

        @omnibus.stage("12")
        def twelve(x: int) -> int:
            return x

        self.assertEqual(stages.choose(()), [("12", twelve)])
        os.environ["OMNIBUS_STAGE"] = "13"
        with self.assertRaisesRegex(ValueError, "13"):
            stages.choose(())

    def test_version_1_has_no_trace(self) -> None:
        self.host.version = 1

        @omnibus.stage
        def upper(text: str) -> str:
            return text.upper()

        r = self.run_stage(upper)
        self.host.send(deliver(1, 7, encode("x")))
        self.assertEqual(self.outputs(1), ["X"])
        self.bye(r)


class TurnTest(StageCase):
    """A request that waits for the host, and the others."""

    def holds_up_no_other(self, function: omnibus.StageFunction) -> None:
        r = self.run_stage(function)
        self.host.send(opened(2), deliver(1, 7, encode(1)), deliver(2, 8, encode(2)))
        asked = {}
        for _ in range(2):
            m = self.host.expect(wire.Emit)
            asked[m.source] = m
        self.host.send(wire.Emitted(asked[2].token))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        self.host.send(deliver(2, 9, encode(3), seq=1))
        self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 9)
        self.host.send(wire.End(2))
        self.assertEqual(self.host.expect(wire.Ended).task, 2)
        self.host.send(wire.Emitted(asked[1].token))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.bye(r)

    def test_function(self) -> None:
        @omnibus.stage
        def same(x: int) -> int:
            return x

        self.holds_up_no_other(same)

    def test_generator(self) -> None:
        @omnibus.stage
        def same(x: int) -> Iterator[int]:
            yield x

        self.holds_up_no_other(same)

    def test_coroutine(self) -> None:
        @omnibus.stage
        async def same(x: int) -> int:
            return x

        self.holds_up_no_other(same)

    def test_batch(self) -> None:
        @omnibus.stage(batch=2)
        def same(values: list[int]) -> list[int]:
            return values

        self.holds_up_no_other(same)

    def test_batch_of_coroutines(self) -> None:
        @omnibus.stage(batch=2)
        async def same(values: list[int]) -> list[int]:
            return values

        self.holds_up_no_other(same)

    def test_reserve_and_wait_aborted(self) -> None:
        order = []

        @omnibus.stage
        def wait(x: int, task: omnibus.Task) -> None:
            if x == 1:
                with task.reserve(1000, to="") as b:
                    order.append("granted")
                    b.send()
            elif x == 2:
                task.wait_aborted(10)
                order.append("aborted")
            else:
                order.append("other")

        r = self.run_stage(wait)
        self.host.send(opened(2), opened(3), deliver(1, 7, encode(1)))
        self.host.give_arena()
        m = self.host.expect(wire.Reserve)
        self.host.send(deliver(2, 8, encode(2)), deliver(3, 9, encode(3)))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 9)
        self.host.send(over(2, wire.ABORTED))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        self.host.send(wire.Grant(m.token, 33, 90, 0, m.size))
        self.host.expect(wire.Send)
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.assertEqual(order, ["other", "aborted", "granted"])
        self.bye(r)

    def test_so_many_run_and_no_more(self) -> None:
        running, most = [0], [0]
        count = threading.Lock()

        def work() -> None:
            with count:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.002)  # lets others run, if they may
            with count:
                running[0] -= 1

        @omnibus.stage
        def busy(x: int, task: omnibus.Task) -> None:
            for i in range(3):
                work()
                task.emit(i)
            work()

        for threads in (1, 2):
            with self.subTest(threads=threads):
                most[0] = 0
                r = self.run_stage(busy, threads=threads, max_inflight=6)
                self.host.send(*[opened(n) for n in range(2, 7)])
                self.host.send(*[deliver(1 + n % 6, 10 + n, encode(n), seq=n // 6) for n in range(12)])
                order: dict[int, list[tuple[int, int]]] = {}
                finished = 0
                while finished < 12:
                    m = self.host.receive()
                    if isinstance(m, wire.Emit):
                        order.setdefault(m.source, []).append((m.delivery, m.payload[0]))
                        self.host.send(wire.Emitted(m.token))
                    else:
                        finished += 1
                self.assertEqual(most[0], threads)
                for source, emissions in order.items():
                    want = [(d, i) for d in (9 + source, 15 + source) for i in range(3)]
                    self.assertEqual(emissions, want)
                self.bye(r)
                self.host.hang_up()
                self.host.waiting.clear()

    def test_threads_are_as_many_as_wait(self) -> None:
        @omnibus.stage
        def same(x: int) -> int:
            return x

        r = self.run_stage(same)
        crew = lambda: [t for t in threading.enumerate() if t.name.startswith("omnibus-") and t.name[-1].isdigit()]  # noqa: E731
        for n in range(20):  # nobody waits for long: the calling thread does it all, or one more
            self.host.send(deliver(1, 10 + n, encode(n), seq=n))
            self.host.emitted()
            self.host.expect(wire.Finish)
        self.assertEqual(crew(), [])
        self.host.send(*[opened(n) for n in range(2, 9)], *[deliver(n, 40 + n, encode(n)) for n in range(1, 9)])
        waiting = [self.host.expect(wire.Emit) for _ in range(8)]
        self.assertEqual(len(crew()), 7)
        self.host.send(*[wire.Emitted(m.token) for m in waiting])
        for _ in waiting:
            self.host.expect(wire.Finish)
        self.bye(r)
        self.assertEqual(crew(), [])


class AbortTest(StageCase):
    def test_over_reaches_a_running_handler(self) -> None:
        started = threading.Event()

        @omnibus.stage
        def slow(x: int, task: omnibus.Task) -> None:
            started.set()
            assert task.wait_aborted(10)
            assert task.aborted
            task.emit(x)  # the host says that the request is over

        r = self.run_stage(slow)
        self.host.send(deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        started.wait(10)
        self.host.send(over(1, wire.PAST_DEADLINE))
        got = [self.host.receive() for _ in range(2)]
        finish = next(m for m in got if isinstance(m, wire.Finish))
        emit = next(m for m in got if isinstance(m, wire.Emit))
        self.assertEqual(finish.delivery, 8)  # it had not begun
        self.host.send(wire.Failed(emit.token, 9, "over"))
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
        self.host.send(over(1, wire.ABORTED))
        while not isinstance(m := self.host.receive(), wire.Finish):
            self.host.send(wire.Failed(m.token, 9, "over"))
        self.assertTrue(closed.wait(10))
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
        self.host.send(over(1, wire.ABORTED))
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
                self.assertEqual([line.split(":")[0] for line in where], ["  test_stage.py"])
                self.bye(r)
                stages._registered.clear()
                self.host.hang_up()

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

    def test_async_batch(self) -> None:
        @omnibus.stage(batch=4)
        async def double(values: list[int]) -> list[int]:
            return [v * 2 for v in values]

        r = self.run_stage(double)
        self.host.send(deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        got = []
        while len(got) < 4:
            m = self.host.receive()
            got.append(bytes(m.payload)[0] if isinstance(m, wire.Emit) else m.delivery)
            if isinstance(m, wire.Emit):
                self.host.send(wire.Emitted(m.token))
        self.assertEqual(sorted(got), [2, 4, 7, 8])
        self.bye(r)


class LifeTest(StageCase):
    SCRIPT = """
import sys, time
from omnibus import run, stage
@stage
def upper(text: str, task):
    print("handling", flush=True)
    task.wait_aborted(0.2)
    return text.upper()
run(rejoin="rejoin" in sys.argv)
print("returned", flush=True)
"""

    def start(self, *args: str) -> subprocess.Popen[str]:
        env = dict(os.environ, OMNIBUS_SOCKET=self.host.path, OMNIBUS_BUS="test", OMNIBUS_STAGE="first")
        env["PYTHONPATH"] = os.path.join(os.path.dirname(__file__), "..", "src")
        p = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(p.communicate)
        self.addCleanup(p.kill)
        return p

    def accept(self, p: subprocess.Popen[str]) -> None:
        self.host.listener.settimeout(10)
        self.host.sock, _ = self.host.listener.accept()
        self.host.sock.settimeout(10)
        hello = self.host.expect(wire.Hello)
        self.assertEqual((hello.pid, hello.bus), (p.pid, "test"))
        self.host.send(wire.Welcome(self.host.version, 1, 7, 512, "test", [EDGE_IN], [EDGE_OUT], []))
        self.host.serve("first")

    def test_sigterm_finishes_what_is_open(self) -> None:
        p = self.start()
        self.accept(p)
        self.host.send(opened(1), deliver(1, 7, encode("x")))
        assert p.stdout is not None
        self.assertEqual(p.stdout.readline(), "handling\n")
        p.send_signal(signal.SIGTERM)
        got = []
        while True:
            m = self.host.receive()
            got.append(type(m).__name__)
            if isinstance(m, wire.Call):
                self.host.send(wire.Reply(m.token, 0, b"{}"))
            elif isinstance(m, wire.Emit):
                self.host.send(wire.Emitted(m.token))
            elif isinstance(m, wire.Bye):
                break
            if got[-1] in ("Finish", "Leave") and {"Finish", "Leave"} <= set(got):  # whichever was first
                self.host.send(wire.End(1))
        self.assertEqual(sorted(got), ["Bye", "Call", "Emit", "Ended", "Finish", "Leave"])
        self.assertLess(got.index("Leave"), got.index("Ended"))
        self.assertEqual(p.stdout.read(), "returned\n")
        self.assertEqual(p.wait(10), 0)

    def test_host_dies(self) -> None:
        p = self.start()
        self.accept(p)
        self.host.hang_up()
        self.assertEqual(p.wait(10), 69)

    def test_rejoin(self) -> None:
        p = self.start("rejoin")
        for _ in range(2):
            self.accept(p)
            self.host.send(opened(1), deliver(1, 7, encode("x")))
            self.assertEqual(bytes(self.host.emitted().payload), encode("X"))
            self.host.hang_up()
            self.host.waiting.clear()
        self.accept(p)
        self.host.send(wire.Bye())
        self.assertEqual(p.wait(10), 0)


    def test_drain(self) -> None:
        p = self.start()
        self.accept(p)
        self.host.send(opened(1), deliver(1, 7, encode("x")), wire.Drain())
        self.host.emitted()
        self.host.expect(wire.Finish)
        self.host.send(wire.End(1))
        self.host.expect(wire.Ended)
        self.host.expect(wire.Bye)
        self.assertEqual(p.wait(10), 0)


    def test_sessions_leave_nothing_open(self) -> None:
        @omnibus.stage
        def hold(data: memoryview, task: omnibus.Task) -> None:
            with task.reserve(len(data)) as b:  # the host goes while this waits
                b.send()

        collecting = gc.isenabled()
        gc.disable()
        if collecting:
            self.addCleanup(gc.enable)
        r = self.beside(lambda: omnibus.run(hold, path=self.host.path, rejoin=True))
        counts = []
        self.host.welcome()
        for _ in range(20):
            self.host.serve("hold")
            counts.append((len(os.listdir("/proc/self/fd")), memfds()))
            self.host.segment(3, bytes(1 << 16))
            self.host.send(opened(1), opened(2))
            self.host.send(*[deliver(t, 6 + t, codec=1, flags=0, segment=3, size=1000) for t in (1, 2)])
            self.host.give_arena()
            m, _ = self.host.expect(wire.Reserve), self.host.expect(wire.Reserve)
            self.host.send(wire.Grant(m.token, 33, 90, 0, m.size))
            self.host.expect(wire.Send)
            self.host.expect(wire.Finish)
            with self.assertLogs("omnibus", "WARNING"):
                self.host.hang_up()
                self.host.drop_arena()
                self.host.welcome()
        self.host.serve("hold")
        self.bye(r)
        self.assertEqual(counts, counts[:1] * len(counts))


def memfds() -> int:
    """How many segments are mapped."""
    with open("/proc/self/maps") as f:
        return sum("/memfd:" in line for line in f)


class PullTest(HostCase):
    def pull(self, n: int, *messages: Any) -> tuple[omnibus.Client, list[omnibus.Delivery], Iterator[omnibus.Delivery]]:
        client = self.connect()
        r = self.beside(lambda: client.deliveries("upper"))
        self.host.serve("upper")
        loop = r()
        self.host.send(opened(1), *messages)
        return client, [next(loop) for _ in range(n)], loop

    def test_out_of_order(self) -> None:
        client, ds, loop = self.pull(2, deliver(1, 7, encode(1)), deliver(1, 8, encode(2), key="b"))
        self.assertEqual([d.value() for d in ds], [1, 2])
        done = self.beside(lambda: ds[1].emit("out", key="o", to=""))
        m = self.host.emitted()
        self.assertEqual((m.source, m.delivery, m.edge, m.key), (1, 8, 0, "o"))
        done()
        ds[1].finish()
        ds[0].finish("it broke")
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code, m.text), (7, 14, "it broke"))
        with self.assertRaises(omnibus.Finished):
            ds[0].finish()

    def test_a_wait_without_time_sees_what_has_come(self) -> None:
        _, (d,), _ = self.pull(1, deliver(1, 7, encode(1)))
        self.assertFalse(d.task.wait_aborted(0))
        self.host.send(over(1, wire.ABORTED))
        self.assertTrue(d.task.wait_aborted(0))

    def test_end_is_answered_and_bye_ends_the_loop(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)), deliver(1, 8, flags=wire.BARE))
        d.finish()
        self.assertEqual({self.host.expect(wire.Finish).delivery for _ in range(2)}, {7, 8})
        self.host.send(wire.End(1), opened(2), deliver(2, 9, encode(5)))
        self.assertEqual(next(loop).value(), 5)
        self.host.expect(wire.Ended)
        self.host.send(wire.Bye())
        self.assertEqual(list(loop), [])

    def test_what_the_host_said_last_is_read(self) -> None:
        client, (d, e), loop = self.pull(2, deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        d.finish()  # the host does not read it: the connection is reset
        self.host.send(wire.Bye())
        self.host.hang_up()
        e.finish()  # and finds nobody there
        self.assertFalse(client.closed)
        self.assertEqual(list(loop), [])
        self.assertTrue(client.closed)

    def test_a_reset_comes_before_what_the_host_said_last(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)))
        d.finish()
        self.host.send(wire.Bye())
        self.host.hang_up()
        self.assertEqual(list(loop), [])

    def test_leave_ends_the_loop(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)))
        left = self.beside(client.leave)
        self.host.expect(wire.Leave)
        m = self.host.expect(wire.Call)
        self.host.send(wire.Failed(m.token, 5, "no such method"))
        left()
        d.finish()
        self.host.expect(wire.Finish)
        self.host.send(wire.End(1))
        self.assertEqual(list(loop), [])
        self.host.expect(wire.Ended)

    def test_over_takes_back_what_waits(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        self.host.send(over(1, wire.ABORTED))
        while not d.task.aborted:  # type: ignore[union-attr]
            client.process()
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (8, 9))
        d.finish()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.assertEqual(client._session.sources, {})

    def test_async_pull(self) -> None:
        async def stage() -> list[Any]:
            got = []
            async with await omnibus.aconnect(self.host.path) as bus:
                async for d in bus.deliveries("upper"):
                    got.append(d.value())
                    await d.emit(got[-1])
                    d.finish()
            return got

        r = self.beside(lambda: asyncio.run(stage()))
        self.host.welcome()
        self.host.serve("upper")
        self.host.send(opened(1), deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        for n in (7, 8):
            self.assertEqual(self.host.emitted().delivery, n)
            self.host.expect(wire.Finish)
        self.host.send(wire.Bye())
        self.assertEqual(r(), [1, 2])


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
