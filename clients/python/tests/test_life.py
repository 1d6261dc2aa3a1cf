"""`run` and the pull loop, from the first task to the last, against a fake host."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from fakehost import EDGE_IN, EDGE_OUT, deliver, over
from hostcase import HostCase
from stagecase import NARROW, StageCase, opened

import omnibus
from omnibus import aio, runner, wire
from omnibus.client import Pull
from omnibus.codec import encode
from omnibus.errors import Code


class LifeTest(StageCase):
    SCRIPT = """
import sys, time
from omnibus import run, stage
@stage
def upper(text: str, task):
    print("handling", flush=True)
    task.wait_aborted(0.2)
    return text.upper()
run(rejoin="rejoin" in sys.argv)
print("returned", flush=True)
"""

    def start(self, *args: str, **more: str) -> subprocess.Popen[str]:
        env = dict(os.environ, **more, OMNIBUS_SOCKET=self.host.path, OMNIBUS_BUS="test", OMNIBUS_STAGE="first")
        env["PYTHONPATH"] = os.path.join(os.path.dirname(__file__), "..", "src")
        p = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(p.communicate)
        self.addCleanup(p.kill)
        return p

    def accept(self, p: subprocess.Popen[str]) -> None:
        self.host.listener.settimeout(60)
        self.host.sock, _ = self.host.listener.accept()
        self.host.sock.settimeout(60)
        hello = self.host.expect(wire.Hello)
        self.assertEqual((hello.pid, hello.bus), (p.pid, "test"))
        self.host.send(wire.Welcome(wire.VERSION, 0, 1, 7, 512, 0, "test", [EDGE_IN], [EDGE_OUT], []))
        self.host.serve("first")

    def test_sigterm_finishes_open_tasks(self) -> None:
        p = self.start()
        self.accept(p)
        self.host.send(opened(1), deliver(1, 7, encode("x")))
        assert p.stdout is not None
        self.assertEqual(p.stdout.readline(), "handling\n")
        p.send_signal(signal.SIGTERM)
        got = []
        while True:
            m = self.host.receive()
            got.append(type(m).__name__)
            if isinstance(m, wire.Call):
                self.host.send(wire.Reply(m.token, 0, b"{}"))
            elif isinstance(m, wire.Put):
                self.host.send(wire.Returned([m.put]))
            elif isinstance(m, wire.Bye):
                break
            if got[-1] in ("Finish", "Leave") and {"Finish", "Leave"} <= set(got):  # whichever was first
                self.host.send(wire.End(1))
        self.assertEqual(sorted(got), ["Bye", "Call", "Ended", "Finish", "Leave", "Put"])
        self.assertLess(got.index("Leave"), got.index("Ended"))
        self.assertEqual(p.stdout.read(), "returned\n")
        self.assertEqual(p.wait(60), 0)

    def test_host_dies(self) -> None:
        p = self.start()
        self.accept(p)
        self.host.close_socket()
        self.assertEqual(p.wait(60), 69)

    def test_rejoin(self) -> None:
        p = self.start("rejoin")
        for _ in range(2):
            self.accept(p)
            self.host.send(opened(1), deliver(1, 7, encode("x")))
            self.assertEqual(bytes(self.host.emitted().payload), encode("X"))
            self.host.close_socket()
            self.host.waiting.clear()
        self.accept(p)
        self.host.send(wire.Bye())
        self.host.close_socket()
        self.accept(p)
        self.host.send(wire.Drain(), opened(1), deliver(1, 7, encode("y")))
        self.assertEqual(bytes(self.host.emitted().payload), encode("Y"))
        self.host.waiting.clear()
        self.host.listener.setblocking(False)
        with self.assertRaises(BlockingIOError):  # it stays with the host that drains
            self.host.listener.accept()
        self.host.close_socket()
        self.accept(p)
        p.send_signal(signal.SIGTERM)
        self.host.expect(wire.Leave)
        self.host.close_socket()
        self.assertEqual(p.wait(60), 0)

    def test_rejoin_of_a_process_that_the_host_started(self) -> None:
        """It ends with the host."""
        for end in (wire.Drain(), wire.Bye()):
            p = self.start("rejoin", OMNIBUS_REPLICA="0")
            self.accept(p)
            self.host.send(end)
            while isinstance(end, wire.Drain) and not isinstance(m := self.host.receive(), wire.Bye):  # it leaves by itself
                if isinstance(m, wire.Call):
                    self.host.send(wire.Reply(m.token, 0, b"{}"))
            self.host.close_socket()
            self.assertEqual(p.wait(60), 0)
            self.host.waiting.clear()

    def test_rejoin_before_there_is_a_host(self) -> None:
        self.host.listener.close()
        os.unlink(self.host.path)
        p = self.start("rejoin")
        assert p.stderr is not None
        self.assertIn("trying again", p.stderr.readline())
        self.host.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.host.listener.bind(self.host.path)
        self.host.listener.listen()
        self.accept(p)
        p.send_signal(signal.SIGTERM)
        self.host.expect(wire.Leave)
        self.host.close_socket()
        self.assertEqual(p.wait(60), 0)

    def test_a_child_that_imports_the_file_does_not_serve(self) -> None:
        """As each child of multiprocessing does that is not forked."""
        for method in ("spawn", "forkserver"):
            with self.subTest(method), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "stage.py")
                with open(path, "w", encoding="utf-8") as f:
                    f.write(f"""
import multiprocessing
from omnibus import run, stage

@stage
def upper(text: str) -> str:
    return text

if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=print)
    child.start()
    child.join()
    print(child.exitcode)
else:
    run(path="/nowhere/a.sock", rejoin=True)
""")
                env = dict(os.environ, PYTHONPATH=os.path.join(os.path.dirname(__file__), "..", "src"))
                done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, timeout=60, check=True)
                self.assertEqual(done.stdout, "1\n", done.stderr)
                self.assertIn('RuntimeError: run() in a child process of multiprocessing', done.stderr)
                self.assertIn('if __name__ == "__main__":', done.stderr)

    def test_sigterm_while_waiting_for_a_host(self) -> None:
        """It comes just where a waiting thread would hold a lock."""
        script = """
import signal, sys
from omnibus import run, stage

def lines(frame, event, _):
    if event == "line":
        signal.raise_signal(signal.SIGTERM)
    return lines

@stage
def upper(text: str) -> str:
    return text

sys.settrace(lambda frame, event, _: lines if frame.f_code.co_name == "wait" else None)
run(path="/nowhere/a.sock", rejoin=True)
"""
        env = dict(os.environ, PYTHONPATH=os.path.join(os.path.dirname(__file__), "..", "src"))
        subprocess.run([sys.executable, "-c", script], env=env, stderr=subprocess.DEVNULL, timeout=60, check=True)

    def test_sigterm_ends_a_child_that_a_handler_has_forked(self) -> None:
        self.SCRIPT = """
import os, signal
from omnibus import run, stage
@stage
def first(text: str) -> int:
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
        os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
run()
"""
        p = self.start()
        self.accept(p)
        self.host.send(opened(1), deliver(1, 7, encode("x")))
        self.assertEqual(bytes(self.host.emitted().payload), encode(-signal.SIGTERM))
        self.host.expect(wire.Finish)  # and this process goes on
        self.host.send(wire.Bye())
        self.assertEqual(p.wait(60), 0)

    def test_drain(self) -> None:
        p = self.start()
        self.accept(p)
        self.host.send(opened(1), deliver(1, 7, encode("x")), wire.Drain())
        self.host.emitted()
        self.host.expect(wire.Finish)
        self.host.send(wire.End(1))
        self.host.expect(wire.Ended)
        self.host.expect(wire.Bye)
        self.assertEqual(p.wait(60), 0)

    def test_sessions_leave_nothing_open(self) -> None:
        @omnibus.stage
        def hold(data: memoryview, task: omnibus.Task) -> None:
            with task.reserve(len(data)) as b:  # the host goes while this waits
                b.send()

        collecting = gc.isenabled()
        gc.disable()
        if collecting:
            self.addCleanup(gc.enable)
        stop_request = runner._StopRequest()
        with mock.patch.object(runner, "_StopRequest", lambda: stop_request):
            r = self.beside(lambda: omnibus.run(hold, path=self.host.path, rejoin=True))
            self.host.welcome()
        counts = []
        for _ in range(20):
            self.host.serve("hold", outputs=NARROW)
            counts.append((len(os.listdir("/proc/self/fd")), memfds()))
            self.host.segment(3, bytes(1 << 16))
            self.host.send(opened(1), opened(2))
            self.host.send(*[deliver(t, 6 + t, codec=1, flags=0, segment=3, size=50_000) for t in (1, 2)])
            for _ in range(2):
                self.host.filled()
                self.host.expect(wire.Finish)
            self.host.memory.clear()
            self.host.send(deliver(1, 9, codec=1, flags=0, segment=3, size=50_000))  # which waits
            with self.assertLogs("omnibus", "WARNING"):
                self.host.close_socket()
                self.host.welcome()
        self.host.serve("hold")
        stop_request.set()
        self.host.close_socket()
        r()
        self.assertEqual(counts, counts[:1] * len(counts))


def memfds() -> int:
    """How many segments are mapped."""
    with open("/proc/self/maps") as f:
        return sum("/memfd:" in line for line in f)


class PullTest(HostCase):
    def pull(self, n: int, *messages: Any) -> tuple[omnibus.Client, list[omnibus.Delivery], Iterator[omnibus.Delivery]]:
        client = self.connect()
        r = self.beside(lambda: client.deliveries("upper"))
        self.host.serve("upper")
        loop = r()
        self.host.send(opened(1), *messages)
        return client, [next(loop) for _ in range(n)], loop

    def test_out_of_order(self) -> None:
        client, ds, loop = self.pull(2, deliver(1, 7, encode(1)), deliver(1, 8, encode(2), key="b"))
        self.assertEqual([d.value() for d in ds], [1, 2])
        done = self.beside(lambda: ds[1].emit("out", key="o", to=""))
        m = self.host.emitted()
        self.assertEqual((m.source, m.delivery, m.edge, m.key), (1, 8, 0, "o"))
        done()
        ds[1].finish()
        ds[0].finish("it broke")
        self.assertEqual(self.host.expect(wire.Finish).delivery, 8)
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code, m.text), (7, 14, "it broke"))
        with self.assertRaises(omnibus.Finished):
            ds[0].finish()

    def test_wait_with_timeout_zero_handles_arrived_packets(self) -> None:
        _, (d,), _ = self.pull(1, deliver(1, 7, encode(1)))
        self.assertFalse(d.task.wait_aborted(0))
        self.host.send(over(1, wire.OUTCOME_ABORTED))
        self.assertTrue(d.task.wait_aborted(0))

    def test_end_is_answered_and_bye_ends_the_loop(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)), deliver(1, 8, flags=wire.BARE))
        d.finish()
        self.assertEqual({self.host.expect(wire.Finish).delivery for _ in range(2)}, {7, 8})
        self.host.send(wire.End(1), opened(2), deliver(2, 9, encode(5)))
        self.assertEqual(next(loop).value(), 5)
        self.host.expect(wire.Ended)
        self.host.send(wire.Bye())
        self.assertEqual(list(loop), [])

    def test_last_packets_of_the_host_are_read(self) -> None:
        client, (d, e), loop = self.pull(2, deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        d.finish()  # the host does not read it: the connection is reset
        self.host.send(wire.Bye())
        self.host.close_socket()
        e.finish()  # after the end of the session
        self.assertFalse(client.closed)
        self.assertEqual(list(loop), [])
        self.assertTrue(client.closed)

    def test_last_packets_are_read_after_a_reset(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)))
        d.finish()
        self.host.send(wire.Bye())
        self.host.close_socket()
        self.assertEqual(list(loop), [])

    def test_leave_ends_the_loop(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)))
        left = self.beside(client.leave)
        self.host.expect(wire.Leave)
        m = self.host.expect(wire.Call)
        self.host.send(wire.Failed(m.token, 5, "no such method"))
        left()
        d.finish()
        self.host.expect(wire.Finish)
        self.host.send(wire.End(1))
        self.assertEqual(list(loop), [])
        self.host.expect(wire.Ended)

    def test_over_removes_queued_deliveries(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        self.host.send(over(1, wire.OUTCOME_ABORTED))
        while not d.task.aborted:  # type: ignore[union-attr]
            client.process()
        m = self.host.expect(wire.Finish)
        self.assertEqual((m.delivery, m.code), (8, 9))
        d.finish()
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        self.assertEqual(client._session.sources, {})

    def test_async_pull(self) -> None:
        async def stage() -> list[Any]:
            got = []
            async with await omnibus.aconnect(self.host.path) as bus:
                async for d in bus.deliveries("upper"):
                    got.append(d.value())
                    await d.emit(got[-1])
                    d.finish()
            return got

        r = self.beside(lambda: asyncio.run(stage()))
        self.host.welcome()
        self.host.serve("upper")
        self.host.send(opened(1), deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        for n in (7, 8):
            self.assertEqual(self.host.emitted().delivery, n)
            self.host.expect(wire.Finish)
        self.host.send(wire.Bye())
        self.assertEqual(r(), [1, 2])

    def test_async_loops_share_a_stage(self) -> None:
        """Also one that was left in the middle. What `leave` waits for ends them all."""

        async def some(bus: omnibus.AsyncClient, most: int) -> list[Any]:
            got: list[Any] = []
            async for d in bus.deliveries("upper"):
                got.append(d.value())
                d.finish()
                if len(got) == most:
                    break
            return got

        async def stage() -> list[Any]:
            async with await omnibus.aconnect(self.host.path) as bus:
                got = await some(bus, 1)
                rest = asyncio.gather(some(bus, 99), some(bus, 99))
                await bus.leave()
                for each in await rest:
                    got += each
            return got

        r = self.beside(lambda: asyncio.run(stage()))
        self.host.welcome()
        self.host.serve("upper")
        self.host.send(opened(1), deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 7)
        words = [self.host.receive() for _ in range(3)]
        call = next(m for m in words if isinstance(m, wire.Call))
        self.assertEqual({type(m) for m in words}, {wire.Leave, wire.Call, wire.Finish})
        self.host.send(wire.Reply(call.token, 0, b"{}"), deliver(1, 9, encode(3)))
        self.assertEqual(self.host.expect(wire.Finish).delivery, 9)
        self.host.send(wire.End(1))
        self.host.expect(wire.Ended)
        self.assertEqual(sorted(r()), [1, 2, 3])

    def test_loops_of_threads_share_a_stage(self) -> None:
        """Also what comes for one of them, and another one takes it first."""
        client, _, loop = self.pull(0)
        other, got = client.deliveries("upper"), []
        wait = client._session.wait

        def loses(done: Callable[[], bool], timeout: float | None = None) -> bool:
            client._session.wait = wait  # type: ignore[method-assign]
            well = wait(done, timeout)
            got.append(next(other).value())
            self.host.send(deliver(1, 8, encode(2)))
            return well

        client._session.wait = loses  # type: ignore[method-assign]
        self.host.send(deliver(1, 7, encode(1)))
        self.assertEqual((next(loop).value(), got), (2, [1]))

    def test_awaited_loops_of_threads(self) -> None:
        """One begins to wait just while another one does: both are told."""
        s, entered, there = self.connect()._session, threading.Event(), []

        class Meeting(Pull):
            @property  # type: ignore[override]
            def _on_change(self) -> Any:
                now = self.waiting
                if threading.current_thread() is first and not entered.is_set():
                    entered.set()
                    second.start()
                    while not looked:
                        pass
                return now

            @_on_change.setter
            def _on_change(self, waiting: Any) -> None:
                self.waiting = waiting

        def ready() -> bool:
            looked.append(threading.current_thread())
            return bool(there)

        looked: list[threading.Thread] = []
        pull = Meeting(s)
        first, second = (
            threading.Thread(target=lambda: asyncio.run(aio.wait_for_change(s, ready, pull)), daemon=True) for _ in range(2)
        )
        first.start()
        while not {first, second} <= set(looked):
            pass
        with s.locked:
            there.append(True)
            pull.news()
        for t in first, second:
            t.join(60)
            self.assertFalse(t.is_alive(), "it was not told")

    def test_delivery_removed_before_the_async_loop_takes_it(self) -> None:
        async def stage() -> list[Any]:
            async with await omnibus.aconnect(self.host.path) as bus:
                loop = bus.deliveries("upper")
                d = await loop.__anext__()
                patch = mock.patch.object(aio, "wait_for_change")

                async def wait_for_the_wrong_one(*of: Any) -> bool:
                    patch.stop()
                    well = await aio.wait_for_change(*of)
                    self.host.send(over(1, wire.OUTCOME_ABORTED))
                    while not d.task.aborted:
                        bus.process()
                    self.host.send(opened(2), deliver(2, 9, encode(3)))
                    return well

                patch.start().side_effect = wait_for_the_wrong_one
                return [(await loop.__anext__()).value()]

        r = self.beside(lambda: asyncio.run(stage()))
        self.host.welcome()
        self.host.serve("upper")
        self.host.send(opened(1), deliver(1, 7, encode(1)), deliver(1, 8, encode(2)))
        self.assertEqual(r(), [3])

    def test_a_stage_that_is_refused_at_first(self) -> None:
        client = self.connect()
        r = self.beside(lambda: client.deliveries("upper"))
        m = self.host.expect(wire.Serve)
        self.host.send(wire.Failed(m.token, Code.OVERLOADED, "it has all its replicas"))
        with self.assertRaises(omnibus.Overloaded):
            r()
        r = self.beside(lambda: next(client.deliveries("upper")).value())
        self.host.serve("upper")
        self.host.send(opened(1), deliver(1, 7, encode(1)))
        self.assertEqual(r(), 1)

    def test_error_that_is_not_unicode(self) -> None:
        client, (d,), loop = self.pull(1, deliver(1, 7, encode(1)))
        d.finish(ValueError(os.fsdecode(b"no file \xff.wav")))
        self.assertEqual(self.host.expect(wire.Finish).text, "ValueError: no file ?.wav")


if __name__ == "__main__":
    unittest.main()
