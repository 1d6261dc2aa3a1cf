"""Messages against the vectors of the Go package, and against garbage."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import unittest
from typing import Any

import fakehost  # noqa: F401  (finds the package)

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


def decode_all(packet: bytes, descriptors: int, version: int) -> list[Any]:
    return [m for m, _ in wire.decode(packet, descriptors, version)]


def typed(*messages: Any) -> list[Any]:
    """Messages to compare: the values alone are equal in two kinds that have the same."""
    return [(type(m), m) for m in messages]


#: What clients say that exchange deliveries without the host. This one does not.
LANE_KINDS = range(64, 76)

#: Fields that a version added, by the kind of their message, and what they are before.
LATER_FIELDS: dict[int, tuple[int, dict[str, Any]]] = {
    2: (5, {"tensors": []}),
    11: (5, {"tensors": []}),
    12: (2, {"trace": plain(wire.Trace())}),
    19: (6, {"stages": []}),
    17: (3, {"edge": "", "key": "", "seq": 0}),
    48: (2, {"trace": plain(wire.Trace())}),
}


class VectorTest(unittest.TestCase):
    def test_vectors(self) -> None:
        kinds, older = set(), set()
        for v in load("vectors.json"):
            if v["kind"] in LANE_KINDS:
                continue
            with self.subTest(v["name"]):
                kinds.add(v["kind"])
                packet = bytes.fromhex(v["hex"])
                (m,) = decode_all(packet, v["descriptors"], v["version"])
                self.assertEqual(wire.kind_of(m), v["kind"])
                want = dict(v["fields"])
                since, absent = LATER_FIELDS.get(v["kind"], (1, {}))
                if v["version"] < since:
                    older.add(v["kind"])
                    self.assertFalse(want.keys() & absent.keys())
                    want.update(absent)
                self.assertEqual(plain(m), want)
                self.assertEqual(wire.encode(m, v["version"], v["descriptors"]).hex(), v["hex"])
        self.assertEqual(kinds, set(by_kind))
        self.assertEqual(older, set(LATER_FIELDS))

    def test_the_newest_version_is_spoken(self) -> None:
        versions = {v["version"] for v in load("vectors.json")}
        self.assertEqual((min(versions), max(versions)), (wire.VERSION_MIN, wire.VERSION_MAX))

    def test_kinds_of_a_later_version(self) -> None:
        seen = 0
        for v in load("vectors.json"):
            for version in range(wire.VERSION_MIN, by_kind[v["kind"]].since if v["kind"] in by_kind else 0):
                with self.subTest(v["name"], version=version), self.assertRaisesRegex(ProtocolError, "no message has"):
                    seen += 1
                    decode_all(bytes.fromhex(v["hex"]), v["descriptors"], version)
        self.assertGreater(seen, 20)

    def test_kinds_that_are_not_for_this_client(self) -> None:
        refused = set()
        for v in load("vectors.json"):
            if v["kind"] not in LANE_KINDS:
                continue
            for version in range(wire.VERSION_MIN, wire.VERSION_MAX + 1):
                with self.subTest(v["name"], version=version):
                    refused.add(v["kind"])
                    with self.assertRaisesRegex(ProtocolError, f"no message has the kind {v['kind']} "):
                        decode_all(bytes.fromhex(v["hex"]), v["descriptors"], version)
        self.assertEqual(refused, set(LANE_KINDS))

    def test_fields_are_left_out_below_their_version(self) -> None:
        m = wire.Ended(9, 14, "no audio", "a->b", "chunk-5", 5)
        for version, want in [(1, wire.Ended(9, 14, "no audio")), (2, wire.Ended(9, 14, "no audio")), (3, m)]:
            with self.subTest(version=version):
                self.assertEqual(typed(*decode_all(bytes(wire.encode(m, version)), 0, version)), typed(want))

    def test_malformed(self) -> None:
        for v in load("malformed.json"):
            with self.subTest(v["name"]):
                descriptors = v.get("descriptors", 0)
                with self.assertRaises(ProtocolError):
                    decode_all(bytes.fromhex(v["hex"]), descriptors, v["version"])


class BoundsTest(unittest.TestCase):
    def test_longer_messages_are_of_a_later_version(self) -> None:
        b = wire.encode(wire.Release(7)) + b"more"
        b[0] += 4
        self.assertEqual(typed(*decode_all(bytes(b), 0, 2)), typed(wire.Release(7)))

    def test_several_messages_in_a_packet(self) -> None:
        packet = wire.encode(wire.Release(7)) + wire.encode(wire.Bye()) + wire.encode(wire.End(1))
        self.assertEqual(typed(*decode_all(bytes(packet), 0, 2)), typed(wire.Release(7), wire.Bye(), wire.End(1)))

    def test_descriptors(self) -> None:
        segment = bytes(wire.encode(wire.Segment(1, 2), descriptors=1))
        ((m, n),) = wire.decode(segment, 1)
        self.assertEqual((typed(m), n), (typed(wire.Segment(1, 2)), 1))
        for packet, n in [(segment, 0), (segment, 2), (bytes(wire.encode(wire.Bye())), 1)]:
            with self.assertRaises(ProtocolError):
                decode_all(packet, n, 2)

    def test_senders_cut_texts_between_characters(self) -> None:
        b = wire.encode(wire.Finish(1, 0, 14, "é" * 3000))
        (m,) = decode_all(bytes(b), 0, 2)
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
        r = random.Random(1)
        accepted = refused = 0
        for _ in range(self.ROUNDS):
            b = bytearray(r.choice(seeds)[:2000])
            for _ in range(r.randint(1, 4)):
                self.mutate(r, b)
            for version in range(wire.VERSION_MIN, wire.VERSION_MAX + 1):
                try:
                    decoded = decode_all(bytes(b), r.randint(0, 2), version)
                    accepted += 1
                except ProtocolError:
                    refused += 1
                    continue
                for m in decoded:  # what was read can be written
                    again = bytes(wire.encode(m, version, self.DESCRIPTORS.get(type(m), 0)))
                    n = again[6]
                    self.assertEqual(typed(*decode_all(again, n, version)), typed(m))
        self.assertGreater(min(accepted, refused), self.ROUNDS // 20)

    DESCRIPTORS = {
        wire.Segment: 1, wire.Offer: 1, wire.Publish: 1, wire.Found: 2, wire.Shelf: 1, wire.ShelfAt: 1,
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
