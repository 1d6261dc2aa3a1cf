"""The client of a Mooncake store, compatible with vLLM-Omni's MooncakeStoreConnector."""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from ..omni.encoder import Buffer
from .contract import TEXT, Edge, Missing, NoRoom, Unavailable, integer
from .stores import Settings, TooLarge, check_reachable

VERSION = "0.3.13.post1"

_SETTINGS = {
    "host": (TEXT, "127.0.0.1"), "metadata_server": (TEXT, "http://127.0.0.1:8080/metadata"),
    "master": (TEXT, "127.0.0.1:50051"), "segment": (integer(0), 512 << 20), "localbuf": (integer(1), 64 << 20),
    "proto": (TEXT, "tcp"), "rdma": (TEXT, ""),
}  # fmt: skip

_NO_SPACE_ERRNOS, _NOT_READY, _NOT_FOUND_CODE, _TRANSFER_FAILED = -200, -703, -704, -800
_MAX_ATTEMPTS = 3


def load(module: str, what: str) -> Any:
    """A module of Mooncake's wheel. Raises Unavailable, which says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise Unavailable(
            f"{what} cannot be loaded ({e}): install omnibus[mooncake], and libibverbs1, libnl-3-200 and libnl-route-3-200 of the system"
        ) from None


class Mooncake:
    """A client of the store, which adds a segment of its memory to it. Values of any client may lie there."""

    def __init__(self, config: dict[str, Any]) -> None:
        s = self._settings = Settings(config, _SETTINGS)
        # These variables hold for the process, and a user's values stay. Without them a client retries its start for
        # 90 s, and waits 30 s for a stopped master, or for another client.
        os.environ.setdefault("MC_RPC_TIMEOUT_MS", str(max(1, int(s.timeout * 1000))))
        os.environ.setdefault("MC_TCP_PROGRESS_TIMEOUT_SEC", str(max(1, math.ceil(s.timeout))))
        os.environ.setdefault("MC_STORE_CLIENT_SETUP_RETRIES", "1")
        if "yr.datasystem" in sys.modules and "mooncake.store" not in sys.modules:
            raise Unavailable("Mooncake's client cannot be loaded after Yuanrong's: the process would crash. Open Mooncake first, or in another process")
        module = load("mooncake.store", "Mooncake's client")
        try:
            self._pin = module.ReplicateConfig()
            if hasattr(self._pin, "soft_pin_action"):
                self._pin.soft_pin_action = module.SoftPinAction.ENABLE
            else:
                self._pin.with_soft_pin = True  # before 0.3.13
            store = self._store = module.MooncakeDistributedStore()
            self._upsert, self._upsert_parts, self._get, self._remove, self._exist = (
                store.upsert, store.upsert_parts, store.get_buffer, store.batch_remove, store.batch_is_exist
            )  # fmt: skip
            mount, self._unmount = store.allocate_and_mount_segment, store.unmount_and_free_segment
        except AttributeError as e:
            raise Unavailable(f"this version of Mooncake's client does not do: {e}; {VERSION} does: install omnibus[mooncake]") from None
        check_reachable("the Mooncake master", s.master, "mooncake_master", s.timeout)
        if s.metadata_server.startswith("http"):
            check_reachable("Mooncake's metadata server", urlsplit(s.metadata_server).netloc, "mooncake_master --enable_http_metadata_server=true", s.timeout)
        # The segment is mounted separately, so that its unmount does not take the 2 s of close.
        rc = store.setup(s.host, s.metadata_server, 0, s.localbuf, s.proto, s.rdma, s.master)
        if rc != 0:
            raise Unavailable(f"Mooncake at {s.master} refuses this client with {rc}: is it a Mooncake master of {VERSION}, and is {s.metadata_server} its metadata server?")
        self._segments: list[str] = []
        if s.segment:
            mounted = mount(s.segment, s.proto)
            if mounted["ret"] != 0:
                raise Unavailable(f"Mooncake at {s.master} does not take a segment of {s.segment} bytes: {mounted['ret']}")
            self._segments = mounted["segment_ids"]
            self._pin.preferred_segment = store.get_hostname()  # else a put may choose the segment of a dead client that the master has not yet removed, and fail

    def key(self, edge: Edge, key: str) -> str:
        return f"{key}@{edge.source}_{edge.target}"

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        size = sum(map(len, parts))
        if size > self._settings.localbuf:
            raise TooLarge(f"a value of {size} bytes: localbuf of Mooncake's client has {self._settings.localbuf}; raise it, and segment with it")
        rc = self._write(key, parts)
        if rc == _TRANSFER_FAILED:  # the old value lies in a dead process: choose another segment
            self._remove([key], True)
            rc = self._write(key, parts)
        if rc == _NO_SPACE_ERRNOS:
            raise NoRoom(f"no segment of Mooncake at {self._settings.master} has room for {size} bytes: raise segment, or get values sooner; a master that has just been started again has segments after some seconds")
        if rc != 0:
            raise self._unavailable("put", rc)

    def _write(self, key: str, parts: Sequence[Buffer]) -> int:
        # The store's put would keep an existing value, and return 0.
        rc: int = self._upsert(key, parts[0], self._pin) if len(parts) == 1 else self._upsert_parts(key, *parts, config=self._pin)
        return rc

    def get(self, key: str) -> Any:
        late = time.monotonic() + self._settings.timeout
        for _ in range(_MAX_ATTEMPTS):  # a get does not report why it failed; the value may have been put before the check
            payload = self._get(key)
            if payload is not None:
                return payload
            if not self.present([key])[0]:
                raise Missing(key)
            if time.monotonic() >= late:
                break
        raise Unavailable(
            f"{key!r} is in Mooncake at {self._settings.master}, and cannot be read: the process whose segment has it is "
            f"stopped or dead, or the value is larger than localbuf, which is {self._settings.localbuf}"
        )

    def remove(self, keys: list[str]) -> list[bool]:
        # Forced, since the store keeps a value for 10 s after a read otherwise.
        codes = self._remove(keys, True)
        for rc in codes:
            if rc not in (0, _NOT_FOUND_CODE, _NOT_READY):  # the last is that of an unfinished put
                raise self._unavailable("remove", rc)
        return [rc == 0 for rc in codes]

    def present(self, keys: list[str]) -> list[bool]:
        codes = self._exist(keys)
        for rc in codes:
            if rc < 0:
                raise self._unavailable("look", rc)
        return [rc == 1 for rc in codes]

    def _unavailable(self, op: str, rc: int) -> Unavailable:
        if rc == _TRANSFER_FAILED:
            return Unavailable(
                f"Mooncake at {self._settings.master} does not {op}, code {rc}: the process whose segment was to take part is "
                "dead or stopped, which the master notices after about 10 s"
            )
        return Unavailable(
            f"Mooncake at {self._settings.master} does not {op}, code {rc}: the master is dead, stopped, or has just been "
            f"started again, or it took more than timeout, {self._settings.timeout:g} s"
        )

    def withdraw(self) -> None:
        segments, self._segments = self._segments, []
        if segments and self._unmount(segments, 0) != 0:
            raise self._unavailable("unmount", -1)

    def close(self) -> None:
        self.withdraw()
        self._store.close()
