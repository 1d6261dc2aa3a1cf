"""Values in the memory of the producer, which consumers read with NIXL.

The protocol is that of vLLM-Omni's NixlConnector. A consumer requests a value from the producer's listener with
`nixl_get_meta` and a random claim id, which claims the value. The answer describes the memory. The consumer reads it, and
sends `nixl_xfer_done`. Omnibus puts vLLM-Omni's kind "object", the bytes of its serializer. Values of its two other kinds,
which have tensors in separate memory, are converted to such bytes.
"""

from __future__ import annotations

import contextlib
import importlib
import ipaddress
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, TypeAlias

from ..errors import OmnibusError, PayloadError
from ..msgpack import packb, unpackb
from .contract import SECONDS, TIMEOUT, BadMetadata, Edge, Gone, SettingType, Missing, Unavailable
from .nixl_metadata import OBJECT, SCHEMA, ReadPlan, parse_generation, build_payload, parse_plan
from .peer_store import SETTINGS, PeerStore, Value, check_size, endpoint, with_outgoing
from .memory_pool import Block
from .stores import Name, Settings, TooLarge

VERSION = "1.5.1"

_GET, _DONE, _NOT_FOUND, _ACK = b"nixl_get_meta", b"nixl_xfer_done", b"nixl_meta_not_found", b"nixl_ack"
_MODULES = ("nixl._api", "nixl_cu12._api")
_MAX_PEERS = 64
_MAX_CLAIMS = 4096
_QUICK_POLLS, _PAUSE_SECONDS = 100, 0.0002
_DONE_SECONDS = 1.0  # for nixl_xfer_done, after the value was read


def _ucx_alone(value: Any) -> Any:
    if value not in ("UCX", ["UCX"]):
        raise ValueError
    return value


_SETTINGS = {
    **SETTINGS, "lease_seconds": (SECONDS, 3600.0), "transfer_timeout_s": (TIMEOUT, 300.0),
    "backends": (SettingType("UCX, which is the one that is used", _ucx_alone), "UCX"),
}  # fmt: skip


class _Peer:
    """A producer's agent, as NIXL knows it."""

    __slots__ = ("metadata", "agent", "users")

    def __init__(self, metadata: bytes, agent: Any) -> None:
        self.metadata: bytes | None = metadata  # None: the agent is not used again
        self.agent, self.users = agent, 1


_ValueKey: TypeAlias = "tuple[str, str]"  # an address and a backend key


class Nixl(PeerStore):
    """A value store over a NIXL agent."""

    engine_name, extra = "NIXL", "nixl"

    def __init__(self, config: dict[str, Any]) -> None:
        settings = Settings(with_outgoing(config), _SETTINGS)
        self._changed = threading.Condition()
        self._peers: OrderedDict[str, _Peer] = OrderedDict()  # by address of the listener
        self._claims: OrderedDict[_ValueKey, str] = OrderedDict()
        self._taking: set[_ValueKey] = set()
        self._unfinished: set[_ValueKey] = set()  # reads that timed out and still run
        super().__init__(settings, settings.lease_seconds, 2 * settings.transfer_timeout_s)

    def _open_engine(self) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # else NIXL writes to standard output
        with _environment_for(self._host):
            self._create_agent()

    def _create_agent(self) -> None:
        for module in _MODULES:
            try:
                api: Any = importlib.import_module(module)
                break
            except ImportError as e:
                missing = e
        else:
            raise Unavailable(f"NIXL cannot be loaded ({missing}): install omnibus[nixl]")
        try:
            config = api.nixl_agent_config(backends=[], sync_mode=api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT)
            self._agent = api.nixl_agent(str(uuid.uuid4()), config)
            self._agent.create_backend("UCX")
            self._registered = self._agent.get_reg_descs([(self.pool.address, self.pool.size, 0, "")], "DRAM")
            self._agent.register_memory(self._registered, backends=["UCX"])
            self._own_metadata: bytes = self._agent.get_agent_metadata()
        except (AttributeError, TypeError) as e:
            raise Unavailable(f"this version of NIXL does not do: {e}; {VERSION} does: install omnibus[nixl]") from None
        except Exception as e:
            raise Unavailable(f"NIXL cannot begin with UCX on {self._host}, or have {self.pool.size} bytes of memory (memory_pool_size): {e}") from None

    def _close_engine(self) -> None:
        self._agent.deregister_memory(self._registered)
        del self._agent

    def _engine_key(self, edge: Edge, key: str) -> str:
        return key

    def _metadata(self, value: Value) -> dict[str, Any]:
        host, _, port = self.address.rpartition(":")
        return {
            "schema_version": SCHEMA, "kind": OBJECT, "size": value.block.size, "generation": value.generation,
            "sender_host": host.strip("[]"), "sender_zmq_port": int(port),
        }  # fmt: skip

    def _parse_origin(self, metadata: dict[str, Any]) -> tuple[str | None, str | None]:
        version, generation = metadata.get("schema_version"), metadata.get("generation")
        if version is not None and version != SCHEMA:
            raise BadMetadata(f"schema_version is {version!r:.80}, and {SCHEMA} is known: the other side is of another version")
        if generation is not None and not isinstance(generation, str):
            raise BadMetadata(f"generation is {generation!r:.80}, and no text: the other side is of another version")
        if version is not None and generation is None:
            raise BadMetadata("there is no generation: no put returns such metadata, and nothing says how long its memory stays")
        found = endpoint(metadata, "sender_host", "sender_zmq_port") or endpoint(metadata, "source_host", "source_port")
        return found, generation

    # The producer.

    def _handle_message(self, message: bytes) -> bytes:
        for op in (_GET, _DONE):
            if message.startswith(op):
                asked = unpackb(message[len(op) :])
                if not isinstance(asked, dict):
                    raise PayloadError("no map")
                key, generation, claim = asked.get("key"), asked.get("generation"), asked.get("claim_id")
                if not isinstance(key, str) or not isinstance(claim, str) or not claim or not isinstance(generation, (str, type(None))):
                    return _NOT_FOUND
                if op == _DONE:
                    # vLLM-Omni takes any answer for an acknowledgement. An Omnibus consumer discards the value for _NOT_FOUND.
                    return _ACK if self.finish_claim(key, generation or "", claim) else _NOT_FOUND
                value = self.claim(key, generation, claim)
                return _NOT_FOUND if value is None else bytes(packb({**self._describe(value), "claim_id": claim}))
        return _NOT_FOUND

    def _describe(self, value: Value) -> dict[str, Any]:
        size, address = value.block.size, self.pool.address_of(value.block)
        group = {"memory_type": "DRAM", "tensor_indices": [0], "regions": [(address, size, 0, "")]}
        return {
            **self._metadata(value), "agent_metadata": self._own_metadata, "descriptor_groups": [group] if size else [],
            "tensor_specs": [{"shape": [size], "dtype": "torch.uint8", "device": "cpu", "size": size}],
        }  # fmt: skip

    # The consumer.

    def _fetch(self, name: Name, generation: str | None, address: str, size: int | None, deadline: float) -> bytes | None:
        asked = address, name.backend_key
        claim = self._start_claim(asked)
        try:
            return self._request_value(name, generation, asked, claim, size, deadline)
        finally:
            self._taking.discard(asked)

    def _start_claim(self, asked: _ValueKey) -> str:
        """The claim id. A retry uses the same one, since the first answer may be lost."""
        with self._changed:
            if asked in self._taking or asked in self._unfinished:
                raise Missing(f"{asked[1]} of the sender at {asked[0]}: another call takes it, or reads it still that was given up")
            self._taking.add(asked)
            claim = self._claims.setdefault(asked, uuid.uuid4().hex)
            while len(self._claims) > _MAX_CLAIMS:
                self._claims.popitem(last=False)
            return claim

    def _request_value(self, name: Name, generation: str | None, asked: _ValueKey, claim: str, size: int | None, deadline: float) -> bytes | None:
        address = asked[0]
        answer = self.requester.request(address, _GET + packb({"key": name.backend_key, "generation": generation, "claim_id": claim}), deadline)
        if answer == _NOT_FOUND:
            self._claims.pop(asked, None)
            return None
        done = _DONE + packb({"key": name.backend_key, "generation": parse_generation(answer), "claim_id": claim})
        try:
            plan = parse_plan(address, answer)
            if generation not in (None, plan.generation):
                raise BadMetadata(f"the sender at {address} answers for another generation")
            check_size(name, size, plan.declared_size)  # the claim stays, for a get with other metadata
            if plan.size > self.pool.size:
                raise TooLarge(f"a value of {plan.size} bytes of the sender at {address}: memory_pool_size is {self.pool.size}; raise it")
            block = self.pool.allocate(plan.size)
        except (BadMetadata, TooLarge):  # it can never be had here
            self._claims.pop(asked, None)
            self._send_done(address, done)
            raise
        return self._read(asked, plan, block, done, deadline)

    def _send_done(self, address: str, done: bytes) -> bool | None:
        """Whether the sender had the value until now; None if it does not say. It is told later then."""
        try:
            return self.requester.request(address, done, time.monotonic() + _DONE_SECONDS) == _ACK
        except Unavailable:
            self.poll_in_background(_DoneRetry(self, address, done))
        except OmnibusError:
            pass  # it is dead
        return None

    def _read(self, asked: _ValueKey, plan: ReadPlan, block: Block, done: bytes, deadline: float) -> bytes:
        address, handles, peer, here = asked[0], list[Any](), None, self.pool.address_of(block)
        late = False
        try:
            if plan.regions:
                peer = self._prepare(address, plan, here, deadline, handles)
            states = [self._agent.transfer(handle) for handle in handles]
            looks = 0
            while "PROC" in states:
                if late := time.monotonic() >= deadline:
                    raise Unavailable(f"the memory of the sender at {address} cannot be read within timeout, {self._settings.timeout:g} s: it is stopped, or dead")
                time.sleep(0 if (looks := looks + 1) < _QUICK_POLLS else _PAUSE_SECONDS)
                states = [state if state == "DONE" else self._agent.check_xfer_state(handle) for state, handle in zip(states, handles)]
            if "ERR" in states:
                raise Unavailable(f"the memory of the sender at {address} cannot be read: NIXL says no more")
            payload = build_payload(plan, self.pool.view(block))
        except Exception as e:
            if peer is not None and not isinstance(e, PayloadError):
                peer.metadata = None  # the next get adds the agent again
            self._finish_failed_read(asked, block, handles, peer, done, late)
            if isinstance(e, OmnibusError):
                raise
            raise Unavailable(f"the memory of the sender at {address} cannot be read ({e}): it is dead, or does not have it") from None
        self._claims.pop(asked, None)
        self._release_handles(handles)
        self.pool.free(block)
        self._release_peer(peer)
        if self._send_done(address, done) is False:
            raise Gone(f"the sender at {address} took it back while it was read: raise transfer_timeout_s there")
        return payload

    def _prepare(self, address: str, plan: ReadPlan, here: int, deadline: float, handles: list[Any]) -> _Peer:
        """Create a transfer handle for each type of memory."""
        for last in (False, True):  # NIXL may have lost the agent to another sender's of the same name
            peer = self._peer(address, plan.agent, deadline)
            try:
                for memory, regions in plan.regions.items():
                    own = self._agent.get_xfer_descs([(here + offset, size, 0) for _, size, _, offset in regions], "DRAM")
                    theirs = self._agent.get_xfer_descs([region[:3] for region in regions], memory)
                    handles.append(self._agent.initialize_xfer("READ", own, theirs, peer.agent, backends=["UCX"]))
                return peer
            except Exception:
                peer.metadata = None
                self._release_peer(peer)
                if last or not self._release_handles(handles):
                    raise
        raise AssertionError

    def _finish_failed_read(self, asked: _ValueKey, block: Block, handles: list[Any], peer: _Peer | None, done: bytes, late: bool) -> None:
        """Clean up after a failed read: at once, or when no transfer writes into the block any more."""
        def ended() -> bool:
            for handle in handles:
                try:
                    if self._agent.check_xfer_state(handle) == "PROC":
                        return False
                except Exception:
                    pass  # the transfer has failed
            if not self._release_handles(handles):
                return False
            self.pool.free(block)
            self._release_peer(peer)
            self._claims.pop(asked, None)
            self._send_done(asked[0], done)
            self._unfinished.discard(asked)
            return True

        if late or not ended():
            self._unfinished.add(asked)
            self.poll_in_background(ended)

    def _release_handles(self, handles: list[Any]) -> bool:
        while handles:
            try:
                self._agent.release_xfer_handle(handles[-1])
            except Exception:
                return False
            handles.pop()
        return True

    def _peer(self, address: str, metadata: bytes, deadline: float) -> _Peer:
        """The producer's agent. An old agent with other metadata is removed first, when no get uses it."""
        with self._changed:
            while (peer := self._peers.get(address)) is not None:
                if peer.metadata == metadata:
                    peer.users += 1
                    self._peers.move_to_end(address)
                    return peer
                if not peer.users:
                    self._remove_peer(address)
                elif not self._changed.wait(deadline - time.monotonic()):
                    raise Unavailable(f"other values of the sender at {address} are read all the time of timeout")
            for idle in [a for a, p in self._peers.items() if not p.users][: max(0, len(self._peers) - _MAX_PEERS + 1)]:
                self._remove_peer(idle)
            try:
                agent = self._agent.add_remote_agent(metadata)
            except Exception:  # NIXL may know an agent of the same name, of another sender
                for idle in [a for a, p in self._peers.items() if not p.users]:
                    self._remove_peer(idle)
                agent = self._agent.add_remote_agent(metadata)
            self._peers[address] = peer = _Peer(metadata, agent)
            return peer

    def _remove_peer(self, address: str) -> None:
        try:
            self._agent.remove_remote_agent(self._peers.pop(address).agent)
        except Exception:
            pass  # NIXL has removed it already

    def _release_peer(self, peer: _Peer | None) -> None:
        if peer is not None:
            with self._changed:
                peer.users -= 1
                self._changed.notify_all()


class _DoneRetry:
    """Repeats the report of a finished get, until the sender answers or is dead."""

    def __init__(self, nixl: Nixl, address: str, done: bytes) -> None:
        self._ask, self._address, self._done = nixl.requester.request, address, done

    def __call__(self) -> bool:
        try:
            self._ask(self._address, self._done, time.monotonic() + 0.05)
        except Unavailable:
            return False
        except OmnibusError:
            pass
        return True


#: For UCX with a loopback address: it listens on that interface only, and does not load its RDMA module. That module
#: loads a libnl of the wheel, which crashes at process exit if the system's libnl is loaded, too.
_LOOPBACK = {"UCX_NET_DEVICES": "lo", "UCX_MODULES": "^ib"}


@contextlib.contextmanager
def _environment_for(host: str) -> Iterator[None]:
    """Set the environment variables for a loopback host during the start of UCX, unless the user has set them."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    own = [name for name in _LOOPBACK if loopback and name not in os.environ]
    os.environ.update({name: _LOOPBACK[name] for name in own})
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]
