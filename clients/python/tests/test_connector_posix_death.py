"""Stores with names whose ends die, and files of others in their place: what no end may do or leave."""

from __future__ import annotations

import os
import signal
import unittest
from typing import Any

from posixcase import MIB, StoreCase, get, put

from omnibus.connector import Busy, Damaged, Missing, NoRoom, Unavailable
from omnibus.connector.posix import Store, layout
from omnibus.connector.posix.files import File, Files
from omnibus.errors import OmnibusError


class DeathTest(StoreCase):
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


class ForeignTest(StoreCase):
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


if __name__ == "__main__":
    unittest.main()
