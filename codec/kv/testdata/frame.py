"""Writes and reads KV frames, for a test of the Go side.

One JSON request a line on standard input, one JSON answer a line on standard
output. {"op": "encode", "payload": P} answers {"frame": HEX}, and {"op":
"decode", "frame": HEX} answers {"payload": P}, where P is

    {"rid", "bids", "meta", "key": [T or null], "value": [T or null]}

and T is {"d": dtype, "s": shape, "hex": data}. An exception answers {"error"}.

With a path to kv_transfer_manager.py as its argument, the class in that file
does the work, on a few lines that stand in for the part of PyTorch that it
touches. Without one, the functions below do, written from the description of
the format.
"""

import ast
import json
import struct
import sys
import types
from dataclasses import asdict, dataclass
from typing import Any

SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip


class DType:
    def __init__(self, name):
        self.name = name

    def __str__(self):
        return "torch." + self.name


def product(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


class Tensor:
    """Dense bytes with a dtype and a shape, as far as a frame needs PyTorch."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, tuple(shape), bytes(data)
        self.device = types.SimpleNamespace(type="cpu")

    def detach(self):
        return self

    contiguous = cpu = numpy = detach

    def numel(self):
        return product(self.shape)

    def element_size(self):
        return SIZES[self.dtype.name]

    def tobytes(self):
        return self.data

    def view(self, dtype):
        if not self.shape and SIZES[dtype.name] != self.element_size():
            raise RuntimeError("self.dim() cannot be 0 to view a dtype of another size")
        *outer, last = self.shape or (1,)
        last *= self.element_size()
        if last % SIZES[dtype.name]:
            raise RuntimeError("the last dimension must be divisible by the size of the dtype")
        return Tensor(dtype, (*outer, last // SIZES[dtype.name]), self.data)

    def reshape(self, shape):
        if product(shape) != self.numel():
            raise RuntimeError(f"shape {shape} is invalid for input of size {self.numel()}")
        return Tensor(self.dtype, shape, self.data)


def frombuffer(buffer, *, dtype, count=-1, offset=0):
    if len(buffer) == 0 or count == 0:
        raise ValueError("both buffer length and count must not be 0")
    if not 0 <= offset < len(buffer):
        raise ValueError(f"offset {offset} must be non-negative and no greater than buffer length - 1")
    if offset + count > len(buffer):
        raise ValueError("requested buffer length is larger than what is there")
    return Tensor(dtype, (count,), buffer[offset : offset + count])


def load(path):
    """The class of the file, without what the file imports."""
    torch = types.SimpleNamespace(dtype=DType, Tensor=Tensor, device=object, frombuffer=frombuffer)
    for name in SIZES:
        setattr(torch, name, DType(name))
    with open(path, encoding="utf-8") as f:
        tree = ast.parse(f.read(), path)
    wanted = []
    for node in tree.body:
        names = [t.id for t in getattr(node, "targets", []) if isinstance(t, ast.Name)]
        if getattr(node, "name", None) == "KVCacheTransferData" or "_SAFE_TORCH_DTYPES" in names:
            wanted.append(node)
    module = types.ModuleType("kv_transfer_manager")
    sys.modules[module.__name__] = module
    scope = vars(module)
    scope.update(torch=torch, json=json, struct=struct, dataclass=dataclass, asdict=asdict, Any=Any)
    exec(compile(ast.Module(wanted, []), path, "exec"), scope)
    return scope["KVCacheTransferData"], torch


def of_class(path):
    cls, torch = load(path)

    def tensor(t):
        return t and Tensor(getattr(torch, t["d"]), t["s"], bytes.fromhex(t["hex"]))

    def plain(t):
        return t and {"d": t.dtype.name, "s": list(t.shape), "hex": t.data.hex()}

    def encode(p):
        blocks = {"key_cache": [tensor(t) for t in p["key"]], "value_cache": [tensor(t) for t in p["value"]]}
        return cls(p["rid"], blocks, p["bids"], p["meta"]).to_bytes()

    def decode(frame):
        got = cls.from_bytes(frame)
        blocks = got["layer_blocks"]
        return {
            "rid": got["request_id"], "bids": got["block_ids"], "meta": got["metadata"],
            "key": [plain(t) for t in blocks["key_cache"]], "value": [plain(t) for t in blocks["value_cache"]],
        }  # fmt: skip

    return encode, decode


def encode(p):
    descriptors, data = [], b""
    for kind in ("key", "value"):
        for i, t in enumerate(p[kind]):
            d = {"n": f"{kind}_cache_{i}"}
            if t is None:
                d["x"] = True
            else:
                chunk = bytes.fromhex(t["hex"])
                d.update(i=i, d=t["d"], s=t["s"], o=len(data), b=len(chunk))
                data += chunk
            descriptors.append(d)
    header = {"rid": p["rid"], "bids": p["bids"], "meta": p["meta"], "td": descriptors, "nl": len(p["key"])}
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">I", len(text)) + text + data


def decode(frame):
    (size,) = struct.unpack_from(">I", frame)
    header, data = json.loads(frame[4 : 4 + size]), frame[4 + size :]
    out = {k: header[k] for k in ("rid", "bids", "meta")}
    out["key"], out["value"] = [None] * header["nl"], [None] * header["nl"]
    for d in header["td"]:
        if not d.get("x"):
            chunk = data[d["o"] : d["o"] + d["b"]]
            if len(chunk) != product(d["s"]) * SIZES[d["d"]]:
                raise ValueError(f"{d['n']}: {len(chunk)} bytes for shape {d['s']}")
            out[d["n"].split("_")[0]][d["i"]] = {"d": d["d"], "s": d["s"], "hex": chunk.hex()}
    return out


def answer(request, encode, decode):
    try:
        if request["op"] == "encode":
            return {"frame": encode(request["payload"]).hex()}
        return {"payload": decode(bytes.fromhex(request["frame"]))}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def main():
    functions = of_class(sys.argv[1]) if len(sys.argv) > 1 else (encode, decode)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), *functions)), flush=True)


main()
