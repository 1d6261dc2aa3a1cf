"""The marked dictionaries for tensors, arrays and images in OmniSerializer's format, and their checks.

A marked dictionary has a mark and all three of its fields. A dictionary that lacks one is an ordinary dictionary.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..dtypes import DTYPES
from ..errors import PayloadError

TENSOR_MARK = "__tensor__"
ARRAY_MARK = "__ndarray__"
IMAGE_MARK = "__pil_image__"

#: The marks, and the field with the type of the elements.
MARKS = {TENSOR_MARK: "dtype", ARRAY_MARK: "dtype", IMAGE_MARK: "mode"}
ENTRIES = 4

#: Modes of images with a byte for each channel, the only ones in the format.
IMAGE_MODES = {
    "L": 1, "P": 1, "LA": 2, "PA": 2, "La": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3,
    "RGBA": 4, "RGBX": 4, "RGBa": 4, "CMYK": 4,
}  # fmt: skip

MAX_DIMS = 32

#: The types of elements, by their names in the array interface and in a Tensor.
TENSOR_TYPES = {
    "|b1": "bool", "|i1": "int8", "|u1": "uint8", "<i2": "int16", "<i4": "int32", "<i8": "int64", "<u2": "uint16",
    "<u4": "uint32", "<u8": "uint64", "<f2": "float16", "<f4": "float32", "<f8": "float64",
    "<c8": "complex64", "<c16": "complex128",
}  # fmt: skip

#: The names of NumPy's dtypes, for processes without it: the kind, and the size, of text in characters.
_ARRAY_TYPES = re.compile(
    r"[<>|](?:(b)(1)|([iu])([1248])|(f)(2|4|8|12|16)|(c)(8|16|24|32)|([SU])([1-9][0-9]*)"
    r"|([mM])(8)(?:\[[1-9]?[0-9]*[A-Za-z]+\])?)"
)

_modules: dict[str, Any] = {}


def module(name: str) -> Any:
    """A package, or None if it is missing."""
    if name not in _modules:
        try:
            _modules[name] = importlib.import_module(name)
        except ImportError:
            return sys.modules.get(name)
    return _modules[name]


def mark_of(m: Mapping[Any, Any]) -> str:
    """The mark of a dictionary that has the fields too, or nothing."""
    if TENSOR_MARK in m or ARRAY_MARK in m or IMAGE_MARK in m:
        for mark, kind_key in MARKS.items():
            if mark in m and kind_key in m and "shape" in m and "data" in m and m[mark]:
                return mark
    return ""


def fields(m: Mapping[Any, Any], mark: str) -> tuple[str, tuple[int, ...], Any]:
    """The type of the elements, the shape, and the data. Raises PayloadError."""
    kind, shape, data = m[MARKS[mark]], m["shape"], m["data"]
    if not isinstance(kind, str):
        raise PayloadError(f"a dictionary with {mark} whose {MARKS[mark]!r} is no text")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape) or len(shape) > MAX_DIMS:
        raise PayloadError(f"a shape is a list of at most {MAX_DIMS} numbers of at least 0")
    if not isinstance(data, (bytes, memoryview)):
        raise PayloadError(f'a dictionary with {mark} whose "data" are no bytes')
    return kind, tuple(shape), data


def check_size(kind: str, shape: tuple[int, ...], item_bytes: int, data: Any) -> None:
    want = math.prod(shape) * item_bytes
    if len(data) != want:
        raise PayloadError(f"{kind}{list(shape)} takes {want} bytes, and there are {len(data)}")


def check_tensor(kind: str, shape: tuple[int, ...], data: Any) -> None:
    """Raise PayloadError for an invalid tensor."""
    if kind not in DTYPES:
        raise PayloadError(f"no dtype {kind!r}; known are {', '.join(DTYPES)}")
    check_size(kind, shape, DTYPES[kind][1], data)


def _dtype(kind: str) -> Any:
    np = module("numpy")
    if np is None:
        return None
    try:
        dtype = np.dtype(kind)
    except Exception as e:  # TypeError, and others for text that is no name of a dtype
        raise PayloadError(f"an array of {kind!r}: {e}") from None
    if not plain(dtype) or dtype.str != kind:
        raise PayloadError(f"an array of {kind!r}: these are no plain elements")
    return dtype


def plain(dtype: Any) -> bool:
    """Whether elements have a size and are no objects or records."""
    return dtype.kind not in "OV" and bool(dtype.itemsize)  # NumPy replaces dtypes of size 0


@functools.lru_cache(256)
def has_name(np: Any, dtype: Any) -> bool:
    """Whether NumPy finds a dtype by its name, as a receiver does."""
    try:
        return plain(dtype) and bool(np.dtype(dtype.str) == dtype)
    except TypeError:
        return False


def check_array(kind: str, shape: tuple[int, ...], data: Any) -> Any:
    """NumPy's dtype; None without NumPy. Raises PayloadError for an invalid array."""
    dtype = _dtype(kind)
    if dtype is not None:
        check_size(kind, shape, dtype.itemsize, data)
        return dtype
    known = _ARRAY_TYPES.fullmatch(kind)
    if known is None:
        raise PayloadError(f"an array of {kind!r}: these are no plain elements")
    letter, size = filter(None, known.groups())
    check_size(kind, shape, int(size) * (4 if letter == "U" else 1), data)
    return None


def check_image(mode: str, shape: tuple[int, ...], data: Any) -> None:
    """Raise PayloadError for an invalid image."""
    bands = IMAGE_MODES.get(mode)
    if bands is None or shape[2:] != (() if bands == 1 else (bands,)) or len(shape) < 2:
        raise PayloadError(f"an image of mode {mode!r} and shape {list(shape)}")
    check_size(mode, shape, 1, data)


_CHECKS: dict[str, Callable[[str, tuple[int, ...], Any], Any]] = {
    TENSOR_MARK: check_tensor, ARRAY_MARK: check_array, IMAGE_MARK: check_image,
}  # fmt: skip


def check(m: Mapping[Any, Any]) -> None:
    """Raise PayloadError for a dictionary that a receiver would refuse, or decode without some entries."""
    mark = mark_of(m)
    if not mark:
        return
    shape, data = m["shape"], m["data"]
    own = {**m, "shape": list(shape) if isinstance(shape, tuple) else shape}
    if isinstance(data, (bytearray, memoryview)):
        view = memoryview(data)
        own["data"] = view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes()
    what = f"a dictionary with {mark}, {MARKS[mark]!r}, 'shape' and 'data'"
    try:
        _CHECKS[mark](*fields(own, mark))
    except PayloadError as e:
        raise PayloadError(f"{what} that describes none: {e}") from None
    if len(m) > ENTRIES:
        raise PayloadError(f"{what} has nothing else: the rest would be lost")
