"""Values that stay in the memory of the process that put them until another has pulled them.

vLLM-Omni's connectors of transfer engines hand values over in this way: a consumer asks the producer's listener for a
value, claims it thereby, moves the bytes by an engine, and says that it is done. `Held` is what they have in common:
the memory, the table of values, claims, what runs out, the listener, what is received, and the end. A subclass has an
engine and speaks its messages.
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
from .asking import Asker, load
from .contract import TEXT, Absent, BadMetadata, Damaged, Edge, Gone, Kind, Missing, Unavailable, text_of, whole
from .pool import Block, Pool
from .stores import PORT, Name, Settings, told_size

_MOST_WORKERS = 4
_MOST_DONE = 256  # claims that are remembered when they have ended: the answer to a consumer may be lost
LOOK_SECONDS = 0.25  # what has run out is taken back so much later at most
_MOST_CLOSING_SECONDS = 5.0  # for which a close waits for those that have claimed something

_PORT = Kind("a whole number from 0 to 65535", lambda value: whole(0, 65535).read(int(value)))  # 0 is none, or any

SETTINGS: dict[str, tuple[Kind, Any]] = {
    "host": (TEXT, "127.0.0.1"), "zmq_port": (_PORT, 0), "role": (text_of("both", "sender", "receiver"), "both"),
    "sender_host": (TEXT, ""), "sender_zmq_port": (_PORT, 0),
    "memory_pool_size": (whole(1), 512 << 20),
}  # fmt: skip

#: What could not be closed, because another process may still read or write its memory.
_retained: set[Any] = set()


def with_outgoing(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a process that receives, and sends by what it has under `outgoing`: the host and port of its listener."""
    outgoing = config.get("outgoing")
    if outgoing is None or config.get("role") != "receiver":
        return config
    if not isinstance(outgoing, dict) or not outgoing.get("zmq_port"):
        raise ValueError(f"outgoing must be a map with zmq_port, the port of this stage's own listener, not {outgoing!r:.200}")
    listener = {name: outgoing[name] for name in ("host", "zmq_port") if outgoing.get(name) is not None}
    return {**config, **listener, "role": "both"}


def check_replica(what: str, port: int) -> None:
    """Raise ValueError in a replica of a stage whose listener has a port that all replicas would have."""
    replica = os.environ.get("VLLM_OMNI_REPLICA_ID", "0")
    if port and replica not in ("", "0"):
        raise ValueError(
            f"{what} in replica {replica} of a stage: each replica would listen at port {port} (zmq_port): take mode ring or "
            "segment, whose values any replica finds, or vLLM-Omni's own connector"
        )


class Value:
    """A value that was put here. Its claim is the number that its consumer has made up, once there is one."""

    __slots__ = ("name", "block", "generation", "until", "claim")

    def __init__(self, name: Name, block: Block, until: float) -> None:
        self.name, self.block, self.until = name, block, until
        self.generation = uuid.uuid4().hex
        self.claim: str | None = None


class Held:
    """What a process puts into its own memory for others, and takes out of theirs: a `stores.Keeper`."""

    what = ""  # the engine, for people
    extra = ""  # of the client package, which installs it

    def __init__(self, settings: Settings, lease_seconds: float, claim_seconds: float) -> None:
        s = self._settings = settings
        self._lease, self._claim_seconds = lease_seconds, claim_seconds
        self._mu = threading.Lock()
        self._freed = threading.Condition(self._mu)  # a claim has ended
        self._values: dict[str, Value] = {}
        self._claimed: dict[tuple[str, str], Value] = {}  # by engine key and generation; in the table no more
        self._done: deque[str] = deque(maxlen=_MOST_DONE)
        # What was taken in vain, by edge and key: its generation, payload, and until when it stays.
        self._back: dict[tuple[Edge, str], tuple[str | None, bytes, float]] = {}
        # What goes on behind gets: each says whether it is over.
        self._behind: list[Callable[[], bool]] = []
        self._closing = self._left = False
        self._fetching = 0
        self._workers = ThreadPoolExecutor(_MOST_WORKERS, f"omnibus-{self.extra}")
        self._zmq = load(self.extra)
        self._host = _own_host() if s.host.lower() in ("", "auto", "*", "0.0.0.0", "::") else s.host
        if s.role != "receiver":
            check_replica(self.what, s.zmq_port)
        self._sender = at(s.sender_host, s.sender_zmq_port) if s.sender_host and s.sender_zmq_port else None
        self.pool = Pool(s.memory_pool_size)
        self.address = ""  # of the listener
        self._open()
        try:
            self._listen()
        except BaseException:
            self._end()
            raise

    # What a subclass does.

    def _open(self) -> None:
        """Open the engine, and let it have the pool."""
        raise NotImplementedError

    def _end(self) -> None:
        """End the engine."""
        raise NotImplementedError

    def _key(self, edge: Edge, key: str) -> str:
        """What vLLM-Omni's connector calls a key."""
        raise NotImplementedError

    def _metadata(self, value: Value) -> dict[str, Any]:
        """What a put returns."""
        raise NotImplementedError

    def _origin(self, metadata: dict[str, Any]) -> tuple[str | None, str | None]:
        """The sender that metadata name, and the generation of the value, as far as they do."""
        raise NotImplementedError

    def _answer(self, message: bytes) -> bytes | Callable[[], bytes]:
        """The answer to a consumer's message, or what takes a while and returns it.

        Raises OmnibusError for one that makes no sense.
        """
        raise NotImplementedError

    def _fetch(self, name: Name, generation: str | None, address: str, size: int | None, deadline: float) -> bytes | None:
        """The payload of a value of another process, which has it no more then; None where that has none."""
        raise NotImplementedError

    # The producer.

    def name(self, edge: Edge, key: str) -> Name:
        return Name(edge, key, self._key(edge, key))

    def put(self, name: Name, parts: Sequence[Buffer]) -> dict[str, Any]:
        if not self.address:
            raise Unavailable(
                f"this connector of {self.what} only receives: its role is receiver. A stage that sends, too, needs outgoing: "
                "{zmq_port: N} in the extra of its incoming edge's connector"
            )
        block = self.pool.take(sum(map(len, parts)))
        room, end = self.pool.view(block), 0
        for part in parts:
            room[end : end + len(part)] = part
            end += len(part)
        value = Value(name, block, time.monotonic() + self._lease)
        with self._mu:
            closing = self._closing
            if not closing:
                self._drop(self._values.get(name.engine_key))
                self._values[name.engine_key] = value
                self._back.pop((name.edge, name.key), None)
        if closing:
            self.pool.give(block)
            raise Unavailable(f"this connector of {self.what} is being closed")
        return self._metadata(value)

    def _drop(self, value: Value | None) -> None:
        """Take a value out of the table. Its memory stays while a consumer may read it. Under the lock."""
        if value is None:
            return
        key = value.name.engine_key
        del self._values[key]
        if value.claim is None:
            self.pool.give(value.block)
        else:
            self._claimed[key, value.generation] = value

    def claim(self, key: str, generation: str | None, claim: str) -> Value | None:
        """Let one consumer have a value, which may ask for it more than once."""
        with self._mu:
            value = self._claimed.get((key, generation or "")) or self._values.get(key)
            if value is None or generation not in (None, value.generation) or (value.claim or claim) != claim:
                return None
            if value.claim is None:
                if self._closing or time.monotonic() >= value.until:
                    return None
                value.claim, value.until = claim, time.monotonic() + self._claim_seconds
            return value

    def done(self, key: str, generation: str, claim: str) -> bool:
        """End a claim, and the value. Says whether the consumer had it until now, also when it asks again."""
        with self._mu:
            if claim in self._done:
                return True
            value = self._claimed.get((key, generation)) or self._values.get(key)
            if value is None or (value.generation, value.claim) != (generation, claim):
                return False
            self._release(value)
            self._done.append(claim)
            return True

    def unclaim(self, value: Value) -> None:
        """End a claim, and leave the value for another, if it was not taken back meanwhile."""
        with self._mu:
            key = value.name.engine_key
            if self._values.get(key) is value and not self._closing:
                value.claim, value.until = None, time.monotonic() + self._lease
            elif self._values.get(key) is value or (key, value.generation) in self._claimed:
                self._release(value)

    def _release(self, value: Value) -> None:
        """End a value whether it is claimed or not. Under the lock."""
        key = value.name.engine_key
        if self._values.get(key) is value:
            del self._values[key]
        self._claimed.pop((key, value.generation), None)
        self.pool.give(value.block)
        self._freed.notify_all()

    def own(self) -> list[Name]:
        with self._mu:
            return [v.name for v in self._values.values()]

    def _mine(self, name: Name) -> Value | None:
        value = self._values.get(name.engine_key)
        return value if value is not None and value.name.edge == name.edge else None

    def remove(self, names: list[Name]) -> None:
        with self._mu:
            for name in names:
                self._drop(self._mine(name))
                self._back.pop((name.edge, name.key), None)

    def present(self, names: list[Name]) -> list[bool]:
        with self._mu:
            return [self._mine(name) is not None for name in names]

    def prune(self) -> None:
        pass  # a value that has been got is not there

    def check(self) -> None:
        if not self._thread.is_alive():
            raise Unavailable(f"the listener of {self.what} at {self.address} has ended")

    # The consumer.

    def take(self, name: Name, metadata: dict[str, Any] | None = None, most: int | None = None) -> tuple[Any, int]:
        address, generation = self._origin(metadata or {})
        payload = self._take_here(name, generation, told_size(metadata))
        address = address or self._sender
        if payload is None and address is not None and address != self.address:
            with self._mu:
                if self._closing:
                    raise Unavailable(f"this connector of {self.what} is being closed")
                self._fetching += 1
            try:
                payload = self._fetch(name, generation, address, told_size(metadata), time.monotonic() + self._settings.timeout)
            except Absent as e:
                if generation is None:  # else the value was there, and has gone with its sender
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
            self.back(name, [payload], metadata)
            return None, len(payload)
        return payload, len(payload)

    def _take_here(self, name: Name, generation: str | None, size: int | None) -> bytes | None:
        with self._mu:
            found = self._back.get((name.edge, name.key))
            if found is not None and generation in (None, found[0]):
                del self._back[name.edge, name.key]
                return found[1]
            value = self._mine(name)
            if value is None or generation not in (None, value.generation) or value.claim is not None:
                return None
            check_size(name, size, value.block.size)
            value.claim = uuid.uuid4().hex
        payload = bytes(self.pool.view(value.block))
        with self._mu:
            self._release(value)
        return payload

    def back(self, name: Name, parts: Sequence[Buffer], metadata: dict[str, Any] | None) -> None:
        generation, payload = self._origin(metadata or {})[1], b"".join(parts)
        with self._mu:
            if generation is not None or self._mine(name) is None:  # else another has been put since
                self._back[name.edge, name.key] = generation, payload, time.monotonic() + self._lease

    # The listener, and the end.

    def _listen(self) -> None:
        zmq, s = self._zmq, self._settings
        self._context = zmq.Context()
        self.asker = Asker(zmq, self._context)
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        if s.role != "receiver":
            try:
                port = s.zmq_port
                if port:
                    router.bind(f"tcp://{at(self._host, port)}")
                else:
                    port = router.bind_to_random_port(f"tcp://{at(self._host, '')}".rstrip(":"))
            except zmq.ZMQError as e:
                router.close(0)
                self._context.term()
                raise Unavailable(
                    f"the listener of {self.what} cannot have {self._host}:{s.zmq_port} (host, zmq_port): {e}: end what has the "
                    "port, or choose another; with role receiver there is no listener"
                ) from None
            self.address = at(self._host, port)
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
                there = dict(poller.poll(int(LOOK_SECONDS * 1000)))
                if answers in there:
                    router.send_multipart(answers.recv_multipart())
                if router in there:
                    frames = router.recv_multipart()
                    if len(frames) == 3:
                        with contextlib.suppress(OmnibusError):  # a message that is none has no answer
                            answer = self._answer(frames[2])
                            if callable(answer):
                                self._workers.submit(self._work, where, frames[:2], answer)
                            else:
                                router.send_multipart([*frames[:2], answer])
                self._look()
        except zmq.ContextTerminated:
            pass
        finally:
            router.close(0)
            answers.close(0)

    def _work(self, where: str, to: list[bytes], answer: Callable[[], bytes]) -> None:
        said = answer()
        with contextlib.suppress(self._zmq.ZMQError):  # it was closed meanwhile
            push = self._context.socket(self._zmq.PUSH)
            push.linger = 0
            try:
                push.connect(where)
                push.send_multipart([*to, said])
            finally:
                push.close()

    def _look(self) -> None:
        """End what has run out, and what is over."""
        now = time.monotonic()
        with self._mu:
            for value in [v for v in (*self._values.values(), *self._claimed.values()) if now >= v.until]:
                self._release(value)
            for key in [key for key, found in self._back.items() if now >= found[2]]:
                del self._back[key]
            behind = list(self._behind)
        over = [b for b in behind if b()]
        if over:
            with self._mu:
                self._behind = [b for b in self._behind if b not in over]

    def go_on(self, behind: Callable[[], bool]) -> None:
        """Have something done again and again until it says that it is over."""
        with self._mu:
            self._behind.append(behind)

    def leave(self) -> None:
        with self._mu:
            if self._left:
                return
            self._closing = True
            for value in list(self._values.values()):
                self._drop(value)
            self._back.clear()
            self._freed.wait_for(lambda: not self._claimed, min(self._settings.timeout, _MOST_CLOSING_SECONDS))
            self._left = True
        self._workers.shutdown(wait=False)
        self.asker.close()
        self._context.term()
        self._thread.join()

    def close(self) -> None:
        self.leave()
        self._look()
        if self._claimed or self._behind or self._fetching:
            _retained.add(self)
        else:
            self._end()


def at(host: str, port: Any) -> str:
    """An address, as ZeroMQ and people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def endpoint(metadata: dict[str, Any], host: str, port: str) -> str | None:
    """The address of a sender in metadata, if there is one under these keys."""
    if not metadata.get(host) or not metadata.get(port):
        return None
    if not isinstance(metadata[host], str) or not metadata[host].isprintable() or "/" in metadata[host]:
        raise BadMetadata(f"{host} is {metadata[host]!r:.80}, and no address: the other side is of another version")
    try:
        return at(metadata[host], PORT.read(metadata[port]))
    except (TypeError, ValueError, OverflowError):
        raise BadMetadata(f"{port} is {metadata[port]!r:.80}, and not {PORT.want}: the other side is of another version") from None


def check_size(name: Name, told: int | None, size: int) -> None:
    """Raise Damaged where metadata tell another size than the value's."""
    if told is not None and told != size:
        raise Damaged(
            f"{name.key} has {size} bytes, and its metadata say {told}: another put replaced it, or the other side is of another version"
        )


def _own_host() -> str:
    """The address of this host on its way to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            host: str = s.getsockname()[0]
            return host
        except OSError as e:
            raise Unavailable(f"host auto: this host has no address towards others ({e}): say which in host") from None
