"""vLLM's KV transfer between a prefill and a decode instance, over the exchange of a host::

    --kv-transfer-config '{"kv_connector": "OmnibusKVConnector", "kv_connector_module_path": "omnibus.caches.kv",
                           "kv_role": "kv_producer", "kv_connector_extra_config": {"bus": "exchange"}}'

The router asks the prefill instance with `kv_transfer_params: {"do_remote_decode": true}` and `max_tokens: 1`, and
sends the `kv_transfer_params` of the response on to the decode instance, as for vLLM's own connectors.
"""

from __future__ import annotations

import array
import hashlib
import importlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from ..connector.contract import TIMEOUT, BadKey, check_edge, check_key, integer
from ..exchange import ARENA_BYTES
from .frame import check_parallel, open_ring, read_settings
from .handover import MAX_NAME_BYTES, TARGET, Handover, Load, Offer
from .pages import TorchPages

base: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.base")
_specs: Any = importlib.import_module("vllm.v1.kv_cache_interface")
_status: Any = importlib.import_module("vllm.v1.request").RequestStatus

log = logging.getLogger("omnibus")

SETTINGS = {"lease": (TIMEOUT, 60.0), "part_bytes": (integer(1), (16 << 20) - 4096)}  # with a head, 16 MiB

_WHOLE = (_status.FINISHED_LENGTH_CAPPED, _status.FINISHED_STOPPED)  # of requests whose prompt was computed


@dataclass
class Meta(base.KVConnectorMetadata):  # type: ignore[misc]
    """The scheduler's orders for the workers."""

    sends: list[tuple[Offer, str, list[int]]] = field(default_factory=list)  # with the request and its blocks
    loads: list[tuple[Offer, str, list[int], int]] = field(default_factory=list)  # and the first that is needed
    refused: list[tuple[str, list[int], str]] = field(default_factory=list)  # with the reason


class OmnibusKVConnector(base.KVConnectorBase_V1):  # type: ignore[misc]
    """A prefill instance puts the KV blocks of a finished prompt, a decode instance loads them, asynchronously.

    The scheduler has one connector, and each worker has one for its rank.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config
        self._extra = dict(config.kv_connector_extra_config)
        settings = read_settings(self._extra, SETTINGS)
        self._lease: float = settings["lease"]
        self._part_bytes: int = settings["part_bytes"]
        self._block_size = _check_layout(kv_cache_config)
        self._ranks = check_parallel(vllm_config.parallel_config)
        self._engine: str = config.engine_id
        if len(check_edge(self._engine, TARGET).source.encode()) > MAX_NAME_BYTES:
            raise ValueError(f"engine_id has more than {MAX_NAME_BYTES} bytes: it is a part of keys")
        check_key(self._engine)
        self._meta = Meta()  # of the scheduler
        self._handover: Handover | None = None  # of a worker

    # The scheduler's part.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill") or not self._kv_transfer_config.is_kv_consumer:
            return 0, False
        count = request.num_prompt_tokens - num_computed_tokens
        return (count, True) if count > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill") or not self._kv_transfer_config.is_kv_consumer:
            return
        first = (request.num_prompt_tokens - num_external_tokens) // self._block_size
        end = -(-request.num_prompt_tokens // self._block_size)
        self._receive(request, blocks.get_block_ids()[0][first:end] if num_external_tokens else [], first)

    def _receive(self, request: Any, blocks: list[int], first: int) -> None:
        """Order the workers to receive the blocks that a request was offered, once."""
        params = request.kv_transfer_params
        params["do_remote_prefill"] = False
        try:
            offer = Offer.from_params(params)
            if blocks:  # without blocks the offer is dropped
                self._check(offer, request)
        except (ValueError, BadKey) as e:
            self._meta.refused.append((request.request_id, blocks, str(e)))
        else:
            self._meta.loads.append((offer, request.request_id, blocks, first))

    def _check(self, offer: Offer, request: Any) -> None:
        """Raise ValueError unless an offer fits a request, and its blocks fit those of this instance."""
        for what, there, here in (
            ("tensor_parallel_size", offer.ranks, self._ranks),
            ("the block size", offer.block_size, self._block_size),
            ("the number of prompt tokens", offer.tokens, request.num_prompt_tokens),
            ("the hash of the prompt", offer.prompt, _hash(request)),
        ):
            if there != here:
                raise ValueError(
                    f"{what} is {there} at the prefill instance {offer.engine} and {here} at this one: they must be equal"
                )

    def build_connector_meta(self, scheduler_output: Any) -> Meta:
        meta, self._meta = self._meta, Meta()
        return meta

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        if not params:
            return False, None
        if params.get("do_remote_prefill") and self._kv_transfer_config.is_kv_consumer:
            self._receive(request, [], 0)  # it ended before it was scheduled: its offered blocks are dropped
            return False, None
        if not params.get("do_remote_decode") or not self._kv_transfer_config.is_kv_producer or request.status not in _WHOLE:
            return False, None
        offer = Offer(
            self._engine, _name(request.request_id), self._ranks, self._block_size, request.num_prompt_tokens, _hash(request),
            time.time() + self._lease,
        )  # fmt: skip
        if len(block_ids) < offer.blocks:
            log.error(
                "the KV blocks of request %r are not handed over: it has %d for a prompt of %d tokens", request.request_id,
                len(block_ids), request.num_prompt_tokens,
            )  # fmt: skip
            return False, None
        self._meta.sends.append((offer, request.request_id, block_ids[: offer.blocks]))
        return True, offer.to_params()

    # A worker's part.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        pages = TorchPages(kv_caches, self._kv_cache_config.num_blocks, self._block_size)
        arena = self._extra.get("arena_bytes") or ARENA_BYTES
        most = max(self._part_bytes, *pages.page_bytes)
        if most + 4096 > arena:
            raise ValueError(
                f"arena_bytes is {arena}, which has no room for a part of {most} bytes: raise it, or lower part_bytes"
            )
        rank = self._vllm_config.parallel_config.rank % self._ranks
        ring = open_ring(self._extra)
        self._handover = Handover(ring, pages, rank, self._lease, self._part_bytes)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta, handover = self._get_connector_metadata(), self._handover
        assert isinstance(meta, Meta) and handover is not None
        for offer, request, blocks in meta.sends:
            handover.send(offer, request, blocks)
        for offer, request, blocks, first in meta.loads:
            handover.load(Load(offer, request, blocks, first))
        for request, blocks, why in meta.refused:
            handover.load(Load(None, request, blocks, 0), why)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded within a forward pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are sent when the request has finished."""

    def wait_for_save(self) -> None:
        """A request's blocks stay its own until they are sent."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self._handover is not None
        sent, loaded = self._handover.finished(finished_req_ids)
        return sent or None, loaded or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set() if self._handover is None else self._handover.invalid()

    def shutdown(self) -> None:
        if self._handover is not None:
            self._handover.close()


def _check_layout(config: Any) -> int:
    """The size of a block in tokens. Raises ValueError for KV caches other than those of one kind of full attention."""
    if config is None or len(config.kv_cache_groups) != 1:
        raise ValueError(
            f"the model has {len(config.kv_cache_groups) if config else 'no'} KV cache groups: OmnibusKVConnector supports one. "
            "For a model with sliding windows start vLLM with --disable-hybrid-kv-cache-manager; one with Mamba layers "
            "cannot be served"
        )
    spec = config.kv_cache_groups[0].kv_cache_spec
    of_layers = spec.kv_cache_specs.values() if isinstance(spec, _specs.UniformTypeKVCacheSpecs) else [spec]
    for one in of_layers:
        if type(one) not in (_specs.FullAttentionSpec, _specs.MLAAttentionSpec):
            raise ValueError(
                f"the model's KV cache is of kind {type(one).__name__}: OmnibusKVConnector supports full attention and MLA"
            )
    size: int = spec.block_size
    return size


def _name(request: str) -> str:
    """A request's id as a part of keys: a hash of the id if it is too long or invalid in keys."""
    try:
        if len(check_key(request).encode()) <= MAX_NAME_BYTES:
            return request
    except BadKey:
        pass
    return "sha256-" + hashlib.sha256(request.encode(errors="replace")).hexdigest()


def _hash(request: Any) -> str:
    """The hash of a prompt: of its tokens, and of the items behind its placeholders, such as images."""
    tokens = array.array("q", request.prompt_token_ids or ()).tobytes()
    media = "\0".join(f.identifier for f in request.mm_features or ())
    return hashlib.sha256(tokens + media.encode()).hexdigest()[:32]
