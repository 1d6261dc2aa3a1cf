"""The connector: the contract of vLLM-Omni's OmniConnectorBase, in its own words.

Its callers poll, so a get finds something or returns None, and a put says False when nothing was put.
What went wrong is logged, and counted by `health`, which tells it apart from "nothing there".
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
    Absent, Busy, Gone, Missing, Placed, Transport, check_edge, check_key, check_settings, inline_payload, metadata_for,
    setting,
)  # fmt: skip
from .mooncake import Mooncake
from .mooncake_engine import MooncakeEngine
from .nixl import Nixl
from .ring import Ring
from .segment import BY_KEY, BY_METADATA, Segments
from .stores import Keeper, Store, over
from .yuanrong import Yuanrong

log = logging.getLogger("omnibus")

#: What opens values of other programs' engines, by the modes that are called as these are.
ENGINES: dict[str, Callable[[dict[str, Any]], Keeper]] = {
    "mooncake": over(Mooncake), "yuanrong": over(Yuanrong), "nixl": Nixl, "mooncake-engine": MooncakeEngine,
}  # fmt: skip

_SILENT_SECONDS = 5.0  # the same failure is not logged more often


class OmnibusConnector:
    """Hands values from stage to stage.

    The config is the `extra` of a connector in a deployment's YAML:

    mode
        "ring" (the default): through the host of a bus, in shared memory that it keeps the books of.
        "segment": the files in /dev/shm of vLLM-Omni's SharedMemoryConnector, with which it may share an edge.
        "mooncake", "yuanrong": a store, under the keys of vLLM-Omni's MooncakeStoreConnector and YuanrongConnector.
        "nixl": memory of the process that puts, which the one that gets reads, as vLLM-Omni's NixlConnector does.
        "mooncake-engine": the same, but written into the one that gets, as MooncakeTransferEngineConnector does.

    In mode ring, tensors on a GPU travel as `tensor_transport` says:

    "default"
        through host memory, in the format of vLLM-Omni.
    "cuda_ipc", "cuda_ipc_pool"
        on the GPU: in the putter's own memory, or in a copy there. `get` returns them where they lie.

    What else it takes depends on the mode. All other settings are the stages' own.
    Safe from any thread, and in a forked child, which begins anew there.
    """

    #: Whether callers should put tensors on a GPU as they are: with a `tensor_transport`. Otherwise values go through
    #: the serializer, which copies a tensor's data once, as a raw path would.
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
        self._transport = transport = _open(self.mode, config)
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
                ring: Any = self._open_transport()
                payload: Placed | Encoded = ring.put_on_gpu(edge, key, data)
            else:
                payload = encode(data)
            if isinstance(payload, Placed):
                metadata = payload.metadata
            else:
                transport = self._open_transport()
                small = payload.size <= self._inline_bytes
                metadata = {"inline_bytes": bytes(payload)} if small else transport.put(edge, key, payload)
        except Exception as e:
            self._failed("put", put_key, e)
            return False, 0, None
        counts = self._counts
        with self._locked():
            counts["puts"] += 1
            counts["bytes_transferred"] += payload.size
            counts["inline_writes" if "inline_bytes" in metadata else "shared_writes"] += 1
        return True, payload.size, {**metadata, "size": payload.size}

    def get(
        self, from_stage: str, to_stage: str, get_key: str, metadata: dict[str, Any] | None = None
    ) -> tuple[Any, int] | None:
        """Take the value that lies under a key: (value, its size encoded); None when there is none. Does not wait."""
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
        """get, but waits for the value until a time of time.monotonic."""
        return self._get("get", from_stage, to_stage, get_key, metadata, deadline)

    def cleanup(self, request_id: str) -> None:
        """Take back the values that were put here under exactly this key, and were not got.

        The parameter has the name that it has in vLLM-Omni, whose connectors take an exact key, too.
        """
        try:
            self._open_transport().cleanup(check_key(request_id))
        except Exception as e:
            self._failed("cleanup", request_id, e)
        else:
            self._count("cleanups")

    def abandon_get(self, get_key: str) -> None:
        """End the gets that wait for a key, in any thread: they find nothing."""
        try:
            self._open_transport().abandon(check_key(get_key))
        except Exception as e:
            self._failed("abandon_get", get_key, e)

    def reap_consumed(self) -> None:
        """Forget what others have got meanwhile."""
        try:
            self._open_transport().reap()
        except Exception as e:
            self._failed("reap_consumed", "", e)

    def health(self) -> dict[str, Any]:
        """How it does, and counters since it was made.

        `missing` counts gets that found nothing, `timeouts` those that waited for it until their deadline, `busy` those
        that found somebody at work on it, and `errors` what failed, by kind.
        """
        with self._locked():
            counts = {name: self._counts[name] for name in _COUNTERS}
            report = {**counts, "errors": sum(self._errors.values()), "error_kinds": dict(self._errors)}
            if self._last_error:
                report["last_error"] = self._last_error
        transport = self._transport
        state = {"status": "closed"} if transport is None else transport.health()
        return {**state, "mode": self.mode, **report}

    def close(self) -> None:
        """Take back all that was put here and nobody got. Values that were got stay. Idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            try:
                transport.close()
            except Exception as e:
                self._failed("close", "", e)

    def __enter__(self) -> OmnibusConnector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then no thread goes on, and whoever waits for one waits for ever
            self._drop()

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        try:
            if transport is not None:
                transport.drop()
        except Exception:  # the interpreter is on its way out
            pass

    @staticmethod
    def serialize_obj(obj: Any) -> bytes:
        """The payload of a value."""
        return bytes(encode(obj))

    @staticmethod
    def deserialize_obj(data: bytes) -> Any:
        """The value of a payload."""
        return decode(data)

    # What they have in common.

    def _get(
        self, op: str, from_stage: str, to_stage: str, key: str, metadata: Any, deadline: float | None
    ) -> tuple[Any, int] | None:
        try:
            edge, key = check_edge(from_stage, to_stage), check_key(key)
            own = metadata_for(key, metadata)
            payload = inline_payload(own)
            transport = self._open_transport()
            if payload is not None:
                value, size = decode(payload), len(payload)
            elif deadline is None:
                value, size = transport.get(edge, key, own, decode)
            else:
                value, size = transport.wait(edge, key, own, decode, deadline)
        except Missing as e:
            late = deadline is not None and time.monotonic() >= deadline
            self._count("timeouts" if late else "missing")
            if isinstance(e, (Absent, Gone)):  # more than that nothing was put yet
                self._failed(op, key, e)
            return None
        except Busy:
            self._count("busy")
            return None
        except Exception as e:
            self._failed(op, key, e)
            return None
        counts = self._counts
        with self._locked():
            counts["gets"] += 1
            counts["bytes_got"] += size
        return value, size

    def _open_transport(self) -> Transport:
        transport = self._transport
        if transport is None:
            raise OmnibusError("the connector is closed")
        return transport

    def _locked(self) -> threading.Lock:
        if self._pid != os.getpid():  # whoever had it was left behind in the parent
            self._mu, self._pid = threading.Lock(), os.getpid()
        return self._mu

    def _count(self, what: str) -> None:
        with self._locked():
            self._counts[what] += 1

    def _failed(self, op: str, key: Any, e: Exception) -> None:
        kind = type(e).__name__
        now = time.monotonic()
        with self._locked():
            self._errors[kind] += 1
            self._last_error = f"{op} {key!r:.66}: {kind}: {e}"
            quiet = now - self._logged.get((op, kind), -_SILENT_SECONDS) < _SILENT_SECONDS
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
def _drop_all() -> None:
    """Take back what would stay, while there are threads to wait for: a finalizer at the end comes too late for that."""
    for c in list(_alive):
        c._drop()


_COUNTERS = (
    "puts", "gets", "bytes_transferred", "bytes_got", "inline_writes", "shared_writes", "cleanups", "missing", "timeouts",
    "busy",
)  # fmt: skip


def _threshold(mode: str, config: dict[str, Any]) -> int:
    """The size of the largest value that travels in the metadata, where no key finds it; -1: none does.

    It is for generation 1 alone: vLLM-Omni has the setting in its files, ignores it, and gets by the key.
    """
    if mode != "segment" or setting(config, "generation", BY_KEY) != BY_METADATA:
        return -1
    threshold: int = setting(config, "shm_threshold_bytes", 65_536)
    return threshold


def _open(mode: str, config: dict[str, Any]) -> Transport:
    if mode in ENGINES:
        return Store(config, ENGINES[mode])
    return Segments(config) if mode == "segment" else Ring(config)
