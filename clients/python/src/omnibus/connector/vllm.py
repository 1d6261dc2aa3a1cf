"""Making the connector known to vLLM-Omni.

vLLM-Omni opens connectors by name, from a registry that each process fills while it starts, and
each process runs the functions that packages declare as entry points of the groups
vllm.general_plugins and vllm_omni.general_plugins. This package declares `register` there: once it is
installed, `name: OmnibusConnector` in a deployment's YAML is all that it takes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import sys
from typing import Any

from .drop_in import CudaIpcConnector, OmnibusConnector

NAME = "OmnibusConnector"

_KINDS: dict[str, type[OmnibusConnector]] = {NAME: OmnibusConnector, "CudaIpcConnector": CudaIpcConnector}

log = logging.getLogger("omnibus")

_FACTORY = "vllm_omni.distributed.omni_connectors.factory"
_SHARED_MEMORY = "vllm_omni.distributed.omni_connectors.connectors.shm_connector"


def register() -> bool:
    """Make the connectors known to vLLM-Omni, if it can be imported. Idempotent. Returns whether they are known.

    A CudaIpcConnector of vLLM-Omni itself is not replaced.
    """
    try:
        factory: Any = importlib.import_module(_FACTORY).OmniConnectorFactory
    except ImportError:
        return False
    for name, kind in _KINDS.items():
        if name not in factory.list_registered_connectors():
            with contextlib.suppress(ValueError):  # another thread has, in this moment
                factory.register_connector(name, functools.partial(create, kind=kind))
    return True


def register_if_loaded() -> bool:
    """Call `register` if this process has loaded vLLM-Omni's connectors."""
    return _FACTORY in sys.modules and register()


def create(config: dict[str, Any], kind: type[OmnibusConnector] = OmnibusConnector) -> OmnibusConnector:
    """A connector for vLLM-Omni.

    vLLM-Omni cleans up after aborted requests only if the connector is a SharedMemoryConnector, so the class is a
    subclass. No code of the base class runs.
    """
    try:
        base: Any = importlib.import_module(_SHARED_MEMORY).SharedMemoryConnector
        drop_in: type[OmnibusConnector] = type(kind.__name__, (kind, base), {"__module__": __name__})
    except (ImportError, TypeError) as e:
        log.debug("the connector is not a SharedMemoryConnector by its class: %s", e)
        drop_in = kind
    return drop_in(config)
