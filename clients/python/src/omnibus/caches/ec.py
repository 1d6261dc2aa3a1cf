"""vLLM's encoder cache between an encoding instance and its consumers, over the exchange of a host::

    --ec-transfer-config '{"ec_connector": "OmnibusECConnector", "ec_connector_module_path": "omnibus.caches.ec",
                           "ec_role": "ec_producer", "ec_connector_extra_config": {"bus": "exchange"}}'

The encoding of an image (or of another item) is a value under the item's hash, which one consumer takes. The consumer's
workers take it before the request that needs it is scheduled. So it cannot be lost any more when the model runs.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..connector.contract import BadKey, Damaged, Edge, Missing, check_key, integer
from ..connector.ring import Ring
from ..errors import OmnibusError, OutOfMemory
from .frame import Framed, check_head, check_parallel, open_ring, read_settings, retry_once, unframe
from .pages import torch

base: Any = importlib.import_module("vllm.distributed.ec_transfer.ec_connector.base")
utils: Any = importlib.import_module("vllm.distributed.ec_transfer.ec_connector.utils")

log = logging.getLogger("omnibus")

EDGE = Edge("encoder", "ec")

SETTINGS = {"max_items": (integer(1, 60_000), 4096)}

_NO_WAIT = 1e-3  # seconds: the space was freed before the put


@dataclass
class Meta(base.ECConnectorMetadata):  # type: ignore[misc]
    """The scheduler's orders for the workers, with items by their hashes."""

    takes: list[str] = field(default_factory=list)  # out of the exchange
    loads: list[str] = field(default_factory=list)  # of taken items, into vLLM's cache
    drops: list[str] = field(default_factory=list)  # of taken items


@dataclass
class WorkerMeta(base.ECConnectorWorkerMetadata):  # type: ignore[misc]
    """The outcome of the takes: in how many workers each item is, and which items a worker lacks."""

    taken: Counter[str] = field(default_factory=Counter)
    missing: set[str] = field(default_factory=set)

    def aggregate(self, other: Any) -> WorkerMeta:
        return WorkerMeta(self.taken + other.taken, self.missing | other.missing)


class _Item:
    """An item that is requested or taken, and not in vLLM's cache yet."""

    __slots__ = ("wanted", "workers")

    def __init__(self) -> None:
        self.workers = 0  # that have it
        self.wanted: dict[str, Any] = {}  # requests, by their ids


class OmnibusECConnector(base.ECConnectorBase):  # type: ignore[misc]
    """A producer puts encodings, a consumer takes them, and encodes missing items itself.

    The scheduler has one connector, and each worker has one for its rank.
    """

    def __init__(self, vllm_config: Any, role: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        extra = dict(vllm_config.ec_transfer_config.ec_connector_extra_config)
        self._max_items: int = read_settings(extra, SETTINGS)["max_items"]
        self._ranks = check_parallel(vllm_config.parallel_config)
        if self.is_consumer and not vllm_config.use_v2_model_runner:
            raise ValueError(
                "a consumer needs vLLM's V2 model runner, which has the connector called in steps without a model: "
                "set VLLM_USE_V2_MODEL_RUNNER=1"
            )
        if getattr(vllm_config.model_config, "is_encoder_decoder", False):
            raise ValueError("the model is an encoder-decoder, for which vLLM's runner calls no connector of the encoder cache")
        # The scheduler's part.
        self._resolver = utils.PlaceholderMetadataResolver(vllm_config.model_config)
        self._meta = Meta()
        self._items: dict[str, _Item] = {}
        self._local: set[str] = set()  # items in vLLM's cache
        self._missing: dict[str, set[str]] = {}  # missing items, by the requests that need them
        self._unavailable: set[str] = set()
        # A worker's.
        self._ring: Ring | None = None
        self._put: OrderedDict[str, None] = OrderedDict()  # keys, the oldest first
        self._taken: dict[str, tuple[Any, tuple[int, ...], memoryview]] = {}
        self._report = WorkerMeta()
        if role is base.ECConnectorRole.WORKER:
            self._rank = vllm_config.parallel_config.rank % self._ranks
            self._ring = open_ring(extra)

    # The scheduler's part.

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        if not self.is_consumer:
            return True
        if request.request_id in self._unavailable:
            return False  # it fails in this step
        known = self._missing.get(request.request_id, ())
        ready = True
        for feature in request.mm_features:
            name, position = feature.identifier, feature.mm_position
            if position.offset + position.length <= num_computed_tokens or name in self._local or name in known:
                continue
            item = self._items.get(name)
            if item is None:
                item = self._items[name] = _Item()
                self._meta.takes.append(name)
            item.wanted[request.request_id] = request
            ready = ready and item.workers >= self._ranks
        return ready

    def has_cache_item(self, identifier: str) -> bool:
        item = self._items.get(identifier)
        return item is not None and item.workers >= self._ranks

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        name = request.mm_features[index].identifier
        self._local.add(name)
        if self.has_cache_item(name):
            del self._items[name]
            self._meta.loads.append(name)

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        self._local.difference_update(scheduler_output.free_encoder_mm_hashes)
        meta, self._meta = self._meta, Meta()
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.ec_connector_worker_meta
        if not isinstance(report, WorkerMeta):
            return
        for name in report.missing:
            item = self._items.pop(name, None)
            for request in item.wanted.values() if item is not None else ():
                self._missing.setdefault(request.request_id, set()).add(name)
                if request.ec_transfer_params:  # its router may have removed the item's data, so it cannot be encoded here
                    self._unavailable.add(request.request_id)
        for name, workers in report.taken.items():
            item = self._items.get(name)
            if item is None:  # another worker lacks it
                self._meta.drops.append(name)
                continue
            item.workers += workers
            self._drop_unwanted(name, item)

    def _drop_unwanted(self, name: str, item: _Item) -> None:
        """Drop an item that no request needs, once all workers have reported it: before that, another request would
        order a second take."""
        if not item.wanted and item.workers >= self._ranks:
            del self._items[name]
            self._meta.drops.append(name)

    def take_unavailable_requests(self) -> set[str]:
        requests, self._unavailable = self._unavailable, set()
        return requests

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        self._missing.pop(request.request_id, None)
        self._unavailable.discard(request.request_id)
        for feature in request.mm_features:
            item = self._items.get(feature.identifier)
            if item is not None and item.wanted.pop(request.request_id, None) is not None:
                self._drop_unwanted(feature.identifier, item)
        items = utils.collect_ec_item_metadata(request.mm_features, self._resolver) if self.is_producer else None
        return False, items or None

    # A worker's part.

    def save_caches(self, encoder_cache: dict[str, Any], mm_hash: str, **kwargs: Any) -> None:
        if not self.is_producer:
            return
        tensor = encoder_cache[mm_hash].detach()
        size = tensor.numel() * tensor.element_size()

        def fill(room: memoryview) -> None:
            if size:
                torch.frombuffer(room, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)

        head = {**self._head(mm_hash), "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        try:
            self._store(self._key(mm_hash), Framed(head, size, fill))
        except OmnibusError as e:
            log.error("the encoding of %r was not put, and will be made again: %s: %s", mm_hash, type(e).__name__, e)

    def _store(self, key: str, payload: Framed) -> None:
        """Put a payload. Without space the oldest untaken ones are removed."""
        ring = self._ring
        assert ring is not None
        while True:
            try:
                retry_once(lambda: ring.put(EDGE, key, payload, _NO_WAIT))
                break
            except OutOfMemory:
                if not self._put:
                    raise
            ring.cleanup(self._put.popitem(last=False)[0])
        self._put[key] = None
        self._put.move_to_end(key)
        if len(self._put) > self._max_items:
            ring.cleanup(self._put.popitem(last=False)[0])

    def start_load_caches(self, encoder_cache: dict[str, Any], **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, Meta)
        for name in meta.drops:
            self._taken.pop(name, None)
        for name in meta.takes:
            if self._take(name):
                self._report.taken[name] += 1
            else:
                self._report.missing.add(name)
        for name in meta.loads:
            dtype, shape, data = self._taken.pop(name)
            tensor = torch.empty(shape, dtype=dtype, device=_device())
            if data:
                tensor.copy_(torch.frombuffer(data, dtype=dtype).view(shape))
            encoder_cache[name] = tensor

    def _take(self, name: str) -> bool:
        """Take an item from the exchange. Its payload stays in shared memory until it is loaded."""
        ring = self._ring
        assert ring is not None
        try:
            key, decode = self._key(name), partial(self._read, name)
            self._taken[name] = retry_once(lambda: ring.get(EDGE, key, None, decode))[0]
        except Missing:
            return False
        except OmnibusError as e:
            log.error("the encoding of %r was not received, and is made again: %s: %s", name, type(e).__name__, e)
            return False
        return True

    def _read(self, name: str, payload: Any, padded: bool = False) -> tuple[Any, tuple[int, ...], memoryview]:
        head, data = unframe(memoryview(payload))
        dtype, shape = getattr(torch, str(head.pop("dtype", "")), None), head.pop("shape", None)
        check_head(head, self._head(name))
        sound = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        if not sound or not isinstance(dtype, torch.dtype):
            raise Damaged(f"a tensor of dtype {dtype} and shape {shape}")
        size = dtype.itemsize
        for n in shape:
            size *= n
        if size != len(data):
            raise Damaged(f"{len(data)} bytes for a tensor of dtype {dtype} and shape {shape}")
        return dtype, tuple(shape), data

    def _key(self, name: str) -> str:
        try:
            return check_key(f"{name}_{self._rank}")
        except BadKey as e:
            raise Damaged(f"the hash {name!r:.80} cannot be a key: {e}") from None

    def _head(self, name: str) -> dict[str, Any]:
        return {"item": name, "rank": self._rank, "tp_size": self._ranks}

    def build_connector_worker_meta(self) -> WorkerMeta | None:
        report, self._report = self._report, WorkerMeta()
        return report if report.taken or report.missing else None

    def shutdown(self) -> None:
        self._taken.clear()
        if self._ring is not None:
            self._ring.close()


def _device() -> Any:
    """The device of this worker's tensors."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(torch.accelerator.current_accelerator().type, torch.accelerator.current_device_index())
