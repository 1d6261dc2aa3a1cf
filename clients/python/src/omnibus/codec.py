"""Encoding and decoding of payloads, by the number of the codec.

1 is raw bytes, 2 msgpack, 3 a tensor, 4 the format of vLLM-Omni's connectors, 7 a bundle: a value that contains tensors.
Numbers up to 255 are formats with a Go package below `codec`, such as 5, the KV cache frames of vLLM-Omni; from 256 on
they belong to the bus. `register` adds further codecs. Errors are `PayloadError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from . import bundle, msgpack, sources, tensor
from .errors import PayloadError
from .tensor import Tensor

RAW = 1
MSGPACK = 2
TENSOR = 3
OMNI = 4
BUNDLE = 7

Encoder: TypeAlias = Callable[[Any], "bytes | bytearray | memoryview"]
Decoder: TypeAlias = Callable[[memoryview], Any]

_own: dict[int, tuple[Encoder, Decoder]] = {}


def register(codec: int, encode: Encoder, decode: Decoder) -> None:
    """Register a codec that is not part of this package. `decode` must not keep its view."""
    if codec <= OMNI or codec == BUNDLE:
        raise ValueError(f"codec {codec}: {BUNDLE} and numbers up to {OMNI} are taken")
    _own[codec] = encode, decode


def as_tensor(value: Any) -> Tensor | None:
    """The value as a tensor, if it is one or a NumPy array."""
    if isinstance(value, Tensor):
        return value
    return Tensor.from_numpy(value) if tensor.is_ndarray(value) else None


def encode(value: Any, codec: int = MSGPACK) -> bytes | bytearray | memoryview:
    """The payload of a value, in a codec other than TENSOR."""
    if codec == RAW:
        if isinstance(value, str):
            return value.encode()
        return as_bytes(value)
    if codec == MSGPACK:
        return msgpack.packb(value, _inner)
    if codec == BUNDLE:
        return bundle.encode(value)
    if codec == OMNI:
        from .omni import encoder  # loaded on first use

        return bytes(encoder.encode(value))
    if codec in _own:
        return _own[codec][0](value)
    raise PayloadError(f"codec {codec} is not known here: register it")


class Encoding(NamedTuple):
    """The encoding of a value: its codec, its size, and the function that writes it."""

    codec: int
    size: int
    write: Callable[[memoryview], object]
    payload: bytes | bytearray | memoryview | None = None  #: the encoded value, if it exists before `write`


def plan(value: Any, codec: int | None = None) -> Encoding:
    """The encoding of a value: by `codec` or, without one, as a tensor, a bundle or msgpack."""
    if codec is None and type(value) is bytes:
        return _binary(value)
    source = sources.of(value) if codec in (None, TENSOR) else None
    if source is not None:
        return _tensor(source)
    if codec in (None, BUNDLE):
        parts = bundle.Plan(value, extensions=codec is None)
        if parts.tensors or codec == BUNDLE:
            return Encoding(BUNDLE, parts.size(), parts.write)
        return _written(MSGPACK, parts.tree)
    return _written(codec, encode(value, codec))


def _tensor(source: sources.Source) -> Encoding:
    head, fill = tensor.header(source.dtype, source.shape), source.fill
    at = len(head)

    def write(buf: memoryview) -> None:
        buf[:at] = head
        if fill is not None:
            fill(buf[at:])

    return Encoding(TENSOR, at + source.nbytes, write)


def _binary(value: bytes) -> Encoding:
    """Bytes as msgpack, copied once."""
    head = msgpack.binary_head(len(value))
    at = len(head)

    def write(buf: memoryview) -> None:
        buf[:at] = head
        buf[at:] = value

    return Encoding(MSGPACK, at + len(value), write)


def _written(codec: int, payload: bytes | bytearray | memoryview) -> Encoding:
    def write(buf: memoryview) -> None:
        buf[:] = payload

    return Encoding(codec, len(payload), write, payload)


def decode(payload: memoryview, codec: int) -> Any:
    """The value of a payload. Only tensors share memory with the payload."""
    if codec == RAW:
        return bytes(payload)
    if codec == MSGPACK:
        head = msgpack.binary_head_bytes(payload)  # a payload of only bytes is copied once
        return bytes(payload[head:]) if head else msgpack.unpackb(payload)
    if codec == TENSOR:
        return tensor.view(payload)
    if codec == BUNDLE:
        return bundle.decode(payload)
    if codec == OMNI:
        from .omni import decoder

        return decoder.decode(bytes(payload))
    if codec in _own:
        return _own[codec][1](payload)
    raise PayloadError(f"codec {codec} is not known here: register it")


def as_bytes(data: Any) -> memoryview:
    """Any contiguous buffer as a flat view of its bytes."""
    try:
        v = memoryview(data)
        return v if v.format == "B" and v.ndim == 1 else v.cast("B")
    except TypeError as e:
        raise PayloadError(f"raw bytes: {e}") from None


def _inner(value: Any) -> Any:
    """The substitute that msgpack encodes for a value that it does not know."""
    t = as_tensor(value)
    if t is not None:
        return t.to_map()
    return msgpack.scalar(value)
