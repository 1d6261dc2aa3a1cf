"""What tests of stages begin with: a fake host that has a task opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fakehost import deliver
from hostcase import HostCase

import omnibus
from omnibus import stages, wire
from omnibus.codec import encode


#: What a stage emits into, when its second output is to wait.
NARROW = [wire.Edge("upper->caller", "", 1, 0)]


def opened(task: int, **more: Any) -> wire.Open:
    fields: dict[str, Any] = dict(stage=5, request=100 + task, attempt=0, time_left=0, trace=wire.Trace())
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

    def full(self, *tasks: int, value: int = 0) -> dict[int, wire.Put]:
        """Have each task emit something that takes the window of its edges, which let one through: see NARROW."""
        puts = {}
        for n in tasks:
            self.host.send(deliver(n, 1000 + n, encode(value)))
            puts[n] = self.host.expect(wire.Put)
            assert puts[n].source == n
            assert self.host.expect(wire.Finish).delivery == 1000 + n
        return puts

    def bye(self, r: Callable[[], Any]) -> None:
        self.host.send(wire.Bye())
        r()

    def outputs(self, n: int) -> list[Any]:
        from omnibus.msgpack import unpackb

        return [unpackb(bytes(self.host.emitted().payload)) for _ in range(n)]
