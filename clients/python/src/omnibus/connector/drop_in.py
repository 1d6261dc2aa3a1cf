"""The connector, with the methods of vLLM-Omni's OmniConnectorBase.

Its callers poll: a get returns None if there is no value, and a put returns False if it failed. Failures are logged,
and counted in `health`, apart from missing values.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ..errors import OmnibusError
from ..omni.decoder import decode
from ..omni.encoder import Encoded, encode
from .contract import (
    Absent, Busy, Gone, Missing, PutResult, Transport, check_edge, check_key, check_settings, inline_payload, metadata_for,
    setting,
)  # fmt: skip
from .mooncake import Mooncake
from .mooncake_engine import MooncakeEngine
from .nixl import Nixl
from .ring import Ring
from .segment import BY_KEY, BY_METADATA, Segments
from .stores import ValueStore, StoreTransport, shared_store
from .yuanrong import Yuanrong

log = logging.getLogger("omnibus")

#: Opens the value store of another program's engine, by mode.
BACKENDS: dict[str, Callable[[dict[str, Any]], ValueStore]] = {
    "mooncake": shared_store(Mooncake), "yuanrong": shared_store(Yuanrong), "nixl": Nixl, "mooncake-engine": MooncakeEngine,
}  # fmt: skip

_LOG_INTERVAL_SECONDS = 5.0  # between log lines of the same failure


class OmnibusConnector:
    """Hands values from stage to stage.

    The config is the `extra` of a connector in a deployment's YAML:

    mode
        "ring" (the default): through the host of a bus, in shared memory that the host accounts for.
        "segment": the files in /dev/shm of vLLM-Omni's SharedMemoryConnector, with which it may share an edge.
        "mooncake", "yuanrong": a store, under the keys of vLLM-Omni's MooncakeStoreConnector and YuanrongConnector.
        "nixl": memory of the sender, which the receiver reads, as vLLM-Omni's NixlConnector does.
        "mooncake-engine": memory of the receiver, into which the sender writes, as MooncakeTransferEngineConnector does.

    In mode ring, tensors on a GPU travel as `tensor_transport` says:

    "default"
        through host memory, in the format of vLLM-Omni.
    "cuda_ipc", "cuda_ipc_pool"
        on the GPU: in the sender's own memory, or in a copy there. `get` does not copy them.

    Further settings depend on the mode. Unknown settings belong to the stages.
    Safe from any thread. In a forked child it opens its transport again.
    """

    #: Whether callers should put tensors on a GPU unserialized, which needs a `tensor_transport`. Otherwise values go
    #: through the serializer, which copies a tensor's data once.
    supports_raw_data: bool = False

    _transport: Transport | None = None

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config = config = _settings_of(config)
        self.stage_id = config.get("stage_id", -1)
        check_settings(config)
        self.mode: str = setting(config, "mode", "ring")
        self._pid = os.getpid()
        self._mu = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._last_error = ""
        self._logged: dict[tuple[str, str], float] = {}
        self._closed = False
        self._inline_bytes = _threshold(self.mode, config)
        self._transport = transport = _open_transport(self.mode, config)
        self.supports_raw_data = isinstance(transport, Ring) and transport.tensors.transport > 0
        _alive.add(self)

    # The contract.

    def put(self, from_stage: str, to_stage: str, put_key: str, data: Any) -> tuple[bool, int, dict[str, Any] | None]:
        """Store a value under a key, for one get on the same edge: (True, its size encoded, metadata).

        (False, 0, None) when nothing was put.
        """
        try:
            edge, key = check_edge(from_stage, to_stage), check_key(put_key)
            if self.supports_raw_data:
                ring: Any = self._transport_or_raise()
                payload: PutResult | Encoded = ring.put_on_gpu(edge, key, data)
            else:
                payload = encode(data)
            if isinstance(payload, PutResult):
                metadata = payload.metadata
            else:
                transport = self._transport_or_raise()
                small = payload.size <= self._inline_bytes
                metadata = {"inline_bytes": bytes(payload)} if small else transport.put(edge, key, payload)
        except Exception as e:
            self._record_failure("put", put_key, e)
            return False, 0, None
        counts = self._counts
        with self._counts_lock():
            counts["puts"] += 1
            counts["bytes_transferred"] += payload.size
            counts["inline_writes" if "inline_bytes" in metadata else "shared_writes"] += 1
        return True, payload.size, {**metadata, "size": payload.size}

    def get(
        self, from_stage: str, to_stage: str, get_key: str, metadata: dict[str, Any] | None = None
    ) -> tuple[Any, int] | None:
        """Take the value under a key: (value, its size encoded), or None if there is none. Does not wait."""
        return self._get("get", from_stage, to_stage, get_key, metadata, None)

    def get_with_deadline(
        self,
        from_stage: str,
        to_stage: str,
        get_key: str,
        metadata: dict[str, Any] | None = None,
        *,
        deadline: float,
    ) -> tuple[Any, int] | None:
        """Like `get`, but wait for the value until the deadline, of time.monotonic."""
        return self._get("get", from_stage, to_stage, get_key, metadata, deadline)

    def cleanup(self, request_id: str) -> None:
        """Remove the values that this connector put under exactly this key and no reader has got.

        The parameter is called as in vLLM-Omni, whose connectors take an exact key, too.
        """
        try:
            self._transport_or_raise().cleanup(check_key(request_id))
        except Exception as e:
            self._record_failure("cleanup", request_id, e)
        else:
            self._count("cleanups")

    def abandon_get(self, get_key: str) -> None:
        """End the gets that wait for a key, in any thread: they return None."""
        try:
            self._transport_or_raise().abandon(check_key(get_key))
        except Exception as e:
            self._record_failure("abandon_get", get_key, e)

    def reap_consumed(self) -> None:
        """Forget the values that readers have got meanwhile."""
        try:
            self._transport_or_raise().reap()
        except Exception as e:
            self._record_failure("reap_consumed", "", e)

    def health(self) -> dict[str, Any]:
        """The connector's status, and counters since it was created.

        `missing` counts gets that found no value, `timeouts` those that waited until their deadline, `busy` those that
        found the value locked by another process, and `errors` the failures, by type.
        """
        with self._counts_lock():
            counts = {name: self._counts[name] for name in _COUNTERS}
            report = {**counts, "errors": sum(self._errors.values()), "error_kinds": dict(self._errors)}
            if self._last_error:
                report["last_error"] = self._last_error
        transport = self._transport
        state = {"status": "closed"} if transport is None else transport.health()
        return {**state, "mode": self.mode, **report}

    def close(self) -> None:
        """Remove all values that this connector put and no reader has got. Values that were got stay valid. Idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            try:
                transport.close()
            except Exception as e:
                self._record_failure("close", "", e)

    def __enter__(self) -> OmnibusConnector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # else other threads have stopped, and a wait for one never ends
            self._close_nowait()

    def _close_nowait(self) -> None:
        transport, self._transport = self._transport, None
        try:
            if transport is not None:
                transport.close_nowait()
        except Exception:  # the interpreter is finalizing
            pass

    @staticmethod
    def serialize_obj(obj: Any) -> bytes:
        """The payload of a value."""
        return bytes(encode(obj))

    @staticmethod
    def deserialize_obj(data: bytes) -> Any:
        """The value of a payload."""
        return decode(data)

    # Common parts.

    def _get(
        self, op: str, from_stage: str, to_stage: str, key: str, metadata: Any, deadline: float | None
    ) -> tuple[Any, int] | None:
        try:
            edge, key = check_edge(from_stage, to_stage), check_key(key)
            own = metadata_for(key, metadata)
            payload = inline_payload(own)
            transport = self._transport_or_raise()
            if payload is not None:
                value, size = decode(payload), len(payload)
            elif deadline is None:
                value, size = transport.get(edge, key, own, decode)
            else:
                value, size = transport.wait(edge, key, own, decode, deadline)
        except Missing as e:
            late = deadline is not None and time.monotonic() >= deadline
            self._count("timeouts" if late else "missing")
            if isinstance(e, (Absent, Gone)):  # the text says more than "not put yet"
                self._record_failure(op, key, e)
            return None
        except Busy:
            self._count("busy")
            return None
        except Exception as e:
            self._record_failure(op, key, e)
            return None
        counts = self._counts
        with self._counts_lock():
            counts["gets"] += 1
            counts["bytes_got"] += size
        return value, size

    def _transport_or_raise(self) -> Transport:
        transport = self._transport
        if transport is None:
            raise OmnibusError("the connector is closed")
        return transport

    def _counts_lock(self) -> threading.Lock:
        if self._pid != os.getpid():  # the owner of the inherited lock is a thread of the parent
            self._mu, self._pid = threading.Lock(), os.getpid()
        return self._mu

    def _count(self, what: str) -> None:
        with self._counts_lock():
            self._counts[what] += 1

    def _record_failure(self, op: str, key: Any, e: Exception) -> None:
        kind = type(e).__name__
        now = time.monotonic()
        with self._counts_lock():
            self._errors[kind] += 1
            self._last_error = f"{op} {key!r:.66}: {kind}: {e}"
            quiet = now - self._logged.get((op, kind), -_LOG_INTERVAL_SECONDS) < _LOG_INTERVAL_SECONDS
            if not quiet:
                self._logged[op, kind] = now
        if not quiet:
            unexpected = None if isinstance(e, (OmnibusError, OSError)) else e
            log.error("connector: %s of %.66r failed: %s: %s", op, key, kind, e, exc_info=unexpected)


class CudaIpcConnector(OmnibusConnector):
    """OmnibusConnector whose tensors stay on their GPU: `tensor_transport` is "cuda_ipc" or "cuda_ipc_pool"."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        config = {"tensor_transport": "cuda_ipc", **_settings_of(config)}
        if config["tensor_transport"] in (None, "default"):
            raise ValueError("tensor_transport must be cuda_ipc or cuda_ipc_pool: for default, take OmnibusConnector")
        super().__init__(config)


def _settings_of(config: Any) -> dict[str, Any]:
    try:
        return dict(config or {})
    except (TypeError, ValueError):
        raise ValueError(f"extra must be a map of settings, not {config!r}") from None


_alive: weakref.WeakSet[OmnibusConnector] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all connectors while other threads still run: a finalizer at the end of the interpreter cannot wait for them."""
    for c in list(_alive):
        c._close_nowait()


_COUNTERS = (
    "puts", "gets", "bytes_transferred", "bytes_got", "inline_writes", "shared_writes", "cleanups", "missing", "timeouts",
    "busy",
)  # fmt: skip


def _threshold(mode: str, config: dict[str, Any]) -> int:
    """The size of the largest value that is inline in the metadata, -1 for none. A get without the metadata does not find it.

    Only generation 1 has inline values: vLLM-Omni ignores the setting since, and gets by the key.
    """
    if mode != "segment" or setting(config, "generation", BY_KEY) != BY_METADATA:
        return -1
    threshold: int = setting(config, "shm_threshold_bytes", 65_536)
    return threshold


def _open_transport(mode: str, config: dict[str, Any]) -> Transport:
    if mode in BACKENDS:
        return StoreTransport(config, BACKENDS[mode])
    return Segments(config) if mode == "segment" else Ring(config)
