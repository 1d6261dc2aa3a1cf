"""Values to payloads and back, by the codec's number.

1 is raw bytes, 2 msgpack, 3 a tensor, 4 the format of vLLM-Omni's connectors, 7 a value with tensors in it. Up to
255 they are formats that have a Go package below `codec`, such as 5, the KV cache frames of vLLM-Omni; from 256 on
they are the bus's own. `register` makes the others known. Errors are `PayloadError`.
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
    """Make a codec known that is not of this package. `decode` must not keep its view."""
    if codec <= OMNI or codec == BUNDLE:
        raise ValueError(f"codec {codec}: {BUNDLE} and numbers up to {OMNI} are taken")
    _own[codec] = encode, decode


def as_tensor(value: Any) -> Tensor | None:
    """The value as a tensor, if it is one or a NumPy array."""
    if isinstance(value, Tensor):
        return value
    return Tensor.from_numpy(value) if tensor.is_ndarray(value) else None


def encode(value: Any, codec: int = MSGPACK) -> bytes | bytearray | memoryview:
    """The payload of a value that is no tensor of its own."""
    if codec == RAW:
        if isinstance(value, str):
            return value.encode()
        return as_bytes(value)
    if codec == MSGPACK:
        return msgpack.packb(value, _inner)
    if codec == BUNDLE:
        return bundle.encode(value)
    if codec == OMNI:
        from .omni import encoder  # for those alone who use it

        return bytes(encoder.encode(value))
    if codec in _own:
        return _own[codec][0](value)
    raise PayloadError(f"codec {codec} is not known here: register it")


class Encoding(NamedTuple):
    """How a value is encoded: what writes it into so many bytes."""

    codec: int
    size: int
    write: Callable[[memoryview], object]
    payload: bytes | bytearray | memoryview | None = None  #: the encoded value, where there is such before it is written


def plan(value: Any, codec: int | None = None) -> Encoding:
    """How a value is encoded: as `codec` says or, without, as a tensor, a bundle of tensors and the rest, or msgpack."""
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
    """Bytes as msgpack, which are copied once."""
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
    """The value of a payload. It shares no memory with it, tensors apart."""
    if codec == RAW:
        return bytes(payload)
    if codec == MSGPACK:
        head = msgpack.binary_head_bytes(payload)  # bytes alone are copied once
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
    """What msgpack encodes in place of a value that it does not know."""
    t = as_tensor(value)
    if t is not None:
        return t.to_map()
    return msgpack.scalar(value)
