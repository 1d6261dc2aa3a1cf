"""How much is done for one payload: calls, which are as many on a busy machine as on an idle one."""

from __future__ import annotations

import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

from fakehost import deliver
from hostcase import RequestCase

import omnibus
from omnibus import wire

#: Before payloads went out by put alone a round trip of 4 KiB took 189 calls of Python's functions, and 160 of C's.
MOST = 94, 80

ROUNDS = 50


def calls(f: Callable[[], Any]) -> tuple[int, int]:
    """How many functions of Python, and of C, a call of f calls."""
    counts = {"call": 0, "c_call": 0}

    def note(_frame: Any, event: str, _arg: Any) -> None:
        if event in counts:
            counts[event] += 1

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return counts["call"], counts["c_call"]


class CallsTest(RequestCase):
    def echo(self, n: int) -> None:
        """The host, and a stage that sends back what it gets. A put is returned with what comes next."""
        for _ in range(n):
            m = self.host.expect(wire.Put)
            self.host.send(wire.Returned([m.put]), deliver(3, m.put, bytes(m.payload), codec=omnibus.RAW))
            if m.put > 1:
                self.host.expect(wire.Finish)

    def test_a_round_trip(self) -> None:
        data = bytes(range(256)) * 16
        t = threading.Thread(target=self.echo, args=(2 * ROUNDS,), daemon=True)
        t.start()

        def round_trip() -> None:
            self.request.send(data, codec=omnibus.RAW)
            view = next(self.request).view()
            assert len(view.data) == len(data)
            view.release()

        def several() -> None:
            for _ in range(ROUNDS):
                round_trip()

        several()  # what is done once is done by now
        python, c = calls(several)
        t.join(60)
        self.assertLessEqual(python // ROUNDS, MOST[0])
        self.assertLessEqual(c // ROUNDS, MOST[1])


if __name__ == "__main__":
    unittest.main()
