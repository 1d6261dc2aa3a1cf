"""Stages and callers of an Omnibus bus.

A stage in a process of its own::

    from omnibus import run, stage

    @stage
    def upper(text: str) -> str:
        return text.upper()

    if __name__ == "__main__":  # and not where multiprocessing imports this file
        run()

A caller::

    from omnibus import connect

    with connect(bus="speech") as bus, bus.submit("hello") as request:
        for result in request:
            print(result.value())

Payloads are read and written in place in shared memory; see `Delivery.view`,
`Delivery.tensor`, `Task.emit_tensor` and `Task.reserve`. The host keeps all accounts:
a process that dies leaves nothing behind. A forked child must connect anew; inherited
objects raise ForkedError.
"""

from typing import TYPE_CHECKING

from .buffer import Buffer
from .client import Client, connect
from .codec import BUNDLE, MSGPACK, RAW, TENSOR, register
from .delivery import Delivery, View
from .directory import Found, Name, Owner
from .errors import (
    Closing,
    Code,
    DeadlineExceeded,
    Finished,
    ForeignDevice,
    Forged,
    ForkedError,
    HostError,
    HostGone,
    LabelError,
    Nothing,
    OmnibusError,
    OutOfMemory,
    Overloaded,
    PayloadError,
    Poisoned,
    PoolFull,
    ProtocolError,
    Refused,
    RequestAborted,
    RequestEnded,
    RequestFailed,
    RequestOver,
    Taken,
    TooLarge,
    Unknown,
    Untrusted,
    WindowFull,
)
from .exchange import Exchange
from .request import Request
from .runner import run
from .stages import StageFunction, stage
from .task import Task
from .tensor import Tensor
from .tensorqueue import TensorQueue
from .wire import Edge, Trace

if TYPE_CHECKING:
    from .aio import AsyncBuffer, AsyncClient, AsyncRequest, AsyncTask, aconnect
else:

    def __getattr__(name):
        # The async names load asyncio, which takes as long as the rest of the package.
        if name not in ("AsyncBuffer", "AsyncClient", "AsyncRequest", "AsyncTask", "aconnect"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import aio

        return getattr(aio, name)


__all__ = [
    "BUNDLE", "MSGPACK", "RAW", "TENSOR", "AsyncBuffer", "AsyncClient", "AsyncRequest", "AsyncTask", "Buffer",
    "Client", "Closing", "Code", "DeadlineExceeded", "Delivery", "Edge", "Exchange", "Finished", "ForeignDevice",
    "Forged", "ForkedError", "Found", "HostError", "HostGone", "LabelError", "Name", "Nothing", "OmnibusError",
    "OutOfMemory", "Overloaded", "Owner", "PayloadError", "Poisoned", "PoolFull", "ProtocolError", "Refused", "Request", "RequestAborted",
    "RequestEnded", "RequestFailed", "RequestOver", "StageFunction", "Taken", "Task", "Tensor", "TensorQueue", "TooLarge", "Trace",
    "Unknown", "Untrusted", "View", "WindowFull", "aconnect", "connect", "register", "run", "stage",
]  # fmt: skip
