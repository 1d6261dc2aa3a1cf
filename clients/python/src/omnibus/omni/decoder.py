"""Values from the bytes that vLLM-Omni's OmniSerializer writes; see `encoder`.

The values are those of OmniSerializer: torch.Tensor, numpy.ndarray, PIL images, and
vLLM's outputs where vLLM is loaded. Without the packages a tensor or an array is a
`Tensor`. An image, and an array of elements that no Tensor has, stay the dictionary that they travel as.

Arrays are views of the payload, read-only as OmniSerializer's are, if they are large. Everything
else is a copy, torch tensors too: those are writable, and a write through to memory that is
mapped read-only would end the process.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..dtypes import DTYPES
from ..errors import PayloadError
from ..msgpack import MAX_VALUES, Ext, _Unpacker, timestamp
from ..tensor import Tensor
from .encoder import BESIDE, COMPLETION_KEYS
from .marks import (
    ARRAY_MARK, ENTRIES, IMAGE_MARK, TENSOR_MARK, TENSOR_TYPES, check_array, check_image, check_size, fields, mark_of,
    module,
)  # fmt: skip

#: Arrays of so many bytes are views of the payload, which stays as long as one of them lives.
VIEW_BYTES = 4096

_PAGE_BYTES = 1 << 16  # the largest page that a segment is rounded up to
_PICKLES = (1, 2)

_REQUEST_KEYS = frozenset({"request_id", "prompt", "prompt_token_ids", "outputs", "finished"})

_NO_CODE = 0xC1
_NUMBERS = {
    code: (re.compile(b"(?:%b.{%d})+" % (re.escape(bytes([code])), struct.calcsize(kind) - 1), re.DOTALL), kind[1:],
           struct.Struct(kind))
    for code, kind in ((0xCC, ">xB"), (0xCD, ">xH"), (0xCE, ">xI"), (0xCB, ">xd"))
}  # fmt: skip

# All known writers have the entries of a marked dictionary in this order, and a stream of values repeats few
# different ones. So the parsed head, the part before the data, is cached by its bytes.
_MARK = b"\xaa__"
_MARKS = (_MARK, b"\xab__")
_DATA = b"\xa4data"
_HEAD_BYTES = 160
_MAX_HEADS = 1024
_heads: dict[bytes, tuple[Callable[[str, tuple[int, ...], Any], Any], str, tuple[int, ...]]] = {}


def decode(
    payload: bytes | bytearray | memoryview, *, padded: bool = False, beside: Sequence[Any] | None = None
) -> Any:
    """The value of a payload. Raises PayloadError, and no other error, for an invalid payload.

    `padded` allows zeros behind the value, as segments have that were rounded up to pages. `beside` are the values
    that were sent beside the payload.
    """
    view = memoryview(payload).toreadonly()
    u = _Decoder(view if len(view) >= VIEW_BYTES else bytes(view), beside)
    try:
        v = _owned(u.value(0))
    except PayloadError:
        raise
    except Exception as e:  # from a package that was given what it does not take
        raise PayloadError(f"{type(e).__name__}: {e}") from e
    left = len(view) - u.pos
    if left and not (padded and left < _PAGE_BYTES and not any(view[u.pos :])):
        raise PayloadError(f"{left} bytes after the value")
    return v


def _owned(v: Any) -> Any:
    return bytes(v) if type(v) is memoryview else v


class _Decoder(_Unpacker):
    """An unpacker that copies binary data only where it has to.

    The payload's memory may be another process's. It is read once, front to back: a value that
    was checked is not looked at again.
    """

    __slots__ = ("beside",)

    def __init__(self, src: bytes | memoryview, beside: Sequence[Any] | None = None) -> None:
        super().__init__(src)
        self.beside = beside

    def binary(self, n: int) -> bytes | memoryview:
        if n < VIEW_BYTES:
            return self.take(n)
        at = self.pos
        if n > len(self.src) - at:
            raise self.fail(at, f"{n} bytes declared, {len(self.src) - at} left")
        self.pos = at + n
        return memoryview(self.src)[at : self.pos]

    def array(self, n: int, start: int, depth: int) -> list[Any]:
        self.enter(n, start, depth)
        out: list[Any] = []
        src = self.src
        pos, end = self.pos, len(src)
        while len(out) < n:
            code = src[pos] if pos < end else _NO_CODE
            if code < 0x80:
                out.append(code)
                pos += 1
                self.values += 1
                continue
            # A fast path for long lists of numbers.
            if code in _NUMBERS:
                run, kind, one = _NUMBERS[code]
                found = run.match(src, pos, pos + (n - len(out)) * one.size)
                size = found.end() - pos if found is not None else 0
                if size == one.size:
                    out += one.unpack_from(src, pos)
                elif size:
                    out += struct.unpack(">" + kind * (size // one.size), src[pos : pos + size])
                pos += size
                if size:
                    self.values += size // one.size
                    continue
            self.pos = pos
            out.append(_owned(self.value(depth + 1)))
            pos = self.pos
        self.pos = pos
        if self.values > MAX_VALUES:
            raise self.fail(start, f"more than {MAX_VALUES} values")
        return out

    def map(self, n: int, start: int, depth: int) -> Any:
        if n == ENTRIES and bytes(self.src[self.pos : self.pos + len(_MARK)]) in _MARKS:
            return self.marked(n, start, depth)
        return self.dictionary(n, start, depth)

    def marked(self, n: int, start: int, depth: int) -> Any:
        """A marked dictionary as it is written; all that comes before its data is likely to be known."""
        begins = bytes(self.src[self.pos : self.pos + _HEAD_BYTES])
        head = begins[: begins.find(_DATA)]
        known = _heads.get(head)
        if known is None:
            v = self.dictionary(n, start, depth)
            if type(v) is not dict and head not in _heads:
                self.learn(head)
            return v
        self.enter(2 * n, start, depth)
        if known[2]:
            self.enter(len(known[2]), start, depth + 1)
        self.pos += len(head) + len(_DATA)
        self.values += 2 * n - 1 + len(known[2])  # but for the data, which comes now
        at, data = self.pos, self.value(depth + 1)
        if not isinstance(data, (bytes, memoryview)):
            raise self.fail(at, "a marked dictionary without bytes")
        return known[0](*known[1:], data)

    def learn(self, head: bytes) -> None:
        m = _Decoder(b"\x84" + head + _DATA + b"\xc0")
        m.pos = 1
        try:
            head_fields = m.entries(ENTRIES, 0, 0)
        except PayloadError:
            return  # its data is not what comes last
        make = _MAKE.get(mark_of(head_fields))
        if make is not None and m.pos == len(m.src) and len(head_fields) == ENTRIES:
            if len(_heads) >= _MAX_HEADS:
                _heads.clear()
            _heads[head] = make, head_fields["dtype"], tuple(head_fields["shape"])

    def dictionary(self, n: int, start: int, depth: int) -> Any:
        m = self.entries(n, start, depth)
        if mark := mark_of(m):
            return _image(m) if mark == IMAGE_MARK else _MAKE[mark](*fields(m, mark))
        for k, v in m.items():
            if type(v) is memoryview:
                m[k] = bytes(v)
        return _output(m)

    def entries(self, n: int, start: int, depth: int) -> dict[Any, Any]:
        self.enter(2 * n, start, depth)
        m: dict[Any, Any] = {}
        for _ in range(n):
            at = self.pos
            key = self.key(_owned(self.value(depth + 1)), at)
            m[key] = self.value(depth + 1)
        return m

    def extension(self, n: int, start: int) -> Any:
        e = super().extension(n, start)
        if e.type == BESIDE and self.beside is not None:
            number = int.from_bytes(e.data, "little")
            if len(e.data) != 4 or number >= len(self.beside):
                raise self.fail(start, f"value {number} of {len(self.beside)} that came beside the payload")
            return self.beside[number]
        if e.type in _PICKLES:
            raise self.fail(start, f"extension {e.type} holds a pickled object, which is never loaded")
        if e.type != -1:
            raise self.fail(start, f"extension {e.type} is unknown")
        return _time(e)


def _time(e: Ext) -> datetime.datetime:
    seconds, nanos = timestamp(e.data)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return epoch + datetime.timedelta(seconds=seconds, microseconds=nanos // 1000)


# Marked dictionaries.


def _tensor(kind: str, shape: tuple[int, ...], data: Any) -> Any:
    torch = module("torch")
    dtype = getattr(torch, kind, None)
    if torch is None or not isinstance(dtype, torch.dtype):
        return _own_tensor(kind, shape, data)  # also of a dtype that this torch lacks
    one = torch.empty((), dtype=dtype)
    check_size(kind, shape, one.element_size(), data)  # a dtype knows its size from torch 2.1 on
    if not data:
        return torch.empty(shape, dtype=dtype)  # of no elements: that was checked
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def of_framework(tensor: Any) -> Any:
    """A tensor that has `__dlpack__` as this process has tensors: torch's, where torch is here. Nothing is copied."""
    torch = module("torch")
    return tensor if torch is None else torch.from_dlpack(tensor)


def _own_tensor(kind: str, shape: tuple[int, ...], data: Any) -> Tensor:
    if kind not in DTYPES:
        raise PayloadError(f"a tensor of {kind!r} takes a torch that has those; known are {', '.join(DTYPES)}")
    return Tensor(kind, shape, data)


def _array(kind: str, shape: tuple[int, ...], data: Any) -> Any:
    dtype, np = check_array(kind, shape, data), module("numpy")
    if dtype is None:
        if kind in TENSOR_TYPES:
            return Tensor(TENSOR_TYPES[kind], shape, data)
        return {ARRAY_MARK: True, "dtype": kind, "shape": list(shape), "data": bytes(data)}
    if not data:
        return np.empty(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape)


_MAKE = {TENSOR_MARK: _tensor, ARRAY_MARK: _array}


def _image(m: dict[Any, Any]) -> Any:
    mode, shape, data = fields(m, IMAGE_MARK)
    check_image(mode, shape, data)
    image = module("PIL.Image")
    if image is None:
        return {**m, "data": bytes(data)}
    return image.frombytes(mode, (shape[1], shape[0]), bytes(data))


# vLLM's outputs are dictionaries that vLLM-Omni knows by their keys.


def _output(m: dict[Any, Any]) -> Any:
    """The object that a dictionary stands for, in a process that has vLLM loaded."""
    keys = m.keys()
    if "finished" in m and ("final_output_type" in m or "images" in m):
        omni = getattr(sys.modules.get("vllm_omni.outputs"), "OmniRequestOutput", None)
        return _omni_output(m, omni) if omni is not None else m
    vllm = sys.modules.get("vllm.outputs")
    if vllm is None:
        return m
    own = dict(m)
    try:
        if keys >= _REQUEST_KEYS:
            late = _cut(own, "multimodal_output", "multi_modal_placeholders")
            return _with(vllm.RequestOutput(**own), late)
        if keys >= COMPLETION_KEYS:
            late = _cut(own, "multimodal_output")
            return _with(_completion(own, vllm.CompletionOutput), late)
    except Exception:  # it only looks like one
        pass
    return m


def _cut(m: dict[Any, Any], *names: str) -> dict[str, Any]:
    return {name: x for name in names if (x := m.pop(name, None)) is not None}


def _with(v: Any, attributes: dict[str, Any]) -> Any:
    for name, x in attributes.items():
        setattr(v, name, x)
    return v


def _completion(m: dict[Any, Any], cls: Any) -> Any:
    return module("msgspec").convert(m, cls)  # it comes with vLLM


def _omni_output(m: dict[Any, Any], cls: Any) -> Any:
    inner = m.get("request_output")  # where the content was before vLLM-Omni 0.19
    known = {f.name for f in dataclasses.fields(cls)}
    try:
        out = cls(**{k: v for k, v in m.items() if k in known})
        if inner is not None and "request_output" not in known and not isinstance(inner, dict):
            out._copy_content_from(inner)
        return out
    except Exception:  # it only looks like one
        return m
