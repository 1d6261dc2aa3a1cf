"""Values of the exchange whose tensors stay on a GPU.

Such a value is a bundle of its encoding in OmniSerializer's format, in which a number stands for each tensor on a GPU,
and of these tensors. No encoding in that format begins with the magic number of a bundle, so a receiver can tell the two
apart.
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
from ..gpu.sender import for_session as sender_for
from ..gpu.tensor import DeviceTensor
from ..omni import decoder
from ..omni.encoder import Encoded, encode
from ..session import OutOfTime
from ..sources import Source
from ..tensor import Tensor
from .contract import Edge, PutResult, Unavailable, entry_metadata


class _DeviceTensors:
    """The tensors of a value that stay on a GPU."""

    def __init__(self, sender: Sender, mode: int) -> None:
        self.sender, self.mode = sender, mode
        self.tensors: list[OnGPU] = []

    def index_of(self, value: Any) -> int | None:
        """The number of a tensor; None: the value is no tensor on a GPU, or the tensor cannot stay there."""
        torch = sys.modules.get("torch")
        try:
            if torch is not None and isinstance(value, torch.Tensor):
                value = value.detach().resolve_conj().resolve_neg()  # as it is encoded
            t = self.sender.on_gpu(value)
        except ForkedError:
            raise
        except (PayloadError, RuntimeError) as e:  # its dtype or layout exists in torch only
            self.sender.count_fallback(self.mode, e)
            return None
        if t is None or not t.nbytes:
            return None
        self.tensors.append(t)
        return len(self.tensors) - 1


def put_value(exchange: Exchange, edge: Edge, key: str, value: Any, how: wire.Tensors, timeout: float) -> PutResult | Encoded:
    """Put a value whose tensors stay on a GPU.

    If it has no such tensors, or they must go through host memory, which is counted, nothing is put, and the encoded
    value is returned."""
    sender = sender_for(exchange._session)
    beside = _DeviceTensors(sender, how.transport)
    payload = encode(value, beside.index_of)
    if not beside.tensors:
        return payload
    text = Source("uint8", (payload.size,), payload.write)
    layout = Layout(sender, Plan([text, *beside.tensors], _as_it_is), wire.MAX_INLINE_BYTES + 1)
    entry = exchange.put_on_gpu(*edge, key, layout, how, timeout)
    if entry is None:
        layout.use_host_memory()
        layout.count()
        return encode(value)
    return PutResult(entry_metadata(entry), payload.size + layout.nbytes)


def _as_it_is(source: Any) -> Source:
    assert isinstance(source, Source)
    return source


def take_value(payload: FetchedPayload, limit: float) -> tuple[Any, int]:
    """The value of a payload that is a bundle, and its size. Its tensors are complete, and keep the payload alive.

    A value that this process cannot read is put back under its key, and Unavailable says why. Raises Poisoned for
    tensors that are lost or were never completed.
    """
    if payload.is_inline:
        raise PayloadError("a value with tensors on a GPU that is not in shared memory: nothing keeps them")
    try:
        value = lane.for_session(payload._session).decode(Bundle(payload.data), payload.data, limit)
        text, *tensors = value if isinstance(value, list) else [value]
        if not isinstance(text, Tensor) or not all(isinstance(t, DeviceTensor) for t in tensors):
            raise PayloadError("a bundle that is no value of a connector")
        for t in tensors:
            if not t.wait(limit - time.monotonic()):
                raise OutOfTime
        beside = [_for_framework(payload, t) for t in tensors]
    except (ForeignDevice, DriverError) as e:
        raise _put_back(payload, str(e)) from e
    except OutOfTime:
        raise _put_back(payload, "neither its process nor the host said in time where they are") from None
    except Nothing as e:
        raise Poisoned(f"the process that put the tensors has ended, and its memory is gone: {e}") from None
    size = sum(data_bytes(t.dtype, t.shape) for t in (text, *tensors))
    return decoder.decode(text.raw(), beside=beside), size


def _for_framework(payload: FetchedPayload, t: DeviceTensor) -> Any:
    """A tensor in the type of this process's framework."""
    try:
        return decoder.of_framework(t)
    except Poisoned:
        raise
    except Exception as e:  # for example a torch without CUDA
        raise _put_back(payload, f"torch does not take {t!r}: {e}") from e


def _put_back(payload: FetchedPayload, why: str) -> Unavailable:
    """Put the value back under its key, and return the error."""
    payload.put_back()
    return Unavailable(f"its tensors on a GPU cannot be had here, and it lies under its key as before: {why}")
