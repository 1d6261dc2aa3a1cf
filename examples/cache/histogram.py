"""The worker in Python: how many pixels of an image are how green, in eight steps."""

import os
import signal
from typing import Any

from omnibus import OmnibusError, run, stage
from omnibus.keyed import Handle, KeyedReader

SAMPLES = 10_000

signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the front end sends SIGTERM when it has finished
reader = KeyedReader.dial(os.environ["CACHE_STORE"])  # before run, to be charged for each handle that comes


@stage
def histogram(handle: bytes) -> dict[str, Any]:
    try:
        pixels = reader.get(Handle.from_bytes(handle))
    except OmnibusError as e:
        return {"error": f"{type(e).__name__}: {e}"}
    green = pixels.data[1::4]  # a view, as pixels is: it is released when the function returns
    counts = [0] * 8
    for value in green[:: max(len(green) // SAMPLES, 1)]:
        counts[value >> 5] += 1
    return {"histogram": counts}


if __name__ == "__main__":
    run()
