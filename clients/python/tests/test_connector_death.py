"""The connector over /dev/shm when a process dies or forks: journals and their sweep."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
import unittest
from typing import Any
from unittest import mock

from segmentcase import VALUE, SegmentCase

from omnibus.connector import OmnibusConnector, encode, shm_files, journal, segment
from omnibus.connector.shm_files import Directory, Lock
from omnibus.connector.journal import Record, lock_name
from omnibus.connector.segment import Segments


class JournalTest(SegmentCase):
    def left_behind(self, *keys: str) -> list[bytes]:
        """The records of values that a dead process has put."""
        c = self.connector(ttl=0)
        records = []
        for key in keys:
            c.put("0", "1", key, VALUE)
            f = Directory(self.dir)
            segment, lock = f.lookup(key), f.lookup(lock_name(key))
            assert segment is not None and lock is not None
            records.append(Record("p", key, segment.identity, lock.identity).encode())
            f.close()
        assert isinstance(c._transport, Segments)
        c._transport._puts.clear()
        c.close()
        return records

    def journal(self, records: dict[int, bytes]) -> None:
        home = self.path(journal.journals_name())
        os.makedirs(home, 0o700, exist_ok=True)
        with open(os.path.join(home, "1-1"), "wb") as f:
            for slot, record in records.items():
                f.seek(slot * journal.SLOT_BYTES)
                f.write(record)

    def test_journals_of_any_length(self) -> None:
        first, last = self.left_behind("first", "last")
        self.journal({0: first, 70_000: last})
        self.connector().close()
        self.assertEqual(os.listdir(self.dir), [])

    def test_notes_of_the_go_package(self) -> None:
        """A lasting value is removed at its expiry, and its note after the get."""
        records = dict(zip("ab", self.left_behind("a", "b"), strict=True))
        records["gone"] = b'p 1 2 3 4 "gone"\n'
        soon = time.time_ns() + 3600 * 10**9
        until = {"a": 0, "b": soon, "gone": 0}

        def notes() -> list[str]:
            return sorted(n for n in os.listdir(self.path(journal.journals_name())) if n.startswith("lasting-"))

        def write() -> None:
            self.journal({})
            for key, record in records.items():
                with open(self.path(f"{journal.journals_name()}/lasting-{key}"), "wb") as f:
                    f.write(b'l %d "%s" "a request"\n' % (until[key], key.encode()) + record)

        write()
        c = self.connector()
        self.assertEqual(notes(), ["lasting-a", "lasting-b"])
        self.assertEqual(c.get("0", "1", "a"), (VALUE, len(bytes(encode(VALUE)))))
        c.close()
        self.assertEqual(notes(), ["lasting-b"])
        until["b"] = 1
        write()
        with open(self.path(f"{journal.journals_name()}/lasting-b"), "rb") as living:
            fcntl.flock(living, fcntl.LOCK_EX)  # which is just putting it
            self.connector().close()
        self.assertEqual(self.left(), ["b", lock_name("b")])
        self.connector().close()
        self.assertEqual(os.listdir(self.dir), [])

    def test_forged_notes_are_removed(self) -> None:
        """A connector opens with any content of a journal, and removes the journal."""
        (record,) = self.left_behind("a")
        for note in (b"", b"\n", b"l\n", b"l " + b"9" * 5000 + b' "a" "r"\n' + record, b'l -1 "a" "r"\n' + record):
            self.journal({})
            with open(self.path(f"{journal.journals_name()}/lasting-1"), "wb") as f:
                f.write(note)
            self.connector()
            self.assertFalse(os.path.exists(self.path(f"{journal.journals_name()}/lasting-1")), note[:20])

    def test_closing_does_not_depend_on_notes(self) -> None:
        """A process without a free descriptor still closes its journal."""
        c = self.connector()
        with mock.patch.object(journal.os, "listdir", side_effect=OSError(24, "too many open files")):
            c.close()
        self.assertEqual(c.health()["errors"], 0)
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_locked_segment_does_not_block_the_sweep(self) -> None:
        first, last = self.left_behind("first", "last")
        self.journal({0: first, 1: last})
        lock = Lock.open(Directory(self.dir), lock_name("first"))
        assert lock is not None
        c = self.connector()
        self.assertEqual(self.left(), ["first", lock_name("first")])
        lock.release()
        c.close()
        self.assertEqual(os.listdir(self.dir), [])

    def test_a_briefly_locked_segment_is_swept(self) -> None:
        """The value is removed as soon as its lock is released."""
        (value,) = self.left_behind("value")
        self.journal({0: value})
        lock = Lock.open(Directory(self.dir), lock_name("value"))
        assert lock is not None
        with mock.patch.object(journal.Backoff, "sleep", lambda nap: lock.release() or True):
            self.connector()
        self.assertEqual(self.left(), [])


class DeathTest(SegmentCase):
    def dies(self, what: str, generation: int, step: int) -> bool:
        """Run operations in a process that dies at the n-th externally visible step. False: there are fewer steps."""
        child = os.fork()
        if child == 0:
            try:
                self.do(what, generation, step)
            finally:
                os._exit(7)
        status = os.waitpid(child, 0)[1]
        self.assertIn(status, (7 << 8, signal.SIGKILL))
        return status == signal.SIGKILL

    def do(self, what: str, generation: int, left: int) -> None:
        c = OmnibusConnector({"mode": "segment", "dir": self.dir, "generation": generation, "shm_threshold_bytes": 0})

        def killing(f: Any) -> Any:
            def step(*args: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return f(*args)

            return step

        steps: tuple[tuple[Any, tuple[str, ...]], ...] = (
            (shm_files.Directory, ("create", "link", "unlink")), (journal.Journal, ("add", "clear_slot", "close")),
            (shm_files, ("write_all",)),
        )  # fmt: skip
        for where, names in steps:
            for name in names:
                setattr(where, name, killing(getattr(where, name)))
        for operation in what.split():
            if operation == "put":
                c.put("0", "1", "k", VALUE)
            elif operation == "get":
                c.get("0", "1", "k")
            elif operation == "cleanup":
                c.cleanup("k")
        c.close()

    def test_files_of_a_dead_process_are_swept(self) -> None:
        for what, generation in (("put put", 2), ("put", 1), ("put get", 2), ("put get put", 2), ("put get put", 1), ("put cleanup", 2)):
            step = 1
            while self.dies(what, generation, step):
                with self.subTest(what=what, step=step):
                    self.connector().close()
                    self.assertEqual(os.listdir(self.dir), [])
                step += 1
            self.assertGreater(step, 5, what)

    def test_a_dead_consumer(self) -> None:
        a = self.connector()
        step, more = 1, True
        while more:
            a.put("0", "1", "k", VALUE)
            more = self.dies("get", 2, step)
            step += 1
            b = self.connector()  # sweeps behind the dead, and leaves what the living have put
            found = b.get("0", "1", "k")
            self.assertIn(found and found[0], (None, VALUE))
            b.close()
            a.cleanup("k")
            self.assertEqual(self.left(), [], step)
        self.assertGreater(step, 3)

    def test_a_dead_consumer_of_a_value_without_a_journal(self) -> None:
        step, more = 1, True
        while more:
            for name, content in (("k", b"\x01"), (lock_name("k"), b"")):
                with open(self.path(name), "wb") as f:
                    f.write(content)
            more = self.dies("get", 2, step)
            step += 1
            self.connector().close()
            self.assertIn(self.left(), ([], ["k", lock_name("k")]), step)
        self.assertGreater(step, 3)

    def test_values_of_living_processes_are_not_swept(self) -> None:
        a = self.connector()
        a.put("0", "1", "k", VALUE)
        self.connector().close()
        self.assertEqual(self.left(), ["k", lock_name("k")])

    def test_close_during_another_call(self) -> None:
        """A call in progress during the close completes, and leaves no files."""
        for what, where, do, want in (
            ("put", (Segments, "_add_put"), lambda c: c.put("0", "1", "k", VALUE)[0], True),
            ("get", (Lock, "remove"), lambda c: c.get("0", "1", "there")[0], VALUE),
            ("clean up", (Lock, "remove"), lambda c: c.cleanup("mine"), None),
        ):
            with self.subTest(what):
                c, other = self.connector(), self.connector()
                c.put("0", "1", "mine", VALUE), other.put("0", "1", "there", VALUE)
                done, worker = [], threading.Thread(target=lambda: done.append(do(c)))  # noqa: B023
                reached, go = threading.Event(), threading.Event()
                step = getattr(*where)

                def held(*args: Any) -> Any:
                    if threading.current_thread() is worker:  # noqa: B023
                        reached.set()  # noqa: B023
                        go.wait()  # noqa: B023
                    return step(*args)  # noqa: B023

                with mock.patch.object(*where, held):
                    worker.start()
                    reached.wait()
                    c.close()
                    go.set()
                    worker.join()
                self.assertEqual((done, c.health()["errors"]), ([want], 0))
                self.assertNotIn("mine", self.left())
                other.close()
                self.assertEqual(os.listdir(self.dir), [])

    def test_close_and_exit(self) -> None:
        c = self.connector()
        c.put("0", "1", "k", VALUE)
        del c
        self._cleanups.pop()  # type: ignore[attr-defined]  # it refers to the connector
        self.assertEqual(os.listdir(self.dir), [])


def put_at_once(c: OmnibusConnector) -> list[bool]:
    """Use a connector for the first time, in eight threads, and close it."""
    at_once = threading.Barrier(8)
    puts: list[bool] = []

    def put(key: str) -> None:
        at_once.wait()
        puts.append(c.put("0", "1", key, VALUE)[0])

    threads = [threading.Thread(target=put, args=(f"k{i}",)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    c.close()
    return puts


class ForkTest(SegmentCase):
    def test_a_child_opens_its_own_transport(self) -> None:
        c = self.connector()
        c.put("0", "1", "parent", VALUE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                taken = c.get("0", "1", "parent")
                c.put("0", "1", "child", VALUE)
                c.cleanup("parent")
                c.close()
                code = 0 if taken is not None and not self.left() else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(c.put("0", "1", "parent", VALUE)[0])
        self.assertEqual(c.get("0", "1", "parent")[0], VALUE)  # type: ignore[index]

    def test_an_idle_child_removes_nothing(self) -> None:
        before = os.listdir("/proc/self/fd")
        c = self.connector()
        c.put("0", "1", "k", VALUE)
        child = os.fork()
        if child == 0:
            try:
                c.close()
            finally:
                os._exit(0 if self.left() and os.listdir("/proc/self/fd") == before else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_child_retries_a_failed_open(self) -> None:
        c = self.connector()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with mock.patch.object(segment, "Journal", side_effect=OSError(errno.EMFILE, "too many")):
                    refused = c.put("0", "1", "k", VALUE)[0]
                put = c.put("0", "1", "k", VALUE)[0]
                c.close()
                code = 0 if put and not refused and not self.left() else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_threads_of_a_child_reopen_once(self) -> None:
        """The puts of all threads are in one account and one journal, which the close removes."""
        c = self.connector()
        for _ in range(10):  # they need not meet each time
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if put_at_once(c) == 8 * [True] and not self.left() else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_child_does_not_keep_a_lock(self) -> None:
        c = self.connector()
        c.put("0", "1", "k", 1)
        lock = Lock.open(Directory(self.dir), lock_name("k"))
        assert lock is not None
        waits, leave = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(leave)
            os.read(waits, 1)
            os._exit(0)
        lock.release()
        self.assertEqual(c.get("0", "1", "k"), (1, 1))
        os.close(leave)
        os.close(waits)
        os.waitpid(child, 0)

    def test_a_child_does_not_keep_the_dead_parent_alive(self) -> None:
        (alive, tells), (waits, leave) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            c = OmnibusConnector({"mode": "segment", "dir": self.dir})
            c.put("0", "1", "k", VALUE)
            if os.fork() == 0:
                os.close(leave)
                os.write(tells, b"x")
                os.read(waits, 1)  # it lives until the test is over
            os._exit(0)
        os.read(alive, 1)
        os.waitpid(child, 0)
        self.connector().close()
        self.assertEqual(os.listdir(self.dir), [])
        for fd in (alive, tells, waits, leave):
            os.close(fd)


if __name__ == "__main__":
    unittest.main()
