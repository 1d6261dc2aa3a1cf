"""Files of segments that are used again: for how long, what is left of them, and of the values that lay in them."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
import unittest
from typing import Any
from unittest import mock

from segmentcase import VALUE
from filepoolcase import Other, FilePoolCase

from omnibus.connector import encode, journal, segment, file_pool
from omnibus.connector.shm_files import Directory
from omnibus.connector.journal import lock_name
from omnibus.connector.segment import Segments
from omnibus.connector.sweeper import Sweeper


class LeftTest(FilePoolCase):
    def home(self, name: str) -> str:
        return self.path(f"{journal.journals_name()}/{name}")

    def test_close_leaves_nothing(self) -> None:
        before, other = os.listdir("/proc/self/fd"), Other(self)
        a = self.connector()
        for i in range(5):
            self.put(a, f"k{i}")
        other.ask("map", "k1")
        self.assertIsNotNone(self.got(a, "k0"))
        self.assertEqual(len(self.second_names()), 5)
        a.close()
        other.end()
        self.assertEqual(os.listdir(self.dir), [])
        del other
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), len(before) + 2)  # a pipe is to be collected

    def test_close_keeps_values_of_other_connectors(self) -> None:
        a, b = self.connector(), self.connector()
        self.put(a, "k")
        self.put(b, "k", VALUE)
        a.close()
        self.assertEqual(len(self.second_names()), 1)
        self.assertEqual(self.got(b, "k"), VALUE)

    def test_of_a_killed_writer(self) -> None:
        other = Other(self)
        for key in ("used", "free"):
            self.assertEqual(other.ask("put", key), "True")
        self.assertEqual(other.ask("get", "free"), "True")
        other.kill()
        self.assertEqual(len(self.second_names()), 2)
        a = self.connector()
        self.assertEqual((self.second_names(), self.left()), ([], []))
        a.close()
        self.assertEqual(os.listdir(self.dir), [])

    def test_files_are_closed_at_exit(self) -> None:
        """It logs nothing, does not wait, and leaves no files."""
        script = (
            "import sys; from omnibus.connector import OmnibusConnector\n"
            "c = OmnibusConnector({'mode': 'segment', 'dir': sys.argv[1], 'ttl': 0})\n"
            "c.put('0', '1', 'a', b'x'); c.put('0', '1', 'b', b'x'); c.get('0', '1', 'a')\n"
        )
        env = dict(os.environ, PYTHONPATH=os.path.join(os.path.dirname(__file__), "..", "src"))
        done = subprocess.run([sys.executable, "-c", script, self.dir], env=env, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))
        self.assertEqual(os.listdir(self.dir), [])

    def test_sweeping(self) -> None:
        """Second names, also of the Go package, are removed if their journal is missing."""
        lives = self.connector()
        self.put_and_get(lives, "k")
        own = self.second_names()
        for name in ("77-4711", "lasting-1"):
            open(self.home(name), "x").close()
        gone = ("spare-4242-17-1", "spare-4242-17-32", "spare-77-4711-1")
        stays = ("spare-78-4711-9", "spare-", "spare-1", "spare-78-4711-x")
        for name in (*gone, *stays):
            open(self.home(name), "x").close()
        with open(self.home("78-4711"), "xb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            self.connector().close()
            self.assertEqual(self.second_names(), sorted((*own, *stays)))
        self.assertIn(self.put(lives, "k"), [os.stat(self.home(n)).st_ino for n in own])
        self.connector().close()
        self.assertEqual(self.second_names(), sorted((*own, *stays[1:])))
        for name in stays[1:]:
            os.unlink(self.home(name))

    def test_the_content_of_a_second_name_is_not_read_as_a_journal(self) -> None:
        """A pooled file holds a value of any content, which is not read as records."""
        a = self.connector()
        self.put(a, "k", VALUE)
        f = Directory(self.dir)
        found, lock = f.lookup("k"), f.lookup(lock_name("k"))
        f.close()
        assert found is not None and lock is not None
        record = journal.Record("p", "k", found.identity, lock.identity).encode()
        with open(self.home("spare-9-9-1"), "wb") as spare:
            spare.write(record)
        self.connector().close()
        self.assertEqual(self.got(a, "k"), VALUE)


class ValuesTest(FilePoolCase):
    """Removals, with a later value in the same file."""

    def transport(self, c: OmnibusConnector) -> Segments:
        assert isinstance(c._transport, Segments)
        return c._transport

    def test_cleanup(self) -> None:
        a = self.connector()
        first = self.put(a, "r_0_0")
        a.cleanup("r_0_0")
        self.assertEqual(self.put(a, "s_0_0"), first)
        a.cleanup("r_0_0")
        self.assertEqual(self.got(a, "s_0_0"), b"x" * 10_000)
        self.assertEqual(self.left(), [])

    def test_ttl(self) -> None:
        now = 1000.0
        with mock.patch.object(segment, "time", mock.Mock(monotonic=lambda: now)):
            a, other = self.by_hand(self.connector(ttl=60)), Other(self)
            first = self.put(a, "early")
            self.put(a, "late")
            other.ask("get", "early")
            now += 30
            self.assertEqual(self.put(a, "again", VALUE), first)
            now += 30
            self.assertEqual(self.transport(a)._sweep(), 30)
            self.assertEqual(self.left(), ["again", lock_name("again")])
            self.assertEqual(self.got(a, "again"), VALUE)

    def test_a_later_value_of_the_same_name(self) -> None:
        """A value that is put between the check of the TTL, or a cleanup, and the removal stays."""
        now = 1000.0
        for how in ("_sweep", "cleanup"):
            a, other = self.by_hand(self.connector(ttl=60)), Other(self)
            t, inodes = self.transport(a), []
            settle = t._remove_files

            def later(p: Any) -> None:
                if len(inodes) == 1:  # noqa: B023
                    other.ask("get", "k")  # noqa: B023
                    inodes.append(self.put(a, "k", VALUE))  # noqa: B023
                settle(p)  # noqa: B023

            with self.subTest(how), mock.patch.object(segment, "time", mock.Mock(monotonic=lambda: now)):
                inodes.append(self.put(a, "k"))
                now += 60
                with mock.patch.object(t, "_remove_files", later):
                    t._sweep() if how == "_sweep" else a.cleanup("k")
                self.assertEqual((len(inodes), len(set(inodes))), (2, 1))
                self.assertEqual(self.got(a, "k"), VALUE)
            a.close()

    def test_a_later_value_that_is_not_in_the_accounts_yet(self) -> None:
        """A lock without a segment, which its consumer removes just then."""
        a = self.connector()
        first, t = self.put(a, "k"), self.transport(a)
        os.unlink(self.path("k"))
        hold = t._add_put

        def late(p: Any) -> Any:
            os.unlink(self.path(lock_name("k")))
            t._remove_files(t._puts["k"])
            return hold(p)

        with mock.patch.object(t, "_add_put", late):
            self.assertEqual(a.put("0", "1", "k", VALUE)[0], True)
        found = os.stat(self.path("k"))
        self.assertEqual((found.st_ino, found.st_size), (first, len(bytes(encode(VALUE)))))

    def test_a_lock_that_was_left(self) -> None:
        """A lock without a segment, of a consumer that has died, or is about to remove it."""
        for how in ("cleanup", "reap", "close"):
            with self.subTest(how):
                a, b = self.connector(), self.connector()
                first = self.put(a, "k")
                os.unlink(self.path("k"))
                self.assertEqual(self.put(a, "l", VALUE), first)
                if how == "reap":
                    os.unlink(self.path(lock_name("k")))
                    a.reap_consumed()
                    self.assertEqual(a.health()["pending"], 1)
                elif how == "cleanup":
                    a.cleanup("k")
                if how != "close":
                    self.assertEqual(self.left(), ["l", lock_name("l")])
                    self.assertEqual(self.got(b, "l"), VALUE)
                a.close()
                self.assertEqual(self.left(), [])

    def test_a_later_value_of_another_process_stays(self) -> None:
        a, b = self.connector(), self.connector()
        first = self.put(a, "k")
        self.assertIsNotNone(self.got(b, "k"))
        self.put(b, "k", VALUE)
        self.assertEqual(self.put(a, "l"), first)
        a.cleanup("k")
        a.close()
        self.assertEqual(self.got(b, "k"), VALUE)


class RestTest(FilePoolCase):
    idle_seconds = file_pool.IDLE_SECONDS

    def test_idle_files_are_closed(self) -> None:
        descriptors = len(os.listdir("/proc/self/fd"))
        a = self.by_hand(self.connector(ttl=0))
        transport = a._transport
        assert isinstance(transport, Segments)
        own = len(os.listdir("/proc/self/fd"))
        now = 1000.0
        with mock.patch.object(file_pool, "time", mock.Mock(monotonic=lambda: now)):
            self.assertIsNone(transport._tidy())
            lies = self.put(a, "lies", VALUE)
            self.put_and_get(a, "k")
            now += 3
            self.put_and_get(a, "k")
            self.kept(a).check_used()
            self.assertEqual(transport._tidy(), 2)
            self.assertEqual(len(self.second_names()), 2)
            now += 2
            self.assertEqual(transport._tidy(), 3)
            self.assertEqual(len(self.second_names()), 1)
            now += 3
            self.assertIsNone(transport._tidy())
        self.assertEqual((self.second_names(), len(os.listdir("/proc/self/fd"))), ([], own))
        self.assertEqual(os.stat(self.path("lies")).st_ino, lies)
        self.assertEqual((a.health()["pending"], self.got(a, "lies"), self.left()), (1, VALUE, []))
        a.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)

    def test_the_sweeper_thread_ends_when_idle(self) -> None:
        for ttl in (0, 600):
            a = self.connector(ttl=ttl)
            sweeper = a._transport._sweeper  # type: ignore[union-attr]
            with mock.patch.object(file_pool, "IDLE_SECONDS", 0.01), mock.patch.object(segment, "IDLE_SECONDS", 0.01):
                for _ in range(2):
                    self.put_and_get(a, "k")
                    while self.second_names() or sweeper._thread is not None:
                        time.sleep(0.001)
            a.close()

    def test_a_thread_that_waits_for_something_later(self) -> None:
        a = self.connector(ttl=600)
        sweeper = a._transport._sweeper  # type: ignore[union-attr]
        self.kept(a)._disabled = True
        self.put(a, "lies", VALUE)
        while not sweeper._mu._waiters:
            time.sleep(0.001)
        self.kept(a)._disabled = False
        with mock.patch.object(file_pool, "IDLE_SECONDS", 0.01), mock.patch.object(segment, "IDLE_SECONDS", 0.01):
            self.put_and_get(a, "k")
            while self.second_names():
                time.sleep(0.001)
        self.assertEqual(self.got(a, "lies"), VALUE)

    def test_a_call_scheduled_during_a_sweep_runs(self) -> None:
        looks: list[float] = []
        done = threading.Event()

        def sweep() -> float | None:
            looks.append(time.monotonic())
            if len(looks) == 1:
                sweeper.schedule(0.01)
            else:
                done.set()
            return None if len(looks) > 1 else 600

        sweeper = Sweeper(sweep)
        sweeper.schedule(0)
        self.assertIsNone(sweeper._thread)
        sweeper.schedule(0.01)
        self.assertTrue(done.wait(60))
        sweeper.stop()


class ForkTest(FilePoolCase):
    def test_a_child_has_no_pooled_files(self) -> None:
        """A child has no descriptors and files of the pool, and the parent's stay valid."""
        before = os.listdir("/proc/self/fd")
        c = self.connector()
        first, lies = self.put(c, "k"), self.put(c, "lies", VALUE)
        self.assertIsNotNone(self.got(c, "k"))
        names = self.second_names()
        for uses in (False, True):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    shared = uses and self.put_and_get(c, "own") in (first, lies)
                    c.close()
                    clean = os.listdir("/proc/self/fd") == before and self.second_names() == names
                    code = 0 if clean and not shared else 2
                finally:
                    os._exit(code)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(self.second_names(), names)
        self.assertEqual(self.put(c, "k"), first)
        self.assertEqual(self.got(c, "lies"), VALUE)

    def test_a_living_child_keeps_no_file_open(self) -> None:
        """The parent reuses files, also one that the child was reading, and is swept after its death."""
        waits, leave = os.pipe()
        c = self.connector()
        first = self.put_and_get(c, "k")
        child = os.fork()
        if child == 0:
            os.close(leave)
            os.read(waits, 1)
            os._exit(0)
        self.assertEqual(self.put_and_get(c, "k"), first)
        c.close()
        self.assertEqual(os.listdir(self.dir), [])
        os.close(leave)
        os.close(waits)
        os.waitpid(child, 0)


if __name__ == "__main__":
    unittest.main()
