"""The client of a Yuanrong datasystem worker, compatible with vLLM-Omni's YuanrongConnector."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

from ..omni.encoder import Buffer
from .contract import SECONDS, TEXT, BadKey, Edge, Missing, NoRoom, Unavailable, integer
from .stores import PORT, Settings, check_reachable

VERSION = "0.8.1"

_SETTINGS = {"host": (TEXT, "127.0.0.1"), "port": (PORT, 35001), "ttl": (SECONDS, 600.0), "get_sub_timeout_ms": (integer(0), 1000)}

_KEY = re.compile(r"[a-zA-Z0-9\-_!@#%^*()+=:;]{1,255}")
_CODE = re.compile(r"code: \[([^]]*)\]")


class Yuanrong:
    """A client of the worker on this host, which has the values in its memory."""

    def __init__(self, config: dict[str, Any]) -> None:
        s = self._settings = Settings(config, _SETTINGS)
        self._address = f"{s.host}:{s.port}"
        try:
            module: Any = importlib.import_module("yr.datasystem.kv_client")
        except ImportError as e:
            raise Unavailable(f"Yuanrong's client cannot be loaded ({e}): install omnibus[yuanrong]") from None
        milliseconds = max(1, int(s.timeout * 1000))
        check_reachable("the Yuanrong worker", self._address, "dscli start", s.timeout)
        try:
            self._mode = module.WriteMode.NONE_L2_CACHE_EVICT
            self._client = self._connect(module, milliseconds, True)
            self._set, self._buffers = self._client.set, self._client.get_read_only_buffers
            self._delete, self._exist = self._client.delete, self._client.exist
        except (AttributeError, TypeError) as e:
            raise Unavailable(f"this version of Yuanrong's client does not do: {e}; {VERSION} does: install omnibus[yuanrong]") from None
        except RuntimeError as e:
            raise self._error("begin", e) from None

    def _connect(self, module: Any, milliseconds: int, exclusive: bool) -> Any:
        # An exclusive connection answers in a third of the time. A worker has 128 of them.
        client = module.KVClient(
            self._settings.host, self._settings.port, milliseconds, req_timeout_ms=milliseconds, enable_exclusive_connection=exclusive
        )
        try:
            client.init()
        except RuntimeError:
            if not exclusive:
                raise
            return self._connect(module, milliseconds, False)
        return client

    def key(self, edge: Edge, key: str) -> str:
        name = f"{key}:{edge.source}_{edge.target}"
        if not _KEY.fullmatch(name):
            raise BadKey(f"{name[:64]!r}: a key of Yuanrong, {{key}}:{{from}}_{{to}}, has up to 255 letters, digits and -_!@#%^*()+=:;")
        return name

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        try:
            self._set(key, parts[0] if len(parts) == 1 else b"".join(parts), self._mode, int(self._settings.ttl))
        except RuntimeError as e:
            raise self._error("put", e) from None

    def get(self, key: str) -> Any:
        try:
            return self._buffers([key], 0)[0].immutable_data()
        except RuntimeError as e:
            raise self._error("get", e) from None

    def remove(self, keys: list[str]) -> list[bool]:
        try:
            self._delete(keys)
        except RuntimeError as e:
            raise self._error("remove", e) from None
        return [True] * len(keys)  # the worker does not report which keys had a value

    def present(self, keys: list[str]) -> list[bool]:
        try:
            there: list[bool] = self._exist(keys)
        except RuntimeError as e:
            raise self._error("look", e) from None
        return there

    def _error(self, op: str, e: RuntimeError) -> Exception:
        found = _CODE.search(str(e))
        code = found[1] if found else str(e)[:200]
        if code == "Key not found":
            return Missing(code)
        if code == "Out of memory":
            return NoRoom(f"the Yuanrong worker at {self._address} has no room: raise its shared_memory_size_mb, or get values sooner")
        return Unavailable(
            f"the Yuanrong worker at {self._address} does not {op} ({code}): it is dead, stopped, another program, or took "
            f"more than timeout, {self._settings.timeout:g} s"
        )

    def withdraw(self) -> None:
        pass  # the values lie in the worker

    def close(self) -> None:
        del self._client, self._set, self._buffers, self._delete, self._exist
