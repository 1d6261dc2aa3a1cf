"""The sources of tensors that are sent: where their elements lie, so that they are copied once, into the payload."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from .dtypes import DTYPES, data_bytes
from .errors import PayloadError
from .tensor import Tensor, check_unmasked

#: dtypes by the format and size of a buffer's items.
_FORMATS = {("?", 1): "bool", ("e", 2): "float16", ("f", 4): "float32", ("d", 8): "float64"}
_FORMATS |= {("Zf", 8): "complex64", ("Zd", 16): "complex128"}
_FORMATS |= {(c, 1 << n): f"int{8 << n}" for c in "bhilqn" for n in range(4)}
_FORMATS |= {(c, 1 << n): f"uint{8 << n}" for c in "BHILQN" for n in range(4)}


class Source:
    """A tensor that is about to be sent."""

    __slots__ = ("dtype", "shape", "nbytes", "fill")

    def __init__(self, dtype: str, shape: tuple[int, ...], fill: Callable[[memoryview], None] | None) -> None:
        self.dtype = dtype
        self.shape = shape
        self.nbytes = data_bytes(dtype, shape)
        self.fill = fill  #: copies the elements, in row-major order, into `nbytes` bytes; None: the caller copies them


def of(value: Any) -> Source | None:
    """The source of a value; None if the value is no tensor.

    Tensors are `Tensor`, NumPy arrays, objects with `__dlpack__` such as torch tensors, also on a GPU, and objects with a
    buffer such as `array.array`. bytes, bytearray and memoryview count as bytes, and NumPy scalars as numbers.
    """
    torch = sys.modules.get("torch")
    if torch is not None and type(value) is torch.Tensor and (plain := _of_torch(torch, value)) is not None:
        return plain
    if isinstance(value, Tensor):
        return Source(value.dtype, value.shape, _copy(value.raw()))
    if isinstance(value, _PLAIN):
        return None
    np = sys.modules.get("numpy")
    if np is not None and isinstance(value, (np.ndarray, np.generic)):
        return _of_array(np, value) if isinstance(value, np.ndarray) else None
    if hasattr(value, "__dlpack__"):
        from . import dlpack  # loaded on first use

        if dlpack.is_on_gpu(value):
            return _of_cuda(value)
        b = dlpack.borrow(value)
        if b.strides is not None and min(b.strides) < 0:
            raise PayloadError(f"tensor {b.dtype}{list(b.shape)}: strides {list(b.strides)}: copy it first")
        return Source(b.dtype, b.shape, b.copy_into)
    return _of_buffer(value)


_PLAIN = (type(None), bool, int, float, str, bytes, bytearray, memoryview, list, tuple, dict)


def _copy(data: memoryview) -> Callable[[memoryview], None]:
    def fill(dst: memoryview) -> None:
        dst[:] = data

    return fill


#: The names of NumPy's and torch's dtypes, which are slow to compute.
_names: dict[Any, str] = {}


def _name_of(dtype: Any, name: str) -> str:
    if name not in DTYPES:
        raise PayloadError(f"tensor: no dtype {name!r}; known are {', '.join(DTYPES)}")
    _names[dtype] = name
    return name


def _of_array(np: Any, array: Any) -> Source:
    plain = type(array) is np.ndarray
    if not plain:
        check_unmasked(np, array)
    dtype = array.dtype
    name = _names.get(dtype) or _name_of(dtype, dtype.name)

    def fill(dst: memoryview) -> None:
        if not dst.nbytes:
            return
        if plain and dtype.isnative and sys.byteorder == "little" and array.flags.c_contiguous:
            dst[:] = array.reshape(-1).view("u1").data
        else:
            np.copyto(np.frombuffer(dst, dtype.newbyteorder("<")).reshape(array.shape), array)

    return Source(name, array.shape, fill)


def _of_torch(torch: Any, value: Any) -> Source | None:
    """The source of a torch tensor in host memory whose bytes are sent as they lie. None: it needs DLPack."""
    dtype = value.dtype
    name = _names.get(dtype)
    if name is None:
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            return None
        _names[dtype] = name
    if (
        not value.is_cpu or value.layout is not torch.strided or value.requires_grad
        or value.is_nested or value.is_neg() or value.is_conj() or not value.is_contiguous()
    ):  # fmt: skip
        return None

    def fill(dst: memoryview) -> None:
        if dst.nbytes:
            ctypes.memmove(ctypes.byref(ctypes.c_char.from_buffer(dst)), value.data_ptr(), dst.nbytes)

    return Source(name, tuple(value.shape), fill)


def _of_cuda(value: Any) -> Source:
    """The source of a tensor on a GPU, which is copied into the payload when the work that fills it is done."""
    from . import dlpack
    from .devices import cuda
    from .devices.contract import NoDriver

    ordinal = int(value.__dlpack_device__()[1])
    try:
        device = cuda.at(ordinal)
    except (LookupError, NoDriver) as e:
        what = f"a value of type {type(value).__name__} on CUDA's device {ordinal}"
        raise PayloadError(f"{what}: copy it to the host first: {e}") from e
    b = dlpack.borrow(value, -1)
    if b.strides is not None:
        if not hasattr(value, "contiguous"):
            raise PayloadError(f"tensor {b.dtype}{list(b.shape)}: strides {list(b.strides)}: make it contiguous first")
        value = value.contiguous()
        b = dlpack.borrow(value, -1)

    def fill(dst: memoryview) -> None:
        if dst.nbytes:
            device.to_host(value, dlpack.address(dst), dst.nbytes)

    return Source(b.dtype, b.shape, fill)


def _of_buffer(value: Any) -> Source | None:
    try:
        view = memoryview(value)
    except TypeError:
        return None
    dtype = _FORMATS.get((view.format.lstrip("@=" + ("<" if sys.byteorder == "little" else ">")), view.itemsize))
    if dtype is None:
        raise PayloadError(f"tensor: a value of type {type(value).__name__} with elements of format {view.format!r}")
    data = view if view.c_contiguous else memoryview(view.tobytes())
    return Source(dtype, tuple(view.shape or ()), _copy(data.cast("B") if data.nbytes else memoryview(b"")))
