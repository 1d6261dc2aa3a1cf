"""The pages of a KV cache of vLLM, in torch tensors."""

from __future__ import annotations

import hashlib
import importlib
import warnings
from collections.abc import Callable
from typing import Any

from .handover import Run

torch: Any = importlib.import_module("torch")

# A payload is read in place, and must not be written. Torch has no read-only tensors.
warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)


class TorchPages:
    """The KV caches of the layers, each a tensor of [blocks, ...] with any strides.

    Pages travel in the order of the dimensions, not of memory: the two sides may have different layouts.
    """

    def __init__(self, caches: dict[str, Any], blocks: int, block_size: int) -> None:
        """`blocks` is the scheduler's number of blocks. A cache may have several blocks for each of them. Raises ValueError."""
        self._layers: list[Any] = []
        known = set()
        described = hashlib.sha256()
        for name, cache in caches.items():
            if not isinstance(cache, torch.Tensor):
                raise ValueError(
                    f"the KV cache of {name} is of type {type(cache).__name__}, not one tensor: this layout is not supported"
                )
            if not blocks or cache.shape[0] % blocks:
                raise ValueError(f"the KV cache of {name} has shape {tuple(cache.shape)}, which is not made of {blocks} blocks")
            place = (cache.data_ptr(), cache.shape, cache.stride())
            if place in known:
                continue  # a layer that shares the cache of another
            known.add(place)
            described.update(f"{name} {cache.dtype} {tuple(cache.shape[1:])} {cache.shape[0] // blocks};".encode())
            grouped = cache if cache.shape[0] == blocks else cache.unflatten(0, (blocks, -1))
            self._layers.append(_in_words(grouped))
        if not self._layers:
            raise ValueError("vLLM has registered no KV caches")
        first = next(iter(caches.values()))
        self._device = self._layers[0].device
        self.page_bytes: list[int] = [layer[0].numel() * layer.element_size() for layer in self._layers]
        self.geometry: dict[str, Any] = {
            "block_size": block_size, "layers": len(self._layers), "dtype": str(first.dtype).removeprefix("torch."),
            "page": list(first.shape[1:]), "layout": described.hexdigest()[:16],
        }  # fmt: skip

    def gather(self, runs: list[Run], blocks: list[int], out: memoryview) -> None:
        at = 0
        for run in runs:
            layer = self._layers[run.layer]
            count = run.end - run.first
            to = _view(out, at, layer, count)
            ids = torch.tensor(blocks[run.first : run.end], dtype=torch.int64, device=layer.device)
            if layer.device.type == "cpu":
                torch.index_select(layer, 0, ids, out=to)
            else:
                to.copy_(layer.index_select(0, ids))  # and waits for the device
            at += count * self.page_bytes[run.layer]

    def scatter(self, runs: list[Run], blocks: list[int], first: int, data: memoryview) -> None:
        at = 0
        for run in runs:
            layer = self._layers[run.layer]
            begin, end = max(run.first, first), min(run.end, first + len(blocks))
            if begin < end:
                page = self.page_bytes[run.layer]
                source = _view(data, at + (begin - run.first) * page, layer, end - begin)
                ids = torch.tensor(blocks[begin - first : end - first], dtype=torch.int64, device=layer.device)
                layer.index_copy_(0, ids, source.to(layer.device))
            at += (run.end - run.first) * self.page_bytes[run.layer]
        self.fence()()

    def fence(self) -> Callable[[], object]:
        if self._device.type == "cpu":
            return lambda: None
        event = torch.Event(device=self._device)
        event.record()
        done: Callable[[], object] = event.synchronize
        return done


def _in_words(cache: Any) -> Any:
    """The same memory as integers, as wide as possible: torch does not copy all dtypes, and a copy does not depend on
    the dtype."""
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8):
        try:
            return cache.view(dtype)
        except RuntimeError:  # the rows, or their strides, are no multiple of its size
            pass
    return cache


def _view(buffer: memoryview, at: int, layer: Any, count: int) -> Any:
    """So many pages of a layer in a buffer, in place."""
    page = layer[0].numel()
    flat = torch.frombuffer(buffer, dtype=layer.dtype, count=count * page, offset=at)
    return flat.view(count, *layer.shape[1:])
