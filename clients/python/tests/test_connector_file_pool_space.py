"""What files that are used again give where there is no room."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import resource
import time
import unittest
from typing import Any
from unittest import mock

from segmentcase import VALUE
from filepoolcase import FilePoolCase

from omnibus.connector import shm_files, journal
from omnibus.connector.contract import NoRoom


class RoomTest(FilePoolCase):
    def test_no_room(self) -> None:
        """All files are closed but those being written; values in used files stay."""
        a = self.connector()
        keys = "abcdef"
        for key in keys:
            self.put(a, key, VALUE)
        for key in keys[1:]:
            self.assertEqual(self.got(a, key), VALUE)
        write, tries = shm_files.write_all, []

        def full(fd: int, pieces: Any) -> None:
            tries.append(len(self.second_names()))
            if tries[-1] > most:
                raise NoRoom("no room")
            write(fd, pieces)

        with mock.patch.object(shm_files, "write_all", full):
            most = 1
            self.assertTrue(a.put("0", "1", "k", b"k")[0])
            self.assertEqual(tries, [6, 0])
            most = -1
            self.assertFalse(a.put("0", "1", "l", b"l")[0])
            self.assertEqual((tries, a.health()["error_kinds"]), ([6, 0, 1, 0], {"NoRoom": 1}))
        self.assertEqual((self.got(a, "a"), self.got(a, "k")), (VALUE, b"k"))
        a.close()
        self.assertEqual(os.listdir(self.dir), [])

    def test_getting_makes_room(self) -> None:
        """A connector without a get so far gets a value from a full directory."""
        a, b = self.connector(), self.connector()
        self.assertTrue(a.put("0", "1", "k", VALUE)[0])
        with mock.patch.object(journal.os, "pwrite", side_effect=OSError(errno.ENOSPC, "full")):
            self.assertEqual(b.get("0", "1", "k")[0], VALUE)
        self.assertEqual((self.left(), b.health()["errors"]), ([], 0))

    def test_close_leaves_no_descriptor(self) -> None:
        gc.collect()  # what other tests left
        before = len(os.listdir("/proc/self/fd"))
        a = self.connector()
        self.put(a, "k", VALUE)
        self.assertEqual(self.got(a, "k"), VALUE)
        self.assertIsNone(a.get_with_deadline("0", "1", "k", deadline=time.monotonic() + 1e-3))
        a.close()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_no_descriptor(self) -> None:
        """The files of the pool are closed, with and without a value."""
        for generation, got, (what, do) in itertools.product((1, 2), (0, 4), (
            ("put", lambda a, _: self.assertTrue(a.put("0", "1", "k", VALUE)[0])),
            ("get", lambda a, there: self.assertEqual(a.get("0", "1", "there", there)[0], VALUE)),
            ("clean up", lambda a, _: a.cleanup("there")),
        )):  # fmt: skip
            with self.subTest(what, generation=generation, got=got):
                a = self.connector(generation=generation, shm_threshold_bytes=0)
                metadata = [a.put("0", "1", f"k{i}", VALUE)[2] for i in range(5)]
                _, _, there = a.put("0", "1", "there", VALUE)
                for i in range(got):
                    self.assertIsNotNone(a.get("0", "1", f"k{i}", metadata[i]))
                limits = resource.getrlimit(resource.RLIMIT_NOFILE)
                last = os.dup(0)
                os.close(last)
                resource.setrlimit(resource.RLIMIT_NOFILE, (last, limits[1]))
                try:
                    do(a, there)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                self.assertEqual(a.health()["errors"], 0)
                for i in range(got, 5):
                    self.assertEqual(a.get("0", "1", f"k{i}", metadata[i])[0], VALUE)  # type: ignore[index]
                a.close()


if __name__ == "__main__":
    unittest.main()
