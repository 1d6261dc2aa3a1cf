"""Decodes payloads with the client of clients/python, for package codectest.

Each line of the input is a payload in hex, and each of the output "ok" and what it is, in the words that
canonical has in Go too, or "refused". The format is the argument.
"""

import datetime
import struct
import sys

import numpy  # noqa: F401  (so that arrays are its arrays)

from omnibus import PayloadError, Tensor, bundle, msgpack
from omnibus.omni import decoder, marks

sys.modules["PIL"] = None  # type: ignore[assignment]  # images stay what the payload says

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def canonical(v):
    if v is None or isinstance(v, bool):
        return {None: "nil", True: "true", False: "false"}[v]
    if isinstance(v, int):
        return f"i{v}"
    if isinstance(v, float):
        return "fnan" if v != v else "f" + struct.pack(">d", v).hex()
    if isinstance(v, str):
        return "s" + v.encode().hex()
    if isinstance(v, (bytes, memoryview)):
        return "b" + bytes(v).hex()
    if isinstance(v, (list, tuple)):
        return "[" + " ".join(map(canonical, v)) + "]"
    if isinstance(v, dict):
        if FORMAT == "omni" and marks.mark_of(v):
            return f"image {v['mode']} {shape(v['shape'])} {bytes(v['data']).hex()}"
        return "{" + " ".join(f"{canonical(k)}:{canonical(x)}" for k, x in v.items()) + "}"
    if isinstance(v, msgpack.Ext):
        nanos, seconds = 0, int.from_bytes(v.data, "big")
        if len(v.data) == 8:
            nanos, seconds = seconds >> 34, seconds & (1 << 34) - 1
        elif len(v.data) == 12:
            nanos, seconds = struct.unpack(">Iq", v.data)
        return f"t{seconds * 1_000_000 + nanos // 1000}"
    if isinstance(v, datetime.datetime):
        return f"t{(v - EPOCH) // datetime.timedelta(microseconds=1)}"
    if isinstance(v, Tensor):
        return f"tensor {v.dtype} {shape(v.shape)} {bytes(v.raw()).hex()}"
    return f"array {v.dtype.str} {shape(v.shape)} {v.tobytes().hex()}"


def shape(dims):
    return "[" + " ".join(map(str, dims)) + "]"


FORMAT = sys.argv[1]
DECODE = {"omni": decoder.decode, "bundle": bundle.decode}[FORMAT]

for line in sys.stdin:
    try:
        value = DECODE(bytes.fromhex(line))
    except PayloadError:  # and nothing else
        print("refused")
    else:
        print("ok", canonical(value))
