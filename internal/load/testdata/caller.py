"""A caller in Python: it submits the requests on its standard input, and writes their outcomes."""

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
from collections import deque
from typing import Any

from omnibus import RAW, Client, OmnibusError, Request, connect
from payload import input_of
from report import checksum, ended, opened, outcome_of, says_full

_cell: dict[str, str] = dict(part.split("=") for part in os.environ["OMNIBUS_LOAD_CELL"].split())
_concurrency = int(os.environ["OMNIBUS_LOAD_CONCURRENCY"])

_stacks = open(os.path.join(os.environ["OMNIBUS_LOAD_DIR"], f"stacks-{os.getpid()}"), "w")
faulthandler.register(signal.SIGUSR1, _stacks, all_threads=True)

# A client has no thread that reads: what comes for requests that were closed is read by one that
# waits, or by a program that has no other request and looks now and then.
_PAUSE = 0.02


class Plan:
    """One request, and the timer that ends it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.number, self.tag, self.inputs, self.total = plan["number"], plan["tag"], plan["inputs"], plan["total"]
        self.to = plan["to"] or None
        self.end, self.after = plan["end"], plan["after"] / 1e9
        self.fired = False
        self.sums: list[int] = []
        self.request: Request | None = None
        self.timer: threading.Timer | None = None
        self.error: Exception | None = None

    def begin(self, bus: Client) -> None:
        opened(self.number)
        timeout = self.after if self.end == "deadline" else None
        try:
            if self.inputs == 1:
                payload = input_of(self.tag, 0, self.total).payload()
                self.request = bus.submit(payload, timeout=timeout, to=self.to, codec=RAW)
            else:
                self.request = bus.stream(timeout=timeout)
        except OmnibusError as e:
            self.error = e
            return
        if self.end in ("close", "abort"):
            self.timer = threading.Timer(self.after, self.fire)
            self.timer.start()

    def fire(self) -> None:
        self.fired = True
        try:
            if self.end == "close":
                self.request.close()
            else:
                self.request.abort("as planned")
        except OmnibusError:
            pass  # the results have the outcome of the request

    def send(self) -> None:
        try:
            for seq in range(self.inputs):
                self.request.send(input_of(self.tag, seq, self.total).payload(), to=self.to, codec=RAW)
            self.request.close_send()
        except OmnibusError as e:
            self.error = e
            self.request.abort(str(e))  # where the failure of an input is not that of the request

    def finish(self) -> None:
        """Read the results, and report."""
        sender = None
        error = self.error
        if error is None:
            if self.inputs > 1:
                sender = threading.Thread(target=self.send)
                sender.start()
            try:
                with self.request:
                    for d in self.request:
                        self.sums.append(checksum(d))
            except OmnibusError as e:
                error = e
            if sender is not None:
                sender.join()
                if error is not None and self.error is not None and says_full(self.error):
                    error = self.error
        if self.timer is not None:
            self.timer.cancel()
        ended(self.number, outcome_of(error, self.end, self.fired), self.sums)


def read(lines: queue.SimpleQueue[Plan | None], ends: int = 1) -> None:
    """Distribute the plans, and then an end marker to each reader."""
    for line in sys.stdin:
        lines.put(Plan(json.loads(line)))
    for _ in range(ends):
        lines.put(None)


def in_order(bus: Client) -> None:
    """One thread submits several requests, and reads them in the order in which it submitted them."""
    waiting: deque[Plan] = deque()
    lines: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()
    threading.Thread(target=read, args=(lines,), daemon=True).start()
    more = True
    while more or waiting:
        while more and len(waiting) < _concurrency:
            try:
                p = lines.get_nowait() if waiting else lines.get(timeout=_PAUSE)
            except queue.Empty:
                if waiting:
                    break
                bus.process()
                continue
            if p is None:
                more = False
                break
            p.begin(bus)
            waiting.append(p)
        if waiting:
            waiting.popleft().finish()


def in_threads(bus: Client) -> None:
    """Each thread submits one request at a time."""
    lines: queue.SimpleQueue[Plan | None] = queue.SimpleQueue()

    busy: set[int] = set()  # the requests that are open; changed by one operation each

    def work() -> None:
        while (p := lines.get()) is not None:
            busy.add(p.number)
            p.begin(bus)
            p.finish()
            busy.discard(p.number)

    threads = [threading.Thread(target=work) for _ in range(_concurrency)]
    threads.append(threading.Thread(target=read, args=(lines, _concurrency)))
    for t in threads:
        t.start()
    for t in threads:
        while t.is_alive():
            t.join(_PAUSE)
            if not busy:
                bus.process()


with connect(name="caller (python)") as bus:
    # A request whose results do not fit its window holds its slots until they are read: to read
    # another one first would be to wait for itself. So would it where one stands still at a gate.
    fits = _cell["size"] != "large" and _cell["stream"] in ("single", "emissions") and _cell["pace"] != "gated"
    (in_order if fits else in_threads)(bus)
