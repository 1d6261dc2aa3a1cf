"""Making the connector known to vLLM-Omni.

vLLM-Omni opens connectors by name, from a registry that each process fills while it starts, and
each process runs the functions that packages declare as entry points of the groups
vllm.general_plugins and vllm_omni.general_plugins. This package declares `register` there: once it is
installed, `name: OmnibusConnector` in a deployment's YAML is all that it takes.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

from .drop_in import OmnibusConnector

NAME = "OmnibusConnector"

log = logging.getLogger("omnibus")

_FACTORY = "vllm_omni.distributed.omni_connectors.factory"
_SHARED_MEMORY = "vllm_omni.distributed.omni_connectors.connectors.shm_connector"


def register() -> bool:
    """Make the connector known to vLLM-Omni, if it can be imported. Idempotent. Returns whether it is known."""
    try:
        factory: Any = importlib.import_module(_FACTORY).OmniConnectorFactory
    except ImportError:
        return False
    if NAME not in factory.list_registered_connectors():
        try:
            factory.register_connector(NAME, create)
        except ValueError:  # somebody else has, in this moment
            pass
    return True


def register_if_loaded() -> bool:
    """register, in a process that has loaded vLLM-Omni's connectors already."""
    return _FACTORY in sys.modules and register()


def create(config: dict[str, Any]) -> OmnibusConnector:
    """A connector for vLLM-Omni.

    vLLM-Omni cleans up after aborted requests only where the connector is a SharedMemoryConnector, so it is one
    by its class. None of that class's code runs.
    """
    try:
        base: Any = importlib.import_module(_SHARED_MEMORY).SharedMemoryConnector
        drop_in: type[OmnibusConnector] = type(NAME, (OmnibusConnector, base), {"__module__": __name__})
    except (ImportError, TypeError) as e:
        log.debug("the connector is not a SharedMemoryConnector by its class: %s", e)
        drop_in = OmnibusConnector
    return drop_in(config)
