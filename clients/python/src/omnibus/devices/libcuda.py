"""The used calls of CUDA's driver, libcuda.so.1, over ctypes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

from .contract import DeviceLost, DriverError, NoDriver

NOT_READY = 600
_NOT_INITIALIZED, _STUB, _NO_DEVICE = 3, 34, 100

#: After these errors the context, or CUDA in the process, is unusable.
STICKY = frozenset((
    4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806, 810, 911
))  # fmt: skip


class Handle(ctypes.Structure):
    """CUipcMemHandle, passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("type", c_int), ("device", c_int), ("flags", c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c_int), ("handles", c_int), ("location", c_int), ("device", c_int), ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]  # fmt: skip


class Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        ("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcMemoryType", c_uint), ("srcHost", c_void_p),
        ("srcDevice", c_uint64), ("srcArray", c_void_p), ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstMemoryType", c_uint), ("dstHost", c_void_p),
        ("dstDevice", c_uint64), ("dstArray", c_void_p), ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t), ("Height", c_size_t),
    ]  # fmt: skip


#: By exported name. The signature of an exported name never changes.
_CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (POINTER(ctypes.c_ubyte * 16), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetAddressRange_v2": (POINTER(c_uint64), POINTER(c_size_t), c_uint64),
    "cuPointerGetAttribute": (c_void_p, c_uint, c_uint64),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpy2DAsync_v2": (POINTER(Copy2D), c_void_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint32, c_uint),
    "cuStreamWaitValue32_v2": (c_void_p, c_uint64, c_uint32, c_uint),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint),
    "cuIpcGetMemHandle": (POINTER(Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuMemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_uint),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(Properties), c_uint),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(Properties), c_uint64),
    "cuMemExportToShareableHandle": (POINTER(c_int), c_uint64, c_uint, c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(Access), c_size_t),
}


class Library:
    """The library, loaded and initialized. Raises NoDriver."""

    def __init__(self, path: str = "libcuda.so.1") -> None:
        try:
            lib = ctypes.CDLL(path)
        except OSError as e:
            raise NoDriver("dlopen", -1, str(e)) from None
        self._calls: dict[str, Any] = {}
        for name, arguments in _CALLS.items():
            f = getattr(lib, name, None)
            if f is not None:
                f.argtypes, f.restype = arguments, c_int
                self._calls[name] = f
        self._name = getattr(lib, "cuGetErrorName", None)
        if self._name is not None:
            self._name.argtypes, self._name.restype = (c_int, POINTER(ctypes.c_char_p)), c_int
        self.call("cuInit", 0)

    def ask(self, name: str, *arguments: Any) -> int:
        """Make a call, and return its code."""
        f = self._calls.get(name)
        if f is None:
            raise NoDriver(name, -1, "the driver is older than this function")
        return int(f(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call. Raises DriverError, or a subclass for some codes."""
        if code := self.ask(name, *arguments):
            raise self.failure(name, code)

    def failure(self, call: str, code: int) -> DriverError:
        """The error for a code."""
        kind = DriverError
        if code in STICKY:
            kind = DeviceLost
        elif code in (_NOT_INITIALIZED, _STUB, _NO_DEVICE):
            kind = NoDriver
        return kind(call, code, self._text(code))

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._name is None or self._name(code, ctypes.byref(text)) or text.value is None:
            return "the driver says no"
        return text.value.decode(errors="replace")

    def number(self, name: str, *arguments: Any, kind: Any = c_uint64) -> int:
        """Make a call whose first argument is the address of its result, and return that."""
        out = kind()
        self.call(name, ctypes.byref(out), *arguments)
        return int(out.value or 0)
