"""What a producer of NixlConnector's says of a value, and the value of what was read of its memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..dtypes import data_bytes
from ..errors import PayloadError
from ..msgpack import unpackb
from ..omni.encoder import encode
from ..tensor import Tensor
from .contract import BadMetadata

SCHEMA = 1
OBJECT, TENSORS, STRUCTURED = "object", "tensors", "structured"

_TENSOR_MARK, _TUPLE_MARK = "__nixl_tensor_index__", "__nixl_tuple__"
_ALIGNMENT = 64


class Plan(NamedTuple):
    """What a producer says of a value, checked."""

    kind: str
    agent: bytes
    generation: str
    told: int  # the size, as its put has returned it
    tensors: list[tuple[str, tuple[int, ...], int, int]]  # type, shape, offset here, bytes
    regions: dict[str, list[tuple[int, int, int, int]]]  # by type of memory: address there, bytes, device, offset here
    size: int


def generation_of(answer: bytes) -> Any:
    try:
        return unpackb(answer).get("generation")
    except (AttributeError, PayloadError):
        return None


def plan_of(address: str, answer: bytes) -> Plan:
    """What a producer says of a value. Raises BadMetadata: nothing is read that is not as it says in each respect."""
    def bad(why: str) -> BadMetadata:
        return BadMetadata(f"the sender at {address} {why}: it is of another version, or another program")

    try:
        said = unpackb(answer)
    except PayloadError as e:
        raise bad(f"answers in another format ({e})") from None
    if not isinstance(said, dict) or said.get("schema_version") != SCHEMA:
        raise bad(f"does not answer in version {SCHEMA} of the schema")
    kind, agent, told, generation = said.get("kind"), said.get("agent_metadata"), said.get("size"), said.get("generation")
    specs, groups = said.get("tensor_specs"), said.get("descriptor_groups")
    if kind not in (OBJECT, TENSORS, STRUCTURED):
        raise bad(f"has a value of kind {kind!r:.80}, which is not known")
    if not isinstance(agent, bytes) or not isinstance(generation, str) or type(told) is not int:
        raise bad("does not say agent_metadata, generation and size")
    if not isinstance(specs, list) or not isinstance(groups, list):
        raise bad("does not describe the value")
    tensors, end = [], 0
    for spec in specs:
        shape = spec.get("shape") if isinstance(spec, dict) else None
        if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
            raise bad("does not say the shape of a tensor")
        dtype = str(spec.get("dtype")).removeprefix("torch.")
        try:
            size = data_bytes(dtype, tuple(shape))
        except PayloadError as e:
            raise bad(f"has what cannot be taken here ({e})") from None
        if type(spec.get("size")) is not int or spec["size"] != size:
            raise bad("says a size that is not the tensor's")
        tensors.append((dtype, tuple(shape), end, size))
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    if kind != TENSORS and (not tensors or tensors[0][:2] != ("uint8", (tensors[0][3],)) or kind == OBJECT and len(tensors) != 1):
        raise bad(f"describes no value of kind {kind}")
    regions: dict[str, list[tuple[int, int, int, int]]] = {}
    left = {i for i, t in enumerate(tensors) if t[3]}
    for group in groups:
        group = group if isinstance(group, dict) else {}
        memory, indices, its = group.get("memory_type"), group.get("tensor_indices"), group.get("regions")
        if memory not in ("DRAM", "VRAM") or not isinstance(indices, list) or not isinstance(its, list) or len(indices) != len(its):
            raise bad("does not say where the value lies")
        for i, region in zip(indices, its):
            if type(i) is not int or i not in left or not isinstance(region, list) or len(region) not in (3, 4):
                raise bad("does not say where each tensor lies, once")
            if any(type(n) is not int or n < 0 for n in region[:3]) or region[1] != tensors[i][3] or not 0 < region[0] <= (1 << 64) - region[1] or region[2] >> 31:
                raise bad("says a place of a tensor that cannot be")
            left.remove(i)
            regions.setdefault(memory, []).append((region[0], region[1], region[2], tensors[i][2]))
    if left:
        raise bad("does not say where each tensor lies")
    return Plan(kind, agent, generation, told, tensors, regions, end)


def payload_of(plan: Plan, room: memoryview) -> bytes:
    """The bytes of a value in the format of the serializer."""
    if plan.kind == OBJECT:
        return bytes(room[: plan.tensors[0][3]])
    made = [Tensor(dtype, shape, room[at : at + size]) for dtype, shape, at, size in plan.tensors]
    if plan.kind == TENSORS:
        return bytes(encode(made[0] if len(made) == 1 else made))
    return bytes(encode(_restored(unpackb(made[0].raw()), made[1:])))


def _restored(v: Any, tensors: list[Tensor]) -> Any:
    """A structure with its tensors in it."""
    if isinstance(v, list):
        return [_restored(x, tensors) for x in v]
    if not isinstance(v, dict):
        return v
    if v.keys() == {_TENSOR_MARK}:
        i = v[_TENSOR_MARK]
        if type(i) is not int or not 0 <= i < len(tensors):
            raise PayloadError(f"a structure names tensor {i!r:.80} of {len(tensors)}")
        return tensors[i]
    if v.keys() == {_TUPLE_MARK} and isinstance(v[_TUPLE_MARK], list):
        return tuple(_restored(x, tensors) for x in v[_TUPLE_MARK])
    return {k: _restored(x, tensors) for k, x in v.items()}
