"""Emits a value with tensors on a GPU along edges, each with a tensor transport."""

from __future__ import annotations

from typing import Any

from .. import codec, wire
from ..buffer import Buffer, Envelope
from ..bundle import Plan
from ..puts import Puts
from ..session import Work
from .layout import Layout
from .sender import Sender


class Emission:
    """One value, and its destination."""

    def __init__(self, puts: Puts, sender: Sender, plan: Plan, envelope: Envelope) -> None:
        self.puts = puts
        self.layout = Layout(sender, plan, sender._session.welcome.inline_bytes + 1)
        self.envelope = envelope

    @property
    def tensors(self) -> bool:
        """Whether it has tensors on a GPU."""
        return bool(self.layout.tensors)

    def work(self) -> Work[None]:
        """Emit the value: once, or once for each edge if their tensor transports differ."""
        puts = self.puts
        edges = puts.edges(self.envelope.edge)
        alike = all(puts.tensors[i] == puts.tensors[edges[0]] for i in edges)
        out = 0
        try:
            for edge in [self.envelope.edge] if alike else edges:
                yield from self._emit_along(edge, puts.tensors[edges[0] if alike else edge])
                out += 1
        finally:
            self.layout.mark_sent(out > 0)

    def _emit_along(self, edge: int, how: wire.Tensors) -> Work[None]:
        """Emit the value along edges with the same tensor transport."""
        layout = self.layout
        if not ((yield from layout.choose_work(how)) and (yield from self._in_place(edge))):
            layout.use_host_memory()
            buffer = yield from self._reserve(edge)
            with buffer:
                layout.plan.write(buffer.view)
                buffer.send()
        layout.count()

    def _in_place(self, edge: int) -> Work[bool]:
        """Emit the value with its tensors on the GPU. False: there is no space for them."""
        buffer = yield from self._reserve(edge)
        with buffer:
            if not (yield from self.layout.fill_work(buffer.view)):
                return False
            way: Any = buffer._method
            way.retain(self.layout.pieces)
            buffer.send()
        return True

    def _reserve(self, edge: int) -> Work[Buffer]:
        puts = self.puts
        return puts.reserve_work(self.layout.plan.size(), codec.BUNDLE, self.envelope._replace(edge=edge))
