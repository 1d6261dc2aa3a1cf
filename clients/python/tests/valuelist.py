"""Values of every kind, and how each arrives: docs/values.md is made from this list, and tests send all of it.

A way of sending has one of these answers for a value:

    equal     it arrives as it is, with its type
    refused   the sender raises PayloadError, which names the path to it
    -         the way takes no such value
    another   it arrives as ARRIVES says
"""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import importlib
import math
import pathlib
import struct
import types
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import fakehost  # noqa: F401  (finds the package)

from omnibus import Tensor
from omnibus.dtypes import DTYPES
from omnibus.msgpack import Ext

EQUAL, REFUSED, NONE = "equal", "refused", "-"
REFUSED_BY_GO, UNORDERED = "msgpack is refused by Go", "another order"

utc = datetime.timezone.utc


class Answers(NamedTuple):
    """How the values of a row arrive."""

    msgpack: str
    bundle: str
    omni: str
    tensor: str = NONE
    go: str = ""  #: where a Go process decodes and encodes the value on its way, and that differs


class Row(NamedTuple):
    """Values that have the same answers."""

    name: str
    values: Callable[[], list[Any]]
    answers: Answers
    needs: tuple[str, ...] = ()  #: modules that the values come from
    outermost: bool = False  #: there is no room for containers around them


ROWS: list[tuple[str, list[Row]]] = []


def module(name: str) -> Any:
    """A module that may be missing: None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


np: Any = module("numpy")
msgspec: Any = module("msgspec")
images: Any = module("PIL.Image")
ml_dtypes: Any = module("ml_dtypes")


def section(name: str) -> None:
    ROWS.append((name, []))


def row(
    name: str, answers: str, values: Callable[[], list[Any]], *needs: str, go: str = "", outermost: bool = False
) -> None:
    """Add a row; `answers` are those of msgpack, bundle, omni, and of tensors where the values are some."""
    ROWS[-1][1].append(Row(name, values, Answers(*answers.split(), go=go), needs, outermost))


# Types of values.


class Color(enum.Enum):
    RED = "r"
    DEEP = ("a", 1)
    NOTHING = None


class Level(enum.IntEnum):
    LOW = 3


class Bits(enum.IntFlag):
    A = 1
    B = 2


class Word(str, enum.Enum):
    YES = "yes"


class Odd(enum.Enum):
    COMPLEX = 1j


class Int(int):
    pass


class Float(float):
    pass


class Str(str):
    pass


class Bytes(bytes):
    pass


class List(list[Any]):
    pass


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Data:
    a: Any = 1
    b: Any = None


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int = 1


class Lent:
    """An object that has nothing but DLPack."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner

    def __dlpack__(self, **how: Any) -> Any:
        return self.owner.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.owner.__dlpack_device__()


class Stamp(datetime.datetime):
    """A time that is finer than its base type's, as of pandas."""

    nanosecond = 7


class Summer(datetime.tzinfo):
    """A zone that has a name of its own."""

    def utcoffset(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=2)

    def dst(self, when: Any) -> datetime.timedelta:
        return datetime.timedelta(hours=1)


def nested(depth: int, inside: Any = None) -> Any:
    value: Any = [] if inside is None else inside
    for i in range(depth):
        value = [value] if i % 2 else {"k": value}
    return value


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    table: dict[str, Any] = {}
    table["self"] = [table]
    return [value, table]


def boundaries() -> list[int]:
    near = (s * (1 << k) + d for k in (0, 5, 7, 8, 15, 16, 31, 32, 53, 63, 64) for s in (1, -1) for d in (-1, 0, 1))
    return sorted({n for n in near if -(1 << 63) <= n < 1 << 64})


def marked(mark: str, **fields: Any) -> dict[str, Any]:
    return {mark: True, **fields}


F4 = struct.pack("<2f", 1, 2)
NUMPY_2 = np is not None and not np.__version__.startswith("1.")
AWARE = datetime.datetime(2020, 5, 17, 12, 30, 15, 250_000)

# The list.

section("Numbers and text")
row("`None`, `True`, `False`", "equal equal equal", lambda: [None, True, False])
row("`int` from -2^63 to 2^64-1", "equal equal equal", boundaries)
row("other `int`", "refused refused refused", lambda: [1 << 64, -(1 << 63) - 1, 10**100, -(10**5000)])
row("`float`, also `nan`, infinite, -0.0 and denormal", "equal equal equal", lambda: [
    0.0, -0.0, 1.5, 0.1, math.pi, math.inf, -math.inf, math.nan, -math.nan, 5e-324, 2.2250738585072014e-308,
    1.7976931348623157e308, float(1 << 53), struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0],
])  # fmt: skip
row("`str`, also with NUL, and long", "equal equal equal", lambda: [
    "", "a", "\0", "a\0b", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 70_000, "é" * 3000, "\U0001f600", "e\u0301",
    "\ufeffa", "\u202eabc", "\uffff", "\r\n\t", "__tensor__", "\x7f\x80\x9f",
])  # fmt: skip
row("`str` with surrogates", "refused refused refused", lambda: ["\ud800", "a\udfffb", "\ud83d\ude00"])
row("`bytes`", "equal equal equal", lambda: [b"", b"\0", bytes(range(256)), b"x" * 4095, b"x" * 4096, b"x" * 70_000])
row("`bytearray`", "bytes bytes bytes", lambda: [bytearray(), bytearray(b"ab"), bytearray(b"x" * 5000)])
row("`memoryview`, of any format, shape and strides", "bytes bytes bytes", lambda: [
    memoryview(b""), memoryview(b"abc"), memoryview(bytearray(b"abc")), memoryview(b"abcdef")[::2],
    memoryview(b"abcdef")[::-1], memoryview(b"abcdef").cast("c"), memoryview(b"abcdef").cast("B", (2, 3)),
    memoryview(array.array("d", [1, 2])), memoryview(array.array("i", range(3000)))[::-3], memoryview(b"x" * 9000),
    memoryview(array.array("h", [1, 2, 3, 4])).cast("B").cast("h", (2, 2)),
])  # fmt: skip
row("`memoryview` of NumPy's formats", "bytes bytes bytes", lambda: [
    memoryview(a) for a in (
        np.zeros(3, "i4,f4"), np.arange(3, dtype=">i4"), np.zeros((3, 4), "f2").T, np.zeros(3, "S4"), np.zeros(3, "U2"),
        np.ones(3, "c8"), np.zeros((0, 3)), np.array(5.0), np.broadcast_to(np.int16(7), (2, 3)),
    )
], "numpy")  # fmt: skip
row("`int`, `float`, `str` and `bytes` of a subclass", "base base base", lambda: [
    Int(5), Int(-(1 << 63)), Float(1.5), Float("nan"), Str("a"), Bytes(b"a"), Level.LOW, Bits.A | Bits.B, Word.YES,
])  # fmt: skip
row("`complex`, `Fraction`", "refused refused refused", lambda: [1j, complex(0.0, -0.0), fractions.Fraction(1, 3)])
row("`Decimal`, `UUID`", "refused refused str", lambda: [
    decimal.Decimal("1.10"), decimal.Decimal("NaN"), decimal.Decimal("-0"), decimal.Decimal(10) ** 40, uuid.UUID(int=5),
])  # fmt: skip
row("`Enum`", "refused refused value", lambda: list(Color))
row("`Enum` of a value that is refused", "refused refused refused", lambda: list(Odd))

section("Times")
row("`datetime` without a zone, `date`, `time`", "refused refused iso", lambda: [
    AWARE, datetime.datetime.min, datetime.datetime.max, AWARE.replace(fold=1), datetime.date(2020, 5, 17),
    datetime.date.min, datetime.time(1, 2, 3, 4), datetime.time(1, 2, tzinfo=utc), datetime.time.max,
])  # fmt: skip
row("`datetime` in UTC", "refused refused equal", lambda: [
    AWARE.replace(tzinfo=utc), datetime.datetime(1901, 1, 1, 0, 0, 0, 5, utc),
    datetime.datetime(2600, 1, 1, tzinfo=utc), datetime.datetime.min.replace(tzinfo=utc),
    datetime.datetime.max.replace(tzinfo=utc), datetime.datetime(1970, 1, 1, tzinfo=utc),
])  # fmt: skip
row("`datetime` in another zone", "refused refused utc", lambda: [
    AWARE.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-7, minutes=-30))), AWARE.replace(tzinfo=Summer()),
    AWARE.replace(tzinfo=datetime.timezone(datetime.timedelta(0), "mine")),
])  # fmt: skip
row("`datetime` before year 1 or after 9999 in UTC", "refused refused refused", lambda: [
    datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-1))),
    datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
])  # fmt: skip
row("`datetime` with a zone and nanoseconds, as of pandas", "refused refused refused", lambda: [
    Stamp(2020, 5, 17, tzinfo=utc),
])  # fmt: skip
row("`timedelta`, `tzinfo`", "refused refused refused", lambda: [
    datetime.timedelta(0), datetime.timedelta(days=-1, microseconds=1), datetime.timedelta.max, utc, Summer(),
])  # fmt: skip

section("Containers")
row("`list`", "equal equal equal", lambda: [
    [], [[]], [None], list(range(17)), [i / 3 for i in range(17)], [1, 2.5, "a", b"b", None, True, [], {}] * 20,
    list(range(70_000)), [True] * 20, [-1, 1 << 63] * 20, [math.nan, -0.0] * 20,
])  # fmt: skip
row("`tuple`, named ones too", "list list list", lambda: [
    (), (1,), (1, (2, [3, ()])), Point(1, Point(2, ())), tuple(range(40)),
])  # fmt: skip
row("`list` of a subclass", "base base base", lambda: [List([1, 2]), List(range(40))])
row("`set`, `frozenset`", "refused refused list", lambda: [
    set(), {1}, {1, 2.5, 1 << 63}, frozenset(), frozenset(range(40)),
])  # fmt: skip
row("`dict` whose keys are sorted `str`", "equal equal equal", lambda: [
    {}, {"": 1}, {"a": {"b": {}}}, {"a": 1, "b": [{"c": 2}], "é": 3, "\U0001f600": 4},
])  # fmt: skip
row("`dict` in its order", "equal equal equal", lambda: [
    {"b": 1, "a": 2}, {str(i): i for i in range(40, 0, -1)},
], go=UNORDERED)  # fmt: skip
row("`OrderedDict`, `defaultdict`, `Counter`", "base base base", lambda: [
    collections.OrderedDict(a=1, b=2), collections.defaultdict(list, a=[1]), collections.Counter("aab"),
])  # fmt: skip
row("another `Mapping`", "refused refused mapping", lambda: [
    types.MappingProxyType({"a": 1}), collections.ChainMap({"a": 1}, {"b": 2}), collections.UserDict(a=1),
])  # fmt: skip
row("a dataclass, a msgspec `Struct`", "refused refused fields", lambda: [
    Data(), Data((1,), Data()), Frozen(), msgspec.defstruct("Struct", [("a", int)])(5),
], "msgspec")  # fmt: skip
row("`slice`", "refused refused slice", lambda: [slice(None), slice(1, 2), slice(1, 10, -2)])
row("containers in 60 containers", "equal equal equal", lambda: [nested(60), nested(59, [0])])
row("containers in more than 64", "refused refused refused", lambda: [
    nested(65), nested(300), nested(5000), nested(65, ()), nested(64, [0]),
], outermost=True)  # fmt: skip
row("a value that contains itself", "refused refused refused", cyclic, outermost=True)
row("`range`, `deque`, generators, functions, types and other objects", "refused refused refused", lambda: [
    range(3), collections.deque([1]), (i for i in ()), iter([1]), len, cyclic, int, object(), ..., NotImplemented,
    pathlib.PurePosixPath("/a"), ValueError("a"), types, {}.keys(), {"a": 1}.items(), Data, zip(), Lent,
])  # fmt: skip

section("Keys of a `dict`")
row("`None`, `bool`, `int`, `float`, mixed too", "equal equal equal", lambda: [
    {None: 1}, {True: 1}, {0: 1, 1: 2, -5: 3}, {(1 << 64) - 1: 1}, {-(1 << 63): 1}, {1.5: 1}, {math.inf: 1}, {-0.0: 1},
    {"a": 1, 5: 2, None: 3, 2.5: 4, False: 5},
])  # fmt: skip
row("`nan`", "equal equal equal", lambda: [{math.nan: 1}])
row("`str` with surrogates, other `int`", "refused refused refused", lambda: [
    {"\ud800": 1}, {1 << 64: 1}, {10**5000: 1},
])  # fmt: skip
row("`bytes`", "equal equal equal", lambda: [{b"": 1}, {b"a": 1, "a": 2}, {b"x" * 5000: 1}], go=REFUSED_BY_GO)
row("`tuple`", "equal equal equal", lambda: [{(): 1}, {(1, ("a", None)): 1, "a": 2}], go=REFUSED_BY_GO)
row("a subclass of `int`, `float`, `str`", "base base base", lambda: [
    {Int(5): 1}, {Level.LOW: 1, "a": 2}, {Str("a"): 1}, {Word.YES: 1}, {Float(1.5): 1},
])  # fmt: skip
row("a `tuple` with names", "tuple tuple tuple", lambda: [{Point(1, "a"): 1}], go=REFUSED_BY_GO)
row("`frozenset`", "refused refused tuple", lambda: [{frozenset(): 1}, {frozenset([1]): 2}])
row("`Enum`, `Decimal`, `date`", "refused refused key", lambda: [
    {Color.RED: 1}, {decimal.Decimal("1.10"): 1, "a": 2}, {datetime.date(2020, 5, 17): 1},
])  # fmt: skip
row("`datetime` in UTC", "refused refused equal", lambda: [{AWARE.replace(tzinfo=utc): 1}])
row("a dataclass, `complex`, `range`, a type", "refused refused refused", lambda: [
    {Frozen(): 1}, {(1, Frozen()): 1}, {1j: 1}, {range(3): 1}, {Color: 1},
])  # fmt: skip
row("two keys that arrive as one", "refused refused refused", lambda: [
    {"r": 1, Color.RED: 2}, {frozenset([1]): 1, (1,): 2}, {datetime.date(2020, 5, 17): 1, "2020-05-17": 2},
    {(Color.RED,): 1, ("r",): 2},
])  # fmt: skip

section("Values like those of the formats")
row("a `dict` with `__tensor__`, `__ndarray__` or `__pil_image__`", "equal equal equal", lambda: [
    marked("__ndarray__"), marked("__tensor__", a=1), marked("__pil_image__", mode="RGB"), {"__ndarray__": False},
    marked("__tensor__", dtype="float32", shape=[2]), {"__tensor__": 0, "dtype": "float32", "shape": [2], "data": F4},
    {"__ndarray__": None, "dtype": "<f4", "shape": [2], "data": b""}, {"a": marked("__ndarray__")},
    {"__tensor__": "", "dtype": "x", "shape": 5, "data": 6}, {"__pil_image__": []}, {"__tensor__": [1, 2]},
])  # fmt: skip
row("a `dict` that is a tensor's whole description", "equal equal Tensor", lambda: [
    marked("__tensor__", dtype="float32", shape=[2], data=F4), marked("__tensor__", dtype="int8", shape=[], data=b"a"),
    marked("__tensor__", dtype="int8", shape=[0, 3], data=b""),
])  # fmt: skip
row("a `dict` that is an array's whole description", "equal equal ndarray", lambda: [
    marked("__ndarray__", dtype="<f4", shape=[2], data=F4), marked("__ndarray__", dtype=">i2", shape=[1], data=b"ab"),
], "numpy")  # fmt: skip
row("a `dict` that describes none, or more than one", "equal equal refused", lambda: [
    marked("__tensor__", dtype="float33", shape=[2], data=F4),
    marked("__tensor__", dtype="float32", shape=[3], data=F4),
    marked("__tensor__", dtype="float32", shape=2, data=F4), marked("__ndarray__", dtype="<f4", shape=[2], data="text"),
    marked("__ndarray__", dtype="|O", shape=[1], data=F4), marked("__pil_image__", mode="F", shape=[1, 2], data=F4),
    marked("__ndarray__", dtype="<f4", shape=[1] * 33, data=F4[:4]),
    marked("__tensor__", dtype="float32", shape=[2], data=F4, extra=1),
])  # fmt: skip
row("a `dict` with the keys of vLLM's outputs, where vLLM is not loaded", "equal equal equal", lambda: [
    {"finish_reason": None, "index": 0, "text": "", "token_ids": [1]}, {"finished": True, "images": [], "more": 1},
])  # fmt: skip
row("`Ext`, of types -127 to 127 but -1", "equal refused refused", lambda: [
    Ext(5, b"x"), Ext(7, b"\0\0\0\0"), Ext(127, b""), Ext(-127, bytes(300)), Ext(0, b"ab"),
], go=REFUSED_BY_GO)  # fmt: skip
row("`Ext` of type -1, a time of msgpack", "equal equal time", lambda: [
    Ext(-1, bytes(4)), Ext(-1, struct.pack(">Q", 1000 << 34 | 5)), Ext(-1, struct.pack(">Iq", 2000, -5)),
])  # fmt: skip
row("`Ext` of type -1 that is none, of other types", "refused refused refused", lambda: [
    Ext(-1, b""), Ext(-1, bytes(5)), Ext(-1, struct.pack(">Iq", 0, 1 << 60)), Ext(-128, b""), Ext(200, b""),
])  # fmt: skip

section("Tensors and arrays")
row("`omnibus.Tensor`, of each dtype", "map equal equal equal", lambda: [
    Tensor(name, (2, 3), bytes(i % 2 for i in range(6 * size))) for name, (_, size, _) in DTYPES.items()
])  # fmt: skip
row("`omnibus.Tensor` of shapes `()`, `(0, 3)`, and of 32 dimensions", "map equal equal equal", lambda: [
    Tensor("float32", (), bytes(4)), Tensor("int8", (0, 3), b""), Tensor("int16", (1,) * 32, b"ab"),
    Tensor("float64", (0,), b""), Tensor("uint8", (10_000,), bytes(10_000)), Tensor("bfloat16", (3, 0, 2), b""),
])  # fmt: skip
row("`array.array`, arrays of `ctypes`", "refused Tensor refused Tensor", lambda: [
    array.array("f", [1, 2]), array.array("q", []), (ctypes.c_int32 * 3)(1, 2, 3), array.array("B", range(200)),
    ((ctypes.c_double * 2) * 2)(),
])  # fmt: skip
row("`array.array` of text", "refused refused refused refused", lambda: [array.array("u", "ab")])
row("an object with `__dlpack__`", "refused Tensor Tensor Tensor", lambda: [
    Lent(np.arange(6.0).reshape(2, 3)), Lent(np.arange(6, dtype="i2")[::2]), Lent(np.array(5)),
], "numpy")  # fmt: skip
row("such an object with negative strides, or of long doubles", "refused refused refused refused", lambda: [
    Lent(np.arange(6.0)[::-1]), Lent(np.zeros(2, "g")),
], "numpy")  # fmt: skip
row("`ndarray` of `bool`, integers, floats of 16 to 64 bits, complex", "map Tensor equal Tensor", lambda: [
    np.arange(6).astype(d).reshape(2, 3)
    for d in ("?", *(f"{c}{n}" for c in "iu" for n in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16", "p", "longlong")
] + [np.array([math.nan, -0.0, math.inf]), np.array([complex(-0.0, math.nan)])], "numpy")  # fmt: skip
row("the same of shapes `()`, `(0,)`, `(0, 3)`, of 32 dimensions, large", "map Tensor equal Tensor", lambda: [
    np.array(5.0), np.array(True), np.zeros(0), np.zeros((0, 3), "i4"), np.zeros((2, 0, 1 << 40), "i1"),
    np.zeros((1,) * 32), np.arange(20_000), np.array([[]]),
], "numpy")  # fmt: skip
row("the same with any strides, in Fortran's order, read-only", "map Tensor equal Tensor", lambda: [
    np.arange(12).reshape(3, 4).T, np.arange(10)[::-1], np.arange(10)[::3], np.broadcast_to(np.float32(3), (2, 5)),
    np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(24).reshape(2, 3, 4)[:, ::-2, 1:3],
    np.arange(20_000)[::-2], np.frombuffer(F4, "f4"), np.lib.stride_tricks.as_strided(np.arange(5), (3, 3), (8, 8)),
    np.frombuffer(b"abcdefghi", "u1", offset=1).view("<i4"),
], "numpy")  # fmt: skip
row("the same, big-endian", "map Tensor equal Tensor", lambda: [
    np.arange(3, dtype=d) for d in (">i2", ">u4", ">f8", ">c16", ">f2")
], "numpy")  # fmt: skip
row("the same, of a subclass", "map Tensor array Tensor", lambda: [
    np.matrix([[1, 2], [3, 4]]), np.matrix(np.zeros((600, 20))), np.zeros(3).view(type("Own", (np.ndarray,), {})),
], "numpy")  # fmt: skip
row("`ndarray` of text, bytes, dates, spans of time, long doubles", "refused refused equal refused", lambda: [
    np.array(["a", "bcd", "\0b"]), np.array([b"a", b"bcd"]), np.array(["2026-01-01", "NaT"], "M8[ns]"),
    np.array(["2026"], "M8[25s]"), np.array([1, 2], "m8[us]"), np.array([1], "m8"), np.array(["a"], ">U3"),
    np.array([], "M8[D]"), np.array([0.1, 2], "g"), np.array([1j], "G"), np.array("text"), np.array(["ab"] * 3)[::-1],
], "numpy")  # fmt: skip
row("`ndarray` of objects, records, text of no size, `StringDType`", "refused refused refused refused", lambda: [
    np.array([object()]), np.array([1, None]), np.zeros(3, "i4,f4"), np.zeros(2, "V3"), np.rec.array([(1, 2.0)]),
    np.zeros(2, [("a", "M8[s]")]), np.zeros(0, "O"), np.ndarray((3,), "U0"), np.ndarray((0,), "S0"),
] + ([np.array(["a"], np.dtypes.StringDType())] if NUMPY_2 else []), "numpy")  # fmt: skip
row("`ndarray` of more than 32 dimensions", "refused refused refused refused", lambda: [
    np.zeros((1,) * 33), np.zeros((0,) * 64),
] if NUMPY_2 else [], "numpy")  # fmt: skip
row("masked arrays", "refused refused refused refused", lambda: [
    np.ma.masked_array([1, 2], [True, False]), np.ma.masked_array([1.0]), np.ma.masked, np.ma.zeros((0, 3)),
], "numpy")  # fmt: skip
row("`ndarray` of `ml_dtypes`' `bfloat16`, `float8_e4m3fn`, `float8_e5m2`", "map Tensor refused Tensor", lambda: [
    np.array([1, 2], getattr(ml_dtypes, d)) for d in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
], "numpy", "ml_dtypes")  # fmt: skip
row("`ndarray` of other types of `ml_dtypes`", "refused refused refused refused", lambda: [
    np.array([1, 2], getattr(ml_dtypes, d)) for d in ("float8_e4m3b11fnuz", "int4", "float8_e4m3fnuz")
], "numpy", "ml_dtypes")  # fmt: skip
row("NumPy's scalars of `bool`, integers, floats, text and bytes", "scalar scalar scalar", lambda: [
    np.bool_(True), np.int8(-5), np.uint64((1 << 64) - 1), np.int64(-(1 << 63)), np.float16(1.5), np.float32(0.1),
    np.float64("nan"), np.float64(-0.0), np.float32("-inf"), np.str_("a"), np.bytes_(b"a"), np.float16(6e-8),
], "numpy")  # fmt: skip
row("NumPy's other scalars, such as dates and long doubles", "refused refused refused", lambda: [
    np.complex64(1j), np.complex128(1), np.longdouble(1), np.clongdouble(1), np.datetime64("2026-01-01", "ns"),
    np.datetime64("2026-01-01"), np.datetime64("NaT"), np.timedelta64(1, "ns"), np.timedelta64(1, "s"), np.void(b"abc"),
    np.zeros(1, "i4,f4")[0], np.dtype("f4"), np.float32, np.str_("\ud800"),
], "numpy")  # fmt: skip
row("images with a byte for each channel, of Pillow", "refused refused equal", lambda: [
    images.frombytes(mode, (2, 3), bytes(range(6 * len(images.new(mode, (1, 1)).getbands()))))
    for mode in ("L", "LA", "La", "RGB", "YCbCr", "LAB", "HSV", "RGBA", "RGBX", "RGBa", "CMYK")
] + [images.new("RGB", (0, 3)), images.new("L", (90, 90), 5)], "PIL.Image")  # fmt: skip
row("images of modes `P` and `PA`, which have a palette, and of other modes", "refused refused refused", lambda: [
    images.new(mode, (2, 3)) for mode in ("P", "PA", "1", "I", "F", "I;16")
], "PIL.Image")  # fmt: skip


# What arrives in place of a value, as an answer says.


def lists(v: Any) -> Any:
    return [lists(x) for x in v] if isinstance(v, (list, tuple, set, frozenset)) else v


def tuples(v: Any) -> Any:
    return tuple(map(tuples, v)) if isinstance(v, (tuple, frozenset)) else v


def base(v: Any) -> Any:
    """The value, of the type of Python that the subclass is one of."""
    if isinstance(v, dict):
        return {base(k): x for k, x in v.items()}
    for t in (int, float, str, bytes, list):
        if isinstance(v, t):
            return t.__str__(v) if t is str else t(v)
    raise AssertionError(v)


def fields(v: Any) -> Any:
    if dataclasses.is_dataclass(v):
        return {f.name: lists(fields(getattr(v, f.name))) for f in dataclasses.fields(v)}
    return {name: getattr(v, name) for name in v.__struct_fields__} if hasattr(v, "__struct_fields__") else v


def as_tensor(v: Any) -> Tensor:
    """The tensor of an array, a buffer or a description."""
    if isinstance(v, dict):
        return Tensor(v["dtype"], v["shape"], v["data"])
    if np is None or isinstance(v, (array.array, ctypes.Array)):
        m = memoryview(v)
        dtype = {"f": "float32", "q": "int64", "B": "uint8", "<i": "int32", "<d": "float64"}[m.format]
        return Tensor(dtype, m.shape, m.tobytes())
    a = v.owner if isinstance(v, Lent) else v
    return Tensor(a.dtype.name, a.shape, a.astype(a.dtype.newbyteorder("<")).tobytes())


def as_map(v: Any) -> dict[str, Any]:
    t = v if isinstance(v, Tensor) else as_tensor(v)
    return {"__tensor__": True, "dtype": t.dtype, "shape": list(t.shape), "data": bytes(t.raw())}


def time_of(v: Ext) -> datetime.datetime:
    nanos, seconds = 0, int.from_bytes(v.data, "big")
    if len(v.data) == 8:
        nanos, seconds = seconds >> 34, seconds & (1 << 34) - 1
    elif len(v.data) == 12:
        nanos, seconds = struct.unpack(">Iq", v.data)
    return datetime.datetime(1970, 1, 1, tzinfo=utc) + datetime.timedelta(seconds=seconds, microseconds=nanos / 1000)


def unordered(v: Any) -> Any:
    """The value with dicts in one order: equal for dicts that differ in theirs."""
    if isinstance(v, list):
        return [unordered(x) for x in v]
    return {k: unordered(v[k]) for k in sorted(v, key=repr)} if type(v) is dict else v


class Arrival(NamedTuple):
    text: str  #: for the page
    of: Callable[[Any], Any]


ARRIVES: dict[str, Arrival] = {
    EQUAL: Arrival("equal", lambda v: v),
    "base": Arrival("the base type", base),
    "bytes": Arrival("`bytes`", lambda v: v.tobytes() if isinstance(v, memoryview) else bytes(v)),
    "str": Arrival("`str`", str),
    "iso": Arrival("`str`", lambda v: v.isoformat().replace("+00:00", "Z")),
    "value": Arrival("its value", lambda v: lists(v.value)),
    "key": Arrival("what the value is", lambda v: {_key(k): x for k, x in v.items()}),
    "utc": Arrival("in UTC", lambda v: v.astimezone(utc)),
    "time": Arrival("`datetime`", time_of),
    "list": Arrival("`list`", lists),
    "slice": Arrival("`list`", lambda v: [v.start, v.stop, v.step]),
    "tuple": Arrival("`tuple`", lambda v: {tuples(k): x for k, x in v.items()}),
    "mapping": Arrival("`dict`", dict),
    "fields": Arrival("`dict`", fields),
    "Tensor": Arrival("`Tensor`", as_tensor),
    "map": Arrival("`dict`", as_map),
    "array": Arrival("`ndarray`", lambda v: np.asarray(v)),
    "ndarray": Arrival("`ndarray`", lambda v: np.frombuffer(v["data"], v["dtype"]).reshape(v["shape"])),
    "scalar": Arrival("Python's", lambda v: v.item()),
}


def _key(v: Any) -> Any:
    if isinstance(v, enum.Enum):
        return v.value
    return str(v) if isinstance(v, (datetime.date, decimal.Decimal)) else v


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, with their types, order and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(k, j) and same(x, y) for (k, x), (j, y) in zip(a.items(), b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, datetime.datetime):
        return a == b and a.utcoffset() == b.utcoffset() and a.tzname() == b.tzname()
    if np is not None and isinstance(a, np.ndarray):
        bits = a.tobytes() == b.tobytes() or (a.dtype.char in "gG" and np.array_equal(a, b))  # those have unused bytes
        return bool(a.dtype == b.dtype and a.dtype.str == b.dtype.str and a.shape == b.shape and bits)
    if hasattr(a, "getbands"):
        return bool((a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes()))
    return bool(a == b)


def here(r: Row) -> bool:
    """Whether the modules that a row needs are here."""
    return all(map(module, r.needs))


def cases(missing: str = "") -> list[tuple[Row, int, Any]]:
    """All values that can be made here, with their rows and numbers, without those of a module that is `missing`."""
    known = [r for _, rows in ROWS for r in rows if missing not in r.needs and here(r)]
    return [(r, i, v) for r in known for i, v in enumerate(r.values())]


def wrapped(v: Any) -> Any:
    """The value in containers; the path to it is PATH."""
    return {"a": [0, 1, 2, v]}


PATH = "['a'][3]"
