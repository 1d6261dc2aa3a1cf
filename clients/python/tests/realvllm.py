"""The real SharedMemoryConnector of vLLM-Omni, in a process of its own.

$OMNIBUS_VLLM_OMNI is where vLLM-Omni is unpacked. What it imports and does not need here (torch,
vLLM, Pillow) is replaced by the little that its modules ask for when they are loaded; tensors lie on
NumPy arrays, unless $OMNIBUS_REAL_TORCH is set where torch is installed. Run as a program it does what it reads from its standard input, for `Real`.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import types
import unittest
from typing import Any

ROOT = os.environ.get("OMNIBUS_VLLM_OMNI", "")


def skip_without() -> None:
    """Skip the caller's test unless the real module can be loaded."""
    if not ROOT:
        raise unittest.SkipTest("OMNIBUS_VLLM_OMNI does not say where vLLM-Omni is")
    for name in ("msgspec", "numpy"):
        if importlib.util.find_spec(name) is None:
            raise unittest.SkipTest(f"vLLM-Omni needs {name}, which is not here")


class Real:
    """The other side of a test: asks the process, which has the real module."""

    def __init__(self) -> None:
        skip_without()
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )

    def ask(self, what: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"what": what, **arguments}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def encode(self, name: str) -> bytes:
        """What the real serializer makes of a value of `values`."""
        return base64.b64decode(self.ask("encode", name=name))

    def describe(self, payload: bytes) -> Any:
        """What the real serializer reads from a payload."""
        return self.ask("decode", payload=base64.b64encode(payload).decode())

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


@dataclasses.dataclass
class Completion:
    """Has the fields by which vLLM-Omni knows a CompletionOutput."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None


class RequestOutput:
    def __init__(self, **fields: Any) -> None:
        for name in ("prompt_logprobs", "metrics", "lora_request", "encoder_prompt", "encoder_prompt_token_ids"):
            setattr(self, name, None)
        self.num_cached_tokens = 0
        self.kv_transfer_params = None
        self.__dict__.update(fields)


def values() -> dict[str, Any]:
    """Values that both sides know by name."""
    import msgspec
    import numpy as np

    class Meta(msgspec.Struct, omit_defaults=True):
        seq: int | None = None
        names: list[str] = []

    completion = Completion(0, "hi", [1, 2])
    completion.multimodal_output = {"audio": np.arange(3, dtype=np.float32)}  # type: ignore[attr-defined]
    return {
        "nothing": None,
        "plain": {"key": "value", "list": [1, 2, 3], "f": 1.5, "neg": -40000, "big": 1 << 63, "n": None, "b": b"\0\1"},
        "numbers": {"ids": list(range(0, 100_000, 37)), "f": [i / 3 for i in range(50)], "m": [1, 300, 70_000, -1] * 9},
        "arrays": {
            str(d): np.arange(6).astype(d).reshape(2, 3)
            for d in ("f2", "f4", "f8", "i1", "u1", "i8", "u8", "?", ">i4", "c8", "m8[s]", "U3")
        },
        "large": {"hidden": np.arange(1 << 16, dtype=np.float32).reshape(256, 256), "layer": 24},
        "strided": np.arange(20_000, dtype=np.int16)[::2],
        "scalar": np.array(7.0),
        "empty": np.zeros((0, 5), np.float32),
        "tuple": (1, (2, slice(1, 2)), {3: "x"}),
        "struct": [Meta(), Meta(seq=5, names=["a"])],
        "request": RequestOutput(
            request_id="r", prompt="p", prompt_token_ids=[1], outputs=[completion], finished=True,
            multimodal_output={"x": 1},
        ),
    }  # fmt: skip


def describe(v: Any) -> Any:
    """A value in JSON, with its types."""
    if isinstance(v, dict):
        return ["dict", [[describe(k), describe(x)] for k, x in v.items()]]
    if isinstance(v, (list, tuple)):
        return [type(v).__name__, [describe(x) for x in v]]
    if isinstance(v, (bytes, bytearray)):
        return [type(v).__name__, v.hex()]
    if type(v).__name__ == "ndarray":
        return ["array", v.dtype.str, list(v.shape), v.tobytes().hex()]
    if type(v).__name__ == "Tensor":
        raw = v.raw().hex() if hasattr(v, "raw") else v.a.tobytes().hex()
        return ["tensor", str(v.dtype).removeprefix("torch."), list(v.shape), raw]
    if hasattr(v, "__dict__"):
        return [type(v).__name__, describe(vars(v))]
    return [type(v).__name__, repr(v)]


# The process with the real module.


class _Dtype:
    def __init__(self, name: str, size: int) -> None:
        self.name, self.itemsize = name, size

    def __str__(self) -> str:
        return "torch." + self.name


def _fake_torch() -> types.ModuleType:
    import numpy as np

    torch = types.ModuleType("torch")
    types_of = {
        "float16": "f2", "float32": "f4", "float64": "f8", "bfloat16": "u2", "int8": "i1", "int16": "i2", "int32": "i4",
        "int64": "i8", "uint8": "u1", "bool": "?",
    }  # fmt: skip
    for name, d in types_of.items():
        setattr(torch, name, _Dtype(name, np.dtype(d).itemsize))

    class Device(str):
        type = "cpu"

    class Tensor:
        device = Device("cpu")
        is_cuda = False

        def __init__(self, a: Any, dtype: Any) -> None:
            self.a, self.dtype, self.shape = a, dtype, a.shape

        def view(self, dtype: Any) -> Any:
            return Tensor(self.a.view(types_of[dtype.name]), dtype)

        def __getitem__(self, where: Any) -> Any:
            return Tensor(self.a[where], self.dtype)

        def copy_(self, other: Any) -> None:
            self.a[...] = other.a

        def flatten(self) -> Any:
            return Tensor(self.a.reshape(-1), self.dtype)

        @property
        def nbytes(self) -> int:
            return int(self.a.nbytes)

        def clone(self) -> Any:
            return Tensor(self.a.copy(), self.dtype)

        def numel(self) -> int:
            return int(self.a.size)

        def element_size(self) -> int:
            return int(self.a.itemsize)

        def data_ptr(self) -> int:
            return int(self.a.ctypes.data)

        def get_device(self) -> int:
            return -1

        def reshape(self, shape: Any) -> Any:
            return Tensor(self.a.reshape(shape), self.dtype)

        def numpy(self) -> Any:
            return self.a

        def item(self) -> Any:
            return self.a.item()

        def tolist(self) -> Any:
            return self.a.tolist()

        @property
        def ndim(self) -> int:
            return int(self.a.ndim)

        def detach(self) -> Any:
            return self

        cpu = contiguous = pin_memory = resolve_conj = resolve_neg = detach

        def dim(self) -> int:
            return int(self.a.ndim)

        def is_contiguous(self) -> bool:
            return True

    torch.Tensor = Tensor  # type: ignore[attr-defined]
    torch.dtype = _Dtype  # type: ignore[attr-defined]
    torch.frombuffer = lambda b, dtype: Tensor(np.frombuffer(b, "u1"), dtype)  # type: ignore[attr-defined]
    torch.empty = lambda shape, dtype, device=None: Tensor(np.empty(shape, types_of[dtype.name]), dtype)  # type: ignore[attr-defined]
    torch.tensor = lambda value, dtype: Tensor(np.array(value, types_of[dtype.name]), dtype)  # type: ignore[attr-defined]
    torch.device = Device  # type: ignore[attr-defined]
    return torch


def _torch() -> Any:
    return importlib.import_module("torch")


def load() -> Any:
    """The real shm_connector module, with its serializer."""

    def package(name: str, path: str | None = None, **content: Any) -> None:
        m = sys.modules[name] = types.ModuleType(name)
        m.__dict__.update(content)
        if path is not None:
            m.__path__ = [path]

    home = os.path.join(ROOT, "vllm_omni")
    connectors = os.path.join(home, "distributed", "omni_connectors")
    package("vllm_omni", home)
    package("vllm_omni.entrypoints", os.path.join(home, "entrypoints"))
    package("vllm_omni.config", "")
    package("vllm_omni.config.yaml_util", to_dict=dict)
    package("vllm_omni.platforms", current_omni_platform=None)
    package("vllm_omni.distributed", os.path.dirname(connectors))
    package("vllm_omni.distributed.omni_connectors", connectors)
    package("vllm_omni.distributed.omni_connectors.connectors", os.path.join(connectors, "connectors"))
    package("vllm_omni.distributed.omni_connectors.utils", os.path.join(connectors, "utils"))
    package("vllm", "")
    package("vllm.outputs", CompletionOutput=Completion, RequestOutput=RequestOutput)
    package("PIL", "")
    package("PIL.Image", Image=type("Image", (), {}))
    sys.modules["PIL"].Image = sys.modules["PIL.Image"]  # type: ignore[attr-defined]
    torch = _torch if importlib.util.find_spec("torch") and os.environ.get("OMNIBUS_REAL_TORCH") else _fake_torch
    sys.modules["torch"] = torch()
    return importlib.import_module("vllm_omni.distributed.omni_connectors.connectors.shm_connector")


def main() -> None:
    real = load()
    serializer = importlib.import_module("vllm_omni.distributed.omni_connectors.utils.serialization").OmniSerializer
    connector = real.SharedMemoryConnector({})
    for line in sys.stdin:  # each a question
        q = json.loads(line)
        answer: Any = None
        if q["what"] == "encode":
            answer = base64.b64encode(serializer.serialize(values()[q["name"]])).decode()
        elif q["what"] == "listed":
            answer = listed(serializer)
        elif q["what"] == "decode":
            answer = describe(serializer.deserialize(base64.b64decode(q["payload"])))
        elif q["what"] == "put":
            answer = connector.put("0", "1", q["key"], {"v": values()[q["name"]]})
        elif q["what"] == "get":
            got = connector.get("0", "1", q["key"], q.get("metadata"))
            answer = None if got is None else [describe(got[0]), got[1]]
        elif q["what"] == "cleanup":
            connector.cleanup(q["key"])
            answer = hasattr(connector, "reap_consumed")  # or it does nothing
        elif q["what"] == "register":
            answer = register(q["config"])
        print(json.dumps(answer), flush=True)


def listed(serializer: Any) -> list[str]:
    """What the real serializer makes of the values of `valuelist`, but for images; nothing of those that it refuses."""
    out = []
    for _, _, v in importlib.import_module("valuelist").cases(missing="PIL.Image"):
        try:
            out.append(base64.b64encode(serializer.serialize(v)).decode())
        except Exception:
            out.append("")
    return out


def register(config: dict[str, Any]) -> Any:
    """Have omnibus.connector register itself, and let the real factory make one."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src"))
    factory = importlib.import_module("vllm_omni.distributed.omni_connectors.factory").OmniConnectorFactory
    spec = importlib.import_module("vllm_omni.distributed.omni_connectors.utils.config").ConnectorSpec
    base = importlib.import_module("vllm_omni.distributed.omni_connectors.connectors.base").OmniConnectorBase
    real = sys.modules["vllm_omni.distributed.omni_connectors.connectors.shm_connector"]
    ours = importlib.import_module("omnibus.connector")
    known = [n in factory.list_registered_connectors() for n in (ours.NAME, "CudaIpcConnector")]
    known += [ours.register(), ours.register()]
    c = factory.create_connector(spec(name=ours.NAME, extra=config))
    try:
        own = {n for n in base.__abstractmethods__ if getattr(type(c), n).__module__ == "omnibus.connector.drop_in"}
        missing = sorted(base.__abstractmethods__ - own)
        ok, size, metadata = c.put("0", "1", "omnibus-test-registered", {"x": 1})
        got = c.get("0", "1", "omnibus-test-registered", metadata)
        kinds = [isinstance(c, base), isinstance(c, real.SharedMemoryConnector), isinstance(c, ours.OmnibusConnector)]
        return [known, kinds, missing, c.stage_id, ok, got, c.health()["status"]]
    finally:
        c.close()


if __name__ == "__main__":
    main()
