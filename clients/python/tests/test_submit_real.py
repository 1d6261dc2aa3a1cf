"""Requests of a client at a real host that has fewer places than the client has requests."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import realhost

import omnibus
from omnibus import wire

#: More requests than may wait for permits.
MANY = wire.MAX_QUESTIONS + 60

#: For how many seconds a host is waited for that does nothing.
PATIENCE = 200.0


class Said(logging.Handler):
    """Calls something with each warning of the client."""

    def __init__(self, heard: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard(record.getMessage())


class SubmitRealTest(unittest.TestCase):
    def pipeline(self, max_requests: int) -> str:
        host = realhost.Pipeline(max_requests)
        self.addCleanup(host.close)
        return host.socket

    def hear(self, heard: Callable[[str], object]) -> None:
        handler = Said(heard)
        logging.getLogger("omnibus").addHandler(handler)
        self.addCleanup(logging.getLogger("omnibus").removeHandler, handler)

    def test_results_in_the_order_of_submits(self) -> None:
        for places in (1, 3):
            with omnibus.connect(self.pipeline(places)) as client:
                requests = [client.submit(i, timeout=PATIENCE) for i in range(20)]
                self.assertEqual([r.values() for r in requests], [[i] for i in range(20)])

    def test_results_in_the_order_of_submits_awaited(self) -> None:
        async def caller() -> list[list[Any]]:
            async with await omnibus.aconnect(self.pipeline(1)) as client:
                requests = [await client.submit(i, timeout=PATIENCE) for i in range(20)]
                return [await r.values() for r in requests]

        self.assertEqual(asyncio.run(asyncio.wait_for(caller(), PATIENCE)), [[i] for i in range(20)])

    def test_results_behind_a_finish_by_hand(self) -> None:
        stage = "def echo(value, delivery):\n    delivery.finish()\n    for i in range(3):\n        yield [value, i]\n"
        host = realhost.Pipeline(4, stage=stage)
        self.addCleanup(host.close)
        with omnibus.connect(host.socket) as client:
            requests = [client.submit(n, timeout=PATIENCE) for n in range(20)]
            self.assertEqual([r.values() for r in requests], [[[n, i] for i in range(3)] for n in range(20)])

    def test_process_keeps_nothing_of_failed_requests(self) -> None:
        stage = (
            "def echo(value):\n"
            "    from omnibus.session import Session\n"
            "    import gc\n"
            "    if value:\n"
            "        raise ValueError(value)\n"
            "    [session] = [o for o in gc.get_objects() if isinstance(o, Session)]\n"
            "    return len(session.sources)\n"
        )
        host = realhost.Pipeline(4, stage=stage)
        self.addCleanup(host.close)
        with omnibus.connect(host.socket) as client:
            for n in range(1, 10):
                with self.assertRaisesRegex(omnibus.RequestFailed, f"ValueError: {n}"):
                    client.submit(n, timeout=PATIENCE).values()
            self.assertEqual(client.submit(0, timeout=PATIENCE).values(), [1])  # its own

    def test_waiting_submit_is_logged(self) -> None:
        words: queue.Queue[str] = queue.Queue()
        requests: queue.Queue[omnibus.Request] = queue.Queue()
        with omnibus.connect(self.pipeline(2)) as client:
            self.hear(words.put)

            def submit() -> None:
                for i in range(MANY):
                    requests.put(client.submit(i, timeout=PATIENCE))

            t = threading.Thread(target=submit, daemon=True)
            t.start()
            self.assertRegex(words.get(timeout=60), "submit waits: 1024 requests .* Read the results")
            with mock.patch.object(omnibus.deadlines, "SLACK_SECONDS", 0), self.assertRaises(omnibus.DeadlineExceeded):
                client.submit("late", timeout=0.01).values()
            self.assertTrue(t.is_alive(), "it does not wait")
            got = [requests.get(timeout=60).values() for _ in range(MANY)]
            t.join(60)
        self.assertEqual(got, [[i] for i in range(MANY)])
        self.assertTrue(words.empty(), "it says so more than once")

    def test_waiting_submit_is_logged_awaited(self) -> None:
        async def caller() -> list[list[Any]]:
            words: asyncio.Queue[str] = asyncio.Queue()
            requests: asyncio.Queue[omnibus.AsyncRequest] = asyncio.Queue()
            async with await omnibus.aconnect(self.pipeline(2)) as client:
                self.hear(words.put_nowait)

                async def submit() -> None:
                    for i in range(MANY):
                        requests.put_nowait(await client.submit(i, timeout=PATIENCE))

                submits = asyncio.create_task(submit())
                word = await asyncio.wait_for(words.get(), 60)
                self.assertRegex(word, "submit waits: 1024 requests .* Read the results")
                self.assertFalse(submits.done(), "it does not wait")
                got = [await (await requests.get()).values() for _ in range(MANY)]
                await submits
            return got

        self.assertEqual(asyncio.run(asyncio.wait_for(caller(), PATIENCE)), [[i] for i in range(MANY)])

    def test_close_during_begin_is_not_lost(self) -> None:
        with omnibus.connect(self.pipeline(1)) as client:
            for i in range(500):
                first, second = client.submit(i, timeout=PATIENCE), client.submit(i, timeout=PATIENCE)
                self.assertEqual(first.values(), [i])  # releases its permit to the second request, while the close arrives
                second.close()
            limit = time.monotonic() + 60
            while client.call("stats")["live"]:
                self.assertLess(time.monotonic(), limit, "requests that were closed stay at the host")
                time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
