"""A caller in Python with an event loop: see caller.py."""

import asyncio
import faulthandler
import json
import os
import signal
import sys
from typing import Any

from omnibus import RAW, AsyncClient, AsyncRequest, OmnibusError, aconnect
from payload import input_of
from report import checksum, ended, opened, outcome_of, says_full

_concurrency = int(os.environ["OMNIBUS_LOAD_CONCURRENCY"])

_stacks = open(os.path.join(os.environ["OMNIBUS_LOAD_DIR"], f"stacks-{os.getpid()}"), "w")
faulthandler.register(signal.SIGUSR1, _stacks, all_threads=True)


class Sending:
    """The inputs of a request, and why one of them failed."""

    error: OmnibusError | None = None

    async def send(self, r: AsyncRequest, p: dict[str, Any]) -> None:
        try:
            for seq in range(p["inputs"]):
                await r.send(input_of(p["tag"], seq, p["total"]).payload(), to=p["to"] or None, codec=RAW)
            r.close_send()
        except OmnibusError as e:
            self.error = e
            r.abort(str(e))  # where the failure of an input is not that of the request


async def exchange(bus: AsyncClient, p: dict[str, Any], sums: list[int], fired: list[bool]) -> None:
    """Submit one request and read its results."""
    timeout = p["after"] / 1e9 if p["end"] == "deadline" else None
    if p["inputs"] == 1:
        payload = input_of(p["tag"], 0, p["total"]).payload()
        opening = bus.submit(payload, timeout=timeout, to=p["to"] or None, codec=RAW)
    else:
        opening = bus.stream(timeout=timeout)
    r = await opening
    timer = None
    async with r:
        if p["end"] == "abort":

            def abort() -> None:
                fired.append(True)
                r.abort("as planned")

            timer = asyncio.get_running_loop().call_later(p["after"] / 1e9, abort)
        sending = Sending()
        sender = asyncio.create_task(sending.send(r, p)) if p["inputs"] > 1 else None
        try:
            async for d in r:
                sums.append(checksum(d))
        except OmnibusError:
            if sender is not None:
                await sender
                if sending.error is not None and says_full(sending.error):
                    raise sending.error from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if sender is not None:
                sender.cancel()


async def one(bus: AsyncClient, p: dict[str, Any]) -> None:
    sums: list[int] = []
    fired: list[bool] = []
    error: Exception | None = None
    opened(p["number"])
    try:
        if p["end"] == "close":  # the caller closes the request at any point
            await asyncio.wait_for(exchange(bus, p, sums, fired), p["after"] / 1e9)
        else:
            await exchange(bus, p, sums, fired)
    except OmnibusError as e:
        error = e
    except asyncio.TimeoutError:
        ended(p["number"], "closed", sums)
        return
    ended(p["number"], outcome_of(error, p["end"], bool(fired)), sums)


async def main() -> None:
    lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def work(bus: AsyncClient) -> None:
        while (p := await lines.get()) is not None:
            await one(bus, p)

    async with await aconnect(name="caller (asyncio)") as bus:
        workers = [asyncio.create_task(work(bus)) for _ in range(_concurrency)]
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            lines.put_nowait(json.loads(line))
        for _ in workers:
            lines.put_nowait(None)
        await asyncio.gather(*workers)


asyncio.run(main())
