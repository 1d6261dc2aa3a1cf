"""Connectors of stores beside vLLM-Omni's own, on one server, in one run, with the sides in turn::

    PYTHON bench/stores.py mooncake|yuanrong [ROUNDS]

It starts the server from the wheel. Each side has two processes: one puts a number of values, then the other gets them.
What is shown is the median over the rounds of the time for each value, in microseconds. Our get removes the value, which
takes one more request to the server; vLLM-Omni's leaves it, and what it left is removed outside the time that counts.
OMNIBUS_VLLM_OMNI names the unpacked wheel of vllm-omni; see clients/python/tests/realstore.py for what is put right there.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
CLIENT = os.path.join(HERE, "..", "clients", "python")
sys.path[:0] = [os.path.join(CLIENT, "src"), os.path.join(CLIENT, "tests")]

import realstore  # noqa: E402
import storeserver  # noqa: E402

SIZES = {1 << 10: 200, 16 << 10: 200, 1 << 20: 20, 16 << 20: 2}
SIDES = ("upstream", "python", "go")
NAMES = {"mooncake": "MooncakeStoreConnector", "yuanrong": "YuanrongConnector"}


class Peer:
    """A process that puts or gets."""

    def __init__(self, command: list[str]) -> None:
        env = {**os.environ, "PYTHONPATH": os.path.join(CLIENT, "src"), "GLOG_minloglevel": "3"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)

    def ask(self, **question: Any) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(kind: str, side: str, extra: dict[str, Any]) -> None:
    """One of the processes in Python."""
    logging.disable(logging.CRITICAL)
    if side == "upstream":
        connector = realstore.load(kind, extra)
    else:
        from omnibus.connector import OmnibusConnector

        connector = OmnibusConnector({"mode": kind, **extra})
    for line in sys.stdin:
        q = json.loads(line)
        keys = [f"{q['Key']}_{i}" for i in range(q["N"])]
        value = {"request_id": q["Key"], "data": bytes(q["Size"])}
        begin = time.perf_counter()
        if q["Op"] == "put":
            for key in keys:
                assert connector.put("0", "1", key, value)[0]
        elif q["Op"] == "get":
            for key in keys:
                assert len(connector.get("0", "1", key)[0]["data"]) == q["Size"]
        else:
            names = [connector._make_key(key, "0", "1") for key in keys]
            connector.store.batch_remove(names, True) if kind == "mooncake" else connector.client.delete(names)
        print(time.perf_counter() - begin, flush=True)
    connector.close()


def main(kind: str, rounds: int) -> None:
    server = storeserver.Server(kind)
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "stores-peer")
        subprocess.run(["go", "-C", HERE, "build", "-o", program, "./cmd/stores-peer"], check=True)
        peers: dict[str, list[Peer]] = {}
        for side in SIDES:
            extra = json.dumps(server.extra(**({"python": sys.executable} if side == "go" else {})))
            command = [program, NAMES[kind], extra] if side == "go" else [sys.executable, __file__, "--serve", kind, side, extra]
            peers[side] = [Peer(command), Peer(command)]
        try:
            print(f"{kind}: median of {rounds} rounds, microseconds for each value")
            print(f"{'bytes':>9} {'side':<9} {'put':>9} {'get':>9} {'both':>9}  speed of upstream's")
            for size, n in SIZES.items():
                times: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
                for r in range(rounds + 1):  # the first warms up
                    for side in SIDES[r % 3 :] + SIDES[: r % 3]:
                        q = {"Key": f"{side}-{size}-{r}", "Size": size, "N": n}
                        put, get = peers[side][0].ask(Op="put", **q), peers[side][1].ask(Op="get", **q)
                        if side == "upstream":
                            peers[side][0].ask(Op="remove", **q)
                        if r:
                            times[side].append((put / n * 1e6, get / n * 1e6))
                both = {side: statistics.median(p + g for p, g in t) for side, t in times.items()}
                for side, t in times.items():
                    put, get = (statistics.median(x) for x in zip(*t))
                    print(f"{size:>9} {side:<9} {put:>9.0f} {get:>9.0f} {both[side]:>9.0f}  {both['upstream'] / both[side]:.2f}", flush=True)
        finally:
            for pair in peers.values():
                for p in pair:
                    p.close()
            server.close()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 15)
