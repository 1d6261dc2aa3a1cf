"""Values to the bytes that vLLM-Omni's OmniSerializer writes.

The format is msgpack, with marked dictionaries for other types::

    {"__tensor__": true, "dtype": "float32", "shape": [2, 3], "data": bytes}
    {"__ndarray__": true, "dtype": "<f4", "shape": [2, 3], "data": bytes}
    {"__pil_image__": true, "mode": "RGB", "shape": [2, 3, 3], "data": bytes}

A value is first encoded to pieces: small data is copied together, large data is referenced in place. So the exact size
is known before the space for the payload is reserved, and large data is copied once, into that space.

Torch, NumPy, Pillow, msgspec and vLLM are never imported here: a process that has a value of theirs has imported them.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import itertools
import struct
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from .. import headroom, sources, tensor
from ..dtypes import DTYPES
from ..errors import PayloadError
from ..msgpack import Ext, _Packer, scalar
from ..msgpack import timestamp as moment
from ..tensor import Tensor
from . import marks
from .marks import ARRAY_MARK, IMAGE_MARK, IMAGE_MODES, MAX_DIMS, TENSOR_MARK

#: The keys by which vLLM-Omni recognises a CompletionOutput.
COMPLETION_KEYS = frozenset({"index", "text", "token_ids", "finish_reason"})

_REQUEST_FIELDS = (
    "request_id", "prompt", "prompt_token_ids", "prompt_logprobs", "outputs", "finished", "metrics", "lora_request",
    "encoder_prompt", "encoder_prompt_token_ids", "num_cached_tokens", "kv_transfer_params",
)  # fmt: skip

_IN_PLACE_BYTES = 4096  # data of at least this size is referenced in place
_LONG_LIST = 16
_MARKED_VALUES = 8  # of a marked dictionary, without the numbers of its shape
_TIMESTAMP = -1
_MODES = {mode: bands for mode, bands in IMAGE_MODES.items() if mode not in ("P", "PA")}  # a palette is not carried
_EMPTY = b"\xc4\x00"  # stands for the data in a cached head

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Encoded:
    """The payload of a value, in pieces.

    Pieces may be the value's own memory, so it must not change before they are written.
    """

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: list[Buffer]) -> None:
        self.pieces = pieces
        self.size = sum(len(p) for p in pieces)  #: in bytes

    def write(self, room: memoryview) -> None:
        """Fill `room`, which has exactly `size` bytes."""
        at = 0
        for p in self.pieces:
            room[at : at + len(p)] = p
            at += len(p)

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


#: The type of the extension that stands for a tensor beside the payload, as in a bundle: its number, 4 bytes. No
#: payload that stands alone has one.
BESIDE = 7


def encode(value: Any, beside: Callable[[Any], int | None] | None = None) -> Encoded:
    """The payload of a value. Raises PayloadError for one that has none.

    `beside` is called with values of types that msgpack lacks. If it returns a number, that is encoded in place of the
    value, which is sent beside the payload.
    """
    p = _Gatherer(beside)
    try:
        p.whole(value)
    except PayloadError:
        raise
    except Exception as e:  # an object that does not do what its class promises
        raise PayloadError(f"{type(value).__name__} cannot be encoded: {type(e).__name__}: {e}{p.where()}") from e
    return Encoded([*p.pieces, p.out])


class _Gatherer(_Packer):
    """A packer that references large data in place."""

    __slots__ = ("pieces", "beside")

    def __init__(self, beside: Callable[[Any], int | None] | None) -> None:
        super().__init__(None)
        self.pieces: list[Buffer] = []
        self.beside = beside

    def binary(self, v: bytes | bytearray | memoryview) -> None:
        if isinstance(v, memoryview):
            if not v.c_contiguous:
                headroom.check(f"no copy of a view of {v.nbytes} bytes", v.nbytes)
            v = v.cast("B") if v.c_contiguous and v.nbytes else v.tobytes()
        if len(v) < _IN_PLACE_BYTES or self.in_key:
            super().binary(v)
            return
        self.head(len(v), 0, 0, (0xC4, 0xC5, 0xC6))
        self.pieces += (self.out, v)
        self.out = bytearray()

    def pack(self, v: Any, depth: int) -> None:
        if type(v) is list and len(v) > _LONG_LIST:
            kinds = set(map(type, v))
            if len(kinds) == 1 and (encoded := _numbers(v, kinds.pop())) is not None:
                self.count(1 + len(v))
                self.enter(len(v), depth)
                self.head(len(v), 0x90, 16, (0, 0xDC, 0xDD))
                self.out += encoded
                return
        super().pack(v, depth)

    def dictionary(self, v: dict[Any, Any], depth: int) -> None:
        if TENSOR_MARK in v or ARRAY_MARK in v or IMAGE_MARK in v:
            marks.check(v)
        super().dictionary(v, depth)

    def extension(self, v: Ext) -> None:
        """An extension in the value. The format has only times, which are decoded as datetimes."""
        if v.type != _TIMESTAMP:
            raise PayloadError(f"an extension of type {v.type} has no encoding: the format has none but times")
        if moment(v.data)[1] % 1000:
            raise PayloadError("a time with a part of a microsecond has no encoding: a datetime has none")
        super().extension(v)

    def other(self, v: Any, depth: int) -> None:
        if depth > 1 << 10:
            raise PayloadError("nested too deeply")
        if self.beside is not None and (number := self.beside(v)) is not None:
            if self.in_key:
                raise PayloadError("a tensor is the key of a dict, or in one")
            super().extension(Ext(BESIDE, number.to_bytes(4, "little")))
            return
        p = plain(v)
        if type(p) is _Marked:
            self.count(_MARKED_VALUES + p.dims)
            self.enter(_MARKED_VALUES, depth)
            self.enter(p.dims, depth + 1)
            self.out += p.head
            self.binary(p.data)
            return
        self.values -= 1
        self.pack(p, depth)


class _Integers(dict[int, bytes]):
    """A cache of encoded integers, of those up to the size of a token id."""

    def __missing__(self, v: int) -> bytes:
        p = _Packer(None)
        p.integer(v)
        encoded = bytes(p.out)
        if 0 <= v < 1 << 18:
            self[v] = encoded
        return encoded


_integers = _Integers()


def _numbers(v: list[Any], kind: type) -> bytes | None:
    """A list of numbers of one type, at once."""
    if kind is int:
        try:
            return b"".join(map(_integers.__getitem__, v))
        except PayloadError:
            return None  # one does not fit: the encoding one by one reports which
    if kind is float:
        return struct.pack(">" + "Bd" * len(v), *itertools.chain.from_iterable(zip(itertools.repeat(0xCB), v)))
    return None


def plain(v: Any) -> Any:
    """The encodable substitute of a value of a type that msgpack lacks."""
    if isinstance(v, Tensor):
        return _marked(TENSOR_MARK, "dtype", v.dtype, v.shape, v.raw())
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(v, torch.Tensor):
        return _torch_tensor(v, torch)
    if tensor.is_ndarray(v):
        return _array(v)
    image = sys.modules.get("PIL.Image")
    if image is not None and isinstance(v, image.Image):
        return _image(v)
    if isinstance(v, enum.Enum):
        return v.value
    if hasattr(type(v), "__struct_encode_fields__"):
        return _struct(v)
    if dataclasses.is_dataclass(v) and not isinstance(v, type):
        return _dataclass(v)
    if any(c.__name__ == "RequestOutput" for c in type(v).__mro__):
        return _request_output(v)
    if isinstance(v, slice):
        return [v.start, v.stop, v.step]
    if isinstance(v, (set, frozenset)):
        return list(v)
    if isinstance(v, Mapping):
        return dict(v)
    if hasattr(v, "__dlpack__") and (source := sources.of(v)) is not None and source.fill is not None:
        data = bytearray(source.nbytes)
        source.fill(memoryview(data))
        return _marked(TENSOR_MARK, "dtype", source.dtype, source.shape, data)
    return _scalar(v)


def _scalar(v: Any) -> Any:
    if isinstance(v, datetime.datetime) and v.tzinfo is not None:
        return timestamp(v)
    if isinstance(v, datetime.time) and v.utcoffset() == datetime.timedelta(0):
        return v.isoformat().removesuffix("+00:00") + "Z"
    if isinstance(v, (datetime.datetime, datetime.date, datetime.time)):
        return v.isoformat()
    if isinstance(v, (uuid.UUID, decimal.Decimal)):
        return str(v)
    try:
        return scalar(v)
    except PayloadError:
        raise PayloadError(f"there is no encoding for a value of type {type(v).__name__}") from None


def timestamp(v: datetime.datetime) -> Ext:
    """A time with a zone, as msgpack's timestamp extension."""
    if getattr(v, "nanosecond", 0):
        raise PayloadError(f"a {type(v).__name__} with nanoseconds has no encoding: a datetime has none")
    since = v.astimezone(datetime.timezone.utc) - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    seconds, nanos = since.days * 86_400 + since.seconds, since.microseconds * 1000
    if 0 <= seconds < 1 << 34:
        if not nanos and seconds < 1 << 32:
            return Ext(-1, struct.pack(">I", seconds))
        return Ext(-1, struct.pack(">Q", nanos << 34 | seconds))
    return Ext(-1, struct.pack(">Iq", nanos, seconds))


class _Marked(NamedTuple):
    """A marked dictionary: the encoding before its data, and the data."""

    head: bytes
    data: Buffer
    dims: int


def _marked(mark: str, kind_key: str, kind: str, shape: Any, data: Buffer) -> _Marked:
    if len(shape) > MAX_DIMS:
        raise PayloadError(f"{kind} of {len(shape)} dimensions has no encoding: at most {MAX_DIMS} are allowed")
    return _Marked(_head(mark, kind_key, kind, tuple(map(int, shape))), data, len(shape))


@functools.lru_cache(1024)
def _head(mark: str, kind_key: str, kind: str, shape: tuple[int, ...]) -> bytes:
    p = _Packer(None)
    p.pack({mark: True, kind_key: kind, "shape": shape, "data": b""}, 0)
    return bytes(p.out[: -len(_EMPTY)])


def _torch_tensor(t: Any, torch: Any) -> _Marked:
    kind = str(t.dtype).removeprefix("torch.")
    if kind not in DTYPES:
        raise PayloadError(f"a tensor of {kind} has no encoding: receivers know {', '.join(DTYPES)}")
    # Conjugate and negative views set a flag, and their memory has the original elements.
    flat = t.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data: Buffer = b""
    if flat.numel():
        data = memoryview(flat.view(torch.uint8).numpy())  # it keeps the memory alive
    return _marked(TENSOR_MARK, "dtype", kind, t.shape, data)


def _array(a: Any) -> _Marked:
    import numpy as np

    tensor.check_unmasked(np, a)
    if not marks.has_name(np, a.dtype):
        what = "its elements are objects, records, or of a type that is not NumPy's own"
        raise PayloadError(f"an array of {a.dtype} has no encoding: {what}")
    data: Buffer = b""
    if a.nbytes:
        if not a.flags.c_contiguous:
            headroom.check(f"no copy of an array of {a.nbytes} bytes", a.nbytes)
        data = np.ascontiguousarray(a).reshape(-1).view(np.uint8).data
    return _marked(ARRAY_MARK, "dtype", a.dtype.str, a.shape, data)


def _image(m: Any) -> _Marked:
    if m.mode not in _MODES:
        raise PayloadError(f"an image of mode {m.mode} has no encoding: convert it to one of {', '.join(_MODES)}")
    bands = _MODES[m.mode]
    shape = (m.height, m.width) if bands == 1 else (m.height, m.width, bands)
    return _marked(IMAGE_MARK, "mode", m.mode, shape, m.tobytes())


def _struct(v: Any) -> Any:
    """The fields of a msgspec.Struct, by the settings of its class."""
    msgspec = sys.modules["msgspec"]
    config = type(v).__struct_config__
    known = msgspec.structs.fields(v)
    if config.array_like:
        values = [getattr(v, f.name) for f in known]
        return values if config.tag is None else [config.tag, *values]
    out = {} if config.tag is None else {config.tag_field: config.tag}
    for f in known:
        x = getattr(v, f.name)
        default = x is f.default or (f.default_factory in (list, dict, set) and type(x) is f.default_factory and not x)
        if x is not msgspec.UNSET and not (config.omit_defaults and default):
            out[f.encode_name] = x
    return out


def _dataclass(v: Any) -> dict[str, Any]:
    unset = getattr(sys.modules.get("msgspec"), "UNSET", dataclasses.MISSING)
    out = {}
    for f in dataclasses.fields(v):
        x = getattr(v, f.name, unset)
        if x is not unset and x is not dataclasses.MISSING:
            out[f.name] = x
    if out.keys() >= COMPLETION_KEYS:
        _add(out, v, "multimodal_output")
    return out


def _request_output(v: Any) -> dict[str, Any]:
    """The fields of vLLM's RequestOutput, which is an ordinary class, with the attributes that stages add."""
    out = {name: getattr(v, name, None) for name in _REQUEST_FIELDS}
    _add(out, v, "multi_modal_placeholders")
    _add(out, v, "multimodal_output")
    return out


def _add(out: dict[str, Any], v: Any, name: str) -> None:
    x = getattr(v, name, None)
    if x is not None:
        out[name] = x
