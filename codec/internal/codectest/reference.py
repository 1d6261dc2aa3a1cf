"""Encodes and decodes values with the Python libraries that define a format.

Usage: reference.py < cases > results, one JSON object a line each. A
case has a description of a value and the bytes that Go made of it. Python
builds the value, encodes it, decodes Go's bytes, and reports its own bytes and
whether it got the same value.
"""

import datetime
import importlib.util
import json
import os
import struct
import sys
import types

import msgspec
import numpy as np

try:
    import torch
except ImportError:
    torch = None
try:
    from PIL import Image
except ImportError:
    Image = None


class Skip(Exception):
    """A value that this installation cannot build."""


class Tensor:
    """Stands in for a tensor where a format is tested without PyTorch."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)


class Picture:
    """Stands in for an image where a format is tested without PIL."""

    def __init__(self, mode, shape, data):
        self.mode, self.shape, self.data = mode, list(shape), bytes(data)


def ndarray(dtype, shape, data):
    if not data:
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape)


def torch_tensor(dtype, shape, data):
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise Skip(f"this PyTorch has no {dtype}")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


def pil_image(mode, shape, data):
    return Image.fromarray(np.frombuffer(data, np.uint8).reshape(shape), mode=mode)


def build(spec, fmt):
    kind, *args = spec
    if kind == "nil":
        return None
    if kind in ("bool", "str"):
        return args[0]
    if kind == "int":
        return int(args[0])
    if kind == "float":
        return struct.unpack(">d", bytes.fromhex(args[0]))[0]
    if kind == "bytes":
        return bytes.fromhex(args[0])
    if kind == "list":
        return [build(s, fmt) for s in args[0]]
    if kind == "dict":
        return {build(k, fmt): build(v, fmt) for k, v in args[0]}
    if kind == "slice":
        return slice(*args[0])
    if kind == "time":
        return datetime.datetime.fromtimestamp(args[0], datetime.timezone.utc) + datetime.timedelta(microseconds=args[1])
    if kind == "ndarray":
        return ndarray(args[0], args[1], bytes.fromhex(args[2]))
    if kind == "tensor":
        return fmt.tensor(args[0], args[1], bytes.fromhex(args[2]))
    if kind == "image":
        return fmt.image(args[0], args[1], bytes.fromhex(args[2]))
    raise ValueError(f"unknown kind {kind}")


def difference(want, got, path="value"):
    """Says where two values differ, or nothing."""
    if isinstance(want, slice):
        want = [want.start, want.stop, want.step]
    if isinstance(want, tuple):
        want = list(want)
    if type(want) is not type(got):
        return f"{path}: want {type(want).__name__}, got {type(got).__name__}"
    if isinstance(want, dict):
        if list(want) != list(got):
            return f"{path}: want keys {list(want)}, got {list(got)}"
        found = (difference(want[k], got[k], f"{path}[{k!r}]") for k in want)
    elif isinstance(want, list):
        if len(want) != len(got):
            return f"{path}: want {len(want)} elements, got {len(got)}"
        found = (difference(w, g, f"{path}[{i}]") for i, (w, g) in enumerate(zip(want, got)))
    else:
        same = plain(want) == plain(got)
        return None if same else f"{path}: want {plain(want)!r}, got {plain(got)!r}"
    return next((d for d in found if d), None)


def plain(v):
    """Returns what two equal values have in common, which for numbers is their bytes."""
    if isinstance(v, float):
        return struct.pack(">d", v)
    if isinstance(v, np.ndarray):
        return v.dtype.str, v.shape, v.tobytes()
    if isinstance(v, (Tensor, Picture)):
        return vars(v)
    if torch is not None and isinstance(v, torch.Tensor):
        flat = v.contiguous().reshape(-1).view(torch.uint8) if v.numel() else v.reshape(-1)
        return str(v.dtype), list(v.shape), flat.numpy().tobytes() if v.numel() else b""
    if Image is not None and isinstance(v, Image.Image):
        return v.mode, v.size, v.tobytes()
    return v


class OmniFormat:
    """vLLM-Omni's format, from its description."""

    name = "description"
    tensor, image = Tensor, Picture

    def __init__(self):
        self.encoder = msgspec.msgpack.Encoder(enc_hook=self.hook)

    def hook(self, v):
        if isinstance(v, Tensor):
            return {"__tensor__": True, "dtype": v.dtype, "shape": v.shape, "data": v.data}
        if isinstance(v, Picture):
            return {"__pil_image__": True, "mode": v.mode, "shape": v.shape, "data": v.data}
        if isinstance(v, np.ndarray):
            return {"__ndarray__": True, "dtype": v.dtype.str, "shape": list(v.shape), "data": v.tobytes()}
        if isinstance(v, slice):
            return (v.start, v.stop, v.step)
        raise TypeError(type(v))

    def encode(self, v):
        return [self.encoder.encode(v)]

    def decode(self, buffers, want):
        return self.restore(msgspec.msgpack.decode(buffers[0]))

    def restore(self, v):
        if isinstance(v, list):
            return [self.restore(e) for e in v]
        if not isinstance(v, dict):
            return v
        if v.get("__tensor__"):
            return Tensor(v["dtype"], v["shape"], v["data"])
        if v.get("__ndarray__"):
            return ndarray(v["dtype"], v["shape"], v["data"])
        if v.get("__pil_image__"):
            return Picture(v["mode"], v["shape"], v["data"])
        return {k: self.restore(e) for k, e in v.items()}


def stub(name, real=None, **content):
    """Puts a module in the place of one that is not installed."""
    if real is None:
        module = sys.modules[name] = types.ModuleType(name)
        vars(module).update(content)


def load(folder, path):
    spec = importlib.util.spec_from_file_location("loaded", os.path.join(folder, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class RealOmniFormat:
    """vLLM-Omni's own class, with what is not installed of its imports left out."""

    name = "vllm_omni"

    def __init__(self, folder):
        stub("torch", torch, Tensor=type("NoTensor", (), {}))
        stub("PIL", Image, Image=types.SimpleNamespace(Image=type("NoImage", (), {})))
        stub("vllm")
        stub("vllm.outputs", CompletionOutput=type("CompletionOutput", (), {}), RequestOutput=type("RequestOutput", (), {}))
        module = load(folder, "vllm_omni/distributed/omni_connectors/utils/serialization.py")
        self.serializer = module.OmniSerializer

    def tensor(self, *args):
        if torch is None:
            raise Skip("torch is not installed")
        return torch_tensor(*args)

    def image(self, *args):
        if Image is None:
            raise Skip("PIL is not installed")
        return pil_image(*args)

    def encode(self, v):
        return [self.serializer.serialize(v)]

    def decode(self, buffers, want):
        return self.serializer.deserialize(buffers[0])


def omni():
    folder = os.environ.get("OMNIBUS_VLLM_OMNI")
    return RealOmniFormat(folder) if folder else OmniFormat()


def answer(case, fmt):
    try:
        value = build(case["value"], fmt)
    except Skip as why:
        return {"skipped": str(why)}
    result = {}
    try:
        result["encoded"] = [bytes(b).hex() for b in fmt.encode(value)]
    except Exception as err:  # every exception of a library is an answer
        result["refused"] = f"{type(err).__name__}: {err}"
    try:
        result["difference"] = difference(value, fmt.decode([bytes.fromhex(b) for b in case["encoded"]], value)) or ""
    except Exception as err:  # every exception of a library is an answer
        result["difference"] = f"{type(err).__name__}: {err}"
    return result


def main():
    fmt = omni()
    print(json.dumps({"format": fmt.name}))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), fmt)))


if __name__ == "__main__":
    main()
