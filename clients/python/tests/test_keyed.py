"""Values under keys, within one process: the scenarios of an object storage in shared memory, and what is refused."""

from __future__ import annotations

import contextlib
import gc
import os
import pathlib
import queue
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import fakehost  # noqa: F401  (finds the package)

from omnibus import ForkedError, OutOfMemory, PayloadError, ProtocolError, Taken, Tensor, TooLarge, codec
from omnibus.keyed import (
    Corrupt,
    Exists,
    Full,
    Handle,
    KeyedReader,
    KeyedStore,
    NoDebt,
    NotFound,
    Stale,
    OwnerGone,
    TooManyReaders,
)

KIB = 1 << 10


def wait_until(what: Callable[[], bool]) -> None:
    """Wait for another thread or process."""
    done, end = threading.Event(), time.monotonic() + 60
    while not what():
        if time.monotonic() > end:
            raise AssertionError("it has not happened in a minute")
        done.wait(0.001)


class KeyedCase(unittest.TestCase):
    def store(self, arena_bytes: int, **options: Any) -> KeyedStore:
        s = KeyedStore.create(arena_bytes, max_object_bytes=arena_bytes, **options)
        self.addCleanup(s.close)
        return s

    def reader(self, s: KeyedStore) -> KeyedReader:
        """One more reader, attached as another process is."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        admitted = threading.Thread(target=s.admit, args=(ours,))
        admitted.start()
        r = KeyedReader.attach(theirs)
        admitted.join()
        self.addCleanup(r.close)
        return r

    def check(self, s: KeyedStore) -> None:
        """What a store knows twice agrees."""
        o = s._owner
        with s._lock:
            taken = sorted((x.offset, x.offset + max(-(-x.size // 64) * 64, 64)) for x in o.objects.values())
            self.assertEqual(sum(end - start for start, end in taken), o.used_bytes)
            for (_, end), (start, _) in zip(taken, taken[1:]):
                self.assertLessEqual(end, start, "two objects overlap")
            self.assertEqual(len({x.slot for x in o.objects.values()}), len(o.objects))
            self.assertEqual(len(o._free_slots) + len(o.objects), o._used_slots)
            for key, x in s._by_key.items():
                self.assertIs(o.objects[x.gen], x, key)
            for slot in o._free_slots:
                self.assertEqual(o._words[(4096 + 64 * slot) // 8], 0)
                for a in o.accounts.values():
                    self.assertFalse(a.has_debt(slot) or a.has_pin(slot), f"reader {a.reader} keeps slot {slot}")


class ScenarioTest(KeyedCase):
    def test_linear_allocation(self) -> None:
        s = self.store(16 * KIB)
        handles = [s.put(f"k{i}", bytes(KIB)) for i in range(16)]
        self.assertEqual([h.offset for h in handles], [KIB * i for i in range(16)])
        self.assertEqual(s.stats().used_bytes, 16 * KIB)
        self.check(s)

    def test_reclamation(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        first, second = s.put("first", bytes(2 * KIB)), s.put("second", bytes(2 * KIB))
        self.assertEqual(s.free_unused(), 0)
        r.get(first)
        self.assertEqual(s.free_unused(), 2 * KIB)
        self.assertEqual(("first" in s, "second" in s), (False, True))
        r.get(second)
        self.assertEqual(s.free_unused(), 2 * KIB)
        self.assertEqual(s.stats().used_bytes, 0)
        self.check(s)

    def test_younger_values_skip_one_with_a_debt(self) -> None:
        s = self.store(8 * KIB)
        r = self.reader(s)
        owed = s.put("owed", bytes([1]) * KIB)
        for i in range(20):
            self.assertEqual(r.get(s.put(f"k{i}", bytes(3 * KIB))), bytes(3 * KIB))
        self.assertEqual(r.get(owed), bytes([1]) * KIB)
        self.check(s)

    def test_wraparound(self) -> None:
        s = self.store(8 * KIB)
        r = self.reader(s)
        for i in range(100):
            value = bytes([i]) * (3 * KIB)
            self.assertEqual(r.get(s.put(f"k{i}", value)), value)
        self.assertGreater(s.stats().evicted, 90)
        self.check(s)

    def test_out_of_space(self) -> None:
        s = self.store(8 * KIB)
        r = self.reader(s)
        handles = [s.put(f"k{i}", bytes(4 * KIB)) for i in range(2)]
        with self.assertRaises(Full) as full:
            s.put("more", bytes(KIB))
        self.assertIn(f"reader 1 (process {os.getpid()}) keeps 2 values with {8 * KIB} bytes", str(full.exception))
        self.assertNotIn("more", s)
        r.drop(handles[0])
        self.assertEqual(r.get(s.put("more", bytes(KIB))), bytes(KIB))
        self.assertEqual(("k0" in s, "k1" in s), (False, True))
        r.drop(handles[1])
        self.check(s)

    def test_out_of_slots(self) -> None:
        s = self.store(64 * KIB, slots=3)
        r = self.reader(s)
        for i in range(3):
            s.put(f"k{i}", b"x")
        with self.assertRaisesRegex(Full, "3 of 3 slots"):
            s.put("more", b"x")
        r.drop(s.get_cached("k1"))
        r.drop(s.get_cached("k1"))
        with self.assertRaises(Full):
            s.put("more", b"x")
        r.drop(s.get_cached("k1"))
        r.drop(s.get_cached("k1"))
        self.check(s)

    def test_duplicate_keys(self) -> None:
        s = self.store(16 * KIB)
        r = self.reader(s)
        h = s.put("key", b"first")
        with self.assertRaisesRegex(Exists, "there is a value under 'key'"):
            s.put("key", b"second")
        self.assertEqual(s.get_cached("key"), h)
        self.assertEqual([r.get(h), r.get(h)], [b"first", b"first"])
        with self.assertRaises(NoDebt):
            r.get(h)
        s.touch("key")
        self.assertEqual(r.get(h), b"first")
        st = s.stats()
        self.assertEqual((st.puts, st.hits, st.misses, st.bytes_written, st.bytes_saved), (1, 2, 0, 5, 10))

    def test_fill_read_all_fill_again(self) -> None:
        s = self.store(16 * KIB)
        readers = [self.reader(s) for _ in range(3)]
        for turn in range(3):
            handles = {i: s.put(f"{turn}-{i}", bytes([turn, i]) * 500) for i in range(14)}
            for r in readers:
                for i, h in handles.items():
                    self.assertEqual(r.get(h), bytes([turn, i]) * 500)
        self.check(s)

    def test_fill_until_full_read_all_fill_again(self) -> None:
        s = self.store(16 * KIB)
        r = self.reader(s)
        before: list[Handle] = []
        for turn in range(2):
            handles: list[Handle] = []
            with self.assertRaises(Full):
                while True:
                    handles.append(s.put(f"{turn}-{len(handles)}", bytes([turn]) * 500))
            self.assertGreater(len(handles), 20)
            for h in before:
                with self.assertRaises(Stale):
                    r.get(h)
            self.assertEqual({r.get(h) for h in handles}, {bytes([turn]) * 500})
            before = handles
        self.check(s)

    def test_pieces_join(self) -> None:
        s = self.store(16 * KIB)
        for i in range(200):
            s.put(f"k{i}", bytes(i * 37 % (5 * KIB)))
        s.free_unused()
        s.put("all", bytes(16 * KIB))

    def test_last_charge(self) -> None:
        s = self.store(16 * KIB)
        readers = [self.reader(s) for _ in range(3)]
        h = s.put("key", bytes(100))
        s.get_cached("key")
        for r in readers * 2:
            self.assertEqual(s.free_unused(), 0)
            r.get(h)
        self.assertEqual(s.free_unused(), 128)

    def test_stale_handles(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        old = s.put("old", b"old")
        r.drop(old)
        s.delete("old")
        with self.assertRaises(Stale):
            r.get(old)
        new = s.put("new", b"new")
        self.assertEqual((new.slot, new.offset), (old.slot, old.offset))
        for bad in (old, new._replace(gen=old.gen)):
            with self.assertRaises(Stale):
                r.get(bad)
        self.assertEqual(r.get(new), b"new")

    def test_clear(self) -> None:
        s = self.store(16 * KIB)
        r = self.reader(s)
        held, owed, gone = (s.put(key, bytes([i]) * KIB) for i, key in enumerate(("held", "owed", "gone")))
        r.drop(gone)
        with r.view(held) as view:
            s.clear()
            self.assertEqual(s.stats().keys, 0)
            with self.assertRaises(NotFound):
                s.get_cached("held")
            self.assertEqual(bytes(view), bytes(KIB))
            self.assertEqual(s.stats().objects, 2)
        self.assertEqual(r.get(owed), bytes([1]) * KIB)
        with self.assertRaises(Stale):
            r.get(gone)
        self.assertEqual(r.get(s.put("held", b"again")), b"again")
        self.check(s)

    def test_values(self) -> None:
        s = self.store(64 * KIB)
        r = self.reader(s)
        tensor = Tensor("float32", (2, 3), bytes(range(24)))
        for i, value in enumerate([b"", b"x" * 300, "text", None, {"a": [1, 2.5]}, tensor, {"t": tensor, "n": 1}]):
            self.assertEqual(r.get(s.put(f"v{i}", value)), value)
        self.assertEqual(r.get(s.put("raw", b"raw", codec.RAW)), b"raw")

    def test_a_pin_keeps_a_value(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        h = s.put("key", bytes(KIB))
        r.drop(h)
        with r._reader.pin(h):
            self.assertEqual(s.free_unused(), 0)
            self.assertIn("key", s)
        self.assertEqual(s.free_unused(), KIB)
        self.check(s)

    def test_handles_as_bytes(self) -> None:
        h = self.store(4 * KIB).put("key", b"x")
        self.assertEqual(len(h.to_bytes()), 40)
        self.assertEqual(Handle.from_bytes(h.to_bytes()), h)
        with self.assertRaisesRegex(Corrupt, "a handle of 39 bytes, and not of 40"):
            Handle.from_bytes(h.to_bytes()[1:])

    def test_views_of_tensors_keep_them(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        t = r.get(s.put("t", Tensor("uint8", (3 * KIB,), bytes([7]) * 3 * KIB)))
        with self.assertRaises(Full):
            s.put("more", bytes(KIB))
        self.assertEqual(set(t.raw()), {7})
        del t
        gc.collect()
        s.put("more", bytes(KIB))
        self.check(s)


class ThreadsTest(KeyedCase):
    def test_many_writers_and_readers(self) -> None:
        """Values that are put and read at the same time, in room for a few, are whole."""
        s, n, failed = self.store(8 * KIB, slots=6), 400, []
        before = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, before)
        sys.setswitchinterval(1e-5)
        readers = [self.reader(s) for _ in range(2)]
        handles: list[queue.SimpleQueue[tuple[Handle, int] | None]] = [queue.SimpleQueue() for _ in readers]

        def write(writer: int) -> None:
            for i in range(n):
                size = 1 + i * 131 % (2 * KIB)
                while True:
                    try:
                        h = s.put(f"{writer}-{i}", bytes([size % 251]) * size)
                        break
                    except Full:
                        time.sleep(0)  # until readers have read
                for q in handles:
                    q.put((h, size))

        def read(r: KeyedReader, q: queue.SimpleQueue[tuple[Handle, int] | None]) -> None:
            while (item := q.get()) is not None:
                h, size = item
                if r.get(h) != bytes([size % 251]) * size:
                    failed.append(h)

        writing = [threading.Thread(target=write, args=(i,)) for i in range(2)]
        reading = [threading.Thread(target=read, args=(r, q)) for r, q in zip(readers, handles)]
        for t in writing + reading:
            t.start()
        for t in writing:
            t.join()
        for q in handles:
            q.put(None)
        for t in reading:
            t.join()
        self.assertEqual(failed, [])
        self.assertEqual(s.stats().puts, 2 * n)
        s.free_unused()
        self.assertEqual(s.stats().objects, 0)
        self.check(s)


class RefusedTest(KeyedCase):
    def test_keys(self) -> None:
        s = self.store(4 * KIB)
        for key in ("", "k" * 1025, "é" * 513, b"bytes", None):
            with self.subTest(key), self.assertRaisesRegex(ValueError, "a key is a str of 1 to 1024 bytes, and this is "):
                s.put(key, b"x")  # type: ignore[arg-type]
        s.put("k" * 1024, b"x")
        for call in (s.get_cached, s.touch, s.delete):
            for bad in (None, [], 1):
                with self.assertRaisesRegex(ValueError, "a key is a str"):
                    call(bad)  # type: ignore[arg-type]
        with self.assertRaises(TypeError):
            s.free_unused("all")  # type: ignore[arg-type]
        self.assertEqual(s.stats().keys, 1)
        s.touch("k" * 1024)
        for call in (s.get_cached, s.touch, s.delete):
            with self.assertRaisesRegex(NotFound, "^there is no value under 'missing'$"):
                call("missing")

    def test_values(self) -> None:
        s = self.store(4 * KIB)
        with self.assertRaisesRegex(PayloadError, "object"):
            s.put("key", object())
        with self.assertRaisesRegex(TooLarge, "4096 .max_object_bytes"):
            s.put("key", bytes(4 * KIB + 1))
        self.assertEqual((s.stats().keys, s.stats().used_bytes), (0, 0))
        s.put("key", b"x")
        self.check(s)

    def test_a_value_that_changes_while_it_is_put(self) -> None:
        s = self.store(4 * KIB)
        changing = bytearray(10)
        codec.register(300, lambda _: changing, bytes)
        self.addCleanup(codec._own.pop, 300)
        reserve = s._owner.reserve

        def grow(*args: Any) -> Any:
            changing.append(1)
            return reserve(*args)

        s._owner.reserve = grow  # type: ignore[method-assign]
        with self.assertRaises(ValueError):
            s.put("key", None, 300)
        self.assertEqual((s.stats().keys, s.stats().used_bytes), (0, 0))
        self.check(s)

    def test_a_key_that_is_deleted_while_it_is_put(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        second: list[Handle] = []

        def write(view: memoryview) -> None:
            s.delete("key")
            second.append(s.put("key", b"second", codec.RAW))
            view[:] = b"first"

        plans = [codec.Encoding(codec.RAW, 5, write), codec.plan(b"second", codec.RAW)]
        with mock.patch.object(codec, "plan", side_effect=plans):
            first = s.put("key", b"first")
        self.assertEqual(s.get_cached("key"), second[0])
        self.assertEqual([r.get(h) for h in (first, second[0], second[0])], [b"first", b"second", b"second"])
        self.check(s)

    def test_a_key_that_is_put_meanwhile(self) -> None:
        s = self.store(4 * KIB)
        plan = codec.plan

        def late(value: bytes, codec_: int | None) -> codec.Encoding:
            if value == b"first":
                s.put("key", b"second")
            return plan(value, codec_)

        with mock.patch.object(codec, "plan", late), self.assertRaises(Exists):
            s.put("key", b"first")
        self.assertEqual(s.stats().puts, 1)
        self.check(s)

    def test_forged_handles(self) -> None:
        s, other = self.store(4 * KIB), self.store(4 * KIB)
        r = self.reader(s)
        h = s.put("key", bytes(100))
        for field, values in {
            "store": (0, h.store ^ 1), "gen": (0, h.gen + 1, 1 << 62, -1), "offset": (64, 1 << 62, 1 << 63, 1 << 64, -1),
            "size": (0, h.size + 1, 1 << 63, -1), "slot": (1, 1 << 31, -1), "codec": (0, 2, 1 << 32),
        }.items():  # fmt: skip
            for value in values:
                with self.subTest(**{field: value}), self.assertRaises((Corrupt, Stale)):
                    r.get(h._replace(**{field: value}))
        with self.assertRaisesRegex(Corrupt, "is of another store"):
            r.get(other.put("key", b"x"))
        for bad in (None, (), (1, 2), "123456", (*h[:5], "1"), (*h[:5], 1.0), h.to_bytes()):
            with self.subTest(bad), self.assertRaisesRegex(Corrupt, "a handle is six numbers, or 40 bytes"):
                r.get(bad)  # type: ignore[arg-type]
        s.touch("key")
        self.assertEqual(r.get([*h]), bytes(100))  # type: ignore[arg-type]
        self.assertEqual(r.get(h), bytes(100))

    def test_more_readers_than_declared(self) -> None:
        s = self.store(4 * KIB, max_readers=1)
        r = self.reader(s)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        refused: list[BaseException] = []

        def attach() -> None:
            try:
                KeyedReader.attach(theirs)
            except TooManyReaders as e:
                refused.append(e)

        peer = threading.Thread(target=attach)
        peer.start()
        with self.assertRaisesRegex(TooManyReaders, "all 1 reader indexes are in use .max_readers"):
            s.admit(ours)
        peer.join()
        self.assertRegex(str(refused), "the store's owner has refused this reader")
        r.close()
        wait_until(lambda: s.stats().readers == 0)
        self.reader(s)

    def test_reader_that_settles_more_debts_than_it_has(self) -> None:
        s = self.store(4 * KIB)
        liar, r = self.reader(s), self.reader(s)
        h = s.put("key", b"x")
        r.drop(h)
        liar._reader._ledger[1024 + 2 * h.slot + 1] += 5
        self.assertEqual(s.free_unused(), 0)
        wait_until(lambda: s.stats().readers == 1)
        self.assertEqual(s.free_unused(), 64)
        self.assertEqual(r.get(s.put("key", b"y")), b"y")
        wait_until(lambda: bool(liar._ended))
        with self.assertRaisesRegex(OwnerGone, "has removed this reader"):
            liar.get(h)

    def test_peers_that_do_not_attach(self) -> None:
        s = self.store(4 * KIB)
        for packet in (b"", b"x" * 64, b"x" * 65):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                if packet:
                    theirs.send(packet)
                else:
                    theirs.shutdown(socket.SHUT_RDWR)
                with self.assertRaises((ProtocolError, OSError)):
                    s.admit(ours)
        self.assertEqual(s._owner._reserved_indexes, set())
        self.reader(s)

    def test_silent_peer_delays_no_other(self) -> None:
        s = self.store(4 * KIB)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        failed: list[BaseException] = []

        def admit() -> None:
            try:
                s.admit(ours)
            except Exception as e:
                failed.append(e)

        silent = threading.Thread(target=admit)
        silent.start()
        wait_until(lambda: len(s._owner._reserved_indexes) == 1)
        r = self.reader(s)
        self.assertEqual(r.get(s.put("key", b"x")), b"x")
        self.assertTrue(silent.is_alive())
        theirs.close()
        silent.join()
        self.assertEqual((len(failed), s._owner._reserved_indexes), (1, set()))

    def test_closed(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        h = s.put("key", bytes(100))
        with r.view(h) as view:
            s.close()
            for call in (lambda: s.put("k", b""), lambda: s.get_cached("key"), lambda: "key" in s, s.clear, s.free_unused):
                with self.assertRaisesRegex(OwnerGone, "the store is closed"):
                    call()
            wait_until(lambda: bool(r._ended))
            with self.assertRaises(OwnerGone):
                r.get(h)
            self.assertEqual(len(bytes(view)), 100)
        s.close()

    def test_a_reader_is_closed_when_its_last_view_is_gone(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        t = r.get(s.put("t", Tensor("uint8", (100,), bytes(100))))
        hang_up, times = r._close_socket, []
        with mock.patch.object(r, "_close_socket", lambda: times.append(hang_up())):
            r.close()
            r.close()
            with self.assertRaisesRegex(OwnerGone, "the reader is closed"):
                r.drop(s.get_cached("t"))
            self.assertEqual((len(times), set(t.raw())), (0, {0}))
            del t
            self.assertEqual(len(times), 1)
        wait_until(lambda: s.stats().readers == 0)

    def test_options(self) -> None:
        for options in ({"arena_bytes": 1}, {"arena_bytes": 4096, "max_object_bytes": 5000}, {"slots": 0}, {"max_readers": 64}):
            with self.subTest(options), self.assertRaisesRegex(ValueError, " and takes "):
                KeyedStore.create(**options)
        with self.assertRaises(OutOfMemory):
            KeyedStore.create(1 << 45)

    def test_a_forked_child(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        h = s.put("key", b"x")
        calls = (lambda: s.put("k", b""), lambda: s.get_cached("key"), s.clear, lambda: r.get(h), lambda: r.view(h), lambda: r.drop(h))
        with s._lock, r._reader._lock:  # as if other threads were at it
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                caught = 0
                for call in calls:
                    try:
                        call()
                    except ForkedError:
                        caught += 1
                os._exit(caught)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(calls))
        pid = os.fork()
        if pid == 0:
            r.close()
            s.close()
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertEqual((r._ended, s.stats().readers), ([], 1))
        s.touch("key")
        self.assertEqual(r.get(h), b"x")
        self.assertEqual(r.get(h), b"x")


class _Interrupt(Exception):
    pass


class InterruptTest(KeyedCase):
    """What a signal's handler raises comes between any two steps."""

    def setUp(self) -> None:
        def interrupt(*_: object) -> None:
            self.came = True
            raise _Interrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))

    def interrupted(self, rnd: random.Random, call: Callable[[], object]) -> None:
        """Call, and be interrupted in the middle of it, or soon after."""
        self.came = False
        try:
            signal.setitimer(signal.ITIMER_REAL, rnd.uniform(2e-6, 3e-5))
            call()
            self.await_it()
        except _Interrupt:
            pass

    def await_it(self) -> None:
        while not self.came:
            pass

    def test_a_reader_loses_nothing(self) -> None:
        s, rnd = self.store(256 * KIB, slots=2000), random.Random(1)
        r = self.reader(s)
        handles = [s.put(f"k{i}", b"x") for i in range(1500)]
        for h in handles:
            self.interrupted(rnd, lambda h=h: r.get(h))  # type: ignore[misc]
        for h in handles:
            with contextlib.suppress(NoDebt):
                r.drop(h)
        self.assertEqual((r._ended, s.stats().readers), ([], 1))
        s.free_unused()
        self.assertEqual(s.stats().objects, 0)
        self.check(s)

    def test_a_writer_is_whole_or_has_ended(self) -> None:
        rnd = random.Random(2)
        s = self.store(16 * KIB)
        for i in range(1500):
            self.interrupted(rnd, lambda i=i: s.put(f"k{i}", bytes(2000)))  # type: ignore[misc]
            try:
                s.put("whole", bytes(2000))
                s.delete("whole")
            except OwnerGone as e:
                self.assertIn("a signal came in the middle of a call; make a new one", str(e))
                s = self.store(16 * KIB)
            else:
                self.check(s)

    def test_interrupt_in_a_call_ends_the_store(self) -> None:
        s = self.store(4 * KIB)
        r = self.reader(s)
        with mock.patch.object(s._owner, "reserve", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            s.put("key", b"x")
        with self.assertRaisesRegex(OwnerGone, "a signal came in the middle of a call; make a new one"):
            s.put("key", b"x")
        wait_until(lambda: bool(r._ended))

    def test_close_in_a_handler(self) -> None:
        for _ in range(100):
            s = self.store(4 * KIB)
            signal.signal(signal.SIGALRM, lambda *_: s.close())
            signal.setitimer(signal.ITIMER_REAL, 1e-5)
            with self.assertRaises(OwnerGone):
                while True:
                    s.stats()
                    "key" in s  # noqa: B015


class ListenTest(KeyedCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "store.sock")

    def test_two_writers(self) -> None:
        s, other = self.store(4 * KIB), self.store(4 * KIB)
        s.listen(self.path)
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)
        with self.assertRaisesRegex(Taken, f"{self.path} is in use by process {os.getpid()}"):
            other.listen(self.path)
        os.unlink(f"{self.path}.lock")
        with self.assertRaisesRegex(Taken, "is in use"):
            other.listen(self.path)
        with self.assertRaisesRegex(ValueError, "listens at"):
            s.listen(self.path + "2")
        r = KeyedReader.dial(self.path)
        self.addCleanup(r.close)
        wait_until(lambda: s.stats().readers == 1)
        self.assertEqual(r.get(s.put("key", b"x")), b"x")
        s.close()
        self.assertFalse(os.path.exists(self.path))

    def test_other_users_are_refused(self) -> None:
        s = self.store(4 * KIB)
        s.listen(self.path)
        with mock.patch("omnibus.keyed._peer", lambda _: (1, os.geteuid() + 1)):
            with self.assertRaises(OwnerGone):
                KeyedReader.dial(self.path)
        self.assertEqual(s.stats().readers, 0)

    def test_no_descriptors_for_a_while(self) -> None:
        s = self.store(4 * KIB)
        s.listen(self.path)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
        fillers: list[int] = []
        with self.assertLogs("omnibus", "WARNING") as log:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
            with self.assertRaises(OSError):
                while True:
                    fillers.append(os.dup(0))
            for sock in sockets:
                sock.connect(self.path)
            wait_until(lambda: "a process cannot be admitted" in str(log.output))
            for fd in fillers:
                os.close(fd)
            for sock in sockets:
                sock.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        r = KeyedReader.dial(self.path)
        self.addCleanup(r.close)
        self.assertEqual(r.get(s.put("key", b"x")), b"x")

    def test_paths(self) -> None:
        s = self.store(4 * KIB)
        folder = pathlib.Path(self.path).parent / "made"
        s.listen(folder / "sock")
        KeyedReader.dial(folder / "sock").close()
        shutil.rmtree(folder)
        folder.write_text("in the way")
        s.close()
        with self.assertRaises(OwnerGone):
            s.put("key", b"")
        with self.assertRaisesRegex(ValueError, "the path is empty"):
            self.store(4 * KIB).listen("")

    def test_no_store(self) -> None:
        with self.assertRaisesRegex(OwnerGone, f"no store answers at {self.path}: .*No such file"):
            KeyedReader.dial(self.path)
        with open(self.path, "w"):
            pass
        with self.assertRaisesRegex(FileExistsError, "no socket"):
            self.store(4 * KIB).listen(self.path)
        with self.assertRaisesRegex(ValueError, "the system allows"):
            self.store(4 * KIB).listen(self.path + "x" * 100)


class ModelTest(KeyedCase):
    """Values are put, asked for, deleted and freed in any order, and readers end. Each charge of a reader that lives is
    collected once, and has the value that was put."""

    def test_model(self) -> None:
        for seed in range(60):
            with self.subTest(seed=seed):
                self.run_model(random.Random(seed))

    def run_model(self, rnd: random.Random) -> None:
        s = self.store(8 * KIB, slots=rnd.choice((4, 64)))
        readers = [self.reader(s) for _ in range(3)]
        values: dict[str, bytes] = {}  # what was put last
        owed: list[tuple[KeyedReader, Handle, bytes]] = []
        held: list[tuple[KeyedReader, Any, memoryview, bytes]] = []

        def charged(h: Handle, value: bytes) -> None:
            owed.extend((r, h, value) for r in readers)

        for n in range(200):
            key = f"k{rnd.randrange(8)}"
            what = rnd.choice(("put", "put", "put", "cached", "touch", "delete", "get", "get", "get", "hold", "let go", "drop",
                               "clear", "free", "end"))  # fmt: skip
            if what == "put":
                value = bytes([n]) * rnd.randrange(3 * KIB)
                try:
                    charged(s.put(key, value), value)
                    values[key] = value
                except Exists:
                    self.assertIn(key, values)
                except Full:
                    pass
            elif what in ("cached", "touch"):
                try:
                    h = s.get_cached(key)
                    charged(h, values[key])
                    if what == "touch":
                        s.touch(key)
                        charged(h, values[key])
                except NotFound:
                    pass
            elif what == "delete":
                try:
                    s.delete(key)
                    del values[key]
                except NotFound:
                    pass
            elif what in ("get", "drop", "hold") and owed:
                r, h, value = owed.pop(rnd.randrange(len(owed)))
                if what == "get":
                    self.assertEqual(r.get(h), value)
                elif what == "drop":
                    r.drop(h)
                else:
                    view = r.view(h)
                    held.append((r, view, view.__enter__(), value))
            elif what == "let go" and held:
                _, view, data, value = held.pop(rnd.randrange(len(held)))
                self.assertEqual(bytes(data[len(data) - len(value) :]), value)
                view.__exit__(None, None, None)
            elif what == "clear":
                s.clear()
                values.clear()
            elif what == "free":
                s.free_unused(rnd.choice((0, KIB, None)))
            elif what == "end" and rnd.random() < 0.2:
                r = readers.pop(rnd.randrange(len(readers)))
                owed = [o for o in owed if o[0] is not r]
                for other, view, _, _ in held:
                    if other is r:
                        view.__exit__(None, None, None)
                held = [x for x in held if x[0] is not r]
                r.close()
                wait_until(lambda: s.stats().readers == 2)
                readers.append(self.reader(s))
            self.check(s)
        for r, h, value in owed:
            self.assertEqual(r.get(h), value)
        for _, view, _, _ in held:
            view.__exit__(None, None, None)
        s.free_unused()
        self.assertEqual((s.stats().keys, s.stats().objects, s.stats().used_bytes), (0, 0, 0))
        s.close()


if __name__ == "__main__":
    unittest.main()
