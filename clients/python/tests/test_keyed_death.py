"""Values under keys, between processes that are killed."""

from __future__ import annotations

import os
import signal
import tempfile
import unittest
from typing import Any

from keyedpeer import Peer
from test_keyed import KIB, wait_until

from omnibus.keyed import Corrupt, Full, Handle, KeyedReader, KeyedStore, OwnerGone


class DeathCase(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "store.sock")

    def peer(self, role: str, **options: Any) -> Peer:
        p = Peer(role, self.path, **options)
        self.addCleanup(p.close)
        return p


class ReaderTest(DeathCase):
    def setUp(self) -> None:
        super().setUp()
        self.store = KeyedStore.create(4 * KIB, max_object_bytes=4 * KIB)
        self.addCleanup(self.store.close)
        self.store.listen(self.path)

    def readers(self, n: int) -> None:
        wait_until(lambda: self.store.stats().readers == n)

    def test_a_reader_that_is_killed_while_it_reads(self) -> None:
        doomed, other = self.peer("reader"), self.peer("reader")
        self.readers(2)
        h, owed = self.store.put("h", bytes(KIB)), self.store.put("owed", bytes(KIB))
        self.assertEqual(doomed("hold", *h), 1)
        self.assertEqual([other("get", *x) for x in (h, owed)], [[KIB, 0]] * 2)
        with self.assertRaisesRegex(Full, rf"process {doomed.first}\) keeps 2 values"):
            self.store.put("more", bytes(3 * KIB))
        doomed.kill()
        self.readers(1)
        more = self.store.put("more", bytes([1]) * 3 * KIB)
        self.assertEqual(other("get", *more), [3 * KIB, 1])

    def test_a_reader_that_is_killed_and_leaves_a_child(self) -> None:
        doomed = self.peer("reader")
        self.readers(1)
        child = doomed("fork")
        try:
            doomed.process.kill()
            doomed.process.wait()
            self.readers(0)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_reader_that_keeps_its_views(self) -> None:
        p = self.peer("reader")
        self.readers(1)
        self.assertEqual(p("hold", *self.store.put("key", bytes(3 * KIB))), 1)
        self.store.delete("key")
        with self.assertRaisesRegex(Full, rf"reader 1 \(process {p.first}\) keeps 1 values with {3 * KIB} bytes"):
            self.store.put("key", bytes(3 * KIB))
        p("let_go")
        self.store.put("key", bytes(3 * KIB))


class WriterTest(DeathCase):
    def test_a_writer_that_is_killed(self) -> None:
        writer = self.peer("writer", arena_bytes=64 * KIB)
        with KeyedReader.dial(self.path) as r:
            wait_until(lambda: writer("readers") == 1)
            held, owed = (Handle(*writer("put", key, KIB, i)) for i, key in enumerate(("held", "owed"), 1))
            with r.view(held) as view:
                writer.kill()
                wait_until(lambda: bool(r._ended))
                self.assertEqual(set(view), {1})
                with self.assertRaisesRegex(OwnerGone, "the writer of the store has ended"):
                    r.get(owed)
            again = self.peer("writer", arena_bytes=64 * KIB)
            with KeyedReader.dial(self.path) as new:
                wait_until(lambda: again("readers") == 1)
                with self.assertRaisesRegex(Corrupt, "is of another store"):
                    new.get(owed)
                self.assertEqual(new.get(Handle(*again("put", "held", KIB, 3))), bytes([3]) * KIB)

    def test_a_writer_that_is_killed_and_leaves_a_child(self) -> None:
        writer = self.peer("writer", arena_bytes=64 * KIB)
        with KeyedReader.dial(self.path) as r:
            wait_until(lambda: writer("readers") == 1)
            child = writer("fork")
            try:
                writer.process.kill()
                writer.process.wait()
                wait_until(lambda: bool(r._ended))
                again = self.peer("writer", arena_bytes=64 * KIB)
                self.assertIsInstance(again.first, int)
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)

    def test_a_writer_that_closes(self) -> None:
        writer = self.peer("writer", arena_bytes=64 * KIB)
        reader = self.peer("reader")
        wait_until(lambda: writer("readers") == 1)
        h = writer("put", "key", KIB, 1)
        self.assertEqual(reader("hold", *h), 1)
        writer("close")
        wait_until(lambda: "OwnerGone" in str(reader("get", *h)))
        self.assertEqual(reader("read"), [KIB, 1])


if __name__ == "__main__":
    unittest.main()
