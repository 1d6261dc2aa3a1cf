"""Payloads to a stage and back, one after the other, in one request.

The arguments are their size and the socket of the bus. For each line of standard input,
so many round trips are made, and what they took is printed in nanoseconds.
"""

import sys
import time

import omnibus

payload = bytes(range(256)) * (int(sys.argv[1]) // 256)
with omnibus.connect(sys.argv[2]) as client, client.stream() as request:
    for line in sys.stdin:
        start = time.perf_counter_ns()
        for _ in range(int(line)):
            request.send(payload, codec=omnibus.RAW)
            if next(request).bytes != payload:
                raise SystemExit("other bytes came back")
        print(time.perf_counter_ns() - start, flush=True)
