"""The stages in Python: a kind of function each."""

import asyncio
import faulthandler
import os
import signal
import time
from collections.abc import Iterator

from omnibus import AsyncTask, Delivery, Task, run, stage
from payload import Header, following, parse

_cell: dict[str, str] = dict(part.split("=") for part in os.environ["OMNIBUS_LOAD_CELL"].split())
_stage = os.environ["OMNIBUS_STAGE"]
_kind = _cell["second" if _stage == "second" else "first"]
_emissions = 3 if _stage != "second" and _cell["stream"] in ("emissions", "several") else 1
_slow = _cell["pace"] == {"first": "slow-first", "second": "slow-second"}.get(_stage)
_fault = os.environ.get("OMNIBUS_LOAD_FAULT", "")
_faulty_stage, _, _faulty_request = os.environ.get("OMNIBUS_LOAD_FAULT_AT", "").partition(":")

_stacks = open(os.path.join(os.environ["OMNIBUS_LOAD_DIR"], f"stacks-{os.getpid()}"), "w")
faulthandler.register(signal.SIGUSR1, _stacks, all_threads=True)


def faulty(h: Header) -> bool:
    """Whether a fault is planted here, for this request."""
    return _stage == _faulty_stage and str(h.tag & 0xFFFFFFFF) == _faulty_request


def spoil(headers: list[Header]) -> list[bytes]:
    """The payloads, with the fault that is planted in this stage."""
    out = [h.payload() for h in headers]
    if not faulty(headers[0]):
        return out
    if _fault == "swallow":
        return out[1:]
    if _fault == "double":
        return out[:1] + out
    if _fault == "change":
        return [out[0][:-1] + bytes([out[0][-1] ^ 1])] + out[1:]
    if _fault == "swap":
        return out[::-1]
    return out


def outputs(*parts: memoryview | bytes) -> list[bytes]:
    """What the stage makes of an input, or of those of a join."""
    headers = [parse(p) for p in parts]
    if any((h.tag, h.seq) != (headers[0].tag, headers[0].seq) for h in headers):
        raise ValueError("broken payload: it is joined with one of another place")
    return spoil([following(_stage, j, _emissions, *headers) for j in range(_emissions)])


def pause(out: list[bytes]) -> float:
    """What a slow stage takes for every fourth payload."""
    return 0.002 if _slow and out and out[0][16] % 4 == 0 else 0


if _kind in ("python-sync", "python-threads"):

    @stage
    def work(value: memoryview, task: Task, delivery: Delivery) -> None:
        out = outputs(value)
        time.sleep(pause(out))
        if _fault == "leak-delivery" and faulty(parse(value)):
            delivery.keep()
            return
        for p in out:
            task.emit_bytes(p)

elif _kind == "python-async":

    @stage
    async def work(value: memoryview, task: AsyncTask) -> None:
        out = outputs(value)
        await asyncio.sleep(pause(out))
        for p in out:
            await task.emit_bytes(p)

elif _kind == "python-generator":

    @stage
    def work(value: memoryview) -> Iterator[bytes]:
        out = outputs(value)
        time.sleep(pause(out))
        yield from out

elif _kind == "python-batch":

    @stage(batch=8)
    def work(values: list[memoryview]) -> list[bytes | None]:
        out = [outputs(v) if v is not None else [] for v in values]
        time.sleep(pause(out[0]))
        return [o[0] if o else None for o in out]

else:

    @stage
    def work(a: memoryview, b: memoryview, task: Task) -> None:
        for p in outputs(a, b):
            task.emit_bytes(p)


work.name = _stage
run(threads=4 if _kind == "python-threads" else 1)
