"""Order between processes, for numbers in shared memory: Python has no atomics."""

from __future__ import annotations

import os
import threading

_lock = threading.Lock()


def fence() -> None:
    """Have all processes see what this thread has written, and has read, before all that it does next.

    Each pair takes a lock and gives it up. On x86-64 every such step is a locked instruction, before which all stores
    are seen. On arm64 giving up is a store-release and taking a load-acquire: what came before is seen before the first
    pair ends, that ends before the second begins, and nothing that comes behind is done before. So two pairs are a full
    barrier on both, and one would not be.
    """
    for _ in range(2):
        with _lock:
            pass


def _renew() -> None:
    global _lock
    _lock = threading.Lock()  # whoever had it was left behind in the parent


os.register_at_fork(after_in_child=_renew)
