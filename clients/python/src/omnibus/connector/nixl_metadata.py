"""The metadata of a value of a NixlConnector, and the payload of the memory that was read by them."""

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


class ReadPlan(NamedTuple):
    """Where a value lies at its producer, and where its parts go here. Checked."""

    kind: str
    agent: bytes
    generation: str
    declared_size: int  # the size that its put returned
    tensors: list[tuple[str, tuple[int, ...], int, int]]  # type, shape, offset here, bytes
    regions: dict[str, list[tuple[int, int, int, int]]]  # by type of memory: address there, bytes, device, offset here
    size: int


def parse_generation(answer: bytes) -> Any:
    try:
        return unpackb(answer).get("generation")
    except (AttributeError, PayloadError):
        return None


def parse_plan(address: str, answer: bytes) -> ReadPlan:
    """The plan of a producer's answer. Raises BadMetadata for any inconsistency, so that no read follows it."""
    def bad(why: str) -> BadMetadata:
        return BadMetadata(f"the sender at {address} {why}: it is of another version, or another program")

    try:
        answered = unpackb(answer)
    except PayloadError as e:
        raise bad(f"answers in another format ({e})") from None
    if not isinstance(answered, dict) or answered.get("schema_version") != SCHEMA:
        raise bad(f"does not answer in version {SCHEMA} of the schema")
    kind, agent, told, generation = answered.get("kind"), answered.get("agent_metadata"), answered.get("size"), answered.get("generation")
    specs, groups = answered.get("tensor_specs"), answered.get("descriptor_groups")
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
        memory, indices, region_list = group.get("memory_type"), group.get("tensor_indices"), group.get("regions")
        if memory not in ("DRAM", "VRAM") or not isinstance(indices, list) or not isinstance(region_list, list) or len(indices) != len(region_list):
            raise bad("does not say where the value lies")
        for i, region in zip(indices, region_list):
            if type(i) is not int or i not in left or not isinstance(region, list) or len(region) not in (3, 4):
                raise bad("does not say where each tensor lies, once")
            if any(type(n) is not int or n < 0 for n in region[:3]) or region[1] != tensors[i][3] or not 0 < region[0] <= (1 << 64) - region[1] or region[2] >> 31:
                raise bad("says a place of a tensor that cannot be")
            left.remove(i)
            regions.setdefault(memory, []).append((region[0], region[1], region[2], tensors[i][2]))
    if left:
        raise bad("does not say where each tensor lies")
    return ReadPlan(kind, agent, generation, told, tensors, regions, end)


def build_payload(plan: ReadPlan, memory: memoryview) -> bytes:
    """The bytes of a value in the format of the serializer."""
    if plan.kind == OBJECT:
        return bytes(memory[: plan.tensors[0][3]])
    made = [Tensor(dtype, shape, memory[at : at + size]) for dtype, shape, at, size in plan.tensors]
    if plan.kind == TENSORS:
        return bytes(encode(made[0] if len(made) == 1 else made))
    return bytes(encode(_with_tensors(unpackb(made[0].raw()), made[1:])))


def _with_tensors(v: Any, tensors: list[Tensor]) -> Any:
    """A structure with its tensors in place of their marks."""
    if isinstance(v, list):
        return [_with_tensors(x, tensors) for x in v]
    if not isinstance(v, dict):
        return v
    if v.keys() == {_TENSOR_MARK}:
        i = v[_TENSOR_MARK]
        if type(i) is not int or not 0 <= i < len(tensors):
            raise PayloadError(f"a structure names tensor {i!r:.80} of {len(tensors)}")
        return tensors[i]
    if v.keys() == {_TUPLE_MARK} and isinstance(v[_TUPLE_MARK], list):
        return tuple(_with_tensors(x, tensors) for x in v[_TUPLE_MARK])
    return {k: _with_tensors(x, tensors) for k, x in v.items()}
