"""The real MooncakeStoreConnector and YuanrongConnector of vLLM-Omni, in a process of their own: see realvllm.

Two things are put right for them that vLLM-Omni 0.30 has wrong for the versions that omnibus pins: Mooncake's
ReplicateConfig has soft_pin_action in place of with_soft_pin, and Yuanrong's module is yr.datasystem, not datasystem.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import random
import subprocess
import sys
from typing import Any

import realvllm

NAMES = {
    "mooncake": ("mooncake_store_connector", "MooncakeStoreConnector"), "yuanrong": ("yuanrong_connector", "YuanrongConnector")
}  # fmt: skip


def value(seed: int) -> Any:
    """A value that both sides make of a number."""
    r = random.Random(seed)
    size = r.choice((0, 1, 100, 4_000, 20_000, 200_000))
    return {"seed": seed, "data": r.randbytes(size), "ids": [r.randrange(1 << 40) for _ in range(r.randrange(50))],
            "text": "".join(map(chr, r.choices(range(32, 0x2FF), k=r.randrange(40)))), "f": [r.random(), None, True]}  # fmt: skip


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
        if what == "put":
            answer = connector.put("0", "1", key, value(rest[0]))
        else:
            got = connector.get("0", "1", key)
            answer = None if got is None else [base64.b64encode(serializer.serialize(got[0])).decode(), got[1]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
