"""Connectors that pass values between stages of vLLM-Omni, in place of its own::

    with OmnibusConnector({"mode": "segment"}) as c:
        ok, size, metadata = c.put("0", "1", "request_0_0", {"hidden": tensor})
        found = c.get("0", "1", "request_0_0", metadata)

A deployment's YAML names the connector; see docs/connectors/vllm-omni.md, and `register`.
"""

from ..omni.decoder import decode
from ..omni.encoder import Encoded, encode
from .contract import BadKey, BadMetadata, Busy, Damaged, Missing, NoRoom, Unavailable
from .drop_in import CudaIpcConnector, OmnibusConnector
from .manager import SharedMemoryManager
from .vllm import NAME, register, register_if_loaded

__all__ = [
    "NAME", "BadKey", "BadMetadata", "Busy", "CudaIpcConnector", "Damaged", "Encoded", "Missing", "NoRoom",
    "OmnibusConnector", "SharedMemoryManager", "Unavailable", "decode", "encode", "register",
]  # fmt: skip

register_if_loaded()
