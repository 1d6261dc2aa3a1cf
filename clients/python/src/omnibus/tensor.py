"""The tensor payload, as a view and written in place.

All numbers are little endian::

    offset  size     field
         0  4        magic "OTEN"
         4  1        version, 1
         5  1        dtype, see DTYPES
         6  1        ndim, 0 to 32
         7  1        reserved, 0
         8  8*ndim   shape, outermost dimension first
         …           zeros up to the next multiple of 64
      data  …        elements in row-major order, to the end of the payload

A tensor has exactly one encoding; any other is a PayloadError.
"""

from __future__ import annotations

import functools
import struct
import sys
from operator import index
from typing import TYPE_CHECKING, Any

from .dtypes import DTYPES, MAX_DIMS, NAMES, data_bytes
from .errors import PayloadError
from .memory import check_process

if TYPE_CHECKING:
    import numpy as np

#: NumPy's stand-ins for dtypes that it lacks: their bits.
_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}

#: NumPy's dtypes, which are slow to create.
_dtypes: dict[str, Any] = {}

_prefix = struct.Struct("<4sBBBB")
_MAGIC = b"OTEN"


class Tensor:
    """A dense array of numbers in row-major order.

    `data` is a flat memoryview of the elements, cast to their format (see
    DTYPES). It may view a payload, which is not returned as long as the tensor
    lives.
    """

    __slots__ = ("dtype", "shape", "data")

    def __init__(self, dtype: str, shape: tuple[int, ...] | list[int], data: Any) -> None:
        """Take `data`, any contiguous buffer of the right size, without a copy."""
        shape = tuple(map(index, shape))  # msgpack does not know NumPy's integers
        want = data_bytes(dtype, shape)
        view = memoryview(data)
        if view.nbytes != want:
            raise PayloadError(f"tensor {dtype}{list(shape)}: data has {view.nbytes} bytes, the shape needs {want}")
        if not view.c_contiguous:
            raise PayloadError(f"tensor {dtype}{list(shape)}: data is not contiguous in row-major order")
        self.dtype = dtype
        self.shape = shape
        self.data = _elements(view, dtype)

    @property
    def nbytes(self) -> int:
        """The size of the data in bytes."""
        return self.data.nbytes

    def raw(self) -> memoryview:
        """The data as bytes."""
        return _bytes_of(self.data)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The tensor as a NumPy array, without a copy.

        NumPy has no bfloat16 and no floats of 8 bits: the array is of uint16 or uint8, the bits. Raises
        ImportError when NumPy is not installed.
        """
        import numpy as np

        dtype = _dtypes.get(self.dtype)
        if dtype is None:
            dtype = _dtypes[self.dtype] = np.dtype(_BITS.get(self.dtype, self.dtype)).newbyteorder("<")
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    @classmethod
    def from_numpy(cls, array: np.ndarray[Any, Any], dtype: str | None = None) -> Tensor:
        """A tensor of the array's memory; copied only if it is not contiguous.

        With `dtype="bfloat16"` an array of uint16 holds the bits, and likewise uint8 for the floats of 8 bits.
        """
        import numpy as np

        check_unmasked(np, array)
        array = np.asarray(array)
        shape = array.shape
        name = dtype or array.dtype.name
        if name not in DTYPES:
            raise PayloadError(f"tensor: no dtype {name!r}; known are {', '.join(DTYPES)}")
        if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
            array = array.astype(array.dtype.newbyteorder("<"))
        array = np.ascontiguousarray(array)
        # As bytes, because memoryview cannot cast all of NumPy's formats.
        return cls(name, shape, array.reshape(-1).view(np.uint8))

    @classmethod
    def from_dlpack(cls, value: Any) -> Tensor:
        """A tensor of the memory of any object with `__dlpack__`, such as a torch tensor in the host's memory.

        The tensor and views of its data keep that memory. Raises PayloadError for memory that is not contiguous or on
        another device.
        """
        from . import dlpack

        b = dlpack.borrow(value)
        if b.strides is not None:
            raise PayloadError(f"tensor {b.dtype}{list(b.shape)}: strides {list(b.strides)}: make it contiguous first")
        return cls(b.dtype, b.shape, b.view())

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The tensor for `torch.from_dlpack` and the like, without a copy unless one is asked for.

        The result keeps the payload, as a view does. A payload must not be written to: a consumer of DLPack
        version 1 is told so; in any other consumer a write crashes the process.
        """
        if stream is not None:
            raise BufferError("a tensor in the host's memory has no stream")
        check_process(self.data)
        if max_version is not None and max_version >= (1, 0) and not (copy or dl_device or self.dtype in _BITS):
            if sys.modules.get("numpy") is not None:
                try:
                    return self.numpy().__dlpack__(max_version=max_version)  # faster than a capsule of ours
                except (TypeError, BufferError):
                    pass  # a NumPy before version 2.1
        from . import dlpack

        dlpack.check_device(dl_device, self.__dlpack_device__())
        # A view of its own, which no caller can release.
        data = memoryview(bytearray(self.raw()) if copy else self.data)
        return dlpack.capsule(
            dlpack.address(data), *self.__dlpack_device__(), self.dtype, self.shape, None, data.readonly, data.release,
            max_version=max_version, copied=bool(copy),
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host's memory."""
        return (1, 0)

    @classmethod
    def from_map(cls, m: Any) -> Tensor:
        """The tensor of a map with `__tensor__`, its form in msgpack values.

        A Tensor, as in a bundle, is returned as it is.
        """
        if isinstance(m, Tensor):
            return m
        if not isinstance(m, dict) or not isinstance(m.get("dtype"), str) or not isinstance(m.get("shape"), list):
            raise PayloadError("tensor: not a map of dtype, shape and data")
        if not all(type(n) is int for n in m["shape"]):
            raise PayloadError("tensor: a dimension is not a number")
        data = m.get("data")
        if not isinstance(data, (bytes, bytearray, memoryview, type(None))):
            raise PayloadError(f"tensor: its data is of type {type(data).__name__}, not bytes")
        return cls(m["dtype"], tuple(m["shape"]), b"" if data is None else data)

    def to_map(self) -> dict[str, Any]:
        """The map that represents the tensor in a msgpack value."""
        return {"__tensor__": True, "dtype": self.dtype, "shape": list(self.shape), "data": self.raw()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        return self.dtype == other.dtype and self.shape == other.shape and self.raw() == other.raw()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}{list(self.shape)})"


def payload_bytes(dtype: str, shape: tuple[int, ...] | list[int]) -> int:
    """The size of a tensor's payload."""
    return _data_offset(len(shape)) + data_bytes(dtype, tuple(shape))


@functools.lru_cache(256)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The header of a tensor whose dtype and shape are valid."""
    packed = _prefix.pack(_MAGIC, 1, DTYPES[dtype][0], len(shape), 0) + struct.pack(f"<{len(shape)}Q", *shape)
    return packed.ljust(_data_offset(len(shape)), b"\0")


def write_header(buf: memoryview, dtype: str, shape: tuple[int, ...] | list[int]) -> memoryview:
    """Write the header into `buf` and return the rest of it, for the data.

    `buf` has exactly `payload_bytes`. The data is left as it was.
    """
    want = payload_bytes(dtype, shape)
    if buf.nbytes != want:
        raise PayloadError(f"tensor {dtype}{list(shape)}: a buffer of {buf.nbytes} bytes, want {want}")
    head = header(dtype, tuple(shape))
    buf[: len(head)] = head
    return buf[len(head) :]


def encode(t: Tensor) -> bytearray:
    """The payload of a tensor."""
    out = bytearray(payload_bytes(t.dtype, t.shape))
    write_header(memoryview(out), t.dtype, t.shape)[:] = t.raw()
    return out


def view(payload: bytes | bytearray | memoryview) -> Tensor:
    """The tensor in a payload; its data is a view of the payload."""
    buf = _bytes_of(memoryview(payload))
    if len(buf) < _data_offset(0):
        raise PayloadError(f"tensor: {len(buf)} bytes end within the header")
    magic, version, number, ndim, reserved = _prefix.unpack_from(buf)
    if magic != _MAGIC:
        raise PayloadError(f"tensor: magic {magic!r} is not that of a tensor")
    if version != 1 or number not in NAMES or ndim > MAX_DIMS or reserved:
        raise PayloadError(f"tensor: version {version}, dtype {number}, {ndim} dimensions, reserved {reserved}")
    at = _data_offset(ndim)
    head = bytes(buf[_prefix.size : at])
    if len(head) < at - _prefix.size:
        raise PayloadError(f"tensor: {len(buf)} bytes end within the header of {ndim} dimensions")
    if head[8 * ndim :].strip(b"\0"):
        raise PayloadError("tensor: padding is not zero")
    return Tensor(NAMES[number], struct.unpack_from(f"<{ndim}Q", head), buf[at:])


def check_unmasked(np: Any, array: Any) -> None:
    """Raise PayloadError for a masked array, whose mask would be lost."""
    if isinstance(array, np.ma.MaskedArray):
        raise PayloadError("tensor: a masked array has a mask, which tensors have not: send .filled(), or .data and .mask")


def is_ndarray(value: object) -> bool:
    """Whether a value is a NumPy array, without importing NumPy."""
    np = sys.modules.get("numpy")
    return np is not None and isinstance(value, np.ndarray)


def _data_offset(ndim: int) -> int:
    return (_prefix.size + 8 * ndim + 63) & ~63


def _bytes_of(v: memoryview) -> memoryview:
    if v.format == "B" and v.ndim == 1:
        return v
    return v.cast("B") if v.nbytes else memoryview(b"")


def _elements(v: memoryview, dtype: str) -> memoryview:
    fmt = DTYPES[dtype][2]
    if v.format == fmt and v.ndim == 1:
        return v
    try:
        return _bytes_of(v).cast(fmt)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError) as e:
        raise PayloadError(f"tensor: {v.nbytes} bytes of format {v.format!r} as {dtype}: {e}") from None
