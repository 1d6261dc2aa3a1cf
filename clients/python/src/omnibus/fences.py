"""The order in which processes see what others do to shared memory. Python has no atomics: `fence` and `ordered` stand in.

A shared word is one aligned access of ctypes, which CPython compiles to one instruction.
"""

from __future__ import annotations

import platform
from _thread import allocate_lock


def fence() -> None:
    """Have all processes see what this thread has written, and has read, before all that it does next.

    Each pair takes a lock and gives it up. On x86-64 every such step is a locked instruction, before which all stores
    are seen. On arm64 giving up is a store-release and taking a load-acquire: what came before is seen before the first
    pair ends, that ends before the second begins, and nothing that comes behind is done before. So two pairs are a full
    barrier on both, and one would not be. The lock is new each time: destructors call this in the middle of anything.
    """
    lock = allocate_lock()
    with lock:
        pass
    with lock:
        pass


def _nothing() -> None:
    pass


#: Like `fence`, but a load behind it may come before a store in front of it: the one order that x86-64 does not keep by itself.
ordered = _nothing if platform.machine() == "x86_64" else fence
