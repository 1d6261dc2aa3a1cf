"""The connector over the exchange of a host that follows the protocol and believes nothing."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from hostcase import HostCase

import omnibus
from omnibus import wire
from omnibus.connector import OmnibusConnector
from omnibus.connector import ring as connector_ring


class WhichHostTest(unittest.TestCase):
    """The host of a connector that names none."""

    def test_the_environment_and_then_the_exchange(self) -> None:
        folder = {"XDG_RUNTIME_DIR": "/nowhere"}
        for environment, path in (
            ({"OMNIBUS_SOCKET": "/nowhere/a.sock", "OMNIBUS_BUS": "speech"}, "/nowhere/a.sock"),
            ({"OMNIBUS_BUS": "speech"}, "/nowhere/omnibus/speech.sock"),
            ({}, "/nowhere/omnibus/exchange.sock"),
        ):
            with (
                self.subTest(environment),
                mock.patch.dict(os.environ, folder | environment, clear=True),
                self.assertRaisesRegex(omnibus.HostGone, f"no host listens at {path}: .*`omnibus exchange --socket {path}`"),
            ):
                OmnibusConnector({})


class ConnectorTest(HostCase):
    """The connector in its mode ring."""

    def connector(self) -> OmnibusConnector:
        made = self.beside(lambda: OmnibusConnector({"socket": self.host.path, "stage_id": 1, "timeout": 0.2}))
        self.host.welcome()
        c: OmnibusConnector = made()
        return c

    def setUp(self) -> None:
        super().setUp()
        self.c = self.connector()

    def tearDown(self) -> None:
        self.host.close_socket()
        self.c.close()
        super().tearDown()

    def test_a_process_exits_without_a_close(self) -> None:
        code = (
            "import sys; from omnibus.connector import OmnibusConnector\n"
            "c = OmnibusConnector({'socket': sys.argv[1]})"
        )
        package = os.path.dirname(os.path.dirname(omnibus.__file__))
        process = subprocess.Popen(
            [sys.executable, "-c", code, self.host.path], env={**os.environ, "PYTHONPATH": package}
        )
        self.addCleanup(process.kill)
        own = self.host.sock
        self.host.sock, _ = self.host.listener.accept()
        self.addCleanup(self.host.sock.close)
        self.host.expect(wire.Hello)
        self.host.send(wire.Welcome(wire.VERSION, 0, 1, 7, 512, 0, "test", [], [], []))
        self.host.sock = own  # of the connector that the other tests have
        self.assertEqual(process.wait(30), 0)

    def test_put_and_get(self) -> None:
        done = self.beside(lambda: self.c.put(0, 1, "r_0_0", [1, 2]))  # type: ignore[arg-type]
        m = self.host.expect(wire.Place)
        self.host.send(wire.Placed(m.token, 7))
        self.assertEqual(done(), (True, 3, {"entry": "7", "size": 3}))
        done = self.beside(lambda: self.c.get("0", "1", "r_0_0", {"size": 3}))
        f = self.host.expect(wire.Fetch)
        self.assertEqual((f.from_, f.to, f.key), (m.from_, m.to, m.key))
        self.host.send(wire.Fetched(f.token, 4, wire.INLINE, 0, 0, m.size, bytes(m.payload)))
        self.assertEqual(done(), ([1, 2], 3))
        self.host.expect(wire.Finish)

    def test_the_threshold_is_ignored(self) -> None:
        """Configurations of vLLM-Omni have the setting, and its stages get by the key alone."""
        c = OmnibusConnector({"socket": self.host.path, "shm_threshold_bytes": 65_536, "timeout": 0.2})
        self.addCleanup(c.close)
        done = self.beside(lambda: c.put("0", "1", "k", [1, 2]))
        m = self.host.expect(wire.Place)
        self.host.send(wire.Placed(m.token, 7))
        self.assertEqual(done(), (True, 3, {"entry": "7", "size": 3}))

    def test_a_segment_of_the_key(self) -> None:
        """A stage that is not switched puts its values into segments."""
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.addCleanup(folder.cleanup)
        c = OmnibusConnector({"socket": self.host.path, "dir": folder.name, "timeout": 0.2, "stage_id": 1})
        self.addCleanup(c.close)

        def missing(do: Callable[[], Any]) -> Any:
            done = self.beside(do)
            self.host.send(wire.Failed(self.host.expect(wire.Fetch).token, 15, ""))
            return done()

        later = time.monotonic() + 60
        with OmnibusConnector({"mode": "segment", "dir": folder.name}) as other:
            other.put("0", "1", "k", [1, 2])
            self.assertEqual(missing(lambda: c.get("0", "1", "k")), ([1, 2], 3))
            got = self.beside(lambda: c.get_with_deadline("0", "1", "k", deadline=later))
            fetch = self.host.expect(wire.Fetch)
            other.put("0", "1", "k", [1, 2, 3])  # while it is waited for
            self.assertEqual(got(), ([1, 2, 3], 4))
            self.assertEqual(self.host.expect(wire.Cancel).token, fetch.token)
        with OmnibusConnector({"mode": "segment", "dir": folder.name, "generation": 1, "shm_threshold_bytes": 0}) as other:
            metadata = other.put("0", "1", "k", [3])[2]
            self.assertIsNone(missing(lambda: c.get("0", "1", "k")))
            self.assertEqual(c.get("0", "1", "k", metadata), ([3], 2))
            metadata = other.put("0", "1", "k", [4])[2]
            self.assertEqual(c.get_with_deadline("0", "1", "k", metadata, deadline=later), ([4], 2))
        with OmnibusConnector({"mode": "segment", "dir": folder.name}) as other:
            other.put("0", "1", "k", [5])
            self.assertIsNone(missing(lambda: c.get("0", "1", "k", {"entry": "7"})))  # which names another value
        self.assertEqual(c.health()["errors"], 0)
        closed = self.beside(c.close)
        self.host.send(wire.Cleaned(self.host.expect(wire.Cleanup).token, 0))
        closed()
        self.assertEqual([n for n in os.listdir(folder.name) if not n.startswith(".omnibus-")], [])

    def test_a_missing_value_is_none_and_no_error(self) -> None:
        done = self.beside(lambda: self.c.get("0", "1", "k"))
        self.host.send(wire.Failed(self.host.expect(wire.Fetch).token, 15, ""))
        self.assertIsNone(done())
        h = self.c.health()
        self.assertEqual((h["status"], h["missing"], h["errors"]), ("healthy", 1, 0))

    def test_a_host_that_is_stopped_at_the_deadline(self) -> None:
        self.patient_for(0.01)
        for left in (0, 0.01):
            got = self.beside(lambda: self.c.get_with_deadline("a", "b", "k", deadline=time.monotonic() + left))  # noqa: B023
            self.assertIsNone(got())
            m = self.host.expect(wire.Fetch)
            self.assertEqual(self.host.expect(wire.Cancel).token, m.token)

    def test_arrays_keep_the_payload(self) -> None:
        try:
            import numpy as np
        except ImportError:
            raise unittest.SkipTest("NumPy is not here") from None
        payload = OmnibusConnector.serialize_obj({"a": np.arange(2000, dtype=np.float32), "b": 5})
        self.host.segment(1, payload)
        done = self.beside(lambda: self.c.get("0", "1", "k"))
        f = self.host.expect(wire.Fetch)
        self.host.send(wire.Fetched(f.token, 4, 0, 1, 0, len(payload), b""))
        value, size = done()
        del done
        part = value["a"].reshape(2, 1000)[1][::2]
        del value
        self.host.nothing()
        self.assertEqual(part[1], 1002)
        del part
        self.assertEqual(self.host.expect(wire.Finish), wire.Finish(4))

    def test_a_key_is_no_line_of_its_own(self) -> None:
        with self.assertLogs("omnibus", "ERROR") as logs:
            self.assertEqual(self.c.put("0", "1", "k\nERROR forged", 1), (False, 0, None))
        for text in (logs.records[0].getMessage(), self.c.health()["last_error"]):
            self.assertIn(r"'k\nERROR forged'", text)
            self.assertNotIn("\n", text)

    def test_the_host_is_gone_and_back(self) -> None:
        self.host.close_socket()
        with self.assertLogs("omnibus", "ERROR"):
            self.assertEqual(self.c.put("0", "1", "k", 1), (False, 0, None))
        self.assertIn("gone", self.c.health()["status"])
        self.assertEqual(self.c.health()["error_kinds"], {"HostGone": 1})
        done = self.beside(lambda: self.c.put("0", "1", "k", 1))
        self.host.welcome()
        self.host.send(wire.Placed(self.host.expect(wire.Place).token, 7))
        self.assertTrue(done()[0])
        self.assertEqual(self.c.health()["status"], "healthy")

    def test_threads_share_an_exchange_when_the_host_is_back(self) -> None:
        """Otherwise a connector could clean up only some of its threads' values."""
        self.host.close_socket()
        with self.assertLogs("omnibus", "ERROR"):
            self.c.put("0", "1", "k", 1)
        at_once = threading.Barrier(5)

        def put(key: str) -> Any:
            at_once.wait()
            return self.c.put("0", "1", key, 1)

        puts = [self.beside(functools.partial(put, key)) for key in "abcd"]
        at_once.wait()
        self.host.welcome()
        owners = set()
        for _ in puts:
            m = self.host.expect(wire.Place)
            owners.add(m.owner)
            self.host.send(wire.Placed(m.token, 7))
        self.assertTrue(all(done()[0] for done in puts))
        self.assertEqual(len(owners), 1)

    def test_connectors_of_a_process_share_a_connection(self) -> None:
        other = OmnibusConnector({"socket": self.host.path})
        done = self.beside(lambda: other.put("0", "1", "k", 1))
        self.host.send(wire.Placed(self.host.expect(wire.Place).token, 7))
        self.assertTrue(done()[0])
        done = self.beside(other.close)
        m = self.host.expect(wire.Cleanup)
        self.assertEqual(m.key, "")
        self.host.send(wire.Cleaned(m.token, 1))
        done()
        self.assertIn((self.host.path, frozenset(), None), connector_ring._hosts)
        self.assertFalse(connector_ring._hosts[self.host.path, frozenset(), None].client().closed)

    def test_a_put_during_the_close_is_removed(self) -> None:
        other = self.beside(lambda: OmnibusConnector({"socket": self.host.path}))()  # keeps the connection
        done = self.beside(lambda: self.c.put("0", "1", "k", 1))
        put = self.host.expect(wire.Place)
        closed = self.beside(self.c.close)
        m = self.host.expect(wire.Cleanup)
        self.host.send(wire.Cleaned(m.token, 0))
        closed()
        self.host.send(wire.Placed(put.token, 7))
        again = self.host.expect(wire.Cleanup)
        self.assertEqual((again.owner, again.key), (put.owner, ""))
        self.host.send(wire.Cleaned(again.token, 1))
        self.assertEqual(done(), (False, 0, None))
        self.beside(other.close)
        m = self.host.expect(wire.Cleanup)
        self.host.send(wire.Cleaned(m.token, 0))

    def test_a_close_of_the_host_is_noticed(self) -> None:
        self.host.send(wire.Bye())
        self.assertIn("gone", self.c.health()["status"])

    def test_a_connector_is_collected_while_the_connection_is_locked(self) -> None:
        other = OmnibusConnector({"socket": self.host.path})
        done = self.beside(lambda: other.put("0", "1", "k", 1))
        self.host.send(wire.Placed(self.host.expect(wire.Place).token, 7))
        done()
        owner = other._transport._open_exchange()._owner  # type: ignore[union-attr]
        with connector_ring._hosts[self.host.path, frozenset(), None].client()._session.locked:
            del other, done
            gc.collect()
        m = self.host.expect(wire.Cleanup)
        self.assertEqual((m.owner, m.key), (owner, ""))
        self.host.send(wire.Cleaned(m.token, 1))

    def test_a_child_connects_again(self) -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if self.c.put("0", "1", "k", [7])[0] else 2
            finally:
                os._exit(code)
        parents = self.host.sock
        self.host.sock, _ = self.host.listener.accept()
        self.host.sock.settimeout(60)
        hello = self.host.expect(wire.Hello)
        self.assertEqual(hello.pid, child)
        self.host.send(wire.Welcome(wire.VERSION, 0, 1, 7, 512, 0, "test", [], [], []))
        self.host.send(wire.Placed(self.host.expect(wire.Place).token, 7))
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.host.sock.close()
        self.host.sock = parents

    def test_a_child_has_nothing_to_abandon(self) -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self.c.abandon_get("k")
                code = 2 if self.c.health().get("errors") else 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_no_host(self) -> None:
        with self.assertRaises(omnibus.HostGone):
            OmnibusConnector({"socket": self.host.path + "x"})
        self.assertNotIn((self.host.path + "x", frozenset(), None), connector_ring._hosts)


if __name__ == "__main__":
    unittest.main()
