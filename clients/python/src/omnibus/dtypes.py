"""The element types of tensors, and how large a tensor of them may be."""

from __future__ import annotations

from .errors import PayloadError

MAX_DIMS = 32

#: The element types, by name: number, size in bytes, and the format of the
#: memoryview. float16, bfloat16 and the floats of 8 bits have no native format that every
#: supported Python can cast to; their elements appear as bits, 'H' and 'B'. A complex
#: number appears as two floats, the real part first.
DTYPES: dict[str, tuple[int, int, str]] = {
    "bool": (1, 1, "?"),
    "int8": (2, 1, "b"),
    "int16": (3, 2, "h"),
    "int32": (4, 4, "i"),
    "int64": (5, 8, "q"),
    "uint8": (6, 1, "B"),
    "uint16": (7, 2, "H"),
    "uint32": (8, 4, "I"),
    "uint64": (9, 8, "Q"),
    "float16": (10, 2, "H"),
    "bfloat16": (11, 2, "H"),
    "float32": (12, 4, "f"),
    "float64": (13, 8, "d"),
    "float8_e4m3fn": (14, 1, "B"),
    "float8_e5m2": (15, 1, "B"),
    "complex64": (16, 8, "f"),
    "complex128": (17, 16, "d"),
}
#: The names, by number.
NAMES = {number: name for name, (number, _, _) in DTYPES.items()}

_MAX_BYTES = (1 << 63) - 1 - 320  # with the largest header it fits an int64


def data_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """The size of the elements, without a header."""
    if dtype not in DTYPES:
        raise PayloadError(f"tensor: no dtype {dtype!r}; known are {', '.join(DTYPES)}")
    if len(shape) > MAX_DIMS:
        raise PayloadError(f"tensor: {len(shape)} dimensions, at most {MAX_DIMS} are allowed")
    size, empty = DTYPES[dtype][1], False
    for n in shape:
        if n < 0:
            raise PayloadError(f"tensor {dtype}{list(shape)}: a dimension is negative")
        if n == 0:
            empty = True
            continue
        size *= n
        if size > _MAX_BYTES:
            raise PayloadError(f"tensor {dtype}{list(shape)}: the size overflows")
    return 0 if empty else size
