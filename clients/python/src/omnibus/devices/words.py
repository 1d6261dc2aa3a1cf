"""Words in the host's memory, by which processes and the streams of GPUs say how far they are.

Streams write words, and wake no thread: one thread looks at them.
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

#: How long a word is looked at without a pause, and how pauses grow: streams write words, and wake nobody.
SPIN, FIRST_NAP, LAST_NAP = 50e-6, 20e-6, 1e-3


def reached(word: int, value: int) -> bool:
    """Compare as streams do: in a circle, so that words may count for ever."""
    return (word - value) & 0xFFFFFFFF < 1 << 31


class _Watch(NamedTuple):
    happened: Callable[[], bool]
    slowly: Callable[[], bool]  # the same, but a call of the system's or the driver's: asked once in a while
    then: Callable[[], object]


class Watcher:
    """Calls functions when what they wait for has happened."""

    def __init__(self) -> None:
        self._new: SimpleQueue[_Watch] = SimpleQueue()  # whose put may interrupt itself, as destructors do
        self._lock = threading.Lock()
        self._started = False

    def start(self) -> None:
        """Have the thread there. Not for destructors."""
        with self._lock:
            if not self._started:
                threading.Thread(target=self._run, name="omnibus-gpu", daemon=True).start()
                self._started = True

    def add(self, happened: Callable[[], bool], slowly: Callable[[], bool], then: Callable[[], object]) -> None:
        """Have `then` called, once, when one of the others is true. Called in the middle of anything."""
        self._new.put(_Watch(happened, slowly, then))

    def _run(self) -> None:
        watched: list[_Watch] = []
        nap, seen, asked = FIRST_NAP, 0.0, 0.0
        while True:
            news = self._take(watched)
            now = time.monotonic()
            ask = now - asked >= LAST_NAP
            if ask:
                asked = now
            if _look(watched, ask) or news:
                nap, seen = FIRST_NAP, now
            elif now - seen > SPIN:
                time.sleep(nap)
                nap = min(2 * nap, LAST_NAP)

    def _take(self, watched: list[_Watch]) -> bool:
        """Add what is new; waits for it if there is nothing to watch."""
        news = False
        while True:
            try:
                watched.append(self._new.get(block=not watched))
            except Empty:
                return news
            news = True


def _look(watched: list[_Watch], ask: bool) -> bool:
    """Call what has happened, and forget it: what it holds goes."""
    n = len(watched)
    for w in [w for w in watched if _over(w, ask)]:
        watched.remove(w)
        try:
            w.then()
        except Exception:
            log.exception("the end of a wait for a GPU")
    return len(watched) < n


def _over(w: _Watch, ask: bool) -> bool:
    try:
        return w.happened() or (ask and w.slowly())
    except Exception:  # the system has no descriptor left, for one: it is asked again
        log.debug("a wait for a GPU", exc_info=True)
        return False
