"""Memory that the host shares: segments in which payloads arrive.

Open it for who maps what, and when. Room of the client's own is in `room`.
"""

from __future__ import annotations

import os
from typing import Any

from . import wire
from .errors import ProtocolError
from .memory import Mapping


class Segments:
    """Those of a session. Called with its lock held."""

    __slots__ = ("mapped",)

    def __init__(self) -> None:
        self.mapped: dict[int, Mapping] = {}

    def of(self, m: wire.Deliver | wire.Fetched) -> Mapping:
        """The segment that a delivery names, with its payload in bounds."""
        mapping = self.mapped.get(m.segment)
        if mapping is None:
            raise ProtocolError(f"delivery {m.delivery} is in segment {m.segment}, which is not here")
        mapping.check(m.offset, m.size)
        return mapping

    def on_segment(self, m: wire.Segment, fd: int | None) -> None:
        assert fd is not None
        try:
            if m.segment in self.mapped:
                raise ProtocolError(f"segment {m.segment} is there already")
            self.mapped[m.segment] = Mapping(fd, m.bytes)
        finally:
            os.close(fd)

    def on_forget(self, m: wire.Forget, _: Any) -> None:
        # Its deliveries and views keep the mapping for as long as they last.
        self.mapped.pop(m.segment, None)

    def clear(self) -> None:
        """The session has ended. What is still viewed stays mapped."""
        self.mapped.clear()
