"""Descriptors under names, with a host that follows the protocol and believes nothing."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import subprocess
import sys
import unittest
from typing import Any
from unittest import mock

from hostcase import HostCase

import omnibus
from omnibus import directory, wire
from omnibus.aio import arun
from omnibus.directory import Owner, find_work, publish_work

NAME = omnibus.Name(bytes(range(16)), 7)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "3600"])


class DirectoryCase(HostCase):
    def setUp(self) -> None:
        super().setUp()
        self.client = self.connect()
        self.fd = os.memfd_create("published")
        self.addCleanup(os.close, self.fd)

    def same(self, fd: int) -> bool:
        return os.fstat(fd).st_ino == os.fstat(self.fd).st_ino

    def published(self) -> wire.Publish:
        m = self.host.expect(wire.Publish)
        fd = self.host.fds.popleft()
        self.assertTrue(self.same(fd))
        os.close(fd)
        return m

    def found(self, pid: int) -> None:
        m = self.host.expect(wire.Find)
        pidfd = os.pidfd_open(pid)
        self.host.send(wire.Found(m.token, 3, pid, 1 << 30), fds=(self.fd, pidfd))
        os.close(pidfd)


class PublishTest(DirectoryCase):
    def test_the_descriptor_stays_the_callers(self) -> None:
        before = open_files()
        done = self.beside(lambda: self.client.publish(NAME, self.fd, 1 << 46))
        m = self.published()
        self.assertEqual((m.pool, m.number, m.size), (NAME.pool, 7, 1 << 46))
        self.host.send(wire.Published(m.token))
        done()
        self.assertEqual(open_files(), before)
        self.client.withdraw(NAME)
        self.assertEqual(self.host.expect(wire.Withdraw), wire.Withdraw(7, NAME.pool))

    def test_refused(self) -> None:
        for code, kind in [(6, omnibus.Taken), (11, omnibus.Overloaded), (13, omnibus.HostError)]:
            done = self.beside(lambda: self.client.publish(NAME, self.fd, 1))
            self.host.send(wire.Failed(self.published().token, code, "no"))
            with self.assertRaises(kind):
                done()
        self.host.nothing()

    def test_arguments_that_make_no_sense(self) -> None:
        before = open_files()
        for name, fd, size in [
            (NAME, self.fd, 0), (NAME, self.fd, -1), (NAME, self.fd, (1 << 46) + 1), ((b"short", 1), self.fd, 1),
        ]:  # fmt: skip
            with self.assertRaises(ValueError):
                self.client.publish(omnibus.Name(*name), fd, size)
        with self.assertRaises(OSError):
            self.client.publish(NAME, 1 << 20, 1)
        with self.assertRaises(omnibus.ProtocolError):
            self.client.publish(omnibus.Name(NAME.pool, 1 << 32), self.fd, 1)
        self.assertEqual(open_files(), before)
        self.host.nothing()

    def test_the_host_dies(self) -> None:
        before = open_files()
        done = self.beside(lambda: self.client.publish(NAME, self.fd, 1))
        self.published()
        self.host.close_socket()
        with self.assertRaises(omnibus.HostGone):
            done()
        for ask in (lambda: self.client.publish(NAME, self.fd, 1), lambda: self.client.find(NAME)):
            with self.assertRaises(omnibus.HostGone):
                ask()
        self.assertLess(open_files(), before)


class FindTest(DirectoryCase):
    def test_found(self) -> None:
        before = open_files()
        with sleeper() as owner:
            done = self.beside(lambda: self.client.find(NAME))
            self.found(owner.pid)
            with done() as f:
                self.assertTrue(self.same(f.fd))
                self.assertFalse(os.get_inheritable(f.fd))
                self.assertEqual(
                    (f.size, f.owner.pid, f.owner.dead, f.owner.wait(0)), (1 << 30, owner.pid, False, False)
                )
                self.host.close_socket()  # which is no matter
                owner.kill()
                self.assertTrue(f.owner.wait(60))
                self.assertTrue(f.owner.dead)
            self.assertEqual((f.fd, f.owner.fileno()), (-1, -1))
            self.assertTrue(f.owner.dead)
            f.close()
        self.client.close()
        self.assertLess(open_files(), before)

    def test_take_and_close(self) -> None:
        before = open_files()
        for _ in range(3):
            done = self.beside(lambda: self.client.find(NAME))
            self.found(os.getpid())
            f = done()
            fd = f.take()
            self.assertEqual(f.fd, -1)
            del f, done
            self.assertTrue(self.same(fd))
            os.close(fd)
        self.assertEqual(open_files(), before)

    def test_closed_owners_are_not_watched(self) -> None:
        done = self.beside(lambda: self.client.find(NAME))
        self.found(os.getpid())
        f = done()
        f.close()
        with self.assertRaises(ValueError):
            f.owner.wait()

    def test_longest_waits(self) -> None:
        """They may be longer than the system's calls take, which then wait more than once."""
        alive = sleeper()
        self.addCleanup(alive.wait)
        self.addCleanup(alive.kill)
        owner = Owner(os.pidfd_open(alive.pid), alive.pid)
        self.addCleanup(owner._close)
        waits = [self.beside(lambda t=t: owner.wait(t)) for t in (1e9, 1e300, math.inf)]
        with mock.patch.object(directory, "LONGEST_SECONDS", 0.001):
            waits.append(self.beside(lambda: owner.wait(60)))
            self.assertFalse(owner.wait(0.02))
            alive.kill()
            for wait in waits:
                self.assertTrue(wait())

    def test_nothing(self) -> None:
        done = self.beside(lambda: self.client.find(NAME))
        self.host.send(wire.Failed(self.host.expect(wire.Find).token, 15, "no descriptor has this name"))
        with self.assertRaises(omnibus.Nothing) as c:
            done()
        self.assertIsInstance(c.exception, LookupError)

    def test_descriptors_of_a_message_that_is_skipped(self) -> None:
        before = open_files()
        done = self.beside(lambda: self.client.call("status"))
        token = self.host.expect(wire.Call).token
        unknown = bytes([8, 0, 0, 0, 0xFF, 0xFF, 2, wire.SKIPPABLE])
        self.host.send_raw(unknown + wire.encode(wire.Reply(token, 0, b"{}")), fds=(self.fd, self.fd))
        self.assertEqual(done(), {})
        self.assertEqual(open_files(), before)

    def test_unexpected_descriptors_are_closed(self) -> None:
        before = open_files()
        done = self.beside(lambda: self.client.call("status"))
        token = self.host.expect(wire.Call).token
        self.host.send(wire.Found(token, 0, 1, 1), fds=(self.fd, self.fd))
        with self.assertRaises(omnibus.ProtocolError):
            done()
        self.host.close_socket()
        self.assertLess(open_files(), before)


class AsyncTest(HostCase):
    def test_publish_and_find(self) -> None:
        fd = os.memfd_create("published")
        self.addCleanup(os.close, fd)

        def host() -> None:
            self.host.welcome()
            self.host.send(wire.Published(self.host.expect(wire.Publish).token))
            m = self.host.expect(wire.Find)
            pidfd = os.pidfd_open(os.getpid())
            self.host.send(wire.Found(m.token, 0, os.getpid(), 5), fds=(fd, pidfd))
            os.close(pidfd)
            self.host.expect(wire.Withdraw)

        async def body() -> Any:
            async with await omnibus.aconnect(self.host.path) as client:
                await client.publish(NAME, fd, 5)
                with await client.find(NAME) as f:
                    client.withdraw(NAME)
                    return f.size, os.fstat(f.fd).st_ino, f.owner.dead

        done = self.beside(host)
        self.assertEqual(asyncio.run(body()), (5, os.fstat(fd).st_ino, False))
        done()

    def test_abandoned_find_closes_its_descriptors(self) -> None:
        fd = os.memfd_create("published")
        self.addCleanup(os.close, fd)
        client = self.beside(lambda: omnibus.connect(self.host.path))
        self.host.welcome()
        s = client()._session

        async def body() -> None:
            loop = asyncio.get_running_loop()
            before = open_files()
            for kind, work, answer in [
                (wire.Find, find_work(s, NAME), lambda token: (wire.Found(token, 0, os.getpid(), 1), (fd, fd))),
                (wire.Publish, publish_work(s, NAME, fd, 1), lambda token: (wire.Published(token), ())),
            ]:
                task = asyncio.ensure_future(arun(s, work))
                asked = await loop.run_in_executor(None, self.host.expect, kind)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                m, fds = answer(asked.token)
                self.host.send(m, fds=fds)
                s.process()
            self.host.expect(wire.Withdraw)
            os.close(self.host.fds.popleft())
            self.assertEqual(open_files(), before)

        asyncio.run(body())
        client().close()

    def test_an_owner_wakes_the_loop(self) -> None:
        with sleeper() as p:
            owner = omnibus.Owner(os.pidfd_open(p.pid), p.pid)

            async def body() -> None:
                told = asyncio.get_running_loop().create_future()
                asyncio.get_running_loop().add_reader(owner.fileno(), lambda: told.done() or told.set_result(None))
                p.kill()
                await asyncio.wait_for(told, 60)
                asyncio.get_running_loop().remove_reader(owner.fileno())

            asyncio.run(body())
            self.assertTrue(owner.dead)
            owner._close()


if __name__ == "__main__":
    sys.exit(unittest.main())
