"""The DLPack protocol: exporting memory to other libraries, and borrowing their tensors.

`capsule` exports memory, for `torch.from_dlpack` and the like, and calls back once when the
last consumer has released it. `borrow` imports the memory of another library's tensor. Neither
copies. Both support any device; the caller knows the memory, and when it is ready.

A deleter may be called in any thread, without the GIL, while an exception is set, and after the
interpreter has ended. A Python function can be a deleter through ctypes, but the exception would
be lost. So if NumPy or torch is loaded, as with most consumers of capsules, `capsule` takes a
capsule of theirs over a few bytes, whose deleter is C code, and changes its fields to describe
our memory. Only without both libraries the deleter is a Python function.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .errors import PayloadError
from .dtypes import DTYPES, MAX_DIMS, data_bytes

log = logging.getLogger("omnibus")

#: Types of devices. The processor can read the memory of the types in HOST.
CPU, CUDA, CUDA_HOST = 1, 2, 3
HOST = frozenset((CPU, CUDA_HOST, 11))

#: The requested version of the protocol, and flags of version 1.
VERSION = (1, 0)
READ_ONLY, COPIED = 1, 2

# Those of floats of 8 bits are of DLPack 1.1.
_CODES = {"bool": 6, "bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12, "complex64": 5, "complex128": 5}
_CODES |= {n: 0 for n in DTYPES if n.startswith("int")} | {n: 1 for n in DTYPES if n.startswith("uint")}
_CODES |= {n: 2 for n in ("float16", "float32", "float64")}
_NAMES = {(code, 8 * DTYPES[name][1]): name for name, code in _CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor, before version 1."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


class _Buffer(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("rest", ctypes.c_void_p * 5),
    ]


_api = ctypes.pythonapi


def _function(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, _api))


_get_buffer = _function("PyObject_GetBuffer", ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int)
_release_buffer = _function("PyBuffer_Release", None, ctypes.POINTER(_Buffer))
_incref = _function("Py_IncRef", None, ctypes.py_object)
_new = _function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _function("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
# The same for a capsule that is being destroyed, of which no new reference may be made.
_dying_is_valid = _function("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


def _immortal(thing: Any) -> Any:
    """Make an object immortal: C code refers to it, also after the interpreter has ended."""
    _incref(thing)
    return thing


_KINDS: tuple[tuple[bytes, bytes, Any], ...] = (
    (_immortal(b"dltensor_versioned"), _immortal(b"used_dltensor_versioned"), _Versioned),
    (_immortal(b"dltensor"), _immortal(b"used_dltensor"), _Managed),
)


def address(view: memoryview) -> int:
    """The address of a contiguous buffer, which may be read-only."""
    b = _Buffer()
    _get_buffer(view, ctypes.byref(b), 0)
    try:
        return b.buf or 0
    finally:
        _release_buffer(ctypes.byref(b))


# Exporting.


class _Owner:
    """Calls `on_release` when it is collected: the last consumer has released the memory."""

    __slots__ = ("on_release", "sizes")

    def __init__(self, on_release: Callable[[], object] | None, sizes: Any) -> None:
        self.on_release = on_release
        self.sizes = sizes  # shape and strides, to which the capsule points

    def __del__(self) -> None:
        on_release, self.on_release = self.on_release, None
        if on_release is None:
            return
        try:
            on_release()
        except Exception:
            log.exception("the callback of a released tensor failed")


def capsule(
    ptr: int,
    device_type: int,
    device_id: int,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    readonly: bool,
    on_release: Callable[[], object] | None,
    *,
    max_version: tuple[int, int] | None = None,
    copied: bool = False,
) -> Any:
    """A capsule of memory, as the result of `__dlpack__`.

    `strides` are in elements; None means contiguous, in row-major order. `max_version` is the
    version that the consumer supports: from (1, 0) on the capsule says whether the memory is read-only.
    `on_release` is called once, when the capsule, or the tensor made of it, is gone: in any
    thread that has the GIL, between any two steps. It is also called if this raises.
    """
    n = len(shape)
    sizes = (ctypes.c_int64 * max(2 * n, 1))(*shape, *(row_major(shape) if strides is None else strides))
    owner = _Owner(on_release, sizes)
    versioned = max_version is not None and tuple(max_version) >= VERSION
    c = _library_capsule(owner, versioned)
    if c is None:
        c = _ctypes_capsule(owner, versioned)
    name, _, kind = _kind_of(c)
    m = kind.from_address(_pointer(c, name))
    if kind is _Versioned:
        m.flags = READ_ONLY * readonly | COPIED * copied
    t = m.tensor
    t.data, t.byte_offset = ptr, 0
    t.device_type, t.device_id = device_type, device_id
    t.code, t.bits, t.lanes = _CODES[dtype], 8 * DTYPES[dtype][1], 1
    t.ndim = n
    at = ctypes.addressof(sizes)
    t.shape = ctypes.cast(at, ctypes.POINTER(ctypes.c_int64))
    t.strides = ctypes.cast(at + 8 * n, ctypes.POINTER(ctypes.c_int64))
    return c


def check_device(asked: tuple[int, int] | None, is_on: tuple[int, int]) -> None:
    """Raise BufferError if a consumer asks for another device than the tensor's."""
    if asked is not None and tuple(asked) != is_on:
        raise BufferError(f"the tensor is on device {is_on}, not on {tuple(asked)}")


def row_major(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides, step = [0] * len(shape), 1
    for i in reversed(range(len(shape))):
        strides[i] = step
        step *= max(shape[i], 1)
    return strides


def _library_capsule(owner: _Owner, versioned: bool) -> Any:
    """A capsule of NumPy or torch that refers to the owner; None if neither is loaded."""
    exporter = (ctypes.c_ubyte * 8)()
    exporter.owner = owner  # type: ignore[attr-defined]
    if (np := sys.modules.get("numpy")) is not None and hasattr(np.ndarray, "__dlpack__"):
        donor = np.frombuffer(exporter, np.uint8)
    elif (torch := sys.modules.get("torch")) is not None and hasattr(torch, "frombuffer"):
        donor = torch.frombuffer(exporter, dtype=torch.uint8)
    else:
        return None
    if versioned:
        try:
            return donor.__dlpack__(max_version=VERSION)
        except TypeError:
            pass  # an older version of the library
    return donor.__dlpack__()


#: The struct and the owner of each undeleted tensor of `_ctypes_capsule`, by the struct's address.
_ctypes_tensors: dict[int, tuple[Any, _Owner]] = _immortal({})


def _ctypes_capsule(owner: _Owner, versioned: bool) -> Any:
    name, _, kind = _KINDS[0 if versioned else 1]
    m = kind(deleter=ctypes.cast(_delete, ctypes.c_void_p))
    if kind is _Versioned:
        m.major, m.minor = VERSION
    at = ctypes.addressof(m)
    _ctypes_tensors[at] = m, owner
    try:
        return _new(at, name, ctypes.cast(_destroy, ctypes.c_void_p))
    except BaseException:
        del _ctypes_tensors[at]
        raise


def _deleted(at: int, _pop: Callable[..., Any] = _ctypes_tensors.pop) -> None:
    _pop(at, None)


def _destroy_unused(c: int, _pop: Callable[..., Any] = _ctypes_tensors.pop) -> None:
    for name, _, _ in _KINDS:
        if _dying_is_valid(c, name):
            _pop(_dying_pointer(c, name), None)


_delete = _immortal(_Deleter(_deleted))
_destroy = _immortal(_Deleter(_destroy_unused))


@atexit.register
def _detach_deleters() -> None:
    for m, _ in list(_ctypes_tensors.values()):
        m.deleter = None  # Python code cannot run any more; the memory ends with the process


# Borrowing.


def _kind_of(c: Any) -> tuple[bytes, bytes, Any]:
    for kind in _KINDS:
        if _is_valid(c, kind[0]):
            return kind
    raise PayloadError(f"dlpack: {type(c).__name__} is no capsule with a tensor, or was taken before")


class Borrowed:
    """The memory of another library's tensor, which is released when this is collected."""

    __slots__ = ("address", "device", "dtype", "shape", "strides", "readonly", "_managed", "__weakref__")

    def __init__(self, c: Any) -> None:
        self._managed: Any = None
        name, used, kind = _kind_of(c)
        m = kind.from_address(_pointer(c, name))
        _rename(c, used)
        self._managed = m
        if kind is _Versioned and m.major != VERSION[0]:
            raise PayloadError(f"dlpack: version {m.major}.{m.minor}")
        t = m.tensor
        dtype = _NAMES.get((t.code, t.bits))
        if dtype is None or t.lanes != 1 or not 0 <= t.ndim <= MAX_DIMS:
            raise PayloadError(f"dlpack: elements of code {t.code} and {t.bits} bits, {t.lanes} lanes, {t.ndim} dimensions")
        self.dtype = dtype
        self.device = (t.device_type, t.device_id)
        self.address = (t.data or 0) + t.byte_offset
        self.shape = tuple(t.shape[: t.ndim])
        self.strides = tuple(t.strides[: t.ndim]) if t.strides else None
        if self.strides is not None and is_row_major(self.shape, self.strides):
            self.strides = None  #: in elements; None if contiguous
        self.readonly = kind is _Versioned and bool(m.flags & READ_ONLY)

    def __del__(self, _deleter: Any = _Deleter, _addressof: Any = ctypes.addressof) -> None:
        m, self._managed = self._managed, None
        if m is not None and m.deleter:
            _deleter(m.deleter)(_addressof(m))

    def view(self) -> memoryview:
        """The bytes of a contiguous tensor in host memory. Views of them keep the memory."""
        return self._bytes_from_address(data_bytes(self.dtype, self.shape))

    def _bytes_from_address(self, size: int) -> memoryview:
        if size == 0:
            return memoryview(b"")
        # Each size of an exporter needs a class of its own: see omnibus.memory.
        exporter = (ctypes.c_ubyte * (1 << (size - 1).bit_length())).from_address(self.address)
        exporter.owner = self  # type: ignore[attr-defined]
        view = memoryview(exporter).cast("B")[:size]
        return view.toreadonly() if self.readonly else view

    def copy_into(self, dst: memoryview) -> None:
        """Copy the elements, in row-major order, into as many bytes."""
        if dst.nbytes == 0:
            return
        if self.strides is None:
            ctypes.memmove(address(dst), self.address, dst.nbytes)
            return
        size = DTYPES[self.dtype][1]
        if any(s < 0 for s in self.strides):
            raise PayloadError(f"dlpack: {self.dtype}{list(self.shape)} with strides {list(self.strides)}")
        if (np := sys.modules.get("numpy")) is not None:
            span = size * (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)))
            bits = np.dtype(f"V{size}")  # raw elements
            source = np.ndarray(self.shape, bits, self._bytes_from_address(span), 0, [size * s for s in self.strides])
            np.copyto(np.frombuffer(dst, bits).reshape(self.shape), source)
            return
        self._pack(size, 0, self.address, address(dst), dst.nbytes)

    def _pack(self, size: int, dim: int, src: int, dst: int, nbytes: int) -> None:
        """Copy the elements of the dimensions from `dim` on, `nbytes` bytes, to `dst`."""
        assert self.strides is not None
        if dim == len(self.shape) or is_row_major(self.shape[dim:], self.strides[dim:]):
            ctypes.memmove(dst, src, nbytes)
            return
        part = nbytes // self.shape[dim]
        for i in range(self.shape[dim]):
            self._pack(size, dim + 1, src + i * size * self.strides[dim], dst + i * part, part)


def is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides are those of a contiguous tensor."""
    if 0 in shape:
        return True
    return all(n == 1 or s == want for n, s, want in zip(shape, strides, row_major(shape)))


#: Errors of libraries for a tensor that they do not export, or whose device has no number in DLPack.
_REFUSALS = (BufferError, RuntimeError, AttributeError, TypeError, ValueError)


def is_on_gpu(value: Any) -> bool:
    """Whether an object with `__dlpack__` is on a CUDA device."""
    try:
        return int(value.__dlpack_device__()[0]) == CUDA
    except _REFUSALS:
        return False  # `borrow` raises the reason


def borrow(value: Any, stream: int | None = None) -> Borrowed:
    """Borrow the memory of an object with `__dlpack__`, without a copy.

    With a stream, the object is on a GPU, and the stream waits for the work that fills it; -1 means no wait. Raises
    PayloadError if the library does not export it or, without a stream, if the processor cannot read its device.
    """
    options = {} if stream is None else {"stream": stream}
    device: tuple[int, ...] = ()
    what = f"dlpack: a value of type {type(value).__name__}"
    try:
        device = tuple(map(int, value.__dlpack_device__()))
        if stream is None and device[0] not in HOST:
            raise PayloadError(f"{what} on device {device}: copy it to the host first")
        if _is_negated(value):
            raise PayloadError(f"{what} that is a negative view: resolve_neg() first")
        with _current(device, value):
            try:
                c = value.__dlpack__(max_version=VERSION, **options)
            except TypeError:
                c = value.__dlpack__(**options)  # a library before version 1 of the protocol
    except PayloadError:
        raise
    except _REFUSALS as e:
        raise PayloadError(f"{what} on device {device}: {e}") from e
    return Borrowed(c)


def _is_negated(value: Any) -> bool:
    """Whether a torch tensor is a lazily negated view, which its capsule would not say."""
    is_neg = getattr(value, "is_neg", None)
    try:
        return is_neg is not None and bool(is_neg())
    except RuntimeError:  # torch's ReadOnlyTensorWrapper supports no calls
        return False


def _current(device: tuple[int, ...], value: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes a GPU current in torch. Newer versions export only tensors of the current GPU; older ones would synchronize
    with a stream of the wrong GPU."""
    torch = sys.modules.get("torch")
    if device[0] == CUDA and torch is not None and isinstance(value, torch.Tensor):
        current: contextlib.AbstractContextManager[Any] = torch.cuda.device(device[1])
        return current
    return contextlib.nullcontext()
