"""The books of stores with names: the bytes that Go reads too, and what others may see of them at any moment."""

from __future__ import annotations

import json
import os
import random
import unittest
from contextlib import ExitStack
from typing import Any

from posixcase import StoreCase

from omnibus.connector import Damaged, Unavailable
from omnibus.connector.contract import Edge
from omnibus.connector.posix import layout
from omnibus.connector.posix.files import File, Files, Head
from omnibus.connector.posix.index import Index, OwnIndex
from omnibus.connector.posix.room import Room

ROOT = os.path.join(os.path.dirname(__file__), *[".."] * 3)


def vectors(package: str) -> Any:
    with open(os.path.join(ROOT, *package.split("/"), "testdata", "vectors.json"), encoding="utf-8") as f:
        return json.load(f)


class LayoutTest(unittest.TestCase):
    def test_records(self) -> None:
        for v in vectors("connector/posix")["Records"]:
            r = layout.Record(v["Readers"], int(v["PID"]), int(v["Store"]), int(v["Base"]), v["Slots"])
            self.assertEqual(r.encode().hex(), v["Bytes"])
            self.assertEqual(layout.Record.parse(bytes.fromhex(v["Bytes"])), r)
            for generation, number in v["Numbers"].items():
                self.assertEqual(r.number(int(generation)), int(number))
            for at in range(layout.RECORD_BYTES):
                spoilt = bytearray.fromhex(v["Bytes"])
                spoilt[at] ^= 0x10
                if 8 <= at < 12:
                    self.assertRaises(Unavailable, layout.Record.parse, bytes(spoilt))
                else:
                    self.assertIsNone(layout.Record.parse(bytes(spoilt)), at)

    def test_addresses(self) -> None:
        for v in vectors("connector/posix")["Addresses"]:
            edge = Edge(v["From"], v["To"])
            self.assertEqual(layout.hash_of(edge, v["Key"]), int(v["Hash"]))
            self.assertEqual(layout.label_of(edge, v["Key"]).hex(), v["Label"])

    def test_cells(self) -> None:
        for v in vectors("connector/posix")["Cells"]:
            self.assertEqual(layout.index_cells(v["Slots"]), v["Cells"])
            self.assertEqual(layout.cell_of(int(v["Hash"]), v["Slot"]), int(v["Cell"]))

    def test_superblocks(self) -> None:
        for v in vectors("shmstore")["Superblocks"]:
            kind, b = v["Kind"].encode(), bytes.fromhex(v["Bytes"])
            sb = layout.Superblock(
                v["Slots"], int(v["Store"]), int(v["Arena"]), int(v["MaxBytes"]), v["Codec"], v["Reader"]
            )
            self.assertEqual(sb.encode(kind), b)
            self.assertEqual(layout.Superblock.parse(kind, b), sb)
            for at, what in ((0, Damaged), (7, Damaged), (8, Unavailable), (15, Damaged), (30, Damaged), (60, Damaged)):
                spoilt = bytearray(b)
                spoilt[at] ^= 0x80
                self.assertRaises(what, layout.Superblock.parse, kind, bytes(spoilt))
            self.assertRaises(Damaged, layout.Superblock.parse, kind, b[:-1])

    def test_books(self) -> None:
        v = vectors("shmstore")
        states = {"free": layout.FREE, "live": layout.LIVE, "closing": layout.CLOSING}
        for ln in v["Lines"]:
            word = layout.word_of(int(ln["Generation"]), states[ln["State"]])
            line = layout.Line(word, int(ln["Offset"]), int(ln["Size"]), ln["Codec"])
            b = bytes.fromhex(ln["Bytes"])
            self.assertEqual(line.encode(), b[: len(line.encode())])
            self.assertEqual(layout.Line.parse(b), line)
            self.assertEqual(line.present, ln["State"] != "free")
            # The state is in the first byte, which is what is written alone.
            self.assertEqual(b[0] & 3, states[ln["State"]])
        for s in v["Sizes"]:
            self.assertEqual(layout.directory_bytes(s["Slots"]), s["Directory"])
            self.assertEqual(layout.ledger_bytes(s["Slots"]), s["Ledger"])
        self.assertEqual(layout.WANT_ROOM_AT, v["WantRoomAt"])
        self.assertEqual(bytes.fromhex(v["Pinned"]), b"\3" + bytes(7))


class Steps(File):
    """A file that calls a function between any two bytes that may be seen apart."""

    __slots__ = ("between",)

    def write(self, data: Any, at: int) -> None:
        order = list(range(len(data)))
        random.shuffle(order)
        for i in order:
            super().write(data[i : i + 1], at + i)
            self.between()


class IndexTest(StoreCase):
    def test_model(self) -> None:
        """Whoever looks at any moment finds all that is there before and after."""
        slots = 600
        some = [0, 1, 253, 254, 255, 509, 510, 511]  # so that bytes of two are those of a third
        path = os.path.join(self.dir, "index")
        f = Steps(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "index")
        os.ftruncate(f.fd, layout.index_cells(slots) * 8)
        os.unlink(path)
        rng = random.Random(1)
        lying: dict[int, tuple[int, int]] = {}  # hash to slot and cell
        changing: set[int] = set()
        seen = Index(f, slots)

        def look() -> None:
            for h, (slot, _) in lying.items():
                found = [c.slot for c in seen.find(h)]
                if h in changing:  # the old, the new, or none that there is: then he looks again
                    self.assertTrue(any(s == slot or s == changed[0] or not 0 <= s < slots for s in found), found)
                else:
                    self.assertIn(slot, found)

        f.between = look
        own = OwnIndex(f, slots)
        changed = [0]
        # Hashes that collide, and slots whose lowest byte is that of cells that are not in use.
        hashes = [tag << 32 | at for tag in (0, 1, 0xFFFFFFFF) for at in (0, 1, layout.index_cells(slots) - 1)]
        for _ in range(1500):
            h = rng.choice(hashes)
            free = [s for s in some if s not in {slot for slot, _ in lying.values()}]
            if h not in lying and free:
                slot = rng.choice(free)
                at = own.add(h, slot)
                lying[h] = slot, at
            elif h in lying and free and rng.random() < 0.5:
                changing.add(h)
                changed[0] = rng.choice(free)
                own.replace(lying[h][1], h, changed[0])
                changing.clear()
                lying[h] = changed[0], lying[h][1]
            elif h in lying:
                _, at = lying.pop(h)
                own.remove(at)
            look()
        f.close()


class RoomTest(StoreCase):
    def test_closing(self) -> None:
        """What is pinned stays, whatever is asked for; a reader that comes while it is looked at is not overlooked."""
        with ExitStack() as opened:
            files = Files(self.dir, "speech")
            opened.callback(files.close)
            room = Room(files, opened, 65_536, 2)
            opened.callback(files.remove)
            ledger = File(os.open(os.path.join(self.dir, files.name("ledger-2")), os.O_RDWR), "ledger")
            directory = File(os.open(os.path.join(self.dir, files.name("directory")), os.O_RDWR), "directory")
            opened.callback(ledger.close), opened.callback(directory.close)

            def line(slot: int) -> layout.Line:
                return layout.Line.parse(directory.read(64, layout.line_at(slot)))

            objects = []
            for size in (1, 64, 30_000):
                placed = room.place(size)
                assert placed is not None
                self.assertFalse(line(placed.slot).present)
                objects.append(room.commit(placed))
                self.assertTrue(line(placed.slot).present)
            ledger.write(b"\1", layout.entry_at(1))
            # A pin that is raised between the two looks, as a reader's may be that has seen it live.
            real, looks = room._pinned, []

            def look(leaving: Any) -> set[int]:
                for o in leaving:
                    looks.append(line(o.placed.slot).word & 3)
                ledger.write(b"\1", layout.entry_at(2))
                return real(leaving)

            room._pinned = look  # type: ignore[method-assign]
            room.leave(objects)
            self.assertEqual(looks, [layout.CLOSING] * 3)
            self.assertEqual([line(slot).present for slot in range(3)], [False, True, True])
            self.assertEqual(line(0).word, 0)
            self.assertEqual(room.leaving, 2)
            room._pinned = real  # type: ignore[method-assign]
            room.forget(2)
            room.settle()
            self.assertEqual([line(slot).word for slot in range(3)], [0, 0, 0])
            self.assertEqual(room.place(65_000 // 64 * 64).offset, 0)  # type: ignore[union-attr]


class HeadTest(StoreCase):
    def test_locks(self) -> None:
        """They are an open file's, so that two ends of one process have each their own."""
        files = Files(self.dir, "speech")
        mine = files.claim()
        theirs = files.open_head()
        self.assertTrue(theirs.held(0) and not theirs.try_lock(0) and not mine.held(0))
        self.assertTrue(theirs.try_lock(7) and mine.held(7))
        theirs.unlock(7)
        self.assertFalse(mine.held(7))
        self.assertIsInstance(theirs, Head)
        mine.close()
        self.assertTrue(theirs.try_lock(0))
        theirs.close()
        files.remove_head()
        files.close()


if __name__ == "__main__":
    unittest.main()
