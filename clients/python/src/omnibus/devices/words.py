"""Words in host memory that processes and GPU streams write to report their progress.

A stream's write wakes no thread, so one thread polls the words.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

log = logging.getLogger("omnibus")

SLOT_BYTES = 64
READY, FAULT = 0, 4

#: How long a word is polled without a sleep, and the first and the longest sleep after that.
SPIN_SECONDS, FIRST_SLEEP_SECONDS, MAX_SLEEP_SECONDS = 50e-6, 20e-6, 1e-3


def reached(word: int, value: int) -> bool:
    """Compare modulo 2^32, as streams do, so that a word may wrap around."""
    return (word - value) & 0xFFFFFFFF < 1 << 31


class _Watch(NamedTuple):
    happened: Callable[[], bool]
    happened_slow: Callable[[], bool]  # another condition, which costs a system or driver call, and is polled less often
    then: Callable[[], object]


class Watcher:
    """Calls a function when its condition is true."""

    def __init__(self) -> None:
        self._new: SimpleQueue[_Watch] = SimpleQueue()  # its put is reentrant, so destructors may call it
        self._lock = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Start the thread, if it does not run. Not for destructors."""
        with self._lock:
            if not self._started:
                threading.Thread(target=self._run, name="omnibus-gpu", daemon=True).start()
                self._started = True

    def add(self, happened: Callable[[], bool], slowly: Callable[[], bool], then: Callable[[], object]) -> None:
        """Call `then` once, when one of the conditions is true. Destructors may call this."""
        self._new.put(_Watch(happened, slowly, then))

    def _run(self) -> None:
        watched: list[_Watch] = []
        pause, seen, asked = FIRST_SLEEP_SECONDS, 0.0, 0.0
        while True:
            news = self._take_new(watched)
            now = time.monotonic()
            ask = now - asked >= MAX_SLEEP_SECONDS
            if ask:
                asked = now
            if _call_happened(watched, ask) or news:
                pause, seen = FIRST_SLEEP_SECONDS, now
            elif now - seen > SPIN_SECONDS:
                time.sleep(pause)
                pause = min(2 * pause, MAX_SLEEP_SECONDS)

    def _take_new(self, watched: list[_Watch]) -> bool:
        """Add new conditions. Blocks while there are none at all."""
        news = False
        while True:
            try:
                watched.append(self._new.get(block=not watched))
            except Empty:
                return news
            news = True


def _call_happened(watched: list[_Watch], ask: bool) -> bool:
    """Call the functions whose condition is true, and drop them with their references."""
    n = len(watched)
    for w in [w for w in watched if _has_happened(w, ask)]:
        watched.remove(w)
        try:
            w.then()
        except Exception:
            log.exception("the end of a wait for a GPU")
    return len(watched) < n


def _has_happened(w: _Watch, ask: bool) -> bool:
    try:
        return w.happened() or (ask and w.happened_slow())
    except Exception:  # for example no descriptor is left: the condition is polled again
        log.debug("a wait for a GPU", exc_info=True)
        return False
