"""Handlers against a fake host: what they are called with, and what becomes of what they return."""

from __future__ import annotations

import gc
import os
import threading
import time
import unittest
import weakref
from collections.abc import Iterator
from typing import Any

from fakehost import EDGE_IN, deliver
from stagecase import StageCase, opened

import omnibus
from omnibus import stages, wire
from omnibus.codec import encode


class HandlerTest(StageCase):
    def test_function(self) -> None:
        @omnibus.stage
        def upper(text: str) -> str:
            return text.upper()

        self.assertEqual(upper("direct"), "DIRECT")
        r = self.run_stage(upper)
        self.host.send(deliver(1, 7, encode("hello"), key="k"))
        m = self.host.emitted()
        self.assertEqual((m.source, m.delivery, m.edge, m.flags), (1, 7, wire.ALL_EDGES, wire.INLINE))
        self.assertEqual(bytes(m.payload), encode("HELLO"))
        f = self.host.expect(wire.Finish)
        self.assertEqual((f.delivery, f.flags, f.code), (7, wire.HANDLED, 0))
        self.host.send(deliver(1, 8, flags=wire.BARE | wire.LAST, seq=1))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        m = self.host.expect(wire.Ended)
        self.assertEqual((m.task, m.code), (1, 0))
        self.bye(r)

    def test_a_finish_by_hand_does_not_say_that_the_handler_has_returned(self) -> None:
        @omnibus.stage
        def late(delivery: omnibus.Delivery) -> str:
            delivery.finish()
            return "late"

        r = self.run_stage(late)
        self.host.send(deliver(1, 7, encode("x"), flags=wire.INLINE | wire.LAST))
        self.assertEqual(self.host.expect(wire.Finish), wire.Finish(7))
        self.assertEqual(bytes(self.host.emitted().payload), encode("late"))
        self.assertEqual(self.host.expect(wire.Ended).task, 1)
        self.bye(r)

    def test_last_input_makes_the_last_output(self) -> None:
        @omnibus.stage
        def upper(text):  # type: ignore[no-untyped-def]
            return text.upper()

        r = self.run_stage(upper)
        self.host.send(deliver(1, 7, encode("x"), flags=wire.INLINE | wire.LAST))
        self.assertEqual(self.host.emitted().flags, wire.INLINE | wire.LAST)
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
        self.assertEqual((m.delivery, m.flags), (8, wire.INLINE))  # not the last: the end emits
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

    def test_unencodable_output_names_encodable_types(self) -> None:
        @omnibus.stage
        def bad(x: int) -> Any:
            return {1, 2}

        r = self.run_stage(bad)
        with self.assertLogs("omnibus", "ERROR") as logged:
            self.host.send(deliver(1, 7, encode(1)))
            text = self.host.expect(wire.Finish).text
        what = "msgpack: no encoding for a value of type set: send None, "
        self.assertRegex(text, rf"^omnibus.errors.PayloadError: {what}[^\n]*$")
        self.assertIn(f"stage bad, request {101:016x}", logged.output[0])  # as omnibus status has it
        self.bye(r)

    def test_exit_of_a_handler_is_logged(self) -> None:
        def leaves(_: object) -> None:
            raise SystemExit(4)

        async def aleaves(_: object) -> None:
            raise SystemExit(4)

        for function in leaves, aleaves:
            at_end = omnibus.stage("upper")(function)
            at_end.end(function)
            for what, stage, m in (
                ("a delivery", omnibus.stage("upper")(function), deliver(1, 7, encode(1))),
                ("a batch", omnibus.stage("upper", batch=2)(function), deliver(1, 7, encode(1))),
                ("the end", at_end, wire.End(1)),
            ):
                with self.subTest(what, function=function.__name__):
                    r = self.run_stage(stage, batch=stage.batch)
                    with self.assertLogs("omnibus", "ERROR") as logged:
                        self.host.send(m)
                        with self.assertRaises(SystemExit):
                            r()
                    told = f"request {101:016x}: the handler raised SystemExit(4), which ends this process"
                    self.assertIn(told, "".join(logged.output))
                    self.host.close_socket()
                    self.host.waiting.clear()

    def test_input_of_a_failed_coroutine_is_released(self) -> None:
        seen: list[Any] = []

        class Local:
            """Is alive for as long as the frame of the handler is, as its inputs are."""

        async def raises(_: object) -> None:
            local = Local()
            seen.append(weakref.ref(local))
            raise ValueError("no")

        self.addCleanup(gc.enable)
        gc.disable()  # a cycle would keep the input, and its memory, until a collection
        for stage in omnibus.stage("upper")(raises), omnibus.stage("upper", batch=2)(raises):
            with self.subTest(batch=stage.batch):
                r = self.run_stage(stage, batch=stage.batch)
                with self.assertLogs("omnibus", "ERROR"):
                    self.host.send(deliver(1, 7, encode(1)))
                    self.assertIn("ValueError: no", self.host.expect(wire.Finish).text)
                self.bye(r)
                self.assertIsNone(seen.pop()())
                self.host.close_socket()
                self.host.waiting.clear()

    def test_task_is_described(self) -> None:
        seen: list[Any] = []

        @omnibus.stage("talk")
        def f(value, task, delivery):  # type: ignore[no-untyped-def]
            seen.append((task.stage, task.request, task.replica, task.deadline, task.aborted, task.attempt))
            seen.append((delivery.key, delivery.seq, delivery.attrs, delivery.request, delivery.deadline))

        r = self.beside(lambda: omnibus.run(f, path=self.host.path))
        self.host.welcome()
        self.host.serve("talk", replica=2)
        before = time.time() + 2.5
        self.host.send(opened(1, time_left=2_500_000_000, attempt=1))
        self.host.send(deliver(1, 7, encode(1), key="k", seq=3, attrs={"a": "b"}))
        self.host.expect(wire.Finish)
        at, again = seen[0][3], seen[1][4]
        for deadline in at, again:
            self.assertTrue(before - 1e-3 <= deadline <= time.time() + 2.501, deadline - before)
        self.assertEqual(seen, [("talk", 101, 2, at, False, 1), ("k", 3, {"a": "b"}, 101, again)])
        self.bye(r)

    def test_join_takes_the_parts(self) -> None:
        @omnibus.stage
        def both(a: str, b: str) -> str:
            return a + b

        r = self.run_stage(both, join=1, inputs=[wire.Edge("b->both", "b"), wire.Edge("a->both", "a")])
        self.host.send(deliver(1, 7, encode("x"), flags=wire.INLINE | wire.MORE_PARTS))
        self.host.send(deliver(1, 8, encode("y"), edge=1))
        self.assertEqual(self.outputs(1), ["yx"])
        self.assertEqual([self.host.expect(wire.Finish).delivery for _ in range(2)], [7, 8])
        self.bye(r)

    def test_join_with_unfitting_parameters_is_refused(self) -> None:
        @omnibus.stage
        def both(b: str, c: str) -> str:
            return b + c

        r = self.beside(lambda: omnibus.run(both, path=self.host.path))
        self.host.welcome()
        self.host.serve("both", join=1, inputs=[wire.Edge("a->both", "a"), wire.Edge("b->both", "b")])
        with self.assertRaisesRegex(ValueError, "^stage both: the handler has the parameters b, c, and the stage joins a, b: c is no stage"):
            r()

    def test_order_of_a_join(self) -> None:
        stages = ["text-encoder", "image", "0"]
        for function, want in (
            (lambda image, text_encoder, *rest: 0, [1, 0, 2]),
            (lambda x, y, z: 0, [0, 1, 2]),
            (lambda *values: 0, [0, 1, 2]),
            (lambda task, x, *rest: 0, [0, 1, 2]),
            (lambda delivery: 0, []),
            (lambda x, y: 0, "takes 2 values"),
            (lambda image: 0, "takes 1 values"),
            (lambda x, y, z, more: 0, "takes 4 values"),
            (lambda image, text_encoder, other: 0, "other is no stage"),
        ):  # type: ignore[misc]
            arguments = omnibus.stages._Arguments(function, skip_self=False)
            if isinstance(want, str):
                with self.assertRaisesRegex(ValueError, want):
                    arguments.order(stages)
            else:
                self.assertEqual(arguments.order(stages), want)

    def test_batch_of_several_requests(self) -> None:
        go = threading.Event()
        sizes = []

        @omnibus.stage(batch=3)
        def double(values: list[int], tasks: list[omnibus.Task]) -> list[int | None]:
            go.wait(60)
            sizes.append(len(values))
            return [None if v == 3 else v * 2 for v in values]

        r = self.run_stage(double)
        self.host.send(opened(2), *[deliver(1 + i % 2, 10 + i, encode(i)) for i in range(5)])
        go.set()
        got = {}
        finished = []
        while len(finished) < 5:
            m = self.host.receive()
            if isinstance(m, wire.Put):
                got[m.delivery] = (m.source, bytes(m.payload)[0])
                self.host.send(wire.Returned([m.put]))
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
        meet = threading.Barrier(2, timeout=60)

        @omnibus.stage
        def wait(x: int) -> int:
            meet.wait()
            return x

        r = self.run_stage(wait, threads=2)
        self.host.send(opened(2), deliver(1, 7, encode(1)), deliver(2, 8, encode(2)))
        got = set()
        for _ in range(4):
            m = self.host.receive()
            if isinstance(m, wire.Put):
                got.add(m.source)
                self.host.send(wire.Returned([m.put]))
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


if __name__ == "__main__":
    unittest.main()
