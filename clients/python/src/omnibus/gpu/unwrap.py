"""Copies the tensors of a value into memory of this process, on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .. import devices
from ..devices.contract import SendingDevice, uuid_of
from ..dtypes import data_bytes
from ..sources import of as source_of
from ..tensor import Tensor
from .chunk import Chunk, PrivateMemory, aligned_size
from .tensor import DeviceTensor

#: The name of the host as a device.
CPU = "cpu"


def unwrap(value: Any, device: Any = None, otherwise: Any = 0) -> Any:
    """The value of a delivery or of an item with all of its tensors, at any depth, copied onto a device.

    The device is a GPU, by CUDA's number, by its UUID or as torch names it ("cuda:1"), or "cpu"; None is that of the
    first tensor that is on a GPU, or `otherwise`. On a GPU each copy is a `ChunkTensor`, for `torch.from_dlpack`: the
    stream that is current there is ordered after the copying. The call waits only for copies of tensors on other
    devices. On "cpu" each copy is a `Tensor`. The copies belong to this process: they may be written, and the payload is
    returned when the original value is dropped. A value without tensors needs no device.

    Raises Poisoned for a tensor that is known to be garbage (of others their `error` reports it once the stream is
    synchronized), NoDriver and ForeignDevice if there is no such GPU, and DriverError if it has no memory left.
    """
    tensors = list(_tensors(value))
    target = _target(device, otherwise, tensors) if tensors else None
    if target is None:
        return _map_tensors(value, _to_host)
    size = sum(aligned_size(data_bytes(t.dtype, t.shape)) for t in tensors)
    chunk = Chunk(PrivateMemory(target, size), size)
    copies: list[tuple[int, Any]] = []

    def place(t: Any) -> Any:
        copy = chunk.empty(t.shape, t.dtype)
        if copy.nbytes:
            copies.append((copy.pointer, t))
            if isinstance(t, DeviceTensor) and t.device != target.uuid:
                t.wait()  # streams of the other GPU are not used
        return copy

    out = _map_tensors(value, place)
    target.copy_in(chunk._memory, copies)
    return out


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, (Tensor, DeviceTensor)):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)


def _map_tensors(value: Any, copy: Callable[[Any], Any]) -> Any:
    if isinstance(value, (Tensor, DeviceTensor)):
        return copy(value)
    if isinstance(value, dict):
        return {k: _map_tensors(v, copy) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(v, copy) for v in value)
    return value


def _to_host(t: Any) -> Tensor:
    if isinstance(t, DeviceTensor):
        t.wait()
        if t.strides is not None:
            t = unwrap(t, t.device)
    data = bytearray(data_bytes(t.dtype, t.shape))
    source = source_of(t)
    assert source is not None and source.fill is not None
    source.fill(memoryview(data))
    return Tensor(t.dtype, t.shape, data)


def _target(device: Any, otherwise: Any, tensors: list[Any]) -> SendingDevice | None:
    """The target device; None: the host."""
    if device is None:
        device = next((t.device for t in tensors if isinstance(t, DeviceTensor)), otherwise or 0)
    if isinstance(device, (bytes, int)):
        return devices.device_of(device, None)
    name = str(device)
    kind, _, number = name.partition(":")
    if name == CPU:
        return None
    if kind == "cuda" and (not number or number.isdecimal()):
        return devices.device_of(int(number or 0), None)
    try:
        uuid = uuid_of(name)
    except ValueError:
        raise ValueError(f'device {device!r}: use "cpu", "cuda:0", a number of CUDA\'s or a UUID') from None
    return devices.by_uuid(uuid)
