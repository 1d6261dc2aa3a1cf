"""Values in the memory of the producer, which consumers pull with a transfer engine.

vLLM-Omni's connectors of transfer engines work in this way: a consumer requests a value from the producer's listener,
which claims the value for it, moves the bytes with the engine, and reports the end. `PeerStore` is the common part:
memory, the table of values, claims, expiry, the listener, received values, and the close. A subclass has an engine and
encodes its messages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import OmnibusError
from ..omni.encoder import Buffer
from .zmq_requests import Requester, load_zmq
from .contract import TEXT, Absent, BadMetadata, Damaged, Edge, Gone, SettingType, Missing, Unavailable, text_of, integer
from .memory_pool import Block, MemoryPool
from .stores import PORT, Name, Settings, metadata_size

_MAX_WORKERS = 4
_MAX_FINISHED_CLAIMS = 256  # ended claims that are remembered: a consumer whose answer was lost asks again
EXPIRY_CHECK_SECONDS = 0.25  # the delay of an expiry at most
_MAX_CLOSING_SECONDS = 5.0  # for which a close waits for claims

_PORT = SettingType("a whole number from 0 to 65535", lambda value: integer(0, 65535).parse(int(value)))  # 0: none, or any free one

SETTINGS: dict[str, tuple[SettingType, Any]] = {
    "host": (TEXT, "127.0.0.1"), "zmq_port": (_PORT, 0), "role": (text_of("both", "sender", "receiver"), "both"),
    "sender_host": (TEXT, ""), "sender_zmq_port": (_PORT, 0),
    "memory_pool_size": (integer(1), 512 << 20),
}  # fmt: skip

#: Stores that were not closed, because another process may still read or write their memory.
_unclosable: set[Any] = set()


def with_outgoing(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a receiver that also sends: `outgoing` has the host and port of its listener."""
    outgoing = config.get("outgoing")
    if outgoing is None or config.get("role") != "receiver":
        return config
    if not isinstance(outgoing, dict) or not outgoing.get("zmq_port"):
        raise ValueError(f"outgoing must be a map with zmq_port, the port of this stage's own listener, not {outgoing!r:.200}")
    listener = {name: outgoing[name] for name in ("host", "zmq_port") if outgoing.get(name) is not None}
    return {**config, **listener, "role": "both"}


def check_replica(what: str, port: int) -> None:
    """Raise ValueError in a replica of a stage if all replicas would listen at the same port."""
    replica = os.environ.get("VLLM_OMNI_REPLICA_ID", "0")
    if port and replica not in ("", "0"):
        raise ValueError(
            f"{what} in replica {replica} of a stage: each replica would listen at port {port} (zmq_port): take mode ring or "
            "segment, whose values any replica finds, or vLLM-Omni's own connector"
        )


class Value:
    """A value that was put here. `claim` is the consumer's number for its claim, None without one."""

    __slots__ = ("name", "block", "generation", "expires_at", "claim")

    def __init__(self, name: Name, block: Block, until: float) -> None:
        self.name, self.block, self.expires_at = name, block, until
        self.generation = uuid.uuid4().hex
        self.claim: str | None = None


class PeerStore:
    """The values that a process puts into its own memory and takes from other processes: a `stores.ValueStore`."""

    engine_name = ""  # in error texts
    extra = ""  # of the package omnibus, which installs the engine

    def __init__(self, settings: Settings, lease_seconds: float, claim_seconds: float) -> None:
        s = self._settings = settings
        self._lease, self._claim_seconds = lease_seconds, claim_seconds
        self._mu = threading.Lock()
        self._claim_ended = threading.Condition(self._mu)  # a claim has ended
        self._values: dict[str, Value] = {}
        self._claimed: dict[tuple[str, str], Value] = {}  # by backend key and generation, of values that left the table
        self._finished_claims: deque[str] = deque(maxlen=_MAX_FINISHED_CLAIMS)
        # Values that were put back, by edge and key: generation, payload, and expiry.
        self._returned: dict[tuple[Edge, str], tuple[str | None, bytes, float]] = {}
        # The background work of gets: each function returns whether it is done.
        self._background: list[Callable[[], bool]] = []
        self._closing = self._withdrawn = False
        self._fetching = 0
        self._workers = ThreadPoolExecutor(_MAX_WORKERS, f"omnibus-{self.extra}")
        self._zmq = load_zmq(self.extra)
        self._host = _detect_host() if s.host.lower() in ("", "auto", "*", "0.0.0.0", "::") else s.host
        if s.role != "receiver":
            check_replica(self.engine_name, s.zmq_port)
        self._sender = format_address(s.sender_host, s.sender_zmq_port) if s.sender_host and s.sender_zmq_port else None
        self.pool = MemoryPool(s.memory_pool_size)
        self.address = ""  # of the listener
        self._open_engine()
        try:
            self._start_listener()
        except BaseException:
            self._close_engine()
            raise

    # Implemented by a subclass.

    def _open_engine(self) -> None:
        """Open the engine, and register the pool."""
        raise NotImplementedError

    def _close_engine(self) -> None:
        """Close the engine."""
        raise NotImplementedError

    def _engine_key(self, edge: Edge, key: str) -> str:
        """The key as vLLM-Omni's connector has it."""
        raise NotImplementedError

    def _metadata(self, value: Value) -> dict[str, Any]:
        """The metadata that a put returns."""
        raise NotImplementedError

    def _parse_origin(self, metadata: dict[str, Any]) -> tuple[str | None, str | None]:
        """The address of the sender and the generation of the value in metadata, None for each that they lack."""
        raise NotImplementedError

    def _handle_message(self, message: bytes) -> bytes | Callable[[], bytes]:
        """The answer to a consumer's message, or a function that blocks and returns it.

        Raises OmnibusError for an invalid message.
        """
        raise NotImplementedError

    def _fetch(self, name: Name, generation: str | None, address: str, size: int | None, deadline: float) -> bytes | None:
        """Take the payload of a value from another process; None: it has no such value."""
        raise NotImplementedError

    # The producer.

    def name(self, edge: Edge, key: str) -> Name:
        return Name(edge, key, self._engine_key(edge, key))

    def put(self, name: Name, parts: Sequence[Buffer]) -> dict[str, Any]:
        if not self.address:
            raise Unavailable(
                f"this connector of {self.engine_name} only receives: its role is receiver. A stage that sends, too, needs outgoing: "
                "{zmq_port: N} in the extra of its incoming edge's connector"
            )
        block = self.pool.allocate(sum(map(len, parts)))
        room, end = self.pool.view(block), 0
        for part in parts:
            room[end : end + len(part)] = part
            end += len(part)
        value = Value(name, block, time.monotonic() + self._lease)
        with self._mu:
            closing = self._closing
            if not closing:
                self._unlist(self._values.get(name.backend_key))
                self._values[name.backend_key] = value
                self._returned.pop((name.edge, name.key), None)
        if closing:
            self.pool.free(block)
            raise Unavailable(f"this connector of {self.engine_name} is being closed")
        return self._metadata(value)

    def _unlist(self, value: Value | None) -> None:
        """Remove a value from the table. Its memory stays while a consumer may read it. Under the lock."""
        if value is None:
            return
        key = value.name.backend_key
        del self._values[key]
        if value.claim is None:
            self.pool.free(value.block)
        else:
            self._claimed[key, value.generation] = value

    def claim(self, key: str, generation: str | None, claim: str) -> Value | None:
        """Claim a value for one consumer, which may repeat the claim. None: there is no value, or another has claimed it."""
        with self._mu:
            value = self._claimed.get((key, generation or "")) or self._values.get(key)
            if value is None or generation not in (None, value.generation) or (value.claim or claim) != claim:
                return None
            if value.claim is None:
                if self._closing or time.monotonic() >= value.expires_at:
                    return None
                value.claim, value.expires_at = claim, time.monotonic() + self._claim_seconds
            return value

    def finish_claim(self, key: str, generation: str, claim: str) -> bool:
        """End a claim, and remove the value. Returns whether the claim held until now, also if the call is repeated."""
        with self._mu:
            if claim in self._finished_claims:
                return True
            value = self._claimed.get((key, generation)) or self._values.get(key)
            if value is None or (value.generation, value.claim) != (generation, claim):
                return False
            self._remove_value(value)
            self._finished_claims.append(claim)
            return True

    def release_claim(self, value: Value) -> None:
        """End a claim, and keep the value for another consumer, unless it was removed meanwhile."""
        with self._mu:
            key = value.name.backend_key
            if self._values.get(key) is value and not self._closing:
                value.claim, value.expires_at = None, time.monotonic() + self._lease
            elif self._values.get(key) is value or (key, value.generation) in self._claimed:
                self._remove_value(value)

    def _remove_value(self, value: Value) -> None:
        """Remove a value, claimed or not, and free its memory. Under the lock."""
        key = value.name.backend_key
        if self._values.get(key) is value:
            del self._values[key]
        self._claimed.pop((key, value.generation), None)
        self.pool.free(value.block)
        self._claim_ended.notify_all()

    def own_names(self) -> list[Name]:
        with self._mu:
            return [v.name for v in self._values.values()]

    def _own_value(self, name: Name) -> Value | None:
        value = self._values.get(name.backend_key)
        return value if value is not None and value.name.edge == name.edge else None

    def remove(self, names: list[Name]) -> None:
        with self._mu:
            for name in names:
                self._unlist(self._own_value(name))
                self._returned.pop((name.edge, name.key), None)

    def present(self, names: list[Name]) -> list[bool]:
        with self._mu:
            return [self._own_value(name) is not None for name in names]

    def forget_taken(self) -> None:
        pass  # a taken value is removed at once

    def check_health(self) -> None:
        if not self._thread.is_alive():
            raise Unavailable(f"the listener of {self.engine_name} at {self.address} has ended")

    # The consumer.

    def take_value(self, name: Name, metadata: dict[str, Any] | None = None, most: int | None = None) -> tuple[Any, int]:
        address, generation = self._parse_origin(metadata or {})
        payload = self._take_local(name, generation, metadata_size(metadata))
        address = address or self._sender
        if payload is None and address is not None and address != self.address:
            with self._mu:
                if self._closing:
                    raise Unavailable(f"this connector of {self.engine_name} is being closed")
                self._fetching += 1
            try:
                payload = self._fetch(name, generation, address, metadata_size(metadata), time.monotonic() + self._settings.timeout)
            except Absent as e:
                if generation is None:  # with a generation, the value existed, and is lost with its sender
                    raise
                raise Gone(str(e)) from None
            finally:
                with self._mu:
                    self._fetching -= 1
        if payload is None:
            if generation is not None:
                raise Gone(f"the sender at {address} has it no more: it was got, replaced, cleaned up, or has run out")
            if address is None:
                raise Missing(f"{name.key} was not put here, and neither metadata nor sender_host and sender_zmq_port say where else")
            raise Missing(name.key)
        if most is not None and len(payload) > most:
            self.put_back(name, [payload], metadata)
            return None, len(payload)
        return payload, len(payload)

    def _take_local(self, name: Name, generation: str | None, size: int | None) -> bytes | None:
        with self._mu:
            found = self._returned.get((name.edge, name.key))
            if found is not None and generation in (None, found[0]):
                del self._returned[name.edge, name.key]
                return found[1]
            value = self._own_value(name)
            if value is None or generation not in (None, value.generation) or value.claim is not None:
                return None
            check_size(name, size, value.block.size)
            value.claim = uuid.uuid4().hex
        payload = bytes(self.pool.view(value.block))
        with self._mu:
            self._remove_value(value)
        return payload

    def put_back(self, name: Name, parts: Sequence[Buffer], metadata: dict[str, Any] | None) -> None:
        generation, payload = self._parse_origin(metadata or {})[1], b"".join(parts)
        with self._mu:
            if generation is not None or self._own_value(name) is None:  # without a generation, a newer value may have been put
                self._returned[name.edge, name.key] = generation, payload, time.monotonic() + self._lease

    # The listener, and the close.

    def _start_listener(self) -> None:
        zmq, s = self._zmq, self._settings
        self._context = zmq.Context()
        self.requester = Requester(zmq, self._context)
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        if s.role != "receiver":
            try:
                port = s.zmq_port
                if port:
                    router.bind(f"tcp://{format_address(self._host, port)}")
                else:
                    port = router.bind_to_random_port(f"tcp://{format_address(self._host, '')}".rstrip(":"))
            except zmq.ZMQError as e:
                router.close(0)
                self._context.term()
                raise Unavailable(
                    f"the listener of {self.engine_name} cannot have {self._host}:{s.zmq_port} (host, zmq_port): {e}: end what has the "
                    "port, or choose another; with role receiver there is no listener"
                ) from None
            self.address = format_address(self._host, port)
        answers, where = self._context.socket(zmq.PULL), f"inproc://{uuid.uuid4().hex}"
        answers.bind(where)
        self._thread = threading.Thread(target=self._serve, args=(router, answers, where), name=f"omnibus-{self.extra}", daemon=True)
        self._thread.start()

    def _serve(self, router: Any, answers: Any, where: str) -> None:
        zmq = self._zmq
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(answers, zmq.POLLIN)
        try:
            while True:
                there = dict(poller.poll(int(EXPIRY_CHECK_SECONDS * 1000)))
                if answers in there:
                    router.send_multipart(answers.recv_multipart())
                if router in there:
                    frames = router.recv_multipart()
                    if len(frames) == 3:
                        with contextlib.suppress(OmnibusError):  # an invalid message has no answer
                            answer = self._handle_message(frames[2])
                            if callable(answer):
                                self._workers.submit(self._answer_later, where, frames[:2], answer)
                            else:
                                router.send_multipart([*frames[:2], answer])
                self._expire()
        except zmq.ContextTerminated:
            pass
        finally:
            router.close(0)
            answers.close(0)

    def _answer_later(self, where: str, to: list[bytes], answer: Callable[[], bytes]) -> None:
        said = answer()
        with contextlib.suppress(self._zmq.ZMQError):  # the store was closed meanwhile
            push = self._context.socket(self._zmq.PUSH)
            push.linger = 0
            try:
                push.connect(where)
                push.send_multipart([*to, said])
            finally:
                push.close()

    def _expire(self) -> None:
        """Remove expired values, and poll the background work."""
        now = time.monotonic()
        with self._mu:
            for value in [v for v in (*self._values.values(), *self._claimed.values()) if now >= v.expires_at]:
                self._remove_value(value)
            for key in [key for key, found in self._returned.items() if now >= found[2]]:
                del self._returned[key]
            behind = list(self._background)
        over = [b for b in behind if b()]
        if over:
            with self._mu:
                self._background = [b for b in self._background if b not in over]

    def poll_in_background(self, behind: Callable[[], bool]) -> None:
        """Call a function again and again until it returns True."""
        with self._mu:
            self._background.append(behind)

    def withdraw(self) -> None:
        with self._mu:
            if self._withdrawn:
                return
            self._closing = True
            for value in list(self._values.values()):
                self._unlist(value)
            self._returned.clear()
            self._claim_ended.wait_for(lambda: not self._claimed, min(self._settings.timeout, _MAX_CLOSING_SECONDS))
            self._withdrawn = True
        self._workers.shutdown(wait=False)
        self.requester.close()
        self._context.term()
        self._thread.join()

    def close(self) -> None:
        self.withdraw()
        self._expire()
        if self._claimed or self._background or self._fetching:
            _unclosable.add(self)
        else:
            self._close_engine()


def format_address(host: str, port: Any) -> str:
    """An address as host:port, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint(metadata: dict[str, Any], host: str, port: str) -> str | None:
    """The address of a sender in metadata, under these keys; None if they lack one."""
    if not metadata.get(host) or not metadata.get(port):
        return None
    if not isinstance(metadata[host], str) or not metadata[host].isprintable() or "/" in metadata[host]:
        raise BadMetadata(f"{host} is {metadata[host]!r:.80}, and no address: the other side is of another version")
    try:
        return format_address(metadata[host], PORT.parse(metadata[port]))
    except (TypeError, ValueError, OverflowError):
        raise BadMetadata(f"{port} is {metadata[port]!r:.80}, and not {PORT.description}: the other side is of another version") from None


def check_size(name: Name, told: int | None, size: int) -> None:
    """Raise Damaged if metadata have another size than the value."""
    if told is not None and told != size:
        raise Damaged(
            f"{name.key} has {size} bytes, and its metadata say {told}: another put replaced it, or the other side is of another version"
        )


def _detect_host() -> str:
    """The address of this host on its default route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            host: str = s.getsockname()[0]
            return host
        except OSError as e:
            raise Unavailable(f"host auto: this host has no address towards others ({e}): say which in host") from None
