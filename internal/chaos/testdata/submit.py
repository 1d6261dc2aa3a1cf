"""A caller in Python: sends requests until its standard input ends."""

import os
import sys
import threading
import time

from omnibus import RAW, Client, HostGone, connect
from payload import C, INPUT, payload, verify

MAX_INPUTS, OUTPUTS, TAG_BITS = 8, 2, 10

_told = threading.Event()
_rejoin = bool(os.environ.get("OMNIBUS_CHAOS_REJOIN"))


def say(text: str) -> None:
    """Tell the test."""
    sys.stdout.write(text.replace("\n", " ") + "\n")
    sys.stdout.flush()


def listen() -> None:
    sys.stdin.buffer.read()
    _told.set()


def round_trip(bus: Client, tag: int, inputs: int) -> None:
    """Send one request, and check its results."""
    want = 0
    with bus.stream() as request:

        def send() -> None:
            try:
                for seq in range(inputs):
                    request.send(payload(tag, INPUT, seq), codec=RAW)
                request.close_send()
            except Exception:
                pass  # the results have the outcome of the request

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for d in request:
                with d.view() as view:
                    got = verify(view, C, want)
                if got != tag or d.seq != want:
                    raise ValueError(f"result {want}: of request {got:#x}, at place {d.seq}")
                want += 1
        finally:
            if not request.over:
                request.close()
            sender.join()
    if want != inputs * OUTPUTS:
        raise ValueError(f"request {tag:#x} completed with {want} of {inputs * OUTPUTS} results")


def work() -> bool:
    """Submit to one host. False: it is gone."""
    n = 0
    try:
        with connect(name="submitter (python)") as bus:
            epoch = bus.call("status")["epoch"]
            while not _told.is_set():
                n += 1
                tag = os.getpid() << TAG_BITS & 0xFFFFFFFF | n & (1 << TAG_BITS) - 1
                round_trip(bus, tag, 1 + n % MAX_INPUTS)
                say(f"done {epoch}")
    except HostGone:
        say("gone 0")
        return False
    except Exception as e:
        say(f"broken request {n}: {type(e).__name__}: {e}")
    return True


threading.Thread(target=listen, daemon=True).start()
while not _told.is_set():
    if not work() and not _rejoin:
        sys.exit(69)
    time.sleep(0.01)
