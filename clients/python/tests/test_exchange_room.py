"""Puts that wait for space, and the bounds of the memory."""

from __future__ import annotations

import errno
import os
import threading
import unittest
from typing import Any
from unittest import mock

from test_exchange import ExchangeCase

import omnibus
from omnibus import wire


class RoomTest(ExchangeCase):
    def test_free_wakes_a_thread_that_waits_for_space(self) -> None:
        content = bytes(900_000)
        for key, error in ("k", ValueError), ("\ud800", omnibus.ProtocolError):
            with self.subTest(error.__name__):
                writes, go_on = threading.Event(), threading.Event()

                def write(room: memoryview, writes: Any = writes, go_on: Any = go_on, kind: Any = error) -> None:
                    writes.set()
                    go_on.wait(60)
                    if kind is ValueError:
                        raise ValueError("no")

                first = self.beside(lambda: self.exchange.put("a", "b", key, len(content), write))  # noqa: B023
                self.assertTrue(writes.wait(60))
                second = self.putting(content)
                while not self.client._session.reader.reading_thread:
                    pass
                go_on.set()
                with self.assertRaises(error):
                    first()
                if error is ValueError:
                    self.host.offered()
                m = self.host.expect(wire.Place)
                self.host.send(wire.Placed(m.token, 7), wire.Returned([m.put]))
                second()

    def test_out_of_memory_reaches_only_the_asking_thread(self) -> None:
        self.exchange = self.client.exchange(20 << 20)
        done = self.putting(bytes(9 << 20))
        self.host.offered()
        m = self.host.expect(wire.Place)
        self.host.send(wire.Placed(m.token, 7))
        done()
        reads = self.beside(lambda: self.exchange.wait("a", "b", "other"))  # its thread reads for the waiting one, too
        fetch = self.host.expect(wire.Fetch)
        wants = self.putting(bytes(18 << 20))
        waits = False
        while not waits:
            with self.client._session.locked:
                waits = bool(self.client._session.reader.waiters)
        with mock.patch.object(os, "memfd_create", side_effect=OSError(errno.EMFILE, "")):
            self.host.send(wire.Returned([m.put]))
            with self.assertRaisesRegex(omnibus.OutOfMemory, "no segment of .*ulimit -n"):
                wants()
        self.host.expect(wire.Forget)
        self.host.send(wire.Failed(fetch.token, 15, ""))
        with self.assertRaises(omnibus.Nothing):
            reads()
        self.assertFalse(self.client.closed)

    def lies(self, size: int) -> wire.Place:
        """Put a value into a segment of its own, which nothing gets."""
        done = self.putting(bytes(size))
        self.host.offered()
        m = self.host.expect(wire.Place)
        self.host.send(wire.Placed(m.token, 7))
        done()
        return m

    def test_arena_and_largest_payload_are_bounded(self) -> None:
        self.client._session.largest_bytes = 4 << 20
        self.exchange = self.client.exchange(4 << 20)
        with self.assertRaisesRegex(omnibus.TooLarge, "5242880 bytes: this bus takes 4194304"):
            self.exchange.put("a", "b", "k", 5 << 20, lambda room: None)
        self.lies(3 << 20)
        with self.assertRaisesRegex(omnibus.OutOfMemory, "take 3145728 bytes in 1 segments, of at most 4194304 bytes and 1024 segments: .*raise arena_bytes"):
            self.exchange.put("a", "b", "k", 3 << 20, lambda room: None, 0.01)

    def test_segments_stay_within_the_hosts_bound(self) -> None:
        """For any arena_bytes: the host would end the connection of a process that offers more."""
        own = self.client._session.allocator
        self.assertEqual((own.max_bytes, own.max_segments), (0, 1024))  # an older host does not say
        own.max_bytes = 5 << 20
        own.limit_segments(8)
        self.exchange = self.client.exchange(1 << 40)
        self.lies(3 << 20)
        with self.assertRaisesRegex(omnibus.OutOfMemory, "lends the host 3145728, and the host takes 5242880"):
            self.exchange.put("a", "b", "k", 3 << 20, lambda room: None)
        self.lies(1 << 20)
        with self.assertRaisesRegex(omnibus.OutOfMemory, "of at most 1099511627776 bytes and 2 segments: let stages get the values, or clean them up$"):
            self.exchange.put("a", "b", "k", 1 << 20, lambda room: None, 0.01)
        self.assertFalse(self.client.closed)

    def test_empty_segments_above_keep_bytes_are_dropped(self) -> None:
        """Values that lie for a while take what they need. Above keep_bytes an empty segment is given up."""
        own = self.client._session.allocator
        own.keep_bytes = 5 << 20
        self.exchange = self.client.exchange(64 << 20)
        self.assertEqual(own.keep_bytes, 64 << 20)  # memory that the user sets is used again
        own.keep_bytes = 5 << 20
        puts = []
        for _ in range(3):
            puts.append(self.lies(2 << 20))
        self.host.send(wire.Returned([m.put for m in puts]))
        self.client.process()
        self.assertEqual(self.host.expect(wire.Forget).segment, puts[0].segment)
        self.assertEqual(own.used(), (4 << 20, 2))
        done = self.putting(bytes(2 << 20))  # in one that is there
        m = self.host.expect(wire.Place)
        self.assertIn(m.segment, [p.segment for p in puts[1:]])
        self.host.send(wire.Placed(m.token, 7))
        done()


if __name__ == "__main__":
    unittest.main()
