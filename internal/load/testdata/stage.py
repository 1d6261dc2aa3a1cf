"""The stages in Python: a kind of function each."""

import asyncio
import faulthandler
import os
import signal
import time
from collections.abc import Iterator

from omnibus import AsyncTask, Delivery, Task, run, stage
from payload import Header, branches_of, following, number_of, parse, tag_of

_cell: dict[str, str] = dict(part.split("=") for part in os.environ["OMNIBUS_LOAD_CELL"].split())
_stage = os.environ["OMNIBUS_STAGE"]
_kind = os.environ["OMNIBUS_LOAD_KIND"]
_emissions = 3 if _stage in ("first", "side") and _cell["stream"] in ("emissions", "several") else 1
_slow = _stage == os.environ["OMNIBUS_LOAD_SLOW"]
_gated = _slow and _cell["pace"] == "gated"
_routes = _stage == "first" and _cell["shape"] in ("image-first", "text-first")
_fault = os.environ.get("OMNIBUS_LOAD_FAULT", "")
_faulty_stage, _, _faulty_request = os.environ.get("OMNIBUS_LOAD_FAULT_AT", "").partition(":")

_stacks = open(os.path.join(os.environ["OMNIBUS_LOAD_DIR"], f"stacks-{os.getpid()}"), "w")
faulthandler.register(signal.SIGUSR1, _stacks, all_threads=True)


def faulty(h: Header) -> bool:
    """Whether a fault is planted here, for this request."""
    return _stage == _faulty_stage and str(number_of(h.tag)) == _faulty_request


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
    """The output of the stage for an input, or for the inputs of a join."""
    headers = [parse(p) for p in parts]
    if any((h.tag, h.seq) != (headers[0].tag, headers[0].seq) for h in headers):
        raise ValueError("broken payload: it is joined with one of another place")
    return spoil([following(_stage, j, _emissions, *headers) for j in range(_emissions)])


_gate_of_last = ""  # the gate of the last handled request


def take_time(out: list[bytes]) -> None:
    """The delay of a slow or gated stage before it emits: see gate_linux_test.go."""
    if _gated:
        folder = os.environ["OMNIBUS_LOAD_DIR"]
        branches = _cell["shape"] in ("image-first", "text-first", "alone")
        if branches:
            with open(os.path.join(folder, "standing"), "wb") as standing:
                standing.write(b"\1")
        if gate := "gate" if branches else _gate_of_last:
            open(os.path.join(folder, gate)).close()
    elif _slow and out and out[0][16] % 4 == 0:
        time.sleep(0.002)


def handled(out: list[bytes]) -> None:
    """The end of a handler after its emissions."""
    global _gate_of_last
    if out:
        _gate_of_last = f"gate-{number_of(tag_of(out[0]))}"


def sendings(out: list[bytes]) -> Iterator[tuple[bytes, str | None]]:
    """The payloads, and the stages that each goes to; None: all."""
    for p in out:
        for to in branches_of(tag_of(p)) if _routes else (None,):
            yield p, to


if _kind in ("python-sync", "python-threads"):

    @stage
    def work(value: memoryview, task: Task, delivery: Delivery) -> None:
        out = outputs(value)
        take_time(out)
        if _fault == "leak-delivery" and faulty(parse(value)):
            delivery.keep()
            return
        for p, to in sendings(out):
            task.emit_bytes(p, to=to)
        handled(out)

elif _kind == "python-async":

    @stage
    async def work(value: memoryview, task: AsyncTask) -> None:
        out = outputs(value)
        if _slow:
            await asyncio.to_thread(take_time, out)
        for p, to in sendings(out):
            await task.emit_bytes(p, to=to)
        handled(out)

elif _kind == "python-generator":

    @stage
    def work(value: memoryview) -> Iterator[bytes]:
        out = outputs(value)
        take_time(out)
        yield from out
        handled(out)

elif _kind == "python-batch":

    @stage(batch=8)
    def work(values: list[memoryview]) -> list[bytes | None]:
        out = [outputs(v) if v is not None else [] for v in values]
        take_time(out[0])
        return [o[0] if o else None for o in out]

else:

    @stage
    def work(a: memoryview, b: memoryview, task: Task) -> None:
        out = outputs(a, b)
        take_time(out)
        for p in out:
            task.emit_bytes(p)
        handled(out)


if _fault == "end" and _slow:
    work.end(lambda task: None)

work.name = _stage
run(threads=4 if _kind == "python-threads" else 1)
