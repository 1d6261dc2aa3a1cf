"""A host of another user is told nothing, unless its user is named."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import tempfile
import unittest
from collections.abc import Callable
from typing import Any

from hostcase import HostCase

import omnibus
from omnibus.connector import OmnibusConnector

#: A user that no test runs as.
STRANGER = 4321


class Stranger:
    """A process of another user, which listens at `path` and counts the received bytes."""

    def __init__(self, case: unittest.TestCase) -> None:
        folder = tempfile.TemporaryDirectory()
        case.addCleanup(folder.cleanup)
        self.folder, self.path = folder.name, os.path.join(folder.name, "bus.sock")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        enough, self._enough = os.pipe()
        self._heard, heard = os.pipe()
        ready, told = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._enough)
                os.setgroups([])
                os.setgid(STRANGER)
                os.setuid(STRANGER)
                listener.listen()  # which is when the kernel notes whose it is
                os.write(told, b"!")
                os.write(heard, str(self._count(listener, enough)).encode())
            finally:
                os._exit(0)
        for fd in (enough, heard, told):
            os.close(fd)
        listener.close()
        case.assertEqual(os.read(ready, 1), b"!")
        os.close(ready)

    @staticmethod
    def _count(listener: socket.socket, enough: int) -> int:
        heard = 0
        while True:
            ready, _, _ = select.select([listener, enough], [], [])
            if listener not in ready:
                return heard
            sock, _ = listener.accept()
            heard += len(sock.recv(1024))
            sock.close()

    def heard(self) -> int:
        """How many bytes came. It listens no longer."""
        os.close(self._enough)
        said = os.read(self._heard, 100)
        os.close(self._heard)
        os.waitpid(self._pid, 0)
        return int(said)


@unittest.skipIf(os.geteuid() != 0, "needs root, to have processes and files of two users")
class StrangerTest(unittest.TestCase):
    def refused(self, f: Callable[[], Any], want: str) -> None:
        with self.assertRaisesRegex(omnibus.Untrusted, want):
            f()

    def test_host_of_another_user(self) -> None:
        stranger = Stranger(self)
        for path in (stranger.path, stranger.folder):
            os.chown(path, STRANGER, STRANGER)
        want = f"{stranger.folder}: the folder belongs to user {STRANGER}, and this process runs as user 0: .*allow it by name"
        for what, f in {
            "connect": lambda: omnibus.connect(stranger.path),
            "aconnect": lambda: asyncio.run(omnibus.aconnect(stranger.path)),
            "a queue": lambda: omnibus.TensorQueue(path=stranger.path),
            "a connector": lambda: OmnibusConnector({"socket": stranger.path}),
            "another user named": lambda: omnibus.connect(stranger.path, allow_uids=[STRANGER + 1]),
        }.items():
            with self.subTest(what):
                self.refused(f, want)
        with self.assertLogs("omnibus", "ERROR") as logs, self.assertRaises(SystemExit):
            omnibus.run(omnibus.StageFunction(lambda x: x, "a", 1), path=stranger.path)
        self.assertRegex(logs.output[0], want)
        self.assertEqual(stranger.heard(), 0)

    def test_socket_file_of_another_user(self) -> None:
        stranger = Stranger(self)
        os.chown(stranger.path, STRANGER, STRANGER)
        self.refused(lambda: omnibus.connect(stranger.path), f"{stranger.path}: the socket belongs to user {STRANGER}")
        self.assertEqual(stranger.heard(), 0)

    def test_listener_of_another_user(self) -> None:
        """As when the files were exchanged since they were looked at."""
        stranger = Stranger(self)
        before = len(os.listdir("/proc/self/fd"))
        self.refused(
            lambda: omnibus.connect(stranger.path), f"process [0-9]+, which listens, is one of user {STRANGER}"
        )
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        self.assertEqual(stranger.heard(), 0)

    def test_allowed_user_is_trusted(self) -> None:
        stranger = Stranger(self)
        for path in (stranger.path, stranger.folder):
            os.chown(path, STRANGER, STRANGER)
        with self.assertRaisesRegex(omnibus.HostGone, "before it said welcome"):
            omnibus.connect(stranger.path, allow_uids=[STRANGER])
        self.assertGreater(stranger.heard(), 0)


class FolderTest(HostCase):
    def test_folder_writable_by_other_users(self) -> None:
        for mode in (0o720, 0o702):
            os.chmod(self.host.folder.name, mode)
            with self.subTest(mode), self.assertRaisesRegex(
                omnibus.Untrusted, f"others may write to the folder {self.host.folder.name} \\(mode {mode:04o}\\).*chmod go-w"
            ):
                omnibus.connect(self.host.path)
        os.chmod(self.host.folder.name, 0o1777)  # where no user can remove another user's socket
        self.connect()


if __name__ == "__main__":
    unittest.main()
