"""The messages by which a bus is served: opening, stages, segments, emissions, requests, questions about the bus.

Their fields are in the order of the wire, and their types say how each is written: see `fields`. Open it for what the
host and a client say to each other; docs/protocol.md says when they say it.

The messages of lanes between clients (64 to 77) are not here: this client does
not say `lanes`, so for it they are kinds like any that there are none of.
"""

from typing import NamedTuple

from ..errors import ProtocolError
from .fields import (
    I64,
    U8,
    U16,
    U32,
    U64,
    Attributes,
    Data,
    Edges,
    Name,
    Numbers,
    Payload,
    Piece,
    TensorsList,
    Text,
    TraceContext,
    U8_x,
    U16_2x,
    U32_4x,
    check_inline,
)
from .limits import COMPLETED, MAGIC, REFUSED
from .packet import message

# Opening.


@message(1)
class Hello(NamedTuple):
    magic: U64
    version_min: U16
    version_max: U16
    pid: U32
    bus: Name
    name: Name

    def check(self) -> None:
        if self.magic != MAGIC:
            raise ProtocolError(f"hello with the magic {self.magic:#x}: this is no client of a bus")


@message(2)
class Welcome(NamedTuple):
    version: U16_2x
    node: U32
    epoch: U64
    inline_bytes: U32_4x
    bus: Name
    inputs: Edges
    results: Edges
    tensors: TensorsList


@message(3)
class Refuse(NamedTuple):
    code: U16
    text: Text


@message(4)
class Failed(NamedTuple):
    token: U32
    code: U16
    text: Text


# Serving a stage.


@message(10)
class Serve(NamedTuple):
    token: U32
    stage: Name
    flags: U32 = 0


@message(11)
class Serving(NamedTuple):
    token: U32
    stage: U32
    replica: U32
    max_inflight: U32
    state: U8
    join: U8
    batch: U32
    inputs: Edges
    outputs: Edges
    tensors: TensorsList

    def check(self) -> None:
        if self.state > 1 or self.join > 1:
            raise ProtocolError(f"serving: state {self.state}, join {self.join}: both are 0 or 1")


@message(12)
class Open(NamedTuple):
    task: U32
    stage: U32
    request: U64
    attempt: U32
    deadline: I64
    trace: TraceContext


@message(13)
class Deliver(NamedTuple):
    source: U32
    delivery: U32
    edge: U16
    flags: U8_x
    codec: U32
    attempt: U32
    seq: U64
    dropped: U64
    segment: U32
    offset: U64
    size: U64
    key: Name
    attrs: Attributes
    payload: Payload

    def check(self) -> None:
        check_inline(self.flags, self.size, self.payload)


@message(14)
class Finish(NamedTuple):
    delivery: U32
    flags: U8 = 0
    code: U16 = 0
    text: Text = ""


@message(15)
class Release(NamedTuple):
    delivery: U32


@message(16)
class End(NamedTuple):
    task: U32


@message(17)
class Ended(NamedTuple):
    task: U32
    code: U16 = 0
    text: Text = ""
    edge: Name = ""
    key: Name = ""
    seq: U64 = 0


@message(18)
class Over(NamedTuple):
    source: U32
    outcome: U8
    stage: Name
    edge: Name
    key: Name
    seq: U64
    text: Text
    code: U32 = 0  # why it was refused

    def check(self) -> None:
        if not COMPLETED <= self.outcome <= REFUSED:
            raise ProtocolError(f"over: no outcome has the number {self.outcome}")


@message(19)
class Leave(NamedTuple):
    stages: Numbers = ()  # none: all


@message(20)
class Drain(NamedTuple):
    pass


# Segments.


@message(24, fds=(1, 1))
class Segment(NamedTuple):
    segment: U32
    bytes: U64


@message(25)
class Forget(NamedTuple):
    segment: U32


# Emitting.


@message(41, fds=(1, 1))
class Offer(NamedTuple):
    segment: U32
    bytes: U64


@message(42)
class Put(NamedTuple):
    put: U32
    source: U32
    delivery: U32
    edge: U16
    flags: U8_x
    codec: U32
    attempt: U32
    segment: U32
    offset: U64
    size: U64
    key: Name
    attrs: Attributes
    payload: Data

    def check(self) -> None:
        check_inline(self.flags, self.size, self.payload)


@message(43)
class Returned(NamedTuple):
    puts: Numbers


@message(44)
class Spent(NamedTuple):
    put: U32
    flags: U8


# Submitting requests.


@message(48)
class Submit(NamedTuple):
    deadline: I64
    flags: U8
    trace: TraceContext
    source: U32


@message(49)
class Submitted(NamedTuple):
    source: U32
    request: U64


@message(50)
class CloseSend(NamedTuple):
    source: U32


@message(51)
class AbortRequest(NamedTuple):
    source: U32
    text: Text


@message(52)
class Close(NamedTuple):
    source: U32


# Asking about the bus, and leaving.


@message(56)
class Call(NamedTuple):
    token: U32
    method: Name
    arguments: Piece


@message(57)
class Reply(NamedTuple):
    token: U32
    flags: U8
    piece: Piece


@message(60)
class Bye(NamedTuple):
    pass
