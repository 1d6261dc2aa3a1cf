"""Stores with names: the bytes that Go reads too, and what no end may do or leave."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from contextlib import ExitStack
from typing import Any

import fakehost  # noqa: F401  (finds the package)

from omnibus.connector import BadMetadata, Busy, Damaged, Missing, NoRoom, OmnibusConnector, Unavailable
from omnibus.connector.contract import Edge, seconds
from omnibus.connector.encoder import Encoded
from omnibus.connector.posix import Store, layout
from omnibus.connector.posix.files import File, Files, Head
from omnibus.connector.posix.index import Index, OwnIndex
from omnibus.connector.posix.room import Room
from omnibus.errors import OmnibusError

ROOT = os.path.join(os.path.dirname(__file__), *[".."] * 3)
EDGE = Edge("thinker", "talker")
MIB = 1 << 20


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


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = tempfile.mkdtemp(dir="/dev/shm", prefix="omnibus-test-")
        self.addCleanup(os.rmdir, self.dir)  # fails if anything is left
        logging.getLogger("omnibus").disabled = True
        self.addCleanup(setattr, logging.getLogger("omnibus"), "disabled", False)
        self.kids: list[int] = []
        self.addCleanup(self.reap_kids)

    def reap_kids(self) -> None:
        for pid in self.kids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def config(self, **more: Any) -> dict[str, Any]:
        return {"store": "speech", "dir": self.dir, "ring_bytes": MIB, "timeout": 10, **more}

    def store(self, **more: Any) -> Store:
        s = Store(self.config(**more))
        self.addCleanup(s.close)
        return s

    def child(self, do: Any) -> tuple[int, int]:
        """A process that does something, says so, and stays until it is killed: its id, and what it says it on."""
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(heard)
                do()
                os.write(said, b"1")
                signal.pause()
            finally:
                os._exit(1)
        os.close(said)
        self.kids.append(pid)
        return pid, heard

    def done(self, heard: int) -> None:
        said = os.read(heard, 1)
        os.close(heard)
        self.assertEqual(said, b"1", "the other process failed")

    def kill(self, pid: int) -> None:
        self.kids.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def files(self) -> list[str]:
        return sorted(os.listdir(self.dir))


def put(s: Store, key: str, value: bytes, edge: Edge = EDGE) -> dict[str, Any]:
    return s.put(edge, key, Encoded([value]))


def get(s: Store, key: str, metadata: dict[str, Any] | None = None, edge: Edge = EDGE) -> bytes:
    value, size = s.get(edge, key, metadata, bytes)  # type: ignore[arg-type]
    assert isinstance(value, bytes) and size == len(value)
    return value


class StoreTest(Case):
    def test_contract(self) -> None:
        a, b = self.store(), self.store()
        self.assertRaises(Missing, get, b, "k")
        for size in (0, 1, 63, 64, 65, 4096, 300_000):
            value = os.urandom(size)
            metadata = put(a, "k", value)
            self.assertEqual(metadata["store"], "speech")
            self.assertEqual(get(b, "k", metadata if size % 2 else None), value)
            self.assertRaises(Missing, get, b, "k", metadata)
        first, second = put(a, "k", b"1"), put(a, "k", b"2")
        self.assertRaises(Missing, get, b, "k", first)
        self.assertRaises(Missing, get, b, "k", None, Edge("talker", "thinker"))
        self.assertEqual(get(a, "k", second), b"2")  # by its own creator
        self.assertRaises(Missing, get, b, "k")
        put(a, "r_thinker_0", b"of r"), put(a, "s", b"not of r")
        b.cleanup("s")  # it is not its own
        a.cleanup("r")
        self.assertRaises(Missing, get, b, "r_thinker_0")
        self.assertEqual(get(b, "s"), b"not of r")
        self.assertRaises(BadMetadata, get, b, "k", {"store": "other", "entry": "1"})
        self.assertRaises(BadMetadata, get, b, "k", {"store": "speech", "entry": "x"})
        put(a, "left", b"left")
        self.assertEqual(a.health(), {"status": "healthy", "pending": 1})
        a.close()
        self.assertEqual(self.files(), [])
        self.assertRaises(Missing, get, b, "left")
        self.assertRaises(OmnibusError, get, a, "left")
        self.assertEqual(a.health()["status"], "closed")

    def test_connector(self) -> None:
        with OmnibusConnector(self.config()) as a, OmnibusConnector(self.config()) as b:
            ok, size, metadata = a.put("0", "1", "k", {"x": [1, 2, 3]})
            self.assertTrue(ok)
            self.assertEqual(b.get("0", "1", "k", metadata), ({"x": [1, 2, 3]}, size))
            self.assertIsNone(b.get("0", "1", "k", metadata))
            self.assertEqual(b.put("0", "1", "k", 1), (False, 0, None))  # the other end puts
            self.assertEqual(b.health()["error_kinds"], {"Unavailable": 1})

    def test_a_process_that_closes_nothing_ends(self) -> None:
        """And leaves no file, although a thread of its connector sweeps what lies."""
        code = (
            "import json, sys; from omnibus.connector import OmnibusConnector\n"
            "c = OmnibusConnector(json.loads(sys.argv[1])); print(c.put('0', '1', 'k', 1)[0])"
        )
        env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients", "python", "src")}
        for mode in ("ring", "segment"):
            with tempfile.TemporaryDirectory(prefix="omnibus-test-", dir="/dev/shm") as folder:
                config = {"mode": mode, "dir": folder, "ring_bytes": MIB, "store": "exits" if mode == "ring" else None}
                out = subprocess.run(
                    [sys.executable, "-c", code, json.dumps(config)], env=env, timeout=60, check=True, capture_output=True
                ).stdout
                self.assertEqual((out, os.listdir(folder)), (b"True\n", []))

    def test_settings(self) -> None:
        for bad in (
            {"store": ""}, {"store": "a/b"}, {"store": ".."}, {"store": "a.b"}, {"store": "x" * 101}, {"store": 7},
            {"readers": 0}, {"readers": 64}, {"ring_bytes": 65_535}, {"ttl": "soon"}, {"timeout": -1}, {"timeout": 0},
        ):  # fmt: skip
            with self.subTest(bad):
                self.assertRaises(ValueError, Store, self.config(**bad))
        self.assertRaises(ValueError, OmnibusConnector, self.config(mode="segment"))
        self.assertRaises(Unavailable, Store, self.config(dir="/nowhere"))

    def test_durations(self) -> None:
        for text, want in ((3, 3.0), (0.5, 0.5), ("30s", 30.0), ("1m30s", 90.0), ("250ms", 0.25), ("0", 0.0),
                           (".5s", 0.5), ("+1m.5s", 60.5), ("5.ms", 0.005), ("2\u00b5s", 2e-6), ("2\u03bcs", 2e-6)):  # fmt: skip
            self.assertEqual(seconds(text), want)
        for bad in (-1, "-1s", "x", "1d", ".s", "1.2.3s", "\u0663s", float("nan"), float("inf"), None):
            self.assertRaises((ValueError, TypeError), seconds, bad)

    def test_full(self) -> None:
        a, b = self.store(timeout=0.05), self.store()
        half = bytes(MIB // 2 - 100)
        put(a, "a", half), put(a, "b", half)
        self.assertRaisesRegex(NoRoom, "2 values that nobody has got", put, a, "c", half)
        self.assertRaisesRegex(NoRoom, "raise ring_bytes to", put, a, "c", bytes(MIB // 2))
        get(b, "a")
        put(a, "c", half)  # in the room of what was got

    def test_full_of_small(self) -> None:
        a = self.store(timeout=0.001, ring_bytes=65_536)
        for n in range(64):
            put(a, str(n), b"x")
        self.assertRaises(NoRoom, put, a, "one more", b"x")
        put_again = threading.Thread(target=lambda: put(a, "one more", b"x"))
        a.cleanup("7")
        put_again.start()
        put_again.join()
        self.assertEqual(get(a, "one more"), b"x")

    def test_replaced_when_full(self) -> None:
        a, b = self.store(), self.store()
        for n in range(2000):  # more than there are slots
            put(a, "same", b"%d" % n)
        self.assertEqual(get(b, "same"), b"1999")

    def test_ttl(self) -> None:
        logging.getLogger("omnibus").disabled = False
        a, b = self.store(ttl=0.05), self.store()
        put(a, "k", b"value")
        with self.assertLogs("omnibus", "WARNING") as log:
            while a.health()["pending"]:
                time.sleep(0.001)
            a.close()
        self.assertIn("thinker -> talker, key k", log.output[0])
        self.assertRaises(Missing, get, b, "k")

    def test_deadlines(self) -> None:
        b = self.store()
        for deadline in (float("-inf"), 0.0, time.monotonic(), float("nan")):
            self.assertRaises(Missing, b.wait, EDGE, "k", None, bytes, deadline)
        a = self.store()
        for deadline in (1e18, float("inf")):
            late = threading.Timer(0.05, put, (a, "k", b"late"))
            late.start()
            self.assertEqual(b.wait(EDGE, "k", None, bytes, deadline)[0], b"late")  # type: ignore[arg-type]
            late.join()

    def test_wait(self) -> None:
        b, got = self.store(), []
        begun = threading.Event()

        def wait() -> None:
            begun.set()
            got.append(b.wait(EDGE, "k", None, bytes, time.monotonic() + 30)[0])  # type: ignore[arg-type]

        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait()
        a = self.store()
        put(a, "other", b"")
        put(a, "k", b"value")
        thread.join()
        self.assertEqual(got, [b"value"])
        self.assertRaises(Missing, b.wait, EDGE, "k", None, bytes, time.monotonic() + 0.01)
        # What has a number was there: it is not waited for.
        self.assertRaises(Missing, b.wait, EDGE, "k", {"store": "speech", "entry": "1"}, bytes, time.monotonic() + 99)

    def test_abandoned(self) -> None:
        b, ended = self.store(), []

        def wait() -> None:
            try:
                b.wait(EDGE, "k", None, bytes, time.monotonic() + 30)  # type: ignore[arg-type]
            except Missing as e:
                ended.append(e)

        thread = threading.Thread(target=wait)
        thread.start()
        while thread.is_alive():
            b.abandon("k")
            thread.join(0.001)
        self.assertEqual(len(ended), 1)

    def test_places(self) -> None:
        a, b, c = self.store(), self.store(), self.store()
        put(a, "k", b"1")
        self.assertEqual(get(b, "k"), b"1")
        self.assertRaisesRegex(Busy, f"by the processes {os.getpid()}", get, c, "k")
        self.assertRaisesRegex(Busy, f"process {os.getpid()} has a store of this name", put, c, "k", b"2")
        b.close()
        put(a, "k", b"3")
        self.assertEqual(get(c, "k"), b"3")

    def test_many_threads(self) -> None:
        a, readers = self.store(readers=3), [self.store() for _ in range(3)]
        put(a, "begin", b"")
        values = {f"{n}": os.urandom(random.Random(n).randrange(20_000)) for n in range(200)}
        got: list[tuple[str, bytes]] = []

        def take(s: Store) -> None:
            for key in values:
                try:
                    got.append((key, s.wait(EDGE, key, None, bytes, time.monotonic() + 0.002)[0]))  # type: ignore[arg-type]
                except Missing:
                    pass

        threads = [threading.Thread(target=take, args=(s,)) for s in readers for _ in range(2)]
        for t in threads:
            t.start()
        for key, value in values.items():
            put(a, key, value)
        for t in threads:
            t.join()
        self.assertEqual(len(got), len({key for key, _ in got}), "a value was got twice")
        for key, value in got:
            self.assertEqual(value, values[key])
        for key in values.keys() - {key for key, _ in got}:
            self.assertEqual(get(readers[0], key), values[key])


class DeathTest(Case):
    def test_creator(self) -> None:
        def create() -> None:
            s = Store(self.config())
            put(s, "k", b"1")
            put(s, "left", b"2")
            self.alive = s

        pid, heard = self.child(create)
        self.done(heard)
        b = self.store()
        self.assertEqual(get(b, "k"), b"1")
        self.assertRaisesRegex(Unavailable, f"process {pid} alone puts", put, b, "k", b"")
        self.kill(pid)
        self.assertIn("creator is gone", b.health()["status"])
        self.assertRaises(Missing, get, b, "left")
        self.assertIn(f"omnibus-{os.geteuid()}-speech.arena", self.files())
        a = self.store()
        put(a, "k", b"3")
        self.assertRaises(Missing, get, b, "left")
        self.assertEqual(get(b, "k"), b"3")

    def test_reader_with_a_pin(self) -> None:
        a = self.store(timeout=0.05)
        half = bytes(MIB // 2 - 100)
        put(a, "a", half), put(a, "b", half)

        def take() -> None:
            s = self.alive = Store(self.config())
            # It dies at the step at which it holds a value that it has marked.
            reader = s._side()
            reader._unpin = lambda slot: None  # type: ignore[method-assign, union-attr]
            get(s, "a")

        pid, heard = self.child(take)
        self.done(heard)
        self.assertRaisesRegex(NoRoom, "1 that are being read", put, a, "c", half)
        self.kill(pid)
        put(a, "c", half)
        b = self.store()  # in the place of the dead
        self.assertRaises(Missing, get, b, "a")
        self.assertEqual(len(get(b, "b")), len(half))

    def mortal(self, do: Any, step: int) -> bool:
        """Whether a process survives something in which it dies before the write of that number."""
        pid = os.fork()
        if pid == 0:
            try:
                left, real = [step], File.write_pieces

                def write(f: File, pieces: Any, at: int) -> None:
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1
                    real(f, pieces, at)

                File.write_pieces = write  # type: ignore[method-assign]
                do()
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(pid, 0)[1]
        self.assertIn(status, (0, signal.SIGKILL), "the other process failed")
        return status == 0

    def test_creator_at_any_step(self) -> None:
        """A creator that dies has put a value or has not, and the next one begins with nothing."""
        b = self.store()
        old, new = b"o" * 1000, b"n" * 2000

        def create() -> None:
            s = Store(self.config())
            put(s, "k", old)
            put(s, "k", new)
            put(s, "other", old)
            put(s, "other", new)
            s.cleanup("other")
            os._exit(0)  # and leaves its files

        step, survived = 0, False
        while not survived:
            survived = self.mortal(create, step)
            step += 1
            with self.subTest(step):
                self.assertIsNone(get_or_none(b, "k"))  # its creator is dead
                a = self.store()
                put(a, "k", b"next")
                self.assertEqual(get(b, "k"), b"next")
                a.close()
        self.assertGreater(step, 30)
        self.assertEqual(self.files(), [])

    def test_reader_at_any_step(self) -> None:
        """A reader that dies has got a value or has not, and what it had pinned is free again."""
        half = os.urandom(MIB // 2 - 100)
        got = []
        for step in range(100):
            a = self.store(timeout=0.5)
            put(a, "k", half)

            def take() -> None:
                if get(Store(self.config()), "k") != half:
                    os._exit(1)

            survived = self.mortal(take, step)
            b = self.store()
            found = get_or_none(b, "k")
            self.assertIn(found, (None, half))
            got.append(found is None)
            put(a, "a", half), put(a, "b", half)  # there is room for both
            b.close()
            a.close()
            if survived:
                break
        self.assertEqual((got[0], got[-1]), (False, True))
        self.assertEqual(got, sorted(got), "it was got, and was not any more")
        self.assertGreater(len(got), 4)

    def test_forked(self) -> None:
        a, b = self.store(readers=2), self.store()
        put(a, "k", b"1")
        self.assertEqual(get(b, "k"), b"1")

        def use() -> None:
            if get_or_none(b, "forked") != b"2":  # it has a place of its own
                raise AssertionError("not found")
            try:
                put(a, "k", b"")
            except Busy:
                return
            raise AssertionError("a child is not its parent")

        put(a, "forked", b"2")
        _, heard = self.child(use)
        self.done(heard)
        # The child keeps none of the parent's locks: the store can be left and made again.
        b.close()
        put(a, "k", b"4")
        d = self.store()
        self.assertEqual(get(d, "k"), b"4")
        a.close()
        self.assertRaises(Missing, get, d, "k")
        c = self.store()
        put(c, "k", b"3")
        self.assertEqual(get(d, "k"), b"3")


def get_or_none(s: Store, key: str) -> bytes | None:
    try:
        return get(s, key)
    except Missing:
        return None


class ForeignTest(Case):
    def path(self, part: str = "") -> str:
        return os.path.join(self.dir, f"omnibus-{os.geteuid()}-speech{part}")

    def test_first_file(self) -> None:
        for what, make in {
            "a link": lambda p: os.symlink("/etc/passwd", p),
            "a pipe": os.mkfifo,
            "a directory": os.mkdir,
            "open to others": lambda p: os.close(os.open(p, os.O_CREAT | os.O_RDWR, 0o666)) or os.chmod(p, 0o644),
        }.items():
            with self.subTest(what):
                make(self.path())
                s = self.store()
                self.assertRaises(Unavailable, get, s, "k")
                self.assertRaises(Unavailable, put, s, "k", b"")
                (os.rmdir if what == "a directory" else os.unlink)(self.path())

    def test_garbage(self) -> None:
        """What is nobody's record is no store, even where something has the creator's lock."""
        for garbage in (b"", b"\0" * 72, b"OMNIBUSN" + b"\1\0\0\0" + b"\xff" * 60, os.urandom(72)):
            files = Files(self.dir, "speech")
            h = files._new_head()
            os.ftruncate(h.fd, 0)
            h.write(garbage, 0)
            s = self.store()
            self.assertRaises(Missing, get, s, "k")
            h.write(b"OMNIBUSN" + b"\2\0\0\0", 0)
            self.assertRaisesRegex(Unavailable, "same release", get, s, "k")
            os.unlink(self.path())
            h.close()
            files.close()

    def test_parts(self) -> None:
        """Files of another size, with holes, or of another store are refused before anything is read there."""

        def shorten(f: File) -> None:
            os.ftruncate(f.fd, 4096)

        def hollow(f: File) -> None:
            size = os.fstat(f.fd).st_size
            os.ftruncate(f.fd, 0)
            os.ftruncate(f.fd, size)

        def spoil(f: File) -> None:
            f.write(os.urandom(8), 16)  # the identity

        for part, spoiler in [
            (".arena", shorten), (".arena", hollow), (".directory", shorten), (".directory", spoil),
            (".ledger-1", spoil), (".ledger-1", shorten), (".index", shorten), (".marks-1", hollow),
        ]:  # fmt: skip
            with self.subTest(part=part, how=spoiler.__name__):
                a, b = self.store(), self.store()
                put(a, "k", b"value")
                f = File(os.open(self.path(part), os.O_RDWR), part)
                spoiler(f)
                f.close()
                self.assertRaises(Damaged, get, b, "k")
                a.close()

    def test_shortened_while_open(self) -> None:
        """Nothing is mapped: what somebody shortens is an error, and no signal."""
        for part in (".arena", ".directory", ".index", ".marks-1"):
            with self.subTest(part):
                a, b = self.store(), self.store()
                put(a, "first", b"value")
                get(b, "first")
                put(a, "k", bytes(100_000))
                os.truncate(self.path(part), 0)
                self.assertRaises(Damaged, get, b, "k")
                self.assertRaises(Damaged, get, a, "k") if part == ".arena" else None
                for s in (b, a):
                    try:
                        s.close()
                    except OmnibusError:
                        pass

    def test_lines_of_garbage(self) -> None:
        """A line that leads out of the arena leads nowhere."""
        a, b = self.store(), self.store()
        put(a, "k", b"value")
        f = File(os.open(self.path(".directory"), os.O_RDWR), "directory")
        line = layout.Line.parse(f.read(64, layout.line_at(0)))
        for offset, size in ((1 << 63, 64), (MIB, 1), (MIB - 1, 2), (0, MIB + 1), ((1 << 64) - 1, 64), (0, 3)):
            f.write(line._replace(offset=offset, size=size).encode(), layout.line_at(0))
            self.assertRaises(Missing, get, b, "k")
        f.write(line.encode(), layout.line_at(0))
        f.close()
        self.assertEqual(get(b, "k"), b"value")

    def test_others_files_stay(self) -> None:
        open(self.path() + "x", "w").close()
        a = self.store()
        put(a, "k", b"")
        a.close()
        os.unlink(self.path() + "x")


class Steps(File):
    """A file that calls a function between any two bytes that may be seen apart."""

    __slots__ = ("between",)

    def write(self, data: Any, at: int) -> None:
        order = list(range(len(data)))
        random.shuffle(order)
        for i in order:
            super().write(data[i : i + 1], at + i)
            self.between()


class IndexTest(Case):
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


class RoomTest(Case):
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


class HeadTest(Case):
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
