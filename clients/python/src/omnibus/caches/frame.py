"""The common format of values of both caches, a head and the bytes that it describes, and common settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..connector.contract import Damaged, SettingType, check_settings
from ..connector.ring import Ring
from ..errors import HostGone, PayloadError
from ..exchange import ARENA_BYTES
from ..msgpack import packb, unpackb
from ..omni.encoder import Encoded

_ALIGN = 64

T = TypeVar("T")

#: The settings of the exchange.
EXCHANGE_SETTINGS = ("bus", "socket", "allow_uids", "arena_bytes")


class Framed(Encoded):
    """A payload of a head and of bytes that `fill` writes in place, so that they are copied once."""

    __slots__ = ("_head", "_fill")

    def __init__(self, head: dict[str, Any], size: int, fill: Callable[[memoryview], object]) -> None:
        packed = packb(head)
        length = len(packed).to_bytes(4, "little")
        self._head = (length + packed).ljust(-(-(4 + len(packed)) // _ALIGN) * _ALIGN, b"\0")
        super().__init__([])
        self._fill = fill
        self.size = len(self._head) + size

    def write(self, room: memoryview) -> None:
        room[: len(self._head)] = self._head
        with room[len(self._head) :] as rest:
            self._fill(rest)


def unframe(payload: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The head of a payload, and the bytes behind it in place. Raises Damaged."""
    length = int.from_bytes(payload[:4], "little")
    begin = -(-(4 + length) // _ALIGN) * _ALIGN
    if len(payload) < max(begin, 4):
        raise Damaged(f"a payload of {len(payload)} bytes is shorter than its head")
    try:
        head = unpackb(payload[4 : 4 + length])
    except PayloadError as e:
        raise Damaged(f"the head of a payload cannot be read: {e}") from None
    if not isinstance(head, dict):
        raise Damaged(f"the head of a payload is of type {type(head).__name__}")
    return head, payload[begin:]


def check_head(head: dict[str, Any], want: dict[str, Any]) -> None:
    """Raise Damaged, with the differences, unless a head equals the wanted one."""
    if head != want:
        other = [f"{k} is {head.get(k)!r} there and {want.get(k)!r} here" for k in {**want, **head} if head.get(k) != want.get(k)]
        raise Damaged("; ".join(other))


def read_settings(config: dict[str, Any], own: dict[str, tuple[SettingType, Any]]) -> dict[str, Any]:
    """The values of a connector's own settings. Raises ValueError for an invalid or unknown one."""
    unknown = sorted(set(config) - set(own) - set(EXCHANGE_SETTINGS))
    if unknown:
        raise ValueError(f"the extra config has {', '.join(unknown)}; there are {', '.join((*EXCHANGE_SETTINGS, *own))}")
    check_settings({k: v for k, v in config.items() if k in EXCHANGE_SETTINGS})
    values = {}
    for name, (kind, default) in own.items():
        value = config.get(name)
        try:
            values[name] = default if value is None else kind.parse(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{name} must be {kind.description}, not {value!r}") from None
    return values


def check_parallel(parallel: Any) -> int:
    """The number of ranks, each with keys of its own. Raises ValueError for any parallelism but that of tensors."""
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise ValueError(f"{name} is {getattr(parallel, name)}: Omnibus's connectors support tensor parallelism alone")
    ranks: int = parallel.tensor_parallel_size
    return ranks


def retry_once(call: Callable[[], T]) -> T:
    """Call once more if the host is gone: it may have been restarted, and the next call reconnects."""
    try:
        return call()
    except HostGone:
        return call()


def open_ring(config: dict[str, Any]) -> Ring:
    """The exchange that the settings name. Raises HostGone.

    The memory of a cache is bounded, unlike that of a pipeline's values: at the bound the oldest values are removed.
    """
    return Ring({"arena_bytes": ARENA_BYTES, **{k: v for k, v in config.items() if k in EXCHANGE_SETTINGS and v is not None}})
