"""Values in the memory of the producer, which it writes into a consumer's memory with Mooncake's transfer engine.

The protocol is that of vLLM-Omni's MooncakeTransferEngineConnector. A consumer asks the producer's listener for the size of
a value with `query_info`, allocates memory, and requests a write into it. The producer writes, removes the value, and
answers `trans_done`. Omnibus puts the bytes of vLLM-Omni's serializer. Raw bytes of that class, which have no type, are got
as bytes.
"""

from __future__ import annotations

import math
import os
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from ..errors import PayloadError
from ..msgpack import packb, unpackb
from ..omni.encoder import encode
from .zmq_requests import PendingReply, no_reply_error
from .contract import SECONDS, TEXT, Absent, BadMetadata, Edge, Missing, Unavailable, text_of
from .peer_store import SETTINGS, PeerStore, Value, check_size, endpoint, with_outgoing
from .mooncake import VERSION, load
from .memory_pool import Block
from .stores import Name, Settings, TooLarge

_QUERY, _NOT_FOUND, _DONE, _ERROR = b"query_info", b"info_not_found", b"trans_done", b"trans_error"

_DRAIN_SECONDS = 1.0  # within which the writes of a dead sender arrive

_SETTINGS = {
    **SETTINGS, "protocol": (TEXT, "tcp"), "device_name": (TEXT, ""), "memory_pool_device": (text_of("cpu"), "cpu"),
    "buffer_ttl_seconds": (SECONDS, 300.0),
}  # fmt: skip


class MooncakeEngine(PeerStore):
    """A value store over Mooncake's transfer engine."""

    engine_name, extra = "Mooncake's transfer engine", "mooncake"

    def __init__(self, config: dict[str, Any]) -> None:
        settings = Settings(with_outgoing(config), _SETTINGS)
        self._asking = threading.Lock()
        self._taking: set[tuple[str, str]] = set()  # addresses and keys of current gets, and of gets that timed out while the sender may still write
        super().__init__(settings, settings.buffer_ttl_seconds or math.inf, math.inf)  # a write has its own timeout

    def _open_engine(self) -> None:
        s = self._settings
        os.environ.setdefault("MC_TCP_PROGRESS_TIMEOUT_SEC", str(max(1, math.ceil(s.timeout))))  # for the process
        module = load("mooncake.engine", "Mooncake's transfer engine")
        try:
            engine = self._engine = module.TransferEngine()
            self._write, self._unregister = engine.batch_transfer_sync_write, engine.unregister_memory
            rc = engine.initialize(self._host, "P2PHANDSHAKE", s.protocol, s.device_name)
            if rc != 0:
                raise Unavailable(f"Mooncake's transfer engine cannot begin on {self._host} with {s.protocol} {s.device_name}: {rc} (host, protocol, device_name)")
            self._port: int = engine.get_rpc_port()
            rc = engine.register_memory(self.pool.address, self.pool.size)
            if rc != 0:
                raise Unavailable(f"Mooncake's transfer engine does not take {self.pool.size} bytes of memory (memory_pool_size): {rc}")
        except (AttributeError, TypeError) as e:
            raise Unavailable(f"this version of Mooncake does not do: {e}; {VERSION} does: install omnibus[mooncake]") from None

    def _close_engine(self) -> None:
        self._unregister(self.pool.address)
        del self._engine, self._write, self._unregister

    def _engine_key(self, edge: Edge, key: str) -> str:
        return f"{key}@{edge.source}_{edge.target}"

    def _metadata(self, value: Value) -> dict[str, Any]:
        host, _, port = self.address.rpartition(":")
        return {"source_host": host.strip("[]"), "source_port": int(port), "data_size": value.block.size, "is_fast_path": False}

    def _parse_origin(self, metadata: dict[str, Any]) -> tuple[str | None, str | None]:
        size = metadata.get("data_size")
        if size is not None and (type(size) is not int or size < 0):
            raise BadMetadata(f"data_size is {size!r:.80}, and no size: the other side is of another version")
        return endpoint(metadata, "source_host", "source_port"), None

    # The producer.

    def _handle_message(self, message: bytes) -> bytes | Callable[[], bytes]:
        query = message.startswith(_QUERY)
        asked = unpackb(message[len(_QUERY) :] if query else message)
        key = asked.get("request_id") if isinstance(asked, dict) else None
        if not isinstance(key, str):
            raise PayloadError("no request")
        if query:
            size = self._size(key)
            return _NOT_FOUND if size is None else bytes(packb({"request_id": key, "data_size": size, "is_fast_path": False}))
        host, port, places, lengths = (asked.get(name) for name in ("remote_hostname", "remote_port", "dst_addrs", "lengths"))
        if not isinstance(host, str) or not host or type(port) is not int or not 0 < port < 1 << 16 or (host, port) == (self._host, self._port):
            return _ERROR
        if not isinstance(places, list) or len(places) != 1 or type(places[0]) is not int or not 0 < places[0] < 1 << 64:
            return _ERROR
        value = self.claim(key, None, uuid.uuid4().hex)
        if value is None:
            return _ERROR
        if lengths != [value.block.size]:  # another value was put since the query
            self.release_claim(value)
            return _ERROR
        return lambda: self._push(value, f"{host}:{port}", places[0])

    def _size(self, key: str) -> int | None:
        with self._mu:
            value = self._values.get(key)
            return None if value is None or value.claim is not None or self._closing else value.block.size

    def _push(self, value: Value, to: str, place: int) -> bytes:
        try:
            rc = self._write(to, [self.pool.address_of(value.block)], [place], [value.block.size])
        except Exception:
            rc = -1
        if rc != 0:
            self.release_claim(value)
            return _ERROR
        return _DONE if self.finish_claim(value.name.backend_key, value.generation, value.claim or "") else _ERROR

    # The consumer.

    def _fetch(self, name: Name, generation: str | None, address: str, size: int | None, deadline: float) -> bytes | None:
        asked = address, name.backend_key
        with self._asking:
            if asked in self._taking:
                raise Missing(f"{asked[1]} of the sender at {address}: another call takes it, or was given up while it is written")
            self._taking.add(asked)
        block: Block | None = None
        going_on = False
        try:
            found = self._query(name, address, deadline)
            if found is None:
                return None
            told, raw = found
            check_size(name, size, told)
            block = self.pool.allocate(told)
            request = {"remote_hostname": self._host, "remote_port": self._port, "request_id": name.backend_key,
                       "dst_addrs": [self.pool.address_of(block)], "lengths": [told]}  # fmt: skip
            question = PendingReply(self.requester, address, bytes(packb(request)), max(deadline - time.monotonic(), 0.01))
            begun = time.monotonic()
            try:
                answer = question.wait(deadline - begun)
            except BaseException:
                question.close()
                raise
            if answer is None:  # the sender may still write
                going_on = True
                self.poll_in_background(_PendingWrite(self, asked, block, question))
                raise no_reply_error(address, time.monotonic() - begun)
            if answer == _DONE:
                payload = bytes(self.pool.view(block))
                self.pool.free(block)
                block = None
                return bytes(encode(payload)) if raw else payload
            if self._query(name, address, deadline) is None:
                return None
            raise Unavailable(f"the sender at {address} cannot write to {self._host}:{self._port}: does it reach that, and by {self._settings.protocol}?")
        finally:
            if not going_on:
                self._taking.discard(asked)
                if block is not None:
                    self.poll_in_background(_PendingWrite(self, asked, block, None))

    def _query(self, name: Name, address: str, deadline: float) -> tuple[int, bool] | None:
        answer = self.requester.request(address, _QUERY + packb({"request_id": name.backend_key}), deadline)
        if answer == _NOT_FOUND:
            return None
        try:
            said = unpackb(answer)
        except PayloadError:
            said = None
        size = said.get("data_size") if isinstance(said, dict) else None
        if type(size) is not int or size <= 0 or type(said.get("is_fast_path")) is not bool or said.get("request_id") != name.backend_key:
            raise BadMetadata(f"the sender at {address} does not say the size of a value: it is of another version, or another program")
        if size > self.pool.size:
            raise TooLarge(f"a value of {size} bytes of the sender at {address}: memory_pool_size is {self.pool.size}; raise it")
        return size, said["is_fast_path"]


class _PendingWrite:
    """Frees a block when the sender that writes into it has answered or died, and its writes have arrived."""

    def __init__(self, engine: MooncakeEngine, asked: tuple[str, str], block: Block, question: PendingReply | None) -> None:
        self._engine, self._asked, self._block, self._question = engine, asked, block, question
        self._until = time.monotonic() + _DRAIN_SECONDS

    def __call__(self) -> bool:
        if self._question is not None:
            try:
                if self._question.wait(0) is None:
                    return False
            except (Absent, Unavailable):
                pass
            self._question.close()
            self._question, self._until = None, time.monotonic() + _DRAIN_SECONDS
            self._engine._taking.discard(self._asked)
        if time.monotonic() < self._until:
            return False
        self._engine.pool.free(self._block)
        return True
