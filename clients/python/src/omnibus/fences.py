"""Memory fences, which order accesses to shared memory. Python has no atomics: `fence` and `acq_rel_fence` replace them.

A shared word is accessed by one aligned ctypes access, which CPython executes as one instruction.
"""

from __future__ import annotations

import platform
from _thread import allocate_lock


def fence() -> None:
    """A full barrier: this thread's earlier loads and stores are ordered before its later ones, for all processes.

    Each `with` acquires a lock and releases it. On x86-64 both are locked instructions, which order all earlier stores.
    On arm64 a release is a store-release and an acquisition a load-acquire: earlier accesses come before the first
    release, the first release before the second acquisition, and later accesses after that acquisition. So two pairs are
    a full barrier on both machines; one pair is not. The lock is new each time, since destructors call this at any point.
    """
    lock = allocate_lock()
    with lock:
        pass
    with lock:
        pass


def _nothing() -> None:
    pass


#: As `fence`, but a later load may pass an earlier store. x86-64 keeps all other orders by itself.
acq_rel_fence = _nothing if platform.machine() == "x86_64" else fence
