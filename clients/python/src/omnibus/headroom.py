"""How much memory a process can still allocate, by the limits that the Go package `headroom` reads.

Shared memory counts in no process's RSS: if it exhausts the memory, the kernel kills other processes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from .errors import out_of_memory

#: A tenth of the free memory is never used.
_RESERVE_DIVISOR = 10
#: Control groups of version 1 express "no limit" by a number of about this size.
_UNLIMITED = 1 << 60
_CHECK_BYTES = 1 << 20  #: smaller sizes are not checked: the check takes longer than the allocation

#: For each version of control groups: its mount points, the files of its limit and its usage, and the field of inactive memory.
_V1 = (("memory",), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = (("", "unified"), "memory.max", "memory.current", "inactive_file")


def check(what: str, size: int, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
    """Raise OutOfMemory unless the machine and each control group have `size` bytes left. Unreadable limits are
    ignored."""
    if size < _CHECK_BYTES:
        return
    for file, free in _limits(proc, groups):
        keep = free // _RESERVE_DIVISOR
        if size > free - keep:
            raise out_of_memory(f"{what}: {file} leaves {free} bytes, of which {keep} stay free", errno.ENOMEM)


def _limits(proc: str, groups: str) -> Iterator[tuple[str, int]]:
    available = _field(os.path.join(proc, "meminfo"), "MemAvailable:")
    if available is not None:
        yield "/proc/meminfo", available << 10
    for line in _read(os.path.join(proc, "self", "cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            version = _V2
        elif "memory" in controllers.split(","):
            version = _V1
        else:
            continue
        for root in version[0]:
            yield from _of_groups(os.path.join(groups, root), path, version)


def _of_groups(root: str, path: str, version: tuple[tuple[str, ...], str, str, str]) -> Iterator[tuple[str, int]]:
    """The limits of a control group and of its visible parents."""
    _, limit, usage, idle = version
    parts = [p for p in path.split("/") if p and p != ".."]
    for n in range(len(parts), -1, -1):
        folder = os.path.join(root, *parts[:n])
        most, used = _number(os.path.join(folder, limit)), _number(os.path.join(folder, usage))
        if most is not None and used is not None and most < _UNLIMITED:
            used -= min(used, _field(os.path.join(folder, "memory.stat"), idle) or 0)
            yield os.path.join(folder, limit), max(most - used, 0)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(1 << 20)
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _field(path: str, name: str) -> int | None:
    """The number after a name at the start of a line."""
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
