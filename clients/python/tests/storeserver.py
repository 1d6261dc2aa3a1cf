"""A Mooncake master or a Yuanrong worker from its wheel, on the loopback interface, for tests. NIXL has no server.

Run as a program it starts one, writes the settings of a connector to it on a line, and then kills, starts, stops and
continues it as its standard input says, a word a line, until that ends.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from typing import Any

MODULES = {"mooncake": "mooncake.store", "yuanrong": "yr.datasystem", "nixl": "nixl_cu12._api", "mooncake-engine": "mooncake.engine"}
PEERS = ("nixl", "mooncake-engine")  # whose processes reach each other without a server
_MIB = 1 << 20


def skip_without(kind: str) -> None:
    """Skip the caller's test unless the wheel is installed."""
    try:
        importlib.import_module(MODULES[kind])
    except ImportError as e:
        raise unittest.SkipTest(f"omnibus[{kind.partition('-')[0]}] is not installed: {e}") from None


def free_ports(n: int) -> list[int]:
    """Ports of the loopback interface that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Server:
    """A server that may be killed and started again."""

    def __init__(self, kind: str) -> None:
        skip_without(kind)
        self.kind, self.dir, self.ports = kind, tempfile.mkdtemp(prefix="omnibus-store-"), free_ports(2)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def extra(self, **more: Any) -> dict[str, Any]:
        """The settings of a connector."""
        if self.kind in PEERS:
            own: dict[str, Any] = {"memory_pool_size": 64 * _MIB}
        elif self.kind == "mooncake":
            own = {"master": self.address, "metadata_server": "P2PHANDSHAKE", "segment": 64 * _MIB, "localbuf": 32 * _MIB}
        else:
            own = {"host": "127.0.0.1", "port": self.ports[0]}
        return {**own, **more}

    def start(self) -> None:
        if self.kind in PEERS:
            return
        spec = importlib.util.find_spec(MODULES[self.kind])
        assert spec is not None and spec.origin is not None
        home, env = os.path.dirname(spec.origin), dict(os.environ)
        if self.kind == "mooncake":
            args = [os.path.join(home, "mooncake_master"), "--rpc_address=127.0.0.1", f"--rpc_port={self.ports[0]}",
                    "--metrics_host=127.0.0.1", f"--metrics_port={self.ports[1]}", f"--log_dir={self.dir}"]  # fmt: skip
        else:
            env["LD_LIBRARY_PATH"] = os.path.join(home, "lib")
            paths = {"log_dir": "log", "unix_domain_socket_dir": "uds", "health_check_path": "healthy",
                     "ready_check_path": "ready", "rocksdb_store_dir": "rocks", "monitor_config_file": "monitor"}  # fmt: skip
            args = [os.path.join(home, "datasystem_worker"), f"--worker_address={self.address}",
                    f"--metastore_address=127.0.0.1:{self.ports[1]}", "--start_metastore_service=true",
                    "--shared_memory_size_mb=128", "--log_monitor=false",
                    *(f"--{flag}={os.path.join(self.dir, name)}" for flag, name in paths.items())]  # fmt: skip
        with open(os.path.join(self.dir, "output"), "ab") as output:
            self.process = subprocess.Popen(args, env=env, cwd=self.dir, stdout=output, stderr=output)
        deadline = time.monotonic() + 60
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.dir, "output"), encoding="utf-8", errors="replace") as f:
                    raise RuntimeError(f"{args[0]} does not start: {f.read()[-2000:]}")
            time.sleep(0.02)

    def _ready(self) -> bool:
        if self.kind == "yuanrong":
            return os.path.exists(os.path.join(self.dir, "ready"))
        try:
            socket.create_connection(("127.0.0.1", self.ports[0]), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        if self.kind == "yuanrong":
            os.unlink(os.path.join(self.dir, "ready"))

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it has stopped

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def main() -> None:
    try:
        server = Server(sys.argv[1])
    except unittest.SkipTest as e:
        print(json.dumps({"skip": str(e)}), flush=True)
        return
    try:
        print(json.dumps({"extra": server.extra(), "python": sys.executable}), flush=True)
        for line in sys.stdin:
            getattr(server, json.loads(line))()
            print(json.dumps("done"), flush=True)
    finally:
        server.close()


if __name__ == "__main__":
    main()
