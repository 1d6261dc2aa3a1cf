"""One end of vLLM-Omni's own transfer of KV caches, over a connector whose tensors stay on an emulated GPU.

$OMNIBUS_VLLM_OMNI is where vLLM-Omni is unpacked, and torch is real. What its modules import of vLLM and of models is
replaced by the little that they ask for when they are loaded. To torch the emulated GPU is the host, so the tensor that
the manager packs for connectors with raw data is made in its memory here.
"""

import gc
import importlib
import json
import logging
import os
import sys
import types

del sys.path[0]  # where a script is called as a package that torch needs

import torch

from omnibus import dlpack
from omnibus.devices import emul
from omnibus.devices.contract import uuid_text

HOME = os.path.join(os.environ["OMNIBUS_VLLM_OMNI"], "vllm_omni")
CONNECTORS = os.path.join(HOME, "distributed", "omni_connectors")


def package(name, path=None, **content):
    m = sys.modules[name] = types.ModuleType(name)
    m.__dict__.update(content)
    if path is not None:
        m.__path__ = [path]


def no_rank():
    raise RuntimeError("there are no ranks here")


package("vllm_omni", HOME)
for part in ("entrypoints", "distributed"):
    package(f"vllm_omni.{part}", os.path.join(HOME, part))
package("vllm_omni.config", "")
package("vllm_omni.config.yaml_util", to_dict=dict)
package("vllm_omni.platforms", current_omni_platform=types.SimpleNamespace(get_device_count=lambda: 0))
package("vllm_omni.diffusion", "")
package("vllm_omni.diffusion.sched", "")
package("vllm_omni.diffusion.sched.interface", KVPrefetchJob=dict)
package(
    "vllm_omni.diffusion.request",
    OmniDiffusionRequest=types.SimpleNamespace(is_dummy_run_request_id=lambda request: False),
)
package("vllm_omni.distributed.omni_connectors", CONNECTORS)
for part in ("connectors", "utils"):
    package(f"vllm_omni.distributed.omni_connectors.{part}", os.path.join(CONNECTORS, part))
package("vllm", "")
package("vllm.logger", init_logger=logging.getLogger)
package("vllm.outputs", CompletionOutput=type("C", (), {}), RequestOutput=type("R", (), {}))
package("vllm.distributed", "")
package(
    "vllm.distributed.parallel_state",
    get_tensor_model_parallel_rank=no_rank, get_tensor_model_parallel_world_size=no_rank,
)  # fmt: skip
package("PIL", "")
package("PIL.Image", Image=type("Image", (), {}))
sys.modules["PIL"].Image = sys.modules["PIL.Image"]

real = importlib.import_module("vllm_omni.distributed.omni_connectors.kv_transfer_manager")
importlib.import_module("omnibus.connector").register()
sends = os.environ["ROLE"] == "sends"
extra = {"timeout": 5, "gpu": {"device": uuid_text(emul.uuid()), "arena_bytes": 1 << 20}}
manager = real.OmniKVTransferManager(real.OmniKVCacheConfig(
    connector_config={"type": "CudaIpcConnector", "tensor_transport": "cuda_ipc_pool", **extra},
    from_stage="0", to_stage="1", stage_id=None if sends else 1, engine_input_source=[0],
    need_send_cache=sends, need_recv_cache=not sends, recv_timeout=30,
))  # fmt: skip
on_device = False


class View:
    """Memory on the device, as a tensor of another library has it."""

    def __init__(self, nbytes):
        self.keep = emul.device(emul.uuid()).new_memory(nbytes)
        self.of = self.keep.address, 1, 0, "uint8", (nbytes,), None, False

    def __dlpack__(self, *, stream=None, max_version=None):
        return dlpack.capsule(*self.of, [self.keep].clear, max_version=max_version)

    def __dlpack_device__(self):
        return 1, 0


def packed(data):
    """What to_gpu_tensor packs, in the memory of the device."""
    if not on_device:
        raise RuntimeError("No device tensors found, use to_bytes() instead")
    flat = torch.frombuffer(bytearray(data.to_bytes()), dtype=torch.uint8)
    return torch.from_dlpack(View(flat.numel())).copy_(flat)


real.KVCacheTransferData.to_gpu_tensor = packed


def cache(n):
    layers = [(torch.arange(2 * 16 * 64) * (n + i)).to(torch.bfloat16).reshape(2, 16, 64) for i in range(4)]
    return {"key_cache": layers, "value_cache": [None, *(-t for t in layers[1:])]}


def send(request, n, device):
    """Send a cache. The answer is whether the connector says that it takes raw data, and what went how."""
    global on_device
    on_device = device
    data = real.KVCacheTransferData(request, cache(n), [1, 2, n], {"seq_len": 16})
    manager._transfer_kv_cache(data, request)
    session = manager.connector._transport._open_exchange()._session
    s = session.sender.stats
    return [manager.connector.supports_raw_data, s.default.messages, s.cuda_ipc_pool.messages, s.fallbacks]


def receive(request, n):
    data, size = manager.receive_kv_cache_for_request(request)
    want = cache(n)
    for name in want:
        for got, of in zip(data["layer_blocks"][name], want[name], strict=True):
            if (got is None) != (of is None) or (of is not None and (got.dtype != of.dtype or not got.equal(of))):
                return f"another {name}"
    return [data["request_id"], data["block_ids"], data["metadata"], size > 4 * 2 * 16 * 64 * 2]


def unpack(request, n):
    """Get the packed tensor itself, and read it as a manager with a GPU does."""
    key = real.build_rank_aware_recv_keys(request, "0", "1", manager._tp_topo)[0][0]
    value, size = manager.connector.get("0", "1", key)
    data = real.KVCacheTransferData.from_bytes_device(value)
    same = data["layer_blocks"]["key_cache"][3].equal(cache(n)["key_cache"][3])
    return [str(value.dtype), value.dim(), size - value.numel(), same]


do = {"send": send, "receive": receive, "unpack": unpack}
for line in sys.stdin:
    q = json.loads(line)
    answer = do[q.pop("do")](**q)
    gc.collect()
    print(json.dumps({"answer": answer, "errors": manager.connector.health()["error_kinds"]}), flush=True)
