"""The transfer of a prompt's KV blocks from the prefill process to the decode process.

The blocks of a request travel in *parts* of bounded size, one after the other, under keys of the request. The
sender copies a part from its cache into memory of the exchange, and the receiver copies it from there into its own cache,
while the sender copies the next one. So a prompt of any length fits into an arena with space for one part.

`Pages` copies the pages of a cache, so that this module needs no torch.
"""

from __future__ import annotations

import heapq
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..connector.contract import BadKey, Damaged, Edge, Missing, NoRoom, check_edge, check_key
from ..connector.ring import Ring
from ..connector.sweeper import Sweeper
from ..errors import OmnibusError, OutOfMemory
from .frame import Framed, check_head, retry_once, unframe

log = logging.getLogger("omnibus")

TARGET = "kv"  # of the edges, whose source is the sending engine
MAX_NAME_BYTES = 80  # of an engine, and of a request: both are in the keys


class Offer(NamedTuple):
    """Blocks that a sender offers, as the receiver gets them in `kv_transfer_params`."""

    engine: str
    request: str  # the name in the keys
    ranks: int  # of tensor parallelism
    block_size: int  # in tokens
    tokens: int
    prompt: str  # a hash of it
    expires_at: float  # when the sender removes the rest; in seconds of Unix time

    @property
    def blocks(self) -> int:
        return -(-self.tokens // self.block_size)

    def to_params(self) -> dict[str, Any]:
        """The parameters for the receiver's request. Routers recognize a transfer by the first two."""
        names = {name: value for (name, _), value in zip(_PARAMS, self, strict=True)}
        return {"do_remote_prefill": True, "do_remote_decode": False, **names}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Offer:
        """The offer in untrusted parameters. Raises ValueError, which says what is wrong."""
        values: list[Any] = []
        for name, kind in _PARAMS:
            value: Any = params.get(name)
            if kind is float and type(value) is int:  # as JSON may have it
                value = float(value)
            if type(value) is not kind or (kind is int and not 0 < value < 1 << 32):
                raise ValueError(
                    f"kv_transfer_params has no usable {name} ({value!r:.40}): the router is to pass on, as they are, "
                    "the kv_transfer_params of the response to the prefill"
                )
            values.append(value)
        offer = cls(*values)
        _check_names(offer)
        return offer


# The parameters of an offer, in its order.
_PARAMS: tuple[tuple[str, type[Any]], ...] = (
    ("remote_engine_id", str), ("remote_request_id", str), ("tp_size", int), ("remote_block_size", int),
    ("remote_num_tokens", int), ("remote_prompt_hash", str), ("remote_expiry", float),
)  # fmt: skip


def _check_names(offer: Offer) -> None:
    check_edge(offer.engine, TARGET)
    for name in (offer.engine, offer.request):
        check_key(name)
        if len(name.encode()) > MAX_NAME_BYTES:
            raise BadKey(f"{name[:40]!r}... has more than {MAX_NAME_BYTES} bytes")


class Run(NamedTuple):
    """A range of blocks of a request, of one layer."""

    layer: int
    first: int
    end: int


class Part(NamedTuple):
    """The content of one value."""

    runs: list[Run]
    size: int  # in bytes


def split_parts(page_bytes: list[int], blocks: int, most: int) -> list[Part]:
    """The parts of a request: its blocks layer by layer, with pages of so many bytes. No part has more than `most` bytes,
    unless a single page has."""
    parts: list[Part] = []
    runs: list[Run] = []
    size = 0
    for layer, page in enumerate(page_bytes):
        first = 0
        while first < blocks:
            count = min(blocks - first, (most - size) // page if page else blocks)
            if count < 1 and runs:  # the part is full
                parts.append(Part(runs, size))
                runs, size = [], 0
                continue
            count = max(count, 1)
            runs.append(Run(layer, first, first + count))
            size += count * page
            first += count
    return [*parts, Part(runs, size)] if runs else parts


class Pages(Protocol):
    """The pages of a KV cache: one for each layer and block. Safe from any thread, for blocks that no other uses."""

    @property
    def geometry(self) -> dict[str, Any]:
        """The properties that both sides must have in common, in plain values."""
        ...

    @property
    def page_bytes(self) -> list[int]:
        """The size of a page of each layer."""
        ...

    def gather(self, runs: list[Run], blocks: list[int], out: memoryview) -> None:
        """Copy runs of a request, which has these blocks of the cache, contiguously into `out`."""
        ...

    def scatter(self, runs: list[Run], blocks: list[int], first: int, data: memoryview) -> None:
        """Copy the output of `gather` into the cache. `blocks` are those for the request's blocks from `first` on;
        others are skipped. Returns when the device has written them."""
        ...

    def fence(self) -> Callable[[], object]:
        """A function that waits until the device has done all its current work."""
        ...


class Load:
    """Blocks to be received."""

    def __init__(self, offer: Offer | None, request: str, blocks: list[int], first: int) -> None:
        self.offer = offer  # None: it is invalid
        self.request = request  # its id in this process
        self.blocks: list[int] | None = blocks  # None: the load has ended. Empty: the parts are got and dropped
        self.first = first
        self.lock = threading.Lock()  # guards the blocks, also during a write

    def __repr__(self) -> str:
        there = f" ({self.offer.request} of {self.offer.engine})" if self.offer is not None else ""
        return f"request {self.request}{there}"


class Handover:
    """Sends and receives the KV blocks of one rank. Called from one thread; it has threads of its own."""

    def __init__(self, ring: Ring, pages: Pages, rank: int, lease: float, part_bytes: int) -> None:
        """Untaken values are removed when their offer expires. A receiver waits until then, at most for `lease` seconds."""
        self._ring, self._pages, self._rank = ring, pages, rank
        self._lease, self._part_bytes = lease, part_bytes
        self._mu = threading.Lock()
        self._sent: set[str] = set()
        self._loaded: set[str] = set()
        self._invalid: set[int] = set()
        self._loads: dict[str, Load] = {}
        self._sends: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._expiries: list[tuple[float, str, Offer]] = []  # a heap, by expiry of the values of a request
        self._sweeper = Sweeper(self._sweep)
        self._closed = False

    def send(self, offer: Offer, request: str, blocks: list[int]) -> None:
        """Send blocks. `finished` returns the request when they can be reused."""
        if self._sender is None:
            self._sender = threading.Thread(target=self._send_all, name="omnibus kv sender", daemon=True)
            self._sender.start()
        self._sends.put(partial(self._send, offer, request, blocks, self._pages.fence()))

    def load(self, load: Load, refused: str = "") -> None:
        """Receive blocks; without any, take the offered ones and drop them. `finished` returns a request with blocks.

        With a `refused` reason it fails at once.
        """
        if load.blocks:
            self._loads[load.request] = load
        if refused or load.offer is None:
            self._finish_load(load, refused)
            return
        work = partial(self._load, load, load.offer, self._pages.fence())
        try:
            threading.Thread(target=work, name="omnibus kv loader", daemon=True).start()
        except RuntimeError as e:
            self._finish_load(load, f"no thread can be started: {e}")

    def finished(self, over: set[str]) -> tuple[set[str], set[str]]:
        """The requests that were sent and received since the last call, also unsuccessfully. `over` are ended requests:
        their pending blocks are dropped, and their cache blocks are not written from now on."""
        for request in over:
            load = self._loads.get(request)
            if load is not None:
                self._finish_load(load, "")
        with self._mu:
            sent, loaded = self._sent, self._loaded
            self._sent, self._loaded = set(), set()
        for request in loaded:
            self._loads.pop(request, None)
        return sent, loaded

    def invalid(self) -> set[int]:
        """The blocks that were not received, of requests that `finished` has returned."""
        with self._mu:
            invalid, self._invalid = self._invalid, set()
        return invalid

    def close(self) -> None:
        """Remove the untaken values. Idempotent."""
        self._closed = True
        self._sends.put(None)
        self._sweeper.stop()
        self._ring.close()

    # Sending, in one thread, in order.

    def _send_all(self) -> None:
        while (job := self._sends.get()) is not None:
            job()

    def _send(self, offer: Offer, request: str, blocks: list[int], ready: Callable[[], object]) -> None:
        try:
            ready()
            parts = split_parts(self._pages.page_bytes, offer.blocks, self._part_bytes)
            retry_once(lambda: self._put(offer, blocks, parts))  # from the start: earlier parts are lost with the host
            with self._mu:
                heapq.heappush(self._expiries, (offer.expires_at, offer.request, offer))
            self._sweeper.schedule(max(offer.expires_at - time.time(), 1e-3))
        except Exception as e:
            log.error("the KV blocks of request %r were not handed over: %s: %s", request, type(e).__name__, e)
            self._remove_parts(offer)
        finally:
            with self._mu:
                self._sent.add(request)

    def _put(self, offer: Offer, blocks: list[int], parts: list[Part]) -> None:
        for number, part in enumerate(parts):
            if self._closed:
                raise OmnibusError("the connector is shut down")
            payload = Framed(self._head(offer, number, parts), part.size, partial(self._pages.gather, part.runs, blocks))
            left = max(offer.expires_at - time.time(), 0)  # past the expiry a put succeeds only if there is space at once
            try:
                self._ring.put(Edge(offer.engine, TARGET), self._key(offer, number), payload, left)
            except OutOfMemory as e:
                raise NoRoom(
                    f"after {number} of {len(parts)} parts, when the lease of {self._lease:g} s was over or memory short: no decoder "
                    f"takes values in time, and arena_bytes are full; raise them, or lease ({e})"
                ) from None

    def _remove_parts(self, offer: Offer) -> None:
        try:
            for number in range(len(split_parts(self._pages.page_bytes, offer.blocks, self._part_bytes))):
                self._ring.cleanup(self._key(offer, number))
        except OmnibusError as e:  # its values are lost with the host
            log.debug("the KV blocks of %r were not taken back: %s", offer.request, e)

    def _sweep(self) -> float | None:
        now, over = time.time(), []
        with self._mu:
            while self._expiries and self._expiries[0][0] <= now:
                over.append(heapq.heappop(self._expiries)[2])
            following = max(self._expiries[0][0] - now, 1e-3) if self._expiries else None
        for offer in over:
            self._remove_parts(offer)
        return following

    # Receiving, each request in a thread of its own, so that no request waits for another's blocks.

    def _load(self, load: Load, offer: Offer, ready: Callable[[], object]) -> None:
        number, parts = 0, []
        deadline = time.monotonic() + min(offer.expires_at - time.time(), self._lease)
        try:
            ready()
            parts = split_parts(self._pages.page_bytes, offer.blocks, self._part_bytes)
            for number in range(len(parts)):
                take = partial(self._take, load, self._head(offer, number, parts), parts[number])
                wait = partial(self._ring.wait, Edge(offer.engine, TARGET), self._key(offer, number), None, take, deadline)
                if number:
                    wait()
                else:
                    retry_once(wait)
        except Missing:
            self._finish_load(load, f"part {number + 1} of {len(parts)} is not there in time: it was lost, taken back, or never put")
        except Exception as e:
            self._finish_load(load, f"part {number + 1} of {len(parts)}: {type(e).__name__}: {e}")
        else:
            self._finish_load(load, "")

    def _take(self, load: Load, want: dict[str, Any], part: Part, payload: memoryview, padded: bool = False) -> None:
        head, data = unframe(memoryview(payload))
        check_head(head, want)
        if len(data) != part.size:
            raise Damaged(f"{len(data)} bytes in place of {part.size}")
        with load.lock:
            if load.blocks:
                self._pages.scatter(part.runs, load.blocks, load.first, data)

    def _finish_load(self, load: Load, why: str) -> None:
        with load.lock:
            blocks, load.blocks = load.blocks, None
        if why and not self._closed:
            log.error("the KV blocks of %r were not received: %s", load, why)
        if blocks:
            with self._mu:
                self._loaded.add(load.request)
                if why:
                    self._invalid.update(blocks)

    # Common to both sides.

    def _key(self, offer: Offer, number: int) -> str:
        return f"{offer.request}_{offer.engine}_{number}_{self._rank}_{self._rank}"

    def _head(self, offer: Offer, number: int, parts: list[Part]) -> dict[str, Any]:
        return {
            "request": offer.request, "prompt": offer.prompt, "tokens": offer.tokens, "part": number, "parts": len(parts),
            "rank": self._rank, "tp_size": offer.ranks, **self._pages.geometry,
        }  # fmt: skip
