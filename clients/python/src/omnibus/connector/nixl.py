"""Values that a process has in its memory for others, who read them by NIXL, as vLLM-Omni's NixlConnector does.

A consumer asks the producer's listener for a value by `nixl_get_meta`, with a number that it made up, which claims it. The
answer describes the memory. It reads that, and says `nixl_xfer_done`. What we put is of vLLM-Omni's kind "object", the
bytes of its serializer; of its two other kinds, which have tensors in memory of their own, we make such bytes.
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
from .contract import SECONDS, TIMEOUT, BadMetadata, Edge, Gone, Kind, Missing, Unavailable
from .described import OBJECT, SCHEMA, Plan, generation_of, payload_of, plan_of
from .held import SETTINGS, Held, Value, check_size, endpoint, with_outgoing
from .pool import Block
from .stores import Name, Settings, TooLarge

VERSION = "1.5.1"

_GET, _DONE, _NOT_FOUND, _ACK = b"nixl_get_meta", b"nixl_xfer_done", b"nixl_meta_not_found", b"nixl_ack"
_MODULES = ("nixl._api", "nixl_cu12._api")
_MOST_PEERS = 64
_MOST_CLAIMS = 4096
_QUICK_LOOKS, _PAUSE_SECONDS = 100, 0.0002
_DONE_SECONDS = 1.0  # for the last message of a get, whose value is here


def _ucx_alone(value: Any) -> Any:
    if value not in ("UCX", ["UCX"]):
        raise ValueError
    return value


_SETTINGS = {
    **SETTINGS, "lease_seconds": (SECONDS, 3600.0), "transfer_timeout_s": (TIMEOUT, 300.0),
    "backends": (Kind("UCX, which is the one that is used", _ucx_alone), "UCX"),
}  # fmt: skip


class _Peer:
    """A producer's agent, as NIXL knows it."""

    __slots__ = ("metadata", "agent", "users")

    def __init__(self, metadata: bytes, agent: Any) -> None:
        self.metadata: bytes | None = metadata  # None when it is not used again
        self.agent, self.users = agent, 1


_Asked: TypeAlias = "tuple[str, str]"  # an address and a key there


class Nixl(Held):
    """A NIXL agent, and what it is asked for."""

    what, extra = "NIXL", "nixl"

    def __init__(self, config: dict[str, Any]) -> None:
        settings = Settings(with_outgoing(config), _SETTINGS)
        self._changed = threading.Condition()
        self._peers: OrderedDict[str, _Peer] = OrderedDict()  # by address of the listener
        self._claims: OrderedDict[_Asked, str] = OrderedDict()
        self._taking: set[_Asked] = set()
        self._late: set[_Asked] = set()  # which were given up, and are still being read
        super().__init__(settings, settings.lease_seconds, 2 * settings.transfer_timeout_s)

    def _open(self) -> None:
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")  # or it writes to standard output
        with _environment_for(self._host):
            self._begin_agent()

    def _begin_agent(self) -> None:
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

    def _end(self) -> None:
        self._agent.deregister_memory(self._registered)
        del self._agent

    def _key(self, edge: Edge, key: str) -> str:
        return key

    def _metadata(self, value: Value) -> dict[str, Any]:
        host, _, port = self.address.rpartition(":")
        return {
            "schema_version": SCHEMA, "kind": OBJECT, "size": value.block.size, "generation": value.generation,
            "sender_host": host.strip("[]"), "sender_zmq_port": int(port),
        }  # fmt: skip

    def _origin(self, metadata: dict[str, Any]) -> tuple[str | None, str | None]:
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

    def _answer(self, message: bytes) -> bytes:
        for op in (_GET, _DONE):
            if message.startswith(op):
                asked = unpackb(message[len(op) :])
                if not isinstance(asked, dict):
                    raise PayloadError("no map")
                key, generation, claim = asked.get("key"), asked.get("generation"), asked.get("claim_id")
                if not isinstance(key, str) or not isinstance(claim, str) or not claim or not isinstance(generation, (str, type(None))):
                    return _NOT_FOUND
                if op == _DONE:
                    # vLLM-Omni reads any answer as this one; ours, that what it read may have been something else.
                    return _ACK if self.done(key, generation or "", claim) else _NOT_FOUND
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
        asked = address, name.engine_key
        claim = self._begin(asked)
        try:
            return self._ask(name, generation, asked, claim, size, deadline)
        finally:
            self._taking.discard(asked)

    def _begin(self, asked: _Asked) -> str:
        """The number of the claim. It is the same for another try: the answer to the first may be lost."""
        with self._changed:
            if asked in self._taking or asked in self._late:
                raise Missing(f"{asked[1]} of the sender at {asked[0]}: another call takes it, or reads it still that was given up")
            self._taking.add(asked)
            claim = self._claims.setdefault(asked, uuid.uuid4().hex)
            while len(self._claims) > _MOST_CLAIMS:
                self._claims.popitem(last=False)
            return claim

    def _ask(self, name: Name, generation: str | None, asked: _Asked, claim: str, size: int | None, deadline: float) -> bytes | None:
        address = asked[0]
        answer = self.asker.ask(address, _GET + packb({"key": name.engine_key, "generation": generation, "claim_id": claim}), deadline)
        if answer == _NOT_FOUND:
            self._claims.pop(asked, None)
            return None
        done = _DONE + packb({"key": name.engine_key, "generation": generation_of(answer), "claim_id": claim})
        try:
            plan = plan_of(address, answer)
            if generation not in (None, plan.generation):
                raise BadMetadata(f"the sender at {address} answers for another generation")
            check_size(name, size, plan.told)  # and stays claimed, for a get with others
            if plan.size > self.pool.size:
                raise TooLarge(f"a value of {plan.size} bytes of the sender at {address}: memory_pool_size is {self.pool.size}; raise it")
            block = self.pool.take(plan.size)
        except (BadMetadata, TooLarge):  # it can never be had here
            self._claims.pop(asked, None)
            self._say_done(address, done)
            raise
        return self._read(asked, plan, block, done, deadline)

    def _say_done(self, address: str, done: bytes) -> bool | None:
        """Whether the sender had the value until now; None if it does not say. It is told later then."""
        try:
            return self.asker.ask(address, done, time.monotonic() + _DONE_SECONDS) == _ACK
        except Unavailable:
            self.go_on(_Later(self, address, done))
        except OmnibusError:
            pass  # it is dead
        return None

    def _read(self, asked: _Asked, plan: Plan, block: Block, done: bytes, deadline: float) -> bytes:
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
                time.sleep(0 if (looks := looks + 1) < _QUICK_LOOKS else _PAUSE_SECONDS)
                states = [state if state == "DONE" else self._agent.check_xfer_state(handle) for state, handle in zip(states, handles)]
            if "ERR" in states:
                raise Unavailable(f"the memory of the sender at {address} cannot be read: NIXL says no more")
            payload = payload_of(plan, self.pool.view(block))
        except Exception as e:
            if peer is not None and not isinstance(e, PayloadError):
                peer.metadata = None  # the next get begins anew with it
            self._over(asked, block, handles, peer, done, late)
            if isinstance(e, OmnibusError):
                raise
            raise Unavailable(f"the memory of the sender at {address} cannot be read ({e}): it is dead, or does not have it") from None
        self._claims.pop(asked, None)
        self._let_go(handles)
        self.pool.give(block)
        self._leave_peer(peer)
        if self._say_done(address, done) is False:
            raise Gone(f"the sender at {address} took it back while it was read: raise transfer_timeout_s there")
        return payload

    def _prepare(self, address: str, plan: Plan, here: int, deadline: float, handles: list[Any]) -> _Peer:
        """Have a handle for what lies in each type of memory."""
        for last in (False, True):  # NIXL may know the agent no more: another sender had one of its name
            peer = self._peer(address, plan.agent, deadline)
            try:
                for memory, regions in plan.regions.items():
                    own = self._agent.get_xfer_descs([(here + offset, size, 0) for _, size, _, offset in regions], "DRAM")
                    theirs = self._agent.get_xfer_descs([region[:3] for region in regions], memory)
                    handles.append(self._agent.initialize_xfer("READ", own, theirs, peer.agent, backends=["UCX"]))
                return peer
            except Exception:
                peer.metadata = None
                self._leave_peer(peer)
                if last or not self._let_go(handles):
                    raise
        raise AssertionError

    def _over(self, asked: _Asked, block: Block, handles: list[Any], peer: _Peer | None, done: bytes, late: bool) -> None:
        """End what failed: at once, or when nothing writes into the block any more."""
        def ended() -> bool:
            for handle in handles:
                try:
                    if self._agent.check_xfer_state(handle) == "PROC":
                        return False
                except Exception:
                    pass  # it has ended with an error
            if not self._let_go(handles):
                return False
            self.pool.give(block)
            self._leave_peer(peer)
            self._claims.pop(asked, None)
            self._say_done(asked[0], done)
            self._late.discard(asked)
            return True

        if late or not ended():
            self._late.add(asked)
            self.go_on(ended)

    def _let_go(self, handles: list[Any]) -> bool:
        while handles:
            try:
                self._agent.release_xfer_handle(handles[-1])
            except Exception:
                return False
            handles.pop()
        return True

    def _peer(self, address: str, metadata: bytes, deadline: float) -> _Peer:
        """The producer's agent. One with other metadata is forgotten first, as soon as no other get uses it."""
        with self._changed:
            while (peer := self._peers.get(address)) is not None:
                if peer.metadata == metadata:
                    peer.users += 1
                    self._peers.move_to_end(address)
                    return peer
                if not peer.users:
                    self._forget(address)
                elif not self._changed.wait(deadline - time.monotonic()):
                    raise Unavailable(f"other values of the sender at {address} are read all the time of timeout")
            for idle in [a for a, p in self._peers.items() if not p.users][: max(0, len(self._peers) - _MOST_PEERS + 1)]:
                self._forget(idle)
            try:
                agent = self._agent.add_remote_agent(metadata)
            except Exception:  # one of its name may be known, of another sender
                for idle in [a for a, p in self._peers.items() if not p.users]:
                    self._forget(idle)
                agent = self._agent.add_remote_agent(metadata)
            self._peers[address] = peer = _Peer(metadata, agent)
            return peer

    def _forget(self, address: str) -> None:
        try:
            self._agent.remove_remote_agent(self._peers.pop(address).agent)
        except Exception:
            pass  # NIXL does not know it any more

    def _leave_peer(self, peer: _Peer | None) -> None:
        if peer is not None:
            with self._changed:
                peer.users -= 1
                self._changed.notify_all()


class _Later:
    """Says again that a get is done, until the sender hears it, or is dead."""

    def __init__(self, nixl: Nixl, address: str, done: bytes) -> None:
        self._ask, self._address, self._done = nixl.asker.ask, address, done

    def __call__(self) -> bool:
        try:
            self._ask(self._address, self._done, time.monotonic() + 0.05)
        except Unavailable:
            return False
        except OmnibusError:
            pass
        return True


#: For UCX where the host is a loopback address: to listen there alone, and not to look for RDMA. With its module for that
#: the wheel loads a libnl of its own, which crashes at the end of a process where the system has one too.
_LOOPBACK = {"UCX_NET_DEVICES": "lo", "UCX_MODULES": "^ib"}


@contextlib.contextmanager
def _environment_for(host: str) -> Iterator[None]:
    """Have the variables of the environment that a host takes, which a user may have set, while UCX begins."""
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
