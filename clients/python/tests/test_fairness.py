"""Fairness between requests: a handler that waits for the host releases its permit to another request."""

from __future__ import annotations

import os
import threading
import time
import unittest
from collections.abc import Iterator

from fakehost import deliver, over
from stagecase import NARROW, StageCase, opened

import omnibus
from omnibus import wire
from omnibus.codec import encode


class FairnessTest(StageCase):
    """A request that waits for the host does not delay the others."""

    def delays_no_other(self, function: omnibus.StageFunction) -> None:
        r = self.run_stage(function, outputs=NARROW)
        self.host.send(opened(2))
        first = self.full(1, 2)
        self.host.send(deliver(1, 7, encode(1)), deliver(2, 8, encode(2)))
        self.host.send(wire.Returned([first[2].put]))
        self.assertEqual(self.host.emitted().source, 2)
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        self.host.send(deliver(2, 9, encode(3), seq=1))
        self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 9)
        self.host.send(wire.End(2))
        self.assertEqual(self.host.expect(wire.Ended).task, 2)
        self.host.send(wire.Returned([first[1].put]))
        self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.bye(r)

    def test_waiting_function(self) -> None:
        @omnibus.stage
        def same(x: int) -> int:
            return x

        self.delays_no_other(same)

    def test_waiting_generator(self) -> None:
        @omnibus.stage
        def same(x: int) -> Iterator[int]:
            yield x

        self.delays_no_other(same)

    def test_waiting_coroutine(self) -> None:
        @omnibus.stage
        async def same(x: int) -> int:
            return x

        self.delays_no_other(same)

    def test_waiting_batch(self) -> None:
        @omnibus.stage(batch=2)
        def same(values: list[int]) -> list[int]:
            return values

        self.delays_no_other(same)

    def test_waiting_batch_of_coroutines(self) -> None:
        @omnibus.stage(batch=2)
        async def same(values: list[int]) -> list[int]:
            return values

        self.delays_no_other(same)

    def test_reserve_and_wait_aborted_release_the_permit(self) -> None:
        order = []

        @omnibus.stage
        def wait(x: int, task: omnibus.Task) -> None:
            if x == 0:
                task.emit(x)
            elif x == 1:
                with task.reserve(1000, to="") as b:
                    order.append("has room")
                    b.send()
            elif x == 2:
                task.wait_aborted(60)
                order.append("aborted")
            else:
                order.append("other")

        r = self.run_stage(wait, outputs=NARROW)
        first = self.full(1)[1]
        self.host.send(opened(2), opened(3), deliver(1, 7, encode(1)))
        self.host.send(deliver(2, 8, encode(2)), deliver(3, 9, encode(3)))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 9)
        self.host.send(over(2, wire.OUTCOME_ABORTED))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        self.host.send(wire.Returned([first.put]))
        self.host.emitted()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.assertEqual(order, ["other", "aborted", "has room"])
        self.bye(r)

    def test_at_most_the_given_threads_run(self) -> None:
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
                    if isinstance(m, wire.Put):
                        order.setdefault(m.source, []).append((m.delivery, m.payload[0]))
                        self.host.send(wire.Returned([m.put]))
                    else:
                        finished += 1
                self.assertEqual(most[0], threads)
                for source, emissions in order.items():
                    want = [(d, i) for d in (9 + source, 15 + source) for i in range(3)]
                    self.assertEqual(emissions, want)
                self.bye(r)
                self.host.close_socket()
                self.host.waiting.clear()

    def test_one_thread_per_waiting_handler(self) -> None:
        @omnibus.stage
        def same(x: int) -> int:
            return x

        r = self.run_stage(same, outputs=NARROW)
        pool_threads = lambda: [t for t in threading.enumerate() if t.name.startswith("omnibus-") and t.name[-1].isdigit()]  # noqa: E731
        for n in range(20):  # no handler waits for long: the calling thread handles all, or one more
            self.host.send(deliver(1, 10 + n, encode(n), seq=n))
            self.host.emitted()
            self.host.expect(wire.Finish)
        self.assertEqual(pool_threads(), [])
        self.host.send(*[opened(n) for n in range(2, 9)])
        first = self.full(*range(1, 9))
        self.host.send(*[deliver(n, 40 + n, encode(n)) for n in range(1, 9)])
        while len(pool_threads()) < 7:
            pass  # until each of the eight waits in a thread of its own
        self.host.send(*[wire.Returned([m.put]) for m in first.values()])
        for _ in range(16):
            self.host.receive()
        self.bye(r)
        self.assertEqual(pool_threads(), [])

    def test_forked_child_releases_no_permit(self) -> None:
        status = []

        @omnibus.stage
        def forks(x: int, task: omnibus.Task) -> None:
            if x == 2:
                return
            while not any(t._busy for t in task._stage.tasks if t is not task):
                pass  # until another request waits for a permit
            child = os.fork()
            if child == 0:
                try:
                    task.wait_aborted()
                except omnibus.ForkedError:
                    os._exit(threading.active_count() - 1)
                finally:
                    os._exit(99)
            status.append(os.waitpid(child, 0)[1])

        r = self.run_stage(forks)
        self.host.send(deliver(1, 7, encode(1)), opened(2), deliver(2, 8, encode(2)))
        for _ in range(2):
            self.host.expect(wire.Finish)
        self.bye(r)
        self.assertEqual(status, [0])


if __name__ == "__main__":
    unittest.main()
