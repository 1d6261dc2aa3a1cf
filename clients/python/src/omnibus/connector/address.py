"""The name of a value's segment in /dev/shm, and its size."""

from __future__ import annotations

import mmap
from typing import Any

from .contract import BadMetadata
from .journal import check_name


def locate(key: str, metadata: dict[str, Any]) -> tuple[str, int]:
    """The name of the segment, and its size, 0 if the metadata have none.

    Metadata come from other processes, and the segment that they name is read and then removed. So the name must be
    the key or a name that Python chose. Metadata of other connectors are ignored.
    """
    shm = metadata.get("shm")
    if shm is None:
        return check_name(key), 0
    if not isinstance(shm, dict) or not isinstance(shm.get("name"), str) or type(shm.get("size")) is not int:
        raise BadMetadata("shm is no segment: it takes a name and a size")
    name, size = shm["name"].removeprefix("/"), shm["size"]
    if name != key and not _anonymous(name):
        raise BadMetadata(
            f"shm names the segment {name[:64]!r}, which is neither the key nor a name that Python chose: "
            "get it with the key of its put"
        )
    if size <= 0 or metadata.get("size") not in (None, size):
        raise BadMetadata(f"shm has a size of {size} bytes")
    return check_name(name), size


def round_up(size: int) -> int:
    """The size of a segment on a system whose segments have whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _anonymous(name: str) -> bool:
    digits = name.removeprefix("psm_")
    return len(digits) == 8 and digits != name and all(c in "0123456789abcdef" for c in digits)
