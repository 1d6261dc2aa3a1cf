"""Test cases for value stores without a server: producers, and other programs in their place."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import fakehost  # noqa: F401  (finds the package)
import storeserver

from omnibus.connector import Missing, NoRoom, OmnibusConnector, Unavailable
from omnibus.connector.contract import Absent, Edge
from omnibus.connector.drop_in import BACKENDS
from omnibus.connector.stores import StoreTransport, TooLarge
from omnibus.omni.encoder import Encoded

EDGE = Edge("thinker", "talker")
POOL = 16 << 20

# Puts values of the sizes that it reads, a line each, and answers with their metadata.
CHILD = """
import sys, json
from omnibus.connector.contract import Edge
from omnibus.connector.drop_in import BACKENDS
n = BACKENDS[sys.argv[1]](json.loads(sys.argv[2]))
for line in sys.stdin:
    key, size = json.loads(line)
    print(json.dumps(n.put(n.name(Edge("thinker", "talker"), key), [b"x" * size])), flush=True)
n.close()
"""


class Child:
    """A producer in a process of its own."""

    def __init__(self, mode: str, extra: dict[str, Any], **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, mode, json.dumps({"memory_pool_size": POOL, **extra})], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env},
        )  # fmt: skip

    def put(self, key: str, size: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps([key, size]), file=self.process.stdin, flush=True)
        metadata: dict[str, Any] = json.loads(self.process.stdout.readline())
        return metadata

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError("it does not happen")
        time.sleep(0.01)


def plain(payload: Any, *, padded: bool = False) -> bytes:
    return bytes(payload)


@contextlib.contextmanager
def listener(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Another program in the place of a sender, at a port."""
    import zmq

    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        try:
            while True:
                identity, _, message = router.recv_multipart()
                router.send_multipart([identity, b"", answer(message)])
        except zmq.ContextTerminated:
            router.close(0)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield port
    finally:
        context.term()
        thread.join()


class PeerCase(unittest.TestCase):
    """The common tests of all peer stores, between two of them in this process."""

    mode: str  # of the connector
    module: str  # of the engine
    extra: str  # that installs it
    size_key: str  # of the metadata
    patience = 30.0  # of the sender
    gone: type[Missing] = Missing  # raised by a second get

    @classmethod
    def setUpClass(cls) -> None:
        storeserver.skip_without(cls.mode)
        cls.sender, cls.receiver = (
            BACKENDS[cls.mode]({"memory_pool_size": POOL, "timeout": timeout}) for timeout in (cls.patience, 20)
        )
        cls.addClassCleanup(cls.sender.close)
        cls.addClassCleanup(cls.receiver.close)

    sender: Any
    receiver: Any

    def open(self, **extra: Any) -> Any:
        n: Any = BACKENDS[self.mode]({"memory_pool_size": POOL, **extra})
        self.addCleanup(n.close)
        return n

    def store(self, **extra: Any) -> StoreTransport:
        store = StoreTransport({"memory_pool_size": POOL, **extra}, BACKENDS[self.mode])
        self.addCleanup(store.close)
        return store

    def child(self, extra: dict[str, Any] | None = None, **env: str) -> Child:
        child = Child(self.mode, extra or {}, **env)
        self.addCleanup(child.close)
        return child

    def put(self, key: str, data: bytes, n: Any = None) -> dict[str, Any]:
        n = n or self.sender
        metadata: dict[str, Any] = n.put(n.name(EDGE, key), [data[:3], data[3:]])
        return metadata

    def get(self, key: str, metadata: Any = None, n: Any = None, edge: Edge = EDGE) -> bytes:
        n = n or self.receiver
        payload, size = n.take_value(n.name(edge, key), metadata)
        self.assertEqual(size, len(payload))
        return bytes(payload)

    def test_got_once_and_replaced(self) -> None:
        for size in (1, 1000, 1 << 20, POOL):
            data = os.urandom(size)
            metadata = self.put("once", data)
            self.assertEqual(metadata[self.size_key], size)
            self.assertEqual(self.get("once", metadata), data)
            with self.assertRaises(self.gone):
                self.get("once", metadata)
        self.put("once", b"old")
        self.assertEqual(self.get("once", self.put("once", b"new!")), b"new!")

    def test_a_middle_stage(self) -> None:
        """The `outgoing` setting has the listener of a stage that receives and sends."""
        first, second = storeserver.free_ports(2)
        incoming = {"zmq_port": first, "sender_host": "127.0.0.1", "sender_zmq_port": first, "outgoing": {"zmq_port": second}}
        stages = [
            self.store(**incoming, role="sender"),
            self.store(**incoming, role="receiver"),
            self.store(role="receiver", sender_host="127.0.0.1", sender_zmq_port=second),
        ]
        for n, (source, target) in enumerate(zip(stages, stages[1:])):
            edge = Edge(str(n), str(n + 1))
            source.put(edge, "k", Encoded([b"x" * 1000]))
            self.assertEqual(target.wait(edge, "k", None, plain, time.monotonic() + 60), (b"x" * 1000, 1000))
        with self.assertRaisesRegex(Unavailable, "its role is receiver.*outgoing: {zmq_port: N}"):
            stages[2].put(Edge("2", "3"), "k", Encoded([b"x"]))
        for bad in (True, {}, {"zmq_port": 0}):
            with self.assertRaisesRegex(ValueError, "outgoing must be a map with zmq_port"):
                self.store(role="receiver", outgoing=bad)

    def test_replicas(self) -> None:
        (port,) = storeserver.free_ports(1)
        with mock.patch.dict(os.environ, VLLM_OMNI_REPLICA_ID="1"):
            with self.assertRaisesRegex(ValueError, f"in replica 1 of a stage: each replica would listen at port {port}"):
                self.store(zmq_port=port)
            self.store()
            self.store(zmq_port=port, role="receiver")

    def test_cleanup(self) -> None:
        store = self.store()
        n: Any = store._store
        metadata = {key: self.put(key, b"x" * 100, n) for key in ("r1_thinker_0", "r1", "r11_thinker_0")}
        store.cleanup("r1")
        with self.assertRaises(self.gone):
            self.get("r1", metadata["r1"])
        for key in ("r1_thinker_0", "r11_thinker_0"):
            self.assertEqual(self.get(key, metadata[key]), b"x" * 100)
        until(lambda: n.pool.free_bytes() == n.pool.size)

    def test_by_key_and_started_later(self) -> None:
        """A get without metadata asks the configured sender; a wait ends after that has started."""
        (port,) = storeserver.free_ports(1)
        store = self.store(sender_host="127.0.0.1", sender_zmq_port=port)
        with self.assertRaisesRegex(Absent, f"127.0.0.1:{port}.*not started"):
            store.get(EDGE, "later", None, plain)
        begun, got = threading.Event(), list[bytes]()

        def wait() -> None:
            begun.set()
            got.append(store.wait(EDGE, "later", None, plain, time.monotonic() + 60)[0])

        waiter = threading.Thread(target=wait)
        waiter.start()
        begun.wait()
        self.child({"zmq_port": port}).put("later", 1000)
        waiter.join()
        self.assertEqual(got, [b"x" * 1000])
        with self.assertRaisesRegex(Missing, "^never$"):
            store.get(EDGE, "never", None, plain)

    def test_room(self) -> None:
        """A put without space changes nothing; a value that is too large for one side raises TooLarge."""
        with self.assertRaisesRegex(TooLarge, "memory_pool_size"):
            self.put("large", bytes(POOL + 1))
        kept = self.put("kept", bytes(POOL // 2))
        with self.assertRaisesRegex(NoRoom, "memory_pool_size"):
            self.put("kept", bytes(POOL // 2 + 1))
        self.assertEqual(len(self.get("kept", kept)), POOL // 2)
        small = self.open(memory_pool_size=4096)
        metadata = self.put("large", bytes(POOL))
        with self.assertRaisesRegex(TooLarge, "memory_pool_size is 4096"):
            self.get("large", metadata, small)
        self.after_too_large(metadata)

    def after_too_large(self, metadata: dict[str, Any]) -> None:
        """Check the value that was too large for a receiver."""

    def test_many_at_once(self) -> None:
        def work(n: int) -> None:
            for i in range(30):
                data = os.urandom(1 + i * 997)
                self.assertEqual(self.get(f"many_{n}_{i}", self.put(f"many_{n}_{i}", data)), data)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def test_port_in_use(self) -> None:
        port = self.sender.address.rpartition(":")[2]
        with self.assertRaisesRegex(Unavailable, rf"127.0.0.1:{port} \(host, zmq_port\).*in use"):
            self.open(zmq_port=port)
        receiver = self.open(zmq_port=port, role="receiver")
        with self.assertRaisesRegex(Unavailable, "role"):
            self.put("never", b"x", receiver)

    def test_not_installed(self) -> None:
        install = rf"install omnibus\[{self.extra}\]"
        for module in (self.module, "zmq"):
            with mock.patch.dict(sys.modules, {module: None}), self.assertRaisesRegex(Unavailable, install):
                OmnibusConnector({"mode": self.mode})
        with mock.patch.dict(sys.modules, {self.module: types.SimpleNamespace()}):
            with self.assertRaisesRegex(Unavailable, "this version.*" + install):
                OmnibusConnector({"mode": self.mode})


def run_apart(test: unittest.TestCase, case: str, extra: str) -> None:
    """Run a test case in a process of its own: the engine's threads do not bear the forks of other tests."""
    run = subprocess.run(
        [sys.executable, "-m", "unittest", "-v", case],
        cwd=os.path.dirname(__file__), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    test.assertEqual(run.returncode, 0, run.stdout[-20_000:])
    if "OK (skipped" in run.stdout:
        test.skipTest(f"omnibus[{extra}] is not installed")
