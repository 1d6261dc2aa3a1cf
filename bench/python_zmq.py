"""Bytes to another process and back, through two sockets of ZeroMQ.

The arguments are their number and a path. For each line of standard input, so many
round trips are made, and what they took is printed in nanoseconds.
"""

import multiprocessing
import sys
import time

import zmq


def send_back(path: str) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as other:
        other.connect("ipc://" + path)
        while payload := other.recv():
            other.send(payload)


def main() -> None:
    payload = bytes(range(256)) * (int(sys.argv[1]) // 256)
    other = multiprocessing.get_context("fork").Process(target=send_back, args=(sys.argv[2],), daemon=True)
    other.start()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.bind("ipc://" + sys.argv[2])
        for line in sys.stdin:
            start = time.perf_counter_ns()
            for _ in range(int(line)):
                socket.send(payload)
                if socket.recv() != payload:
                    raise SystemExit("other bytes came back")
            print(time.perf_counter_ns() - start, flush=True)
        socket.send(b"")
        other.join()


main()
