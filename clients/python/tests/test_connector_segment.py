"""The connector over /dev/shm, alone."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
import time
import unittest
from typing import Any
from unittest import mock

from segmentcase import VALUE, SegmentCase

import omnibus
from omnibus.connector import OmnibusConnector, encode, shm_files, journal, segment, file_pool
from omnibus.connector.contract import NoRoom, Unavailable, seconds
from omnibus.connector.shm_files import Directory, Lock
from omnibus.connector.journal import Record, lock_name
from omnibus.connector.segment import Segments


class ContractTest(SegmentCase):
    def test_put_and_get(self) -> None:
        a, b = self.connector(), self.connector()
        ok, size, metadata = a.put("0", "1", "k", VALUE)
        self.assertTrue(ok)
        self.assertEqual(metadata, {"shm": {"name": "k", "size": size}, "size": size})
        self.assertEqual(b.get("0", "1", "k"), (VALUE, size))
        self.assertIsNone(b.get("0", "1", "k"))
        for wrap in (lambda m: m, lambda m: {"k": m}, lambda m: {"source_host": "x", "source_port": 1}):
            _, _, metadata = a.put("0", "1", "k", VALUE)
            self.assertEqual(b.get("0", "1", "k", wrap(metadata)), (VALUE, size))
        self.assertEqual(self.left(), [])
        self.assertEqual(b.health()["missing"], 1)
        self.assertEqual(b.health()["errors"], 0)

    def test_a_key_in_use_is_replaced(self) -> None:
        a, b = self.connector(), self.connector()
        for writer, value in ((a, 1), (a, 2), (b, 3)):
            self.assertTrue(writer.put("0", "1", "k", value)[0])
        a.close()  # what lies there is not its own any more
        self.assertEqual(b.get("0", "1", "k")[0], 3)  # type: ignore[index]
        self.assertEqual(self.left(), [])

    def test_ttl(self) -> None:
        """A value that is not got is removed after its TTL; a later, a got and a replaced value are not."""
        now = 1000.0
        with mock.patch.object(segment, "time", mock.Mock(monotonic=lambda: now)):
            a, b = self.by_hand(self.connector(ttl="1m")), self.connector()
            transport = a._transport
            assert isinstance(transport, segment.Segments)
            self.assertIsNone(transport._sweep())
            for key in ("early", "got", "replaced"):
                a.put("0", "1", key, VALUE)
            self.assertIsNotNone(b.get("0", "1", "got"))
            now += 30
            a.put("0", "1", "late", VALUE)
            a.put("0", "1", "replaced", VALUE)
            self.assertEqual(transport._sweep(), 30)
            self.assertEqual(len(self.left()), 6)
            now += 30
            logging.getLogger("omnibus").disabled = False
            with self.assertLogs("omnibus", "WARNING") as log:
                self.assertEqual(transport._sweep(), 30)
            logging.getLogger("omnibus").disabled = True
            self.assertEqual(len(log.output), 1)
            self.assertIn("edge 0 -> 1, key 'early', in 60 s", log.output[0])
            self.assertIsNone(b.get("0", "1", "early"))
            self.assertIsNotNone(b.get("0", "1", "late"))
            # Another process has it locked: it is checked again soon.
            now += 30
            lock = Lock.open(Directory(self.dir), lock_name("replaced"))
            self.assertLess(transport._sweep() or 99, 1)
            assert lock is not None
            lock.release()
            transport._sweep()
            self.assertEqual(self.left(), [])
            self.assertIsNone(transport._sweep())

    def test_ttl_runs(self) -> None:
        a = self.connector(ttl=0.02)
        for key in ("first", "second"):  # the thread ends in between, or does not
            a.put("0", "1", key, VALUE)
            while a.health()["pending"]:
                time.sleep(0.001)
            self.assertEqual(self.left(), [])
        never = self.connector(ttl=0)
        never.put("0", "1", "k", VALUE)
        later = mock.Mock(monotonic=lambda: time.monotonic() + 1e9)
        with mock.patch.object(segment, "time", later), mock.patch.object(file_pool, "time", later):
            self.assertIsNone(never._transport._tidy())  # type: ignore[union-attr]
        self.assertEqual(never.get("0", "1", "k"), (VALUE, len(bytes(encode(VALUE)))))
        with mock.patch.object(file_pool, "MAX_FILES", 0):
            none = self.connector(ttl=0)
            none.put("0", "1", "k", VALUE)
            self.assertIsNone(none._transport._sweeper._thread)  # type: ignore[union-attr]
        for bad in ("soon", -1):
            self.assertRaises(ValueError, self.connector, ttl=bad)

    def test_generation_2_ignores_the_threshold(self) -> None:
        """Configurations of vLLM-Omni have the setting, and its stages get by the key alone."""
        a, b = self.connector(shm_threshold_bytes=65_536), self.connector()
        _, size, metadata = a.put("0", "1", "k", [1])
        self.assertEqual(metadata, {"shm": {"name": "k", "size": 2}, "size": 2})
        self.assertEqual(b.get("0", "1", "k"), ([1], 2))
        self.assertEqual(b.get("0", "1", "k", {"inline_bytes": b"\x91\x01", "size": 2}), ([1], 2))

    def test_generation_1(self) -> None:
        a, b = self.connector(generation=1, shm_threshold_bytes=100), self.connector()
        _, size, metadata = a.put("0", "1", "k", [1])
        self.assertEqual(metadata, {"inline_bytes": b"\x91\x01", "size": 2})
        self.assertEqual(b.get("0", "1", "k", metadata), ([1], 2))
        _, size, metadata = a.put("0", "1", "k", VALUE)
        self.assertRegex(metadata["shm"]["name"], "^psm_[0-9a-f]{8}$")  # type: ignore[index]
        self.assertIsNone(b.get("0", "1", "k"))
        self.assertEqual(b.get("0", "1", "k", metadata), (VALUE, size))
        self.assertIsNone(b.get("0", "1", "k", metadata))
        a.put("0", "1", "k", VALUE)
        a.cleanup("k")
        self.assertEqual(self.left(), [])

    def test_cleanup_takes_an_exact_key(self) -> None:
        keys = ("omni_0_to_1_kv_cache_r", "r", "r@0_1", "r_0_0", "r_0_0_0_0", "r_0_1")
        for generation in (1, 2):
            a, b = self.connector(generation=generation), self.connector()
            metadata = {key: a.put("0", "1", key, "x" * 100_000)[2] for key in keys}
            for key in ("r", "r_0_0"):
                a.cleanup(key)
            self.addCleanup(a.close)
            there = [key for key in keys if b.get("0", "1", key, metadata[key]) is not None]
            self.assertEqual(there, ["omni_0_to_1_kv_cache_r", "r@0_1", "r_0_0_0_0", "r_0_1"])
        b.put("0", "1", "another's", 1)
        a.cleanup("another's")
        self.assertEqual([n for n in self.left() if not n.startswith("shm_")], ["another's"])

    def test_health_tells_failures_from_nothing(self) -> None:
        c = self.connector()
        self.assertIsNone(c.get("0", "1", "k"))
        for key in ("", "../x", "a/b", "x" * 238, "a\0b", ".hidden", "sem.x", lock_name("k"), 5, "\ud800"):
            self.assertEqual(c.put("0", "1", key, 1), (False, 0, None))  # type: ignore[arg-type]
            self.assertIsNone(c.get("0", "1", key))  # type: ignore[arg-type]
        for key in ("x" * 237, "a..b", "r..", "a b"):
            self.assertTrue(c.put("0", "1", key, 1)[0])
            self.assertEqual(c.get("0", "1", key), (1, 1))
        self.assertEqual(c.put("0", "1", "k", object()), (False, 0, None))
        self.assertEqual(c.put("", "1", "k", 1), (False, 0, None))
        h = c.health()
        self.assertEqual((h["status"], h["missing"], h["errors"], h["puts"]), ("healthy", 1, 22, 4))
        self.assertEqual(h["error_kinds"], {"BadKey": 21, "PayloadError": 1})
        c.close()
        self.assertEqual(c.put("0", "1", "k", 1), (False, 0, None))
        self.assertEqual(c.health()["status"], "closed")

    def test_health_counts_as_the_go_package_does(self) -> None:
        c = self.connector(generation=1, shm_threshold_bytes=100)
        small, large = c.put("0", "1", "a", 1), c.put("0", "1", "b", VALUE)
        self.assertEqual(c.get("0", "1", "a", small[2]), (1, 1))
        self.assertIsNotNone(c.get("0", "1", "b", large[2]))
        self.assertIsNone(c.get("0", "1", "k"))
        self.assertIsNone(c.get_with_deadline("0", "1", "k", deadline=time.monotonic() + 1e-3))
        h = c.health()
        want = {"puts": 2, "gets": 2, "inline_writes": 1, "shared_writes": 1, "missing": 1, "timeouts": 1, "errors": 0}
        self.assertEqual({name: h.get(name) for name in want}, want)
        self.assertEqual(h["bytes_transferred"], h["bytes_got"])

    def test_false_metadata_are_refused(self) -> None:
        c = self.connector()
        c.put("0", "1", "other", VALUE)
        c.put("0", "1", "k", 5)
        lies: list[Any] = [
            {"shm": {"name": "other", "size": 5}}, {"shm": {"name": "../../etc/passwd", "size": 5}}, {"shm": "k"},
            {"shm": {"name": "k"}}, {"shm": {"name": "k", "size": 0}}, {"shm": {"name": "k", "size": -1}},
            {"shm": {"name": "k", "size": True}}, {"shm": {"name": "k", "size": 1 << 62}}, {"inline_bytes": "text"},
            {"inline_bytes": b"12", "size": 3}, {"shm": {"name": "k", "size": 1}, "size": 2}, {"inline_bytes": b"\xc1"},
        ]  # fmt: skip
        for lie in lies:
            with self.subTest(str(lie)[:60]):
                self.assertIsNone(c.get("0", "1", "k", lie))
        self.assertEqual(c.health()["errors"], len(lies))
        self.assertEqual(c.get("0", "1", "k")[0], 5)  # type: ignore[index]

    def test_foreign_files_are_not_removed(self) -> None:
        c = self.connector()
        os.mkfifo(self.path("fifo"))
        os.symlink("/etc/passwd", self.path("link"))
        os.mkdir(self.path("folder"))
        for name in ("fifo", "link", "folder"):
            with open(self.path(lock_name(name)), "wb"):
                pass
            self.assertIsNone(c.get("0", "1", name))
            self.assertEqual(c.put("0", "1", name, 1), (False, 0, None))
            self.assertIn(name, self.left())
        self.assertEqual(c.health()["error_kinds"], {"BadKey": 6})

    def test_half_written_segments(self) -> None:
        c = self.connector()
        for content, counted in ((b"", "missing"), (None, "errors"), (b"\xc1", "errors"), (b"\x01\x02", "errors")):
            with open(self.path("k"), "wb") as f, open(self.path(lock_name("k")), "wb"):
                if content is None:
                    f.truncate(4096)  # pages that its writer never touched
                else:
                    f.write(content)
            before = c.health()[counted]
            self.assertIsNone(c.get("0", "1", "k"))
            self.assertEqual(c.health()[counted], before + 1)
        with open(self.path("k2"), "wb") as f:
            f.write(b"\x01")
        self.assertIsNone(c.get("0", "1", "k2"))  # without a lock it is not there yet

    def test_segments_of_another_size(self) -> None:
        c = self.connector()
        payload = bytes(encode(b"x" * 98))
        self.assertEqual(len(payload), 100)
        for size, whole in ((100, True), (4096, True), (99, False), (101, False), (4095, False), (8192, False)):
            with open(self.path("k"), "wb") as f, open(self.path(lock_name("k")), "wb"):
                f.write(payload[:size].ljust(size, b"\0"))
            got = c.get("0", "1", "k", {"shm": {"name": "k", "size": 100}, "size": 100})
            self.assertEqual(got, (b"x" * 98, 100) if whole else None, size)
        self.assertEqual(c.health()["error_kinds"], {"Damaged": 4})

    def test_a_segment_removed_during_the_read_is_missing(self) -> None:
        """A reader without a lock was faster, and may have put another value, which stays."""
        a, b = self.connector(), self.connector()
        for replaced in False, True:
            with self.subTest(replaced=replaced):
                a.put("0", "1", "k", VALUE)

                def read_all(fd: int, size: int) -> bytes:
                    os.unlink(self.path("k"))
                    if replaced:  # noqa: B023
                        with open(self.path("k"), "xb") as f:
                            f.write(b"another")
                    return read(fd, size)

                read = shm_files.read_all
                with mock.patch.object(shm_files, "read_all", read_all):
                    self.assertIsNone(b.get("0", "1", "k"))
                self.assertEqual("k" in self.left(), replaced)
        self.assertEqual(b.health()["missing"], 2)

    def test_one_of_concurrent_readers_gets_the_value(self) -> None:
        """Two readers of a segment without a lock, both up to its end."""
        a, b, c = (self.connector(generation=1, shm_threshold_bytes=0) for _ in range(3))
        _, size, metadata = a.put("0", "1", "k", VALUE)
        got, is_current = [], shm_files.Directory.is_current

        def seen_by_both(directory: shm_files.Directory, fd: int, name: str, seen: shm_files.File) -> bool:
            it_is = is_current(directory, fd, name, seen)
            if not got:
                got.append(None)
                got.append(c.get("0", "1", "k", metadata))
            return it_is

        with mock.patch.object(shm_files.Directory, "is_current", seen_by_both):
            self.assertIsNone(b.get("0", "1", "k", metadata))
        self.assertEqual((got[1], b.health()["missing"]), ((VALUE, size), 1))

    def test_a_key_named_like_metadata(self) -> None:
        for generation in (1, 2):
            c = self.connector(generation=generation, shm_threshold_bytes=0)
            _, size, metadata = c.put("0", "1", "shm", VALUE)
            self.assertEqual(c.get("0", "1", "shm", metadata), (VALUE, size))
            _, size, metadata = c.put("0", "1", "shm", VALUE)
            self.assertEqual(c.get("0", "1", "shm", {"shm": metadata}), (VALUE, size))

    def test_keys_of_generation_1_do_not_name_segments(self) -> None:
        c = self.connector(generation=1, shm_threshold_bytes=0)
        for key in (".hidden", "sem.x", lock_name("k")):
            _, size, metadata = c.put("0", "1", key, VALUE)
            self.assertEqual(c.get("0", "1", key, metadata), (VALUE, size))

    def test_metadata_of_json(self) -> None:
        c = self.connector()
        self.assertEqual(c.get("0", "1", "k", {"inline_bytes": "kQE=", "size": 2}), ([1], 2))
        self.assertIsNone(c.get("0", "1", "k", {"inline_bytes": "kQE", "size": 2}))
        self.assertEqual(c.health()["error_kinds"], {"BadMetadata": 1})
        _, size, _ = c.put("0", "1", "k", 1)
        self.assertEqual(c.get("0", "1", "k", {"shm": {"name": "/k", "size": size}, "size": None}), (1, size))

    def test_deadlines(self) -> None:
        """Past, present, infinite and invalid deadlines: none fails, and none blocks in vain."""
        a, b = self.connector(), self.connector()
        for deadline in (float("-inf"), -1.0, 0.0, time.monotonic(), float("nan")):
            self.assertIsNone(a.get_with_deadline("0", "1", "k", deadline=deadline))
        for deadline in (1e18, float("inf")):
            late = threading.Timer(0.05, b.put, ("0", "1", "k", 7))
            late.start()
            self.assertEqual(a.get_with_deadline("0", "1", "k", deadline=deadline), (7, 1))
            late.join()
        self.assertEqual(a.health()["errors"], 0)

    def test_settings(self) -> None:
        for bad in ({"timeout": 10**400}, {"timeout": float("inf")}, {"ttl": "nan"}, {"timeout": "٣s"},
                    {"shm_threshold_bytes": float("inf")}, {"generation": 3}, {"ttl": "99999999h"}):  # fmt: skip
            with self.subTest(bad), self.assertRaises(ValueError):
                self.connector(**bad)

    def test_a_missing_directory_is_unavailable(self) -> None:
        for path in ("/nowhere", __file__):
            self.assertRaisesRegex(Unavailable, path, Segments, {"dir": path})
        for call in ("os.mkdir", "omnibus.connector.shm_files.Directory.create"):
            with mock.patch(call, side_effect=PermissionError(errno.EACCES, "Permission denied")):
                self.assertRaisesRegex(Unavailable, "/.omnibus-.*Permission denied", Segments, {"dir": self.dir})
        with mock.patch("os.open", side_effect=OSError(errno.EMFILE, "Too many open files")):
            self.assertRaisesRegex(NoRoom, "ulimit -n", Directory, self.dir)

    def test_settings_of_the_wrong_type(self) -> None:
        """Settings that the Go package refuses are refused in all modes, and the error describes the type."""
        whole = "a whole number"
        for name, bad, want in (
            ("mode", "rings", "ring or segment"), ("mode", 7, "ring or segment"), ("bus", 7, "text"),
            ("generation", "2", f"{whole} from 1 to 2"), ("generation", True, whole),
            ("shm_threshold_bytes", "65536", f"{whole} of at least 0"), ("shm_threshold_bytes", -1, whole),
            ("shm_threshold_bytes", 1.5, whole), ("ring_bytes", 65_535, f"{whole} of at least 65536"),
            ("arena_bytes", "1", whole), ("ttl", True, "a number of seconds"),
            ("timeout", "7", 'or text such as "30s"'), ("timeout", 0, "above 0"), ("timeout", "0s", "above 0"), ("ttl", [1], "a number of seconds"), ("socket", b"x", "a path"),
        ):  # fmt: skip
            for mode in ("ring", "segment"):
                with self.subTest(name, bad=bad, mode=mode), self.assertRaises(ValueError) as caught:
                    self.connector(**{"mode": mode, "socket": "/nowhere", name: bad})
                text = str(caught.exception)
                self.assertTrue(text.startswith(f"{name} must be ") and want in text and repr(bad) in text, text)
        for name, good in (("shm_threshold_bytes", 65536.0), ("ttl", "0"), ("timeout", None), ("mode", "segment"),
                           ("codec_chunk_frames", "the stages' own"), ("store", None)):  # fmt: skip
            self.connector(**{name: good})
        for no_map in (7, "mode: segment", ["mode"]):
            self.assertRaisesRegex(ValueError, "^extra must be a map of settings, not ", OmnibusConnector, no_map)

    def test_removed_settings_name_the_replacement(self) -> None:
        """A stage's own setting is ignored; a removed setting is refused, and the error names the replacement."""
        for name, value, want in (
            ("store", "speech", "attach both processes to one host.* or take mode segment"),
            ("readers", 1, "leave it out"),
        ):
            for mode in ("ring", "segment"):
                with self.subTest(name, mode=mode):
                    extra = {"mode": mode, "socket": "/nowhere", "dir": self.dir, name: value}
                    self.assertRaisesRegex(ValueError, f"^{name} is gone: .*{want}", OmnibusConnector, extra)

    def test_durations(self) -> None:
        for text, want in ((3, 3.0), (0.5, 0.5), ("30s", 30.0), ("1m30s", 90.0), ("250ms", 0.25), ("0", 0.0),
                           (".5s", 0.5), ("+1m.5s", 60.5), ("5.ms", 0.005), ("2\u00b5s", 2e-6), ("2\u03bcs", 2e-6)):  # fmt: skip
            self.assertEqual(seconds(text), want)
        for bad in (-1, "-1s", "x", "1d", ".s", "1.2.3s", "\u0663s", float("nan"), float("inf"), None):
            self.assertRaises((ValueError, TypeError), seconds, bad)

    def test_a_process_exits_without_a_close(self) -> None:
        """The process leaves no file, although a sweeper thread runs."""
        code = (
            "import sys; from omnibus.connector import OmnibusConnector\n"
            "c = OmnibusConnector({'mode': 'segment', 'dir': sys.argv[1]}); print(c.put('0', '1', 'k', 1)[0])"
        )
        package = os.path.dirname(os.path.dirname(omnibus.__file__))
        out = subprocess.run(
            [sys.executable, "-c", code, self.dir],
            env={**os.environ, "PYTHONPATH": package}, timeout=60, check=True, capture_output=True,
        ).stdout  # fmt: skip
        self.assertEqual((out, self.left()), (b"True\n", []))

    def test_cleanup_leaves_a_directory_with_the_name_of_a_lock(self) -> None:
        c = self.connector()
        c.put("0", "1", "k", 1)
        os.unlink(self.path(lock_name("k")))
        os.mkdir(self.path(lock_name("k")))
        c.cleanup("k")
        self.assertEqual(self.left(), [lock_name("k")])
        self.assertEqual(c.health()["errors"], 0)

    def test_a_locked_segment_is_busy(self) -> None:
        a, b = self.connector(), self.connector()
        a.put("0", "1", "k", 1)
        lock = Lock.open(Directory(self.dir), lock_name("k"))
        assert lock is not None
        self.assertIsNone(b.get("0", "1", "k"))
        self.assertEqual(b.health()["busy"], 1)
        put = threading.Thread(target=a.put, args=("0", "1", "k", 2))
        put.start()
        self.assertIsNone(b.get_with_deadline("0", "1", "k", deadline=time.monotonic() + 0.05))
        lock.release()
        put.join()
        self.assertEqual(b.get("0", "1", "k")[0], 2)  # type: ignore[index]

    def test_a_wait_ends_by_an_event(self) -> None:
        """A wait is woken by an event; it does not poll."""
        a, b = self.connector(), self.connector()
        got: list[Any] = []
        looks = []
        take = b._transport._take_segment  # type: ignore[union-attr]
        b._transport._take_segment = lambda *x: looks.append(1) or take(*x)  # type: ignore
        waits = threading.Thread(
            target=lambda: got.append(b.get_with_deadline("0", "1", "k", deadline=time.monotonic() + 60))
        )
        waits.start()
        while len(looks) < 2:
            pass  # it has seen that there is nothing, twice, and watches
        for i in range(50):
            a.put("0", "1", f"other{i}", VALUE)
        a.put("0", "1", "k", VALUE)
        waits.join()
        self.assertEqual(got[0][0], VALUE)
        self.assertLess(len(looks), 20)

    def test_waiting_without_inotify_polls(self) -> None:
        a, b = self.connector(), self.connector()
        got: list[Any] = []
        with mock.patch.object(shm_files.Watch, "wait", lambda *x: None):
            waits = threading.Thread(
                target=lambda: got.append(b.get_with_deadline("0", "1", "k", deadline=time.monotonic() + 60))
            )
            waits.start()
            a.put("0", "1", "k", VALUE)
            waits.join()
        self.assertEqual(got[0][0], VALUE)
        self.assertIsNone(b.get_with_deadline("0", "1", "k", deadline=time.monotonic() + 0.01))

    def test_a_get_that_is_abandoned_ends(self) -> None:
        c = self.connector()
        c.put("0", "1", "other", 7)
        got: list[Any] = []
        waits = [
            threading.Thread(
                target=lambda key=key: got.append(c.get_with_deadline("0", "1", key, deadline=time.monotonic() + 3600)),
                daemon=True,
            )
            for key in ("k", "k", "kept")
        ]
        for t in waits:
            t.start()
        for _ in range(2000):  # until they wait
            c.abandon_get("k")
            left = [t for t in waits[:2] if t.is_alive()]
            if not left:
                break
            left[0].join(0.01)
        self.assertEqual(([t.is_alive() for t in waits], got), ([False, False, True], [None, None]))
        c.put("0", "1", "kept", 8)
        waits[2].join(60)
        self.assertEqual(got[2:], [(8, 1)])
        self.assertEqual(c.get("0", "1", "other"), (7, 1))

    def test_reaping(self) -> None:
        a, b = self.connector(), self.connector()
        for i in range(50):
            a.put("0", "1", f"k{i}", i)
            b.get("0", "1", f"k{i}")
        self.assertLess(a.health()["pending"], 3)
        a.reap_consumed()
        self.assertEqual(a.health()["pending"], 0)

    def test_no_more_threads(self) -> None:
        """A process that cannot start threads still puts values, and a later put sweeps them."""
        c = self.connector(ttl=0.01)
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.assertTrue(c.put("0", "1", "k", 1)[0])
        self.assertTrue(c.put("0", "1", "l", 1)[0])
        limit = time.monotonic() + 60
        while c.health()["pending"] and time.monotonic() < limit:
            time.sleep(0.001)
        self.assertEqual((c.get("0", "1", "k"), c.health()["pending"], c.health()["errors"]), (None, 0, 0))

    def test_many_threads(self) -> None:
        a, b = self.connector(), self.connector()
        taken: list[int] = []

        def take() -> None:
            for i in range(100):
                found = b.get("0", "1", f"k{i % 10}")
                if found is not None:
                    taken.append(found[0])

        threads = [threading.Thread(target=take) for _ in range(4)]
        for t in threads:
            t.start()
        for i in range(10):
            a.put("0", "1", f"k{i}", i)
        for t in threads:
            t.join()
        take()
        self.assertEqual(sorted(taken), list(range(10)))  # each once

    def test_records_of_the_go_package(self) -> None:
        self.assertEqual(Record.parse(b'p 1 2 3 4 "\\u00a0\\U000e0001\\u2028"\n').name, "\u00a0\U000e0001\u2028")  # type: ignore[union-attr]
        for line in ('p 12 34 56 78 "key"', 'g 1 0 2 -5 "k\\"\\\\ \\u00e9é"', 'p 18446744073709551615 1 1 1 "x"'):
            r = Record.parse(line.encode() + b"\n" + bytes(10))
            assert r is not None
            self.assertEqual(Record.parse(r.encode()), r)
        for bad in ("", "\n", 'p 1 2 3 4 "key"', 'x 1 2 3 4 "key"\n', 'p 1 2 3 "key"\n', 'p 1 2 3 4 "../key"\n',
                    'p 1 2 3 4 key\n', 'p 1 2 3 4 "a" "b"\n', 'p 1 2 3 4 ["a"]\n', 'p a b c d "k"\n', 'p 1 2 3 4 "\n'):  # fmt: skip
            with self.subTest(bad):
                self.assertIsNone(Record.parse(bad.encode()))

    def test_a_failed_open_leaks_no_descriptor(self) -> None:
        open(self.path(journal.journals_name()), "x").close()
        before = os.listdir("/proc/self/fd")
        self.assertRaises(journal.BadKey, self.connector)
        self.assertEqual(os.listdir("/proc/self/fd"), before)


class RoomTest(unittest.TestCase):
    def test_no_room_says_what_to_do(self) -> None:
        for number, advice in (
            (errno.ENOSPC, "make /dev/shm larger, or remove what lies there"),
            (errno.EMFILE, r"raise the limit of this process \(ulimit -n\)"),
        ):
            error = shm_files.as_no_room(OSError(number, os.strerror(number)))
            self.assertIsInstance(error, NoRoom)
            self.assertRegex(str(error), f"^no room: {os.strerror(number)}: {advice}$")
        other = OSError(errno.EIO, "broken")
        self.assertIs(shm_files.as_no_room(other), other)


if __name__ == "__main__":
    unittest.main()
