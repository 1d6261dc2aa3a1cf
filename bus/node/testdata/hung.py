"""A stage that hangs, keeps the interpreter lock, or waits for the next one, as its input says."""

import ctypes
import time

from omnibus import Delivery, run, stage

#: Functions of the C library that are called with the interpreter lock.
_locked = ctypes.PyDLL(None)


@stage
def m(value: str, delivery: Delivery):
    while delivery.attempt == 0 and value.startswith("hang"):
        _locked.sleep(600)  # until a signal comes
    if value.startswith("compute"):
        began = time.monotonic()
        sum(range(2_000_000))
        sum(range(int(2_000_000 * 6 / (time.monotonic() - began))))  # one step of the interpreter, of some 6 s
    for _ in range(5 if value.startswith("many") else 1):
        yield value


run()
