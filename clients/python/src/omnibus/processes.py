"""Which process this is, without a system call for each look."""

from __future__ import annotations

import os


class _Current:
    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()


#: This process, as of its last fork.
current = _Current()


def _renew() -> None:
    current.pid = os.getpid()


os.register_at_fork(after_in_child=_renew)
