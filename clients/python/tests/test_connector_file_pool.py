"""Files of segments that are used again: when, and how many."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import threading
import time
import unittest
from typing import Any
from unittest import mock

from segmentcase import VALUE
from filepoolcase import Other, FilePoolCase, digest

from omnibus.connector import OmnibusConnector, encode, shm_files, journal, file_pool
from omnibus.connector.shm_files import Directory, Lock
from omnibus.connector.journal import lock_name


class AgainTest(FilePoolCase):
    """The ownership of files, and their reuse for other values."""

    def test_a_file_is_reused_after_a_get_here(self) -> None:
        for generation in (1, 2):
            with self.subTest(generation=generation):
                c = self.connector(generation=generation, shm_threshold_bytes=0)
                inodes = set()
                for i in range(5):
                    _, size, metadata = c.put("0", "1", f"k{i}", VALUE)
                    inodes.add(os.stat(self.path(metadata["shm"]["name"])).st_ino)  # type: ignore[index]
                    self.assertEqual(c.get("0", "1", f"k{i}", metadata), (VALUE, size))
                self.assertEqual(len(inodes), 1)
                self.assertEqual(c.health()["pending"], 0)
                c.close()

    def test_a_file_is_reused_after_a_get_elsewhere(self) -> None:
        a, other = self.connector(), Other(self)
        first = self.put(a, "a")
        self.assertEqual(other.ask("get", "a"), "True")
        self.assertEqual(self.put(a, "b"), first)
        self.assertEqual(other.ask("get", "b"), "True")
        self.assertEqual(other.ask("get", "a"), "False")
        a.reap_consumed()
        self.assertEqual((a.health()["pending"], self.left()), (0, []))

    def test_a_file_open_elsewhere_is_not_reused(self) -> None:
        """A file that is open, or mapped, in another process does not change there."""
        a, other = self.connector(), Other(self)
        for how in ("open", "map"):
            with self.subTest(how):
                first = self.put(a, "k", VALUE)
                other.ask(how, "k")
                self.assertEqual(self.got(a, "k"), VALUE)
                self.assertNotEqual(self.put_and_get(a, "k", b"another" * 2000), first)
                self.assertEqual(other.ask("read"), digest(bytes(encode(VALUE))))
                other.ask("close")
                self.assertIn(first, [self.put(a, f"k{i}") for i in range(2)])
                a.cleanup("k0"), a.cleanup("k1")

    def test_a_file_with_its_key_is_not_reused(self) -> None:
        a = self.connector()
        values = {f"k{i}": bytes([i]) * 10_000 for i in range(10)}
        inodes = {self.put(a, key, value) for key, value in values.items()}
        self.assertEqual(len(inodes), len(values))
        for key, value in values.items():
            self.assertEqual(self.got(a, key), value)
        self.assertIn(self.put(a, "k"), inodes)

    def test_values_of_any_length(self) -> None:
        a, b = self.connector(), self.connector()
        inodes = set()
        for size in (10_000, 100_000, 50, 4096, 4097, 1 << 20, 1, 70_000):
            value = os.urandom(size)
            inodes.add(self.put(a, "k", value))
            with open(self.path("k"), "rb") as f:
                self.assertEqual(f.read(), bytes(encode(value)))
            self.assertEqual(self.got(b, "k"), value)
        self.assertEqual(len(inodes), 1)

    def test_the_file_of_the_nearest_size_is_reused(self) -> None:
        a = self.connector()
        inode = {size: self.put(a, f"k{size}", bytes(size)) for size in (1000, 50_000, 200_000)}
        a.cleanup("k1000"), a.cleanup("k50000"), a.cleanup("k200000")
        self.kept(a).check_used()
        for size, nearest in ((150_000, 200_000), (10, 1000), (180_000, 50_000)):
            self.assertEqual(self.put(a, f"l{size}", bytes(size)), inode[nearest])

    def test_a_reader_that_changes_the_length(self) -> None:
        """A process that opens the file may truncate or extend it."""
        a = self.connector()
        for length in (10, 1 << 20):
            first = self.put(a, "k", VALUE)
            os.truncate(self.path("k"), length)
            os.unlink(self.path("k"))
            os.unlink(self.path(lock_name("k")))
            self.assertEqual(self.put_and_get(a, "k", VALUE), first)
            self.assertEqual(self.kept(a)._bytes, len(bytes(encode(VALUE))))

    def test_readers_of_shared_memory(self) -> None:
        """Readers like those of vLLM-Omni: attach, copy, close, unlink."""
        a = OmnibusConnector({"mode": "segment"})
        self.addCleanup(a.close)
        key, other = f"omnibus-test-spare-{os.getpid()}", Other(self)

        def put(value: Any) -> int:
            self.assertTrue(a.put("0", "1", key, value)[0])
            return os.stat(f"/dev/shm/{key}").st_ino

        first = put(VALUE)
        self.assertEqual(other.ask("attach", key), digest(bytes(encode(VALUE))))
        second = put(b"another")  # in its place
        self.assertNotEqual(first, second)
        self.assertEqual(self.got(a, key), b"another")
        other.ask("close")
        self.assertIn(put(b"a third" * 1000), (first, second))
        self.assertEqual(other.ask("attach", key), digest(bytes(encode(b"a third" * 1000))))
        other.ask("unlink")
        self.assertFalse(os.path.exists(f"/dev/shm/{key}"))
        self.assertIn(put(VALUE), (first, second))

    def test_a_reader_that_opened_it_too_late(self) -> None:
        """The reader found the name, and opens the file during the write of another value."""
        a, b = self.connector(), self.connector()
        self.put_and_get(a, "k", b"old" * 9000)
        reads, written = threading.Event(), threading.Event()
        got: list[Any] = []
        write, read, open_any = shm_files.write_all, shm_files.read_all, Directory.open_non_directory

        def late(directory: Directory, name: str, how: int) -> int | None:
            if name == "k":
                name = f"{journal.journals_name()}/{self.second_names()[0]}"
            return open_any(directory, name, how)

        def reading(fd: int, size: int) -> bytes:
            payload = read(fd, size)
            reads.set()
            written.wait(60)
            return payload

        def writing(fd: int, pieces: Any) -> None:
            get.start()
            reads.wait(60)
            write(fd, pieces)

        def getting() -> None:
            try:
                got.append(b.get("0", "1", "k", {"shm": {"name": "k", "size": size}, "size": size}))
            finally:
                reads.set()

        size, get = len(bytes(encode(b"old" * 9000))), threading.Thread(target=getting)
        with (
            mock.patch.object(shm_files, "write_all", writing), mock.patch.object(shm_files, "read_all", reading),
            mock.patch.object(Directory, "open_non_directory", late),
        ):  # fmt: skip
            self.assertTrue(a.put("0", "1", "k", b"new" * 9000)[0])
            written.set()
            get.join()
        self.assertEqual(got, [None])
        self.assertEqual(self.got(b, "k"), b"new" * 9000)

    def test_a_reader_of_a_replaced_value(self) -> None:
        """The reader has the earlier value open, and finds the later one under the name."""
        a, b, c = self.connector(), self.connector(), self.connector()
        open_any, values = Directory.open_non_directory, [b"old" * 9000, b"new" * 9000]
        self.put(a, "k", values[0])

        def slow(directory: Directory, name: str, how: int) -> int | None:
            fd = open_any(directory, name, how)
            if name == "k" and not began:
                began.append(name)
                got.append(c.get("0", "1", "k", metadata))
                self.put(a, "k", values[1])
            return fd

        os.unlink(self.path(lock_name("k")))  # as a consumer of vLLM-Omni may, which is late
        size, began, got = len(bytes(encode(values[0]))), list[str](), list[Any]()
        metadata = {"shm": {"name": "k", "size": size}, "size": size}
        with mock.patch.object(Directory, "open_non_directory", slow):
            self.assertIsNone(b.get("0", "1", "k", metadata))
        self.assertEqual((got[0][0], self.got(b, "k")), tuple(values))

    def test_a_put_during_a_check(self) -> None:
        """A signal handler puts during the check. A file that it has reused is not free any more."""
        a = self.connector()
        self.put_and_get(a, "k")
        real, within = fcntl.fcntl, list[int]()

        def interrupted(fd: int, what: int, *more: Any) -> Any:
            done = real(fd, what, *more)
            if more == (fcntl.F_UNLCK,) and not within:
                within.append(fd)
                self.put(a, "between", VALUE)
            return done

        with mock.patch.object(file_pool.fcntl, "fcntl", interrupted):
            self.put(a, "l")
        self.assertEqual((self.got(a, "between"), self.got(a, "l")), (VALUE, b"x" * 10_000))

    def test_a_reader_that_opens_it_while_it_is_leased(self) -> None:
        """The reader found the name, opens it during the lease, and checks it again."""
        a, b = self.connector(), self.connector()
        self.put(a, "k", VALUE)
        (spare,) = self.kept(a)._files
        fcntl.fcntl(spare.fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(spare.fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        self.assertIsNone(self.got(b, "k"))
        fcntl.fcntl(spare.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        self.assertEqual((self.got(b, "k"), b.health()["busy"], b.health()["errors"]), (VALUE, 1, 0))

    def test_a_file_closed_during_a_read(self) -> None:
        a, b = self.connector(), self.connector()
        self.put(a, "k", VALUE)
        read = shm_files.read_all

        def reading(fd: int, size: int) -> bytes:
            self.kept(a).close()
            return read(fd, size)

        with mock.patch.object(shm_files, "read_all", reading):
            self.assertEqual(self.got(b, "k"), VALUE)
        self.assertEqual(self.left(), [])

    def test_a_second_name_that_is_gone(self) -> None:
        """An old sweeper takes a second name for a dead process's journal, and removes it."""
        a = self.connector()
        for by_another in (False, True):
            first = self.put(a, "k", VALUE)
            (name,) = self.second_names()
            path = self.path(f"{journal.journals_name()}/{name}")
            os.unlink(path)
            if by_another:
                open(path, "x").close()
            second = self.put(a, "l")
            self.assertNotEqual(second, first)
            self.assertEqual((self.got(a, "k"), self.got(a, "l")), (VALUE, b"x" * 10_000))
            if by_another:
                os.unlink(path)  # it is left alone
            self.kept(a).close()
            a.close()
            a = self.connector()

    def test_a_second_name_that_is_taken(self) -> None:
        a = self.connector()
        name = self.path(f"{journal.journals_name()}/{self.kept(a)._prefix}1")
        open(name, "x").close()
        self.put_and_get(a, "k", VALUE)
        self.assertEqual(len(self.kept(a)._files), 0)
        first = self.put_and_get(a, "k")
        self.assertEqual(self.put_and_get(a, "k"), first)
        a.close()
        os.unlink(name)

    def test_the_file_of_a_failed_put_is_free(self) -> None:
        a = self.connector(timeout=0.01)
        first = self.put_and_get(a, "k")
        self.put(a, "taken")
        lock = Lock.open(Directory(self.dir), lock_name("taken"))
        assert lock is not None
        for _ in range(3):
            self.assertFalse(a.put("0", "1", "taken", VALUE)[0])
        lock.release()
        self.assertEqual(len(self.second_names()), 2)
        self.assertEqual((self.got(a, "taken"), first in [self.put(a, "k"), self.put(a, "l")]), (b"x" * 10_000, True))

    def test_no_file_is_reused_without_leases(self) -> None:
        """A kernel without leases disables the pool."""
        a, other = self.connector(), Other(self)
        with mock.patch.object(file_pool.fcntl, "fcntl", side_effect=OSError(errno.EINVAL, "Invalid argument")):
            self.assertNotIn(self.put_and_get(a, "k"), [self.put(a, "l")])
        real = fcntl.fcntl

        def no_leases(fd: int, what: int, *more: Any) -> Any:
            if what == fcntl.F_SETLEASE:
                raise OSError(errno.EINVAL, "Invalid argument")
            return real(fd, what, *more)

        b = self.connector()
        with mock.patch.object(file_pool.fcntl, "fcntl", no_leases):
            self.put(b, "a")
            lies = self.put(b, "b", VALUE)
            self.assertIsNotNone(self.got(b, "a"))
            self.assertEqual(len(self.second_names()), 2)
            self.put(b, "c")
            self.assertEqual(self.second_names(), [])
        self.assertEqual(os.stat(self.path("b")).st_ino, lies)
        self.assertEqual((self.got(b, "b"), self.got(b, "c")), (VALUE, b"x" * 10_000))
        self.put_and_get(b, "d")
        self.assertEqual((self.second_names(), b.health()["errors"]), ([], 0))
        self.assertEqual(other.ask("get", "l"), "True")

    def test_leases_that_are_never_granted(self) -> None:
        """On a kernel that refuses leases on files with two names the pool is disabled, unless a lease was ever granted."""
        real, refuses = fcntl.fcntl, False

        def refusing(fd: int, what: int, *more: Any) -> Any:
            if what == fcntl.F_SETLEASE and refuses:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return real(fd, what, *more)

        for granted in (False, True):
            a = self.connector()
            with mock.patch.object(file_pool.fcntl, "fcntl", refusing), mock.patch.object(file_pool, "_REFUSALS", 10):
                refuses = not granted
                self.put_and_get(a, "k")
                self.put_and_get(a, "k")
                refuses = True
                for _ in range(12):
                    self.assertEqual(self.put_and_get(a, "k") > 0, True)
            self.assertEqual(bool(self.second_names()), granted)
            a.close()

    def test_a_broken_lease_does_not_kill_the_process(self) -> None:
        """A process opens the second name at that moment, each time."""
        a, real, opened = self.connector(), fcntl.fcntl, []

        def breaking(fd: int, what: int, argument: int) -> Any:
            result = real(fd, what, argument)
            if (what, argument) == (fcntl.F_SETLEASE, fcntl.F_WRLCK):
                opened.append(self.second_names()[0])
                with self.assertRaises(BlockingIOError):
                    os.open(self.path(f"{journal.journals_name()}/{opened[-1]}"), os.O_RDONLY | os.O_NONBLOCK)
            return result

        with mock.patch.object(file_pool.fcntl, "fcntl", breaking):
            inodes = {self.put_and_get(a, "k") for _ in range(4)}
        self.assertEqual((len(inodes), len(opened)), (1, 3))

    def test_many_at_once(self) -> None:
        """Threads put values that describe themselves, and others get them."""
        a, b = self.connector(), self.connector()
        at = {f"{t}_{i}": random.Random(f"{t}_{i}").randbytes(1 << (i % 12 + 6)) for t in range(4) for i in range(50)}
        wrong: list[str] = []

        def put(t: int) -> None:
            for i in range(50):
                if not a.put("0", "1", f"{t}_{i}", at[f"{t}_{i}"])[0]:
                    wrong.append(f"{t}_{i} was not put")

        def get(t: int) -> None:
            for i in range(50):
                found = b.get_with_deadline("0", "1", f"{t}_{i}", deadline=time.monotonic() + 20)
                if found is None or found[0] != at[f"{t}_{i}"]:
                    wrong.append(f"{t}_{i} is another")

        threads = [threading.Thread(target=f, args=(t,)) for t in range(4) for f in (put, get)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, self.left()), ([], []))
        for _ in range(0, len(at), 64):  # as many as it looks at
            a.reap_consumed()
        self.assertEqual((a.health()["pending"], a.health()["errors"], b.health()["errors"]), (0, 0, 0))
        self.assertLessEqual(len(self.second_names()), file_pool.MAX_FILES)


class BoundsTest(FilePoolCase):
    def test_the_number_of_files_is_bounded(self) -> None:
        a = self.connector()
        for i in range(file_pool.MAX_FILES + 8):
            self.put(a, f"k{i}", VALUE)
        self.assertEqual(len(self.second_names()), file_pool.MAX_FILES)
        for i in range(file_pool.MAX_FILES + 8):
            self.assertEqual(self.got(a, f"k{i}"), VALUE)
        self.assertEqual(len(self.second_names()), file_pool.MAX_FILES)

    def bounded(self, most: int) -> OmnibusConnector:
        a = self.connector()
        self.kept(a)._most_bytes = most
        return a

    def test_the_bytes_of_files_are_bounded(self) -> None:
        a = self.bounded(100_000)
        for i in range(5):
            self.put(a, f"k{i}", bytes(30_000))
        self.assertEqual(len(self.second_names()), 3)
        self.assertEqual([len(self.got(a, f"k{i}")) for i in range(5)], 5 * [30_000])
        self.put(a, "large", bytes(150_000))
        self.assertEqual(len(self.second_names()), 3)

    def test_free_files_are_closed_for_space(self) -> None:
        a = self.bounded(100_000)
        inodes = {n: self.put(a, f"k{n}", bytes(n)) for n in (10_000, 20_000, 60_000)}
        a.cleanup("k10000"), a.cleanup("k20000"), a.cleanup("k60000")
        self.kept(a).check_used()
        self.assertEqual(self.put(a, "k", bytes(75_000)), inodes[60_000])
        self.assertEqual({s.segment.inode for s in self.kept(a)._files}, {inodes[20_000], inodes[60_000]})
        self.assertIsNotNone(self.got(a, "k"))
        self.assertEqual(self.put(a, "k", bytes(99_000)), inodes[60_000])
        self.assertEqual(len(self.second_names()), 1)

    def test_files_stay_if_closing_them_makes_too_little_space(self) -> None:
        a = self.bounded(100_000)
        self.put(a, "used", bytes(60_000))
        inodes = [self.put(a, f"k{i}", bytes(10_000 * i)) for i in (1, 2)]
        a.cleanup("k1"), a.cleanup("k2")
        self.assertNotIn(self.put(a, "large", bytes(50_000)), inodes)
        self.assertEqual(len(self.second_names()), 3)
        self.assertEqual(self.kept(a)._bytes, sum(len(bytes(encode(bytes(n)))) for n in (60_000, 10_000, 20_000)))

    def test_no_more_than_a_part_of_the_filesystem(self) -> None:
        for blocks, most in ((64, 32 << 10), (1 << 40, 64 << 20), (0, 64 << 20)):
            with mock.patch.object(os, "statvfs", return_value=mock.Mock(f_blocks=blocks, f_frsize=4096)):
                a = self.connector()
            self.assertEqual(self.kept(a)._most_bytes, most)
            self.put(a, "k", bytes(30_000))
            self.put(a, "l", bytes(5_000))
            self.assertEqual(len(self.second_names()), 1 if blocks == 64 else 2)
            a.close()

    def test_no_more_than_half_of_the_filesystem(self) -> None:
        a = self.connector()
        for left, names in ((49, 0), (50, 1)):
            with mock.patch.object(os, "statvfs", return_value=mock.Mock(f_blocks=100, f_bavail=left)):
                self.put(a, "k", VALUE)
            self.assertEqual(len(self.second_names()), names)
            self.assertEqual(self.got(a, "k"), VALUE)


if __name__ == "__main__":
    unittest.main()
