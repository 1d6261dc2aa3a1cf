"""What messages carry beside numbers and text: attributes, edges, how tensors travel, and traces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Attrs: TypeAlias = dict[str, str]


@dataclass(slots=True)
class Edge:
    """An edge as the host describes it. A window of 0 has no bound."""

    name: str
    peer: str = ""
    window: int = 0
    window_bytes: int = 0
    policy: int = 0


@dataclass(slots=True)
class Tensors:
    """How the tensors of an edge travel that lie in memory of a GPU: 0 default, 1 cuda_ipc, 2 cuda_ipc_pool."""

    transport: int = 0
    min_bytes: int = 0


@dataclass(slots=True)
class Trace:
    """Where a request belongs in a distributed trace; all zero: nowhere."""

    trace_id: bytes = bytes(16)
    span_id: bytes = bytes(8)
    flags: int = 0
    state: str = ""
