"""The hand-over of KV blocks between two processes over a real exchange, with pages of bytes in place of torch's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any

import fakehost  # noqa: F401  (finds the package)
import realhost

from omnibus.caches.frame import Framed, check_head, open_ring, read_settings, unframe
from omnibus.caches.handover import Handover, Load, Offer, Run, split_parts
from omnibus.connector.contract import TIMEOUT, Damaged

BLOCK = 4  # tokens
PAGES = [24, 8, 100_000]  # bytes of a page of each layer


class BytePages:
    """A KV cache of bytes: `layers[layer][block]`."""

    page_bytes = PAGES

    def __init__(self, blocks: int, kind: str = "bytes") -> None:
        self.layers = [[bytes(size)] * blocks for size in PAGES]
        self.geometry = {"kind": kind}

    def gather(self, runs: list[Run], blocks: list[int], out: memoryview) -> None:
        at = 0
        for run in runs:
            for block in blocks[run.first : run.end]:
                page = self.layers[run.layer][block]
                out[at : at + len(page)] = page
                at += len(page)

    def scatter(self, runs: list[Run], blocks: list[int], first: int, data: memoryview) -> None:
        at = 0
        for run in runs:
            size = PAGES[run.layer]
            for i in range(run.first, run.end):
                if first <= i < first + len(blocks):
                    self.layers[run.layer][blocks[i - first]] = bytes(data[at : at + size])
                at += size

    def fence(self) -> Callable[[], object]:
        return lambda: None


def page(request: str, layer: int, index: int) -> bytes:
    return random.Random(f"{request} {layer} {index}").randbytes(PAGES[layer])


def offer(request: str, blocks: int, lease: float) -> Offer:
    return Offer("engine", request, 1, BLOCK, blocks * BLOCK - 1, "hash", time.time() + lease)


def handover(socket: str, pages: BytePages, lease: float, **settings: Any) -> Handover:
    ring = open_ring({"socket": socket, **settings})
    return Handover(ring, pages, 0, lease, 150_000)


def settled(h: Handover, of: str, over: frozenset[str] = frozenset()) -> set[int]:
    """Call the worker's hooks as vLLM does, step by step, until a request is named; its invalid blocks."""
    for limit in range(3000):
        sent, loaded = h.finished(set(over) if not limit else set())
        invalid = h.invalid()
        if of in sent | loaded:
            return invalid
        time.sleep(0.01)  # a step of the engine
    raise AssertionError(f"{of} does not end")


def produce() -> None:
    """The producer's process: sends blocks on command, reports when they are free, and keeps the values."""
    socket, lease, arena = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    pages = BytePages(64)
    h = handover(socket, pages, lease, arena_bytes=arena)
    for line in sys.stdin:
        request, blocks = line.split()
        ids = random.sample(range(64), int(blocks))
        for i, block in enumerate(ids):
            for layer in range(len(PAGES)):
                pages.layers[layer][block] = page(request, layer, i)
        o = offer(request, len(ids), lease)
        h.send(o, request, ids)
        print(o.expires_at, flush=True)
        settled(h, request)
        print("sent", flush=True)


class Producer:
    def __init__(self, case: unittest.TestCase, socket: str, lease: float = 60, arena: int = 1 << 28) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import test_caches_handover as t; t.produce()", socket, str(lease), str(arena)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.path.dirname(os.path.abspath(__file__)),
        )  # fmt: skip
        case.addCleanup(self.close)

    def send(self, request: str, blocks: int) -> Offer:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(request, blocks, file=self.process.stdin, flush=True)
        return offer(request, blocks, 0)._replace(expires_at=float(self.process.stdout.readline()))

    def sent(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "sent\n"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class HandoverTest(unittest.TestCase):
    def setUp(self) -> None:
        self.exchange = realhost.Exchange()
        self.addCleanup(self.exchange.close)
        self.pages = BytePages(64)
        self.h = handover(self.exchange.socket, self.pages, 60)
        self.addCleanup(self.h.close)

    def receive(self, o: Offer, first: int = 0) -> tuple[list[int], set[int]]:
        ids = random.sample(range(64), o.blocks - first)
        self.h.load(Load(o, "here", ids, first))
        return ids, settled(self.h, "here")

    def check(self, o: Offer, ids: list[int], first: int = 0) -> None:
        for layer in range(len(PAGES)):
            for i, block in enumerate(ids):
                self.assertEqual(self.pages.layers[layer][block], page(o.request, layer, first + i))

    def test_blocks_arrive_and_nothing_stays(self) -> None:
        p = Producer(self, self.exchange.socket)
        for n, first in ((1, 0), (9, 0), (9, 5), (33, 32)):
            o = p.send(f"request-{n}-{first}", n)
            ids, invalid = self.receive(o, first)
            self.assertEqual(invalid, set())
            self.check(o, ids, first)
            p.sent()
        self.assertEqual(self.exchange.entries(), 0)

    def test_a_cache_has_a_bound(self) -> None:
        """Also without arena_bytes the cache is bounded, and removes its oldest entries at the bound."""
        for set_to, bound in (None, 256 << 20), (400_000, 400_000):
            ring = open_ring({"socket": self.exchange.socket, "arena_bytes": set_to})
            self.addCleanup(ring.close)
            self.assertEqual(ring._open_exchange()._arena_bytes, bound)

    def test_more_than_the_arena(self) -> None:
        """The producer continues as the consumer takes parts: its arena has space for two of twenty."""
        p = Producer(self, self.exchange.socket, arena=400_000)
        o = p.send("long", 20)
        ids, invalid = self.receive(o)
        self.assertEqual(invalid, set())
        self.check(o, ids)
        p.sent()

    def test_no_consumer(self) -> None:
        """Untaken values are removed at the end of their lease; the producer's blocks are free in any case."""
        p = Producer(self, self.exchange.socket, lease=0.5, arena=400_000)
        p.send("short", 1)
        p.sent()
        o = p.send("long", 20)
        p.sent()
        self.exchange.emptied()
        ids, invalid = self.receive(o)
        self.assertEqual(invalid, set(ids))

    def test_the_producer_is_killed(self) -> None:
        p = Producer(self, self.exchange.socket, arena=400_000)
        o = p.send("half", 20)
        while not self.exchange.entries():
            time.sleep(0.01)
        p.process.kill()
        p.process.wait(60)
        self.exchange.emptied()
        mine = handover(self.exchange.socket, self.pages, 0.5)
        self.addCleanup(mine.close)
        mine.load(Load(o, "here", [1, 2], 18))
        self.assertEqual(settled(mine, "here"), {1, 2})

    def test_the_host_is_killed(self) -> None:
        p = Producer(self, self.exchange.socket)
        o = p.send("lost", 3)
        p.sent()
        self.exchange.kill()
        ids, invalid = self.receive(o)
        self.assertEqual(invalid, set(ids))
        self.exchange.start()
        o = p.send("next", 3)  # both ends connect anew
        ids, invalid = self.receive(o)
        self.assertEqual(invalid, set())
        self.check(o, ids)

    def test_the_host_is_killed_while_a_load_waits(self) -> None:
        o = offer("never", 3, 60)
        self.h.load(Load(o, "here", [1, 2, 3], 0))
        self.assertEqual(self.h.finished(set()), (set(), set()))
        self.exchange.kill()
        self.assertEqual(settled(self.h, "here"), {1, 2, 3})

    def test_an_aborted_load_writes_no_block(self) -> None:
        o = offer("late", 3, 60)
        self.h.load(Load(o, "here", [1, 2, 3], 0))
        self.assertEqual(settled(self.h, "here", frozenset({"here"})), set())
        p = Producer(self, self.exchange.socket)
        p.send("late", 3)
        p.sent()
        self.exchange.emptied()  # it goes on taking, and drops
        self.assertEqual(self.pages.layers, BytePages(64).layers)
        self.assertEqual(self.h.finished(set()), (set(), set()))  # and is named once

    def test_a_load_without_blocks_drops_the_parts(self) -> None:
        p = Producer(self, self.exchange.socket)
        o = p.send("hit", 3)
        p.sent()
        self.h.load(Load(o, "here", [], 0))
        self.exchange.emptied()
        self.assertEqual(self.h.finished(set()), (set(), set()))

    def test_another_geometry(self) -> None:
        p = Producer(self, self.exchange.socket)
        self.pages.geometry = {"kind": "bits"}
        o = p.send("r", 2)
        with self.assertLogs("omnibus", "ERROR") as logs:
            ids, invalid = self.receive(o)
        self.assertEqual(invalid, set(ids))
        self.assertIn("kind is 'bytes' there and 'bits' here", logs.output[0])
        self.assertEqual(self.pages.layers, BytePages(64).layers)

    def test_ranks_have_keys_of_their_own(self) -> None:
        sides = []
        for rank in range(2):
            ring = open_ring({"socket": self.exchange.socket})
            sides.append(Handover(ring, BytePages(8), rank, 60, 1 << 20))
            self.addCleanup(sides[-1].close)
        o = offer("r", 1, 60)._replace(ranks=2)
        for rank, side in enumerate(sides):
            side._pages.layers[0][3] = bytes([rank + 1]) * PAGES[0]  # type: ignore[attr-defined]
            side.send(o, "r", [3])
            settled(side, "r")
        for rank, side in enumerate(sides):
            side.load(Load(o, "here", [5], 0))
            self.assertEqual(settled(side, "here"), set())
            self.assertEqual(side._pages.layers[0][5], bytes([rank + 1]) * PAGES[0])  # type: ignore[attr-defined]

    def test_blocks_are_reusable_after_the_last_part_is_put(self) -> None:
        last = threading.Event()

        class Slow(BytePages):
            def gather(self, runs: list[Run], blocks: list[int], out: memoryview) -> None:
                if runs[-1] == Run(len(PAGES) - 1, 1, 2):
                    last.wait(60)
                super().gather(runs, blocks, out)

        sender = handover(self.exchange.socket, Slow(8), 60)
        self.addCleanup(sender.close)
        sender.send(offer("r", 2, 60), "r", [3, 4])
        while not self.exchange.entries():
            self.assertEqual(sender.finished(set()), (set(), set()))
        self.assertEqual(sender.finished(set()), (set(), set()))
        last.set()
        settled(sender, "r")

    def test_a_receiver_waits_no_longer_than_its_own_lease(self) -> None:
        mine = handover(self.exchange.socket, self.pages, 0.2)
        self.addCleanup(mine.close)
        mine.load(Load(offer("never", 1, 1e6), "here", [5], 0))
        self.assertEqual(settled(mine, "here"), {5})

    def test_a_load_that_is_refused(self) -> None:
        with self.assertLogs("omnibus", "ERROR") as logs:
            self.h.load(Load(None, "here", [7], 0), "the tokens differ")
        self.assertEqual(settled(self.h, "here"), {7})
        self.assertIn("request here were not received: the tokens differ", logs.output[0])

    def test_a_prompt_of_another(self) -> None:
        p = Producer(self, self.exchange.socket)
        o = p.send("r", 2)
        ids, invalid = self.receive(o._replace(prompt="other"))
        self.assertEqual(invalid, set(ids))

    def test_a_closed_producer_removes_its_values(self) -> None:
        other = handover(self.exchange.socket, BytePages(64), 60)
        other.send(offer("r", 2, 60), "r", [1, 2])
        settled(other, "r")
        self.assertEqual(self.exchange.entries(), 2)
        other.close()
        self.assertEqual(self.exchange.entries(), 0)


class CutTest(unittest.TestCase):
    def test_parts_hold_all_pages_once_and_in_order(self) -> None:
        r = random.Random(1)
        for _ in range(300):
            sizes = [r.choice((0, 1, 7, 64, 1000)) for _ in range(r.randrange(1, 6))]
            blocks, most = r.randrange(1, 40), r.choice((1, 64, 500, 5000, 1 << 30))
            parts = split_parts(sizes, blocks, most)
            pages = [(run.layer, i) for part in parts for run in part.runs for i in range(run.first, run.end)]
            self.assertEqual(pages, [(layer, i) for layer in range(len(sizes)) for i in range(blocks)])
            for part in parts:
                self.assertEqual(part.size, sum((run.end - run.first) * sizes[run.layer] for run in part.runs))
                self.assertTrue(part.size <= most or sum(run.end - run.first for run in part.runs if sizes[run.layer]) == 1)


class FrameTest(unittest.TestCase):
    def framed(self, head: dict[str, Any], data: bytes) -> bytearray:
        payload = Framed(head, len(data), lambda room: room.__setitem__(slice(None), data))
        room = bytearray(payload.size)
        payload.write(memoryview(room))
        return room

    def test_round_trip(self) -> None:
        for size in (0, 1, 100, 5000):
            head = {"a": list(range(size % 40)), "b": "x" * (size % 200)}
            found, data = unframe(memoryview(self.framed(head, b"y" * size)))
            self.assertEqual((found, bytes(data)), (head, b"y" * size))

    def test_invalid_frames_are_refused(self) -> None:
        whole = self.framed({"a": 1}, b"data")
        for end in range(64):
            with self.assertRaises(Damaged):
                unframe(memoryview(whole)[:end])
        for bad in (b"\xff" * 64, b"\1\0\0\0\xc1".ljust(64, b"\0"), b"\1\0\0\0\1".ljust(64, b"\0")):
            with self.assertRaises(Damaged):
                unframe(memoryview(bad))
        with self.assertRaisesRegex(Damaged, "b is 2 there and 3 here; c is None there and 1 here"):
            check_head({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 1})

    def test_settings(self) -> None:
        own = {"lease": (TIMEOUT, 60.0)}
        self.assertEqual(read_settings({"bus": "x", "lease": "2m"}, own), {"lease": 120.0})
        for config, says in (
            ({"leese": 1}, "the extra config has leese; there are bus, .*lease"),
            ({"lease": 0}, "lease must be"),
            ({"arena_bytes": "x"}, "arena_bytes must be"),
        ):
            with self.assertRaisesRegex(ValueError, says):
                read_settings(config, own)


class OfferTest(unittest.TestCase):
    def test_parameters_of_an_offer(self) -> None:
        o = offer("r", 3, 60)
        told = o.to_params()
        self.assertEqual((told["do_remote_prefill"], told["do_remote_decode"]), (True, False))
        self.assertEqual(Offer.from_params(told), o)
        self.assertEqual(Offer.from_params({**told, "remote_expiry": 5}).expires_at, 5.0)

    def test_offers_changed_by_a_router_are_refused(self) -> None:
        told = offer("r", 3, 60).to_params()
        for name, bad in (
            ("remote_engine_id", None), ("remote_engine_id", "a/b"), ("remote_request_id", "x" * 81), ("remote_request_id", 5),
            ("tp_size", 0), ("tp_size", True), ("remote_num_tokens", "5"), ("remote_block_size", -1), ("remote_expiry", "soon"),
        ):  # fmt: skip
            with self.subTest(name, bad=bad), self.assertRaises(ValueError):
                Offer.from_params({**told, name: bad})


if __name__ == "__main__":
    unittest.main()
