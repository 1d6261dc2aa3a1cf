"""Messages against the vectors of the Go package, and against garbage."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import unittest
from typing import Any

from fakehost import over

from omnibus import ProtocolError, wire
from omnibus.wire.packet import by_kind

TESTDATA = os.path.join(os.path.dirname(__file__), "..", "..", "..", "internal", "wire", "testdata")


def load(name: str) -> list[dict[str, Any]]:
    path = os.path.join(TESTDATA, name)
    if not os.path.exists(path):
        raise unittest.SkipTest(f"{path} comes with the repository")
    with open(path, encoding="utf-8") as f:
        return json.load(f)  # type: ignore[no-any-return]


def fields_of(m: Any) -> dict[str, Any]:
    return dataclasses.asdict(m) if dataclasses.is_dataclass(m) else m._asdict()  # type: ignore[arg-type]


def plain(m: Any) -> dict[str, Any]:
    """A message as the vectors write it."""
    return {k.rstrip("_"): plain_value(k, v) for k, v in fields_of(m).items() if k != "magic"}


def plain_value(name: str, v: Any) -> Any:
    if isinstance(v, bytes):
        return v.hex()
    if isinstance(v, list):
        return [plain_value(name, x) for x in v]
    if dataclasses.is_dataclass(v):
        return plain(v)
    return bool(v) if name == "join" else v


def decode_all(packet: bytes, descriptors: int) -> list[Any]:
    return [m for m, _ in wire.decode(packet, descriptors)]


def typed(*messages: Any) -> list[Any]:
    """Messages to compare: the values alone are equal in two kinds that have the same."""
    return [(type(m), m) for m in messages]


#: What clients say that share memory with the host or with each other. This one does not.
LANE_KINDS = (*range(64, 70), *range(74, 78))


class VectorTest(unittest.TestCase):
    def test_vectors(self) -> None:
        kinds = set()
        for v in load("vectors.json"):
            if v["kind"] in LANE_KINDS:
                continue
            with self.subTest(v["name"]):
                kinds.add(v["kind"])
                packet = bytes.fromhex(v["hex"])
                (m,) = decode_all(packet, v["descriptors"])
                self.assertEqual(wire.kind_of(m), v["kind"])
                self.assertEqual(plain(m), v["fields"])
                self.assertEqual(wire.encode(m, v["descriptors"]).hex(), v["hex"])
        self.assertEqual(kinds, set(by_kind))

    def test_kinds_that_are_not_for_this_client(self) -> None:
        refused = set()
        for v in load("vectors.json"):
            if v["kind"] not in LANE_KINDS:
                continue
            with self.subTest(v["name"]):
                refused.add(v["kind"])
                with self.assertRaisesRegex(ProtocolError, f"no message has the kind {v['kind']}$"):
                    decode_all(bytes.fromhex(v["hex"]), v["descriptors"])
        self.assertEqual(refused, set(LANE_KINDS))

    def test_skipped(self) -> None:
        for v in load("skipped.json"):
            with self.subTest(v["name"]):
                read = list(wire.decode(bytes.fromhex(v["hex"]), v["descriptors"]))
                self.assertEqual([wire.kind_of(m) for m, _ in read if m is not None], v["kinds"])
                self.assertEqual(sum(n for _, n in read), v["descriptors"])

    def test_malformed(self) -> None:
        for v in load("malformed.json"):
            with self.subTest(v["name"]):
                descriptors = v.get("descriptors", 0)
                with self.assertRaises(ProtocolError):
                    decode_all(bytes.fromhex(v["hex"]), descriptors)


class BoundsTest(unittest.TestCase):
    def test_longer_messages_are_read(self) -> None:
        b = wire.encode(wire.Release(7)) + b"more"
        b[0] += 4
        self.assertEqual(typed(*decode_all(bytes(b), 0)), typed(wire.Release(7)))

    def test_several_messages_in_a_packet(self) -> None:
        packet = wire.encode(wire.Release(7)) + wire.encode(wire.Bye()) + wire.encode(wire.End(1))
        self.assertEqual(typed(*decode_all(bytes(packet), 0)), typed(wire.Release(7), wire.Bye(), wire.End(1)))

    def test_descriptors(self) -> None:
        segment = bytes(wire.encode(wire.Segment(1, 2), descriptors=1))
        ((m, n),) = wire.decode(segment, 1)
        self.assertEqual((typed(m), n), (typed(wire.Segment(1, 2)), 1))
        for packet, n in [(segment, 0), (segment, 2), (bytes(wire.encode(wire.Bye())), 1)]:
            with self.assertRaises(ProtocolError):
                decode_all(packet, n)

    def test_senders_cut_texts_between_characters(self) -> None:
        b = wire.encode(wire.Finish(1, 0, 14, "é" * 3000))
        (m,) = decode_all(bytes(b), 0)
        self.assertEqual(m.text, "é" * 2048)

    def test_bounds_of_senders(self) -> None:
        for m in [
            wire.Serve(1, "x" * 201),
            wire.Serve(1 << 32, "x"),
            wire.Serve(-1, "x"),
            wire.Serve(1, "\ud800"),
            wire.Put(1, 1, 1, 0, 0, 2, 0, 0, 0, 0, "", {}, bytes(32_769)),
            wire.Put(1, 1, 1, 0, 0, 2, 0, 0, 0, 0, "", {str(i): "" for i in range(33)}, b""),
            wire.Put(1, 1, 1, 0, 0, 2, 0, 0, 0, 0, "", {"x" * 65: ""}, b""),
            wire.Put(1, 1, 1, 0, 0, 2, 0, 0, 0, 0, "", {"x": "y" * 513}, b""),
            wire.Put(1, 1, 1, 0, 0, 2, 0, 0, 0, 0, "", {"x": 1}, b""),  # type: ignore[dict-item]
            wire.Call(1, "status", bytes(60_001)),
        ]:
            with self.subTest(m), self.assertRaises(ProtocolError):
                wire.encode(m)


class FuzzTest(unittest.TestCase):
    ROUNDS = 20_000

    def test_garbage_is_a_protocol_error(self) -> None:
        seeds = [bytes.fromhex(v["hex"]) for v in load("vectors.json")]
        submit = wire.Submit(0, wire.TELL, wire.Trace(), wire.OWN_SOURCE | 1)
        seeds += [
            b"".join(map(wire.encode, packet))
            for packet in (
                [submit, submit],  # a number in use
                [submit._replace(source=1), submit._replace(source=0)],  # numbers without the bit
                [wire.Serve(1, "m", wire.ENDS_UNASKED), wire.Finish(1), wire.Ended(1), wire.Ended(1)],
                [wire.Submitted(submit.source, 1), wire.Submitted(submit.source, 1)],
                [over(submit.source, wire.OUTCOME_REFUSED, code=11), over(submit.source, wire.OUTCOME_REFUSED)],
            )
        ]
        r = random.Random(1)
        accepted = refused = 0
        for _ in range(self.ROUNDS):
            b = bytearray(r.choice(seeds)[:2000])
            for _ in range(r.randint(1, 4)):
                self.mutate(r, b)
            try:
                decoded = decode_all(bytes(b), r.randint(0, 2))
                accepted += 1
            except ProtocolError:
                refused += 1
                continue
            for m in decoded:  # what was read can be written
                if m is None:
                    continue
                again = bytes(wire.encode(m, self.DESCRIPTORS.get(type(m), 0)))
                n = again[6]
                self.assertEqual(typed(*decode_all(again, n)), typed(m))
        self.assertGreater(min(accepted, refused), self.ROUNDS // 20)

    DESCRIPTORS = {
        wire.Segment: 1, wire.Offer: 1, wire.Publish: 1, wire.Found: 2, wire.Scoreboard: 1,
    }

    def mutate(self, r: random.Random, b: bytearray) -> None:
        if not b:
            return
        at = r.randrange(len(b))
        what = r.randrange(5)
        if what == 0:
            b[at] = r.randrange(256)
        elif what == 1:
            b[at] ^= 1 << r.randrange(8)
        elif what == 2:
            del b[at : at + r.randint(1, 8)]
        elif what == 3:
            b[at:at] = r.randbytes(r.randint(1, 8))
        else:
            b[at : at + 4] = r.choice([b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\0\0"])
        if r.random() < 0.7 and len(b) >= 4:
            b[0:4] = len(b).to_bytes(4, "little")  # so that more than the header is tested


if __name__ == "__main__":
    unittest.main()
