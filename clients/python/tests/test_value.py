"""The value of a delivery with tensors in memory of another process, which the host has yet to say where it is."""

from __future__ import annotations

import unittest
from typing import Any

from fakehost import EDGE_IN, deliver, over
from gpumessage import Name, Payload, producer_of
from hostcase import HostCase
from stagecase import opened

import omnibus
from omnibus import dlpack, wire
from omnibus.codec import BUNDLE
from omnibus.gpu import emul


class FindingCase(HostCase):
    def setUp(self) -> None:
        super().setUp()
        self.producer = producer_of(self, emul.uuid(5))
        self.client = self.connect()
        self.payload = Payload(self.producer.place(offset=4096)).view
        self.host.segment(70, self.payload)

    def hand(self, source: int) -> None:
        self.host.send(deliver(source, 1, codec=BUNDLE, flags=0, segment=70, size=len(self.payload)))

    def result(self, deadline: float | None, source: int = 3) -> omnibus.Delivery:
        r = self.beside(lambda: self.client.stream(deadline=deadline))
        self.host.submitted(source)
        self.request: omnibus.Request = r()
        self.hand(source)
        return next(self.request)

    def find(self) -> None:
        """Answer the question where something is."""
        m = self.host.expect(wire.Find)
        with self.producer.find(Name(m.pool, m.number)) as f:
            self.host.send(wire.Found(m.token, 0, f.owner.pid, f.size), fds=(f.fd, f.owner.fileno()))

    def is_read(self, value: Any) -> None:
        self.assertEqual(dlpack.borrow(value["x"]).view()[:3], b"\0\1\2")


class ValueTest(FindingCase):
    def test_value_waits_until_the_deadline(self) -> None:
        """Which is over before anything is asked. Each time the answer to the last question is there."""
        d = self.result(deadline=1)
        for _ in ("words", "arena"):
            with self.assertRaisesRegex(omnibus.DeadlineExceeded, "edge upper->caller, seq 0: .* where its tensors lie"):
                d.value()
            self.find()
        self.is_read(d.value())

    def test_value_waits_until_the_timeout(self) -> None:
        for source, deadline in ((3, None), (4, 4e9)):
            with self.subTest(deadline):
                d = self.result(deadline, source)
                with self.assertRaisesRegex(TimeoutError, "where its tensors lie: 0 s have passed") as caught:
                    d.value(timeout=0)
                self.assertNotIsInstance(caught.exception, omnibus.DeadlineExceeded)
                if source == 3:
                    self.host.expect(wire.Find)  # and it is not asked again

    def test_a_request_that_was_in_time(self) -> None:
        """Its results may be looked at for ever."""
        d = self.result(deadline=1).keep()
        self.host.send(over(3))
        self.assertEqual(list(self.request), [])
        got = self.beside(d.value)
        for _ in ("words", "arena"):
            self.find()
        self.is_read(got())

    def test_at_a_stage(self) -> None:
        deliveries = self.beside(lambda: self.client.deliveries("upper"))
        self.host.serve()
        self.host.send(opened(3, time_left=-1))
        self.hand(3)
        d = next(deliveries())
        with self.assertRaisesRegex(omnibus.DeadlineExceeded, f"stage upper, edge {EDGE_IN.name}"):
            d.value()


if __name__ == "__main__":
    unittest.main()
