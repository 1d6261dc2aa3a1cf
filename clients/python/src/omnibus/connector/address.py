"""Where the format of segments has a value: its name in /dev/shm, and its size."""

from __future__ import annotations

import mmap
from typing import Any

from .contract import BadMetadata
from .journal import check_name


def locate(key: str, metadata: dict[str, Any]) -> tuple[str, int]:
    """The name of the segment, and its size if that is known.

    Metadata come from other processes: what they name is read and then removed, so it is the key or a name without a
    meaning, and nothing else. Those of other connectors say nothing here.
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
    """The size of a segment where the system has them in whole pages only."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _anonymous(name: str) -> bool:
    digits = name.removeprefix("psm_")
    return len(digits) == 8 and digits != name and all(c in "0123456789abcdef" for c in digits)
