"""Bytes to another process and back, through two queues.

The first argument is their number. For each line of standard input, so many round trips
are made, and what they took is printed in nanoseconds.
"""

import multiprocessing
import sys
import time


def send_back(there, back) -> None:
    while (payload := there.get()) is not None:
        back.put(payload)


def main() -> None:
    payload = bytes(range(256)) * (int(sys.argv[1]) // 256)
    there, back = multiprocessing.Queue(), multiprocessing.Queue()
    other = multiprocessing.Process(target=send_back, args=(there, back), daemon=True)
    other.start()
    for line in sys.stdin:
        start = time.perf_counter_ns()
        for _ in range(int(line)):
            there.put(payload)
            if back.get() != payload:
                raise SystemExit("other bytes came back")
        print(time.perf_counter_ns() - start, flush=True)
    there.put(None)
    other.join()


main()
