"""Values of the exchange whose tensors stay on a GPU: a bundle of the value in OmniSerializer's format, in which a
number stands for each such tensor, and of these.

No value in that format begins as a bundle does, so those who get a value see which it is.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from .. import wire
from ..bundle import Bundle, Plan
from ..devices.contract import DriverError
from ..dtypes import data_bytes
from ..errors import ForeignDevice, ForkedError, Nothing, PayloadError, Poisoned
from ..exchange import Exchange, FetchedPayload
from ..gpu import lane
from ..gpu.layout import Layout
from ..gpu.sender import OnGPU, Sender
from ..gpu.sender import of as sender_of
from ..gpu.tensor import DeviceTensor
from ..omni import decoder
from ..omni.encoder import Encoded, encode
from ..session import OutOfTime
from ..sources import Source
from ..tensor import Tensor
from .contract import Edge, Placed, Unavailable, entry_metadata


class _Beside:
    """The tensors of a value that stay where they are."""

    def __init__(self, sender: Sender, mode: int) -> None:
        self.sender, self.mode = sender, mode
        self.tensors: list[OnGPU] = []

    def number(self, value: Any) -> int | None:
        """The number of a tensor; None: it is not on a GPU, or cannot stay there."""
        torch = sys.modules.get("torch")
        try:
            if torch is not None and isinstance(value, torch.Tensor):
                value = value.detach().resolve_conj().resolve_neg()  # as it is encoded
            t = self.sender.on_gpu(value)
        except ForkedError:
            raise
        except (PayloadError, RuntimeError) as e:  # its elements, or its layout, are torch's alone
            self.sender.falls_back(self.mode, e)
            return None
        if t is None or not t.nbytes:
            return None
        self.tensors.append(t)
        return len(self.tensors) - 1


def put(exchange: Exchange, edge: Edge, key: str, value: Any, how: wire.Tensors, timeout: float) -> Placed | Encoded:
    """Put a value whose tensors stay on a GPU. Without such tensors, and where they go through host memory, which is
    counted, nothing is put, and the value encoded is returned."""
    sender = sender_of(exchange._session)
    beside = _Beside(sender, how.transport)
    payload = encode(value, beside.number)
    if not beside.tensors:
        return payload
    text = Source("uint8", (payload.size,), payload.write)
    layout = Layout(sender, Plan([text, *beside.tensors], _as_it_is), wire.MAX_INLINE_BYTES + 1)
    entry = exchange.put_on_gpu(*edge, key, layout, how, timeout)
    if entry is None:
        layout.in_host_memory()
        layout.count()
        return encode(value)
    return Placed(entry_metadata(entry), payload.size + layout.nbytes)


def _as_it_is(source: Any) -> Source:
    assert isinstance(source, Source)
    return source


def take(payload: FetchedPayload, limit: float) -> tuple[Any, int]:
    """The value of a payload that is a bundle, and its size. Its tensors are complete, and keep the payload.

    A value that this process cannot read lies under its key again: Unavailable says why. Raises Poisoned for
    tensors that are gone, or never were complete.
    """
    if payload.is_inline:
        raise PayloadError("a value with tensors on a GPU that is not in shared memory: nothing keeps them")
    try:
        value = lane.of(payload._session).open(Bundle(payload.data), payload.data, limit)
        text, *tensors = value if isinstance(value, list) else [value]
        if not isinstance(text, Tensor) or not all(isinstance(t, DeviceTensor) for t in tensors):
            raise PayloadError("a bundle that is no value of a connector")
        for t in tensors:
            if not t.wait(limit - time.monotonic()):
                raise OutOfTime
        beside = [_taken(payload, t) for t in tensors]
    except (ForeignDevice, DriverError) as e:
        raise _left(payload, str(e)) from e
    except OutOfTime:
        raise _left(payload, "neither its process nor the host said in time where they are") from None
    except Nothing as e:
        raise Poisoned(f"the process that put the tensors has ended, and its memory is gone: {e}") from None
    size = sum(data_bytes(t.dtype, t.shape) for t in (text, *tensors))
    return decoder.decode(text.raw(), beside=beside), size


def _taken(payload: FetchedPayload, t: DeviceTensor) -> Any:
    """A tensor as this process has them."""
    try:
        return decoder.of_framework(t)
    except Poisoned:
        raise
    except Exception as e:  # a torch that was built without CUDA, for one
        raise _left(payload, f"torch does not take {t!r}: {e}") from e


def _left(payload: FetchedPayload, why: str) -> Unavailable:
    """Have the value lie under its key again."""
    payload.put_back()
    return Unavailable(f"its tensors on a GPU cannot be had here, and it lies under its key as before: {why}")
