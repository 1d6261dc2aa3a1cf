"""The real connectors of vLLM-Omni for Mooncake, Yuanrong and NIXL, in a process of their own: see realvllm.

Two things are put right for them that vLLM-Omni 0.30 has wrong for the versions that omnibus pins: Mooncake's
ReplicateConfig has soft_pin_action in place of with_soft_pin, and Yuanrong's module is yr.datasystem, not datasystem.
NixlConnector takes NIXL from vLLM's module vllm.distributed.nixl_utils, which is replaced by two names from NIXL's wheel. MooncakeTransferEngineConnector pins its
memory for a GPU, which it does not do here.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import random
import subprocess
import sys
import types
from typing import Any

import realvllm

NAMES = {
    "mooncake": ("mooncake_store_connector", "MooncakeStoreConnector"), "yuanrong": ("yuanrong_connector", "YuanrongConnector"),
    "nixl": ("nixl_connector", "NixlConnector"),
    "mooncake-engine": ("mooncake_transfer_engine_connector", "MooncakeTransferEngineConnector"),
}  # fmt: skip


def value(seed: int) -> Any:
    """A value that both sides make of a number."""
    r = random.Random(seed)
    size = r.choice((0, 1, 100, 4_000, 20_000, 200_000))
    return {"seed": seed, "data": r.randbytes(size), "ids": [r.randrange(1 << 40) for _ in range(r.randrange(50))],
            "text": "".join(map(chr, r.choices(range(32, 0x2FF), k=r.randrange(40)))), "f": [r.random(), None, True]}  # fmt: skip


def tensors(seed: int) -> Any:
    """A value with tensors, of NixlConnector's kinds "tensors", one and more, and "structured"."""
    import torch  # type: ignore[import-not-found]

    r = random.Random(seed)

    def tensor() -> Any:
        dtype = r.choice((torch.float32, torch.uint8, torch.bfloat16, torch.int64))
        shape = [r.randrange(0 if i else 1, 50) for i in range(r.randrange(1, 4))]
        n = dtype.itemsize
        for d in shape:
            n *= d
        if not n:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(r.randbytes(n)), dtype=torch.uint8).view(dtype).reshape(shape)

    kind = seed % 3
    if kind == 0:
        return tensor()
    if kind == 1:
        return [tensor() for _ in range(r.randrange(2, 4))]
    return {"hidden": tensor(), "meta": {"n": seed, "data": r.randbytes(r.randrange(2000))}, "pair": (tensor(), "text", [tensor()])}


def plain(answer: Any) -> Any:
    """What a put has returned, without what JSON does not have."""
    ok, size, metadata = answer
    return ok, size, metadata and {k: v for k, v in metadata.items() if not isinstance(v, bytes)}


def load(kind: str, extra: dict[str, Any]) -> Any:
    """The real connector, opened."""
    realvllm.load()
    if kind == "mooncake":
        store: Any = importlib.import_module("mooncake.store")

        class ReplicateConfig(store.ReplicateConfig):  # type: ignore[misc]
            def __setattr__(self, name: str, v: Any) -> None:
                if name == "with_soft_pin":
                    name, v = "soft_pin_action", store.SoftPinAction.ENABLE if v else store.SoftPinAction.DISABLE
                super().__setattr__(name, v)

        store.ReplicateConfig = ReplicateConfig
    elif kind == "mooncake-engine":
        sys.modules["torch"].Tensor.pin_memory = lambda self: self  # type: ignore[attr-defined]
    elif kind == "nixl":
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")  # or it writes to standard output
        api: Any = importlib.import_module("nixl_cu12._api")
        nixl_utils: Any = types.ModuleType("vllm.distributed.nixl_utils")
        nixl_utils.NixlWrapper, nixl_utils.nixl_agent_config = api.nixl_agent, api.nixl_agent_config
        sys.modules.update({"vllm.distributed": types.ModuleType("vllm.distributed"), "vllm.distributed.nixl_utils": nixl_utils, "nixl": api})
    else:
        sys.modules["datasystem"] = importlib.import_module("yr.datasystem")
        sys.modules["datasystem.kv_client"] = importlib.import_module("yr.datasystem.kv_client")
    module, name = NAMES[kind]
    return getattr(importlib.import_module("vllm_omni.distributed.omni_connectors.connectors." + module), name)(extra)


class Real:
    """The other side of a test: asks the process, which has the real connector."""

    def __init__(self, kind: str, extra: dict[str, Any]) -> None:
        realvllm.skip_without()
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), kind, json.dumps(extra)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ask(self, *question: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def main() -> None:
    connector = load(sys.argv[1], json.loads(sys.argv[2]))
    serializer = importlib.import_module("vllm_omni.distributed.omni_connectors.utils.serialization").OmniSerializer
    for line in sys.stdin:
        what, key, *rest = json.loads(line)
        answer: Any
        if what == "put":
            answer = plain(connector.put("0", "1", key, value(rest[0])))
        elif what == "bytes":
            answer = plain(connector.put("0", "1", key, random.Random(rest[0]).randbytes(rest[0] + 1)))
        elif what == "encode":
            answer = base64.b64encode(serializer.serialize(tensors(rest[0]))).decode()
        elif what == "tensors":
            answer = plain(connector.put("0", "1", key, tensors(rest[0])))
        else:
            got = connector.get("0", "1", key, *rest)
            answer = None if got is None else [base64.b64encode(serializer.serialize(got[0])).decode(), got[1]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
