"""Room that is asked for before the handler asks."""

from __future__ import annotations

import unittest
from typing import Any

from fakehost import EDGE_OUT, deliver, over
from stagecase import StageCase

import omnibus
from omnibus import wire
from omnibus.codec import encode


@omnibus.stage
def fill(size: int, task: omnibus.Task) -> None:
    """Emit so many bytes in room of that size; a negative size: a number, in a message."""
    if size < 0:
        task.emit(size)
        return
    with task.reserve(size) as room:
        room.view[:] = bytes(size)
        room.send()


class AheadTest(StageCase):
    def setUp(self) -> None:
        super().setUp()
        self.delivery = 10

    def handle(self, size: int, **more: Any) -> None:
        """Have a delivery handled."""
        self.delivery += 1
        self.host.send(deliver(1, self.delivery, encode(size), **more))

    def reserved(self, size: int, grant: int, delivery: int | None = None) -> None:
        """The room that is asked for now."""
        m = self.host.granted(grant=grant)
        self.assertEqual((m.size, m.delivery), (size, self.delivery if delivery is None else delivery))

    def sent(self, grant: int, size: int) -> None:
        m, _ = self.host.sent()
        self.assertEqual((m.grant, m.size), (grant, size))
        self.assertEqual(self.host.expect(wire.Finish).delivery, self.delivery)

    def steady(self, **more: Any) -> Any:
        """A task that has reserved 1000 bytes twice, and does so once more."""
        r = self.run_stage(fill, **more)
        self.handle(1000)
        self.host.give_arena()
        self.reserved(1000, 1)
        self.sent(1, 1000)
        self.handle(1000)
        self.reserved(1000, 2)
        self.sent(2, 1000)
        return r

    def test_the_next_handling_need_not_wait(self) -> None:
        r = self.steady()
        for grant in range(3, 6):
            self.reserved(1000, grant, delivery=0)
            self.handle(1000)
            self.sent(grant, 1000)
        self.reserved(1000, 6, delivery=0)
        self.handle(600)  # it does for less, but not for much less
        self.sent(6, 600)
        self.bye(r)

    def test_other_room_gives_it_back(self) -> None:
        for size in (1001, 499):
            with self.subTest(size=size):
                r = self.steady()
                self.reserved(1000, 3, delivery=0)
                self.handle(size)
                self.assertEqual(self.host.expect(wire.Abort).grant, 3)
                self.reserved(size, 4)
                self.sent(4, size)
                self.handle(size)  # it is not asked for until it was the same twice
                self.reserved(size, 5)
                self.sent(5, size)
                self.reserved(size, 6, delivery=0)
                self.bye(r)
                self.host.hang_up()
                self.host.waiting.clear()
                self.host.drop_arena()

    def test_a_message_gives_it_back_for_good(self) -> None:
        r = self.steady()
        self.reserved(1000, 3, delivery=0)
        self.handle(-1)
        self.assertEqual(self.host.expect(wire.Abort).grant, 3)
        self.host.emitted()
        self.host.expect(wire.Finish)
        for grant in (4, 5, 6):
            self.handle(1000)
            self.reserved(1000, grant)
            self.sent(grant, 1000)
        self.bye(r)

    def test_what_comes_too_late_goes_back(self) -> None:
        r = self.steady()
        asked = self.host.expect(wire.Reserve)
        self.handle(-1)
        self.host.emitted()
        self.host.expect(wire.Finish)
        self.host.send(wire.Grant(asked.token, 3, 90, 0, 1000))
        self.assertEqual(self.host.expect(wire.Abort).grant, 3)
        self.bye(r)

    def test_whoever_asks_meanwhile_waits_for_it(self) -> None:
        r = self.steady()
        asked = self.host.expect(wire.Reserve)
        self.handle(1000)
        self.host.send(wire.Grant(asked.token, 3, 90, 4096, 1000))
        self.sent(3, 1000)
        self.bye(r)

    def test_the_end_gives_it_back(self) -> None:
        r = self.steady()
        self.reserved(1000, 3, delivery=0)
        self.host.send(wire.End(1))
        self.assertEqual(self.host.expect(wire.Abort).grant, 3)
        self.host.expect(wire.Ended)
        self.bye(r)

    def test_the_end_of_the_request_gives_it_back(self) -> None:
        r = self.steady()
        self.reserved(1000, 3, delivery=0)
        self.host.send(over(1, wire.ABORTED))
        self.assertEqual(self.host.expect(wire.Abort).grant, 3)
        self.bye(r)

    def test_not_behind_the_last(self) -> None:
        r = self.run_stage(fill)
        for n, flags in enumerate((wire.INLINE, wire.INLINE | wire.LAST)):
            self.handle(1000, flags=flags)
            if n == 0:
                self.host.give_arena()
            self.reserved(1000, 1 + n)
            self.sent(1 + n, 1000)
        self.host.send(wire.End(1))
        self.host.expect(wire.Ended)
        self.bye(r)

    def test_not_where_it_would_be_noticed(self) -> None:
        fail = wire.Edge(EDGE_OUT.name, "", policy=1)
        for more in ({"state": 1}, {"outputs": [EDGE_OUT, fail]}):
            with self.subTest(**more):
                r = self.steady(**more)
                self.handle(1000)
                self.reserved(1000, 3)
                self.sent(3, 1000)
                self.bye(r)
                self.host.hang_up()
                self.host.waiting.clear()
                self.host.drop_arena()

    def test_not_beside_a_question(self) -> None:
        """Its credit could be what the other one waits for."""
        kept: list[omnibus.Delivery] = []

        @omnibus.stage
        def twice(size: int, task: omnibus.Task, delivery: omnibus.Delivery) -> None:
            if size == 0:
                kept.append(delivery.keep())
                return
            with task.reserve(1000) as one:
                one.send()
                if size == 2000:
                    with task.reserve(1000) as two:
                        two.send()

        r = self.run_stage(twice)
        self.handle(0)
        for grant in (1, 2):
            self.handle(1000)
            if grant == 1:
                self.host.give_arena()
            self.reserved(1000, grant)
            self.sent(grant, 1000)
        self.reserved(1000, 3, delivery=0)
        self.handle(2000)
        self.assertEqual(self.host.sent()[0].grant, 3)
        asked = self.host.expect(wire.Reserve)
        kept[0].finish()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 11)
        self.host.nothing()
        self.host.send(wire.Grant(asked.token, 4, 90, 0, 1000))
        self.sent(4, 1000)
        self.reserved(1000, 5, delivery=0)
        self.bye(r)


if __name__ == "__main__":
    unittest.main()
