"""An end of a queue in Python, that does what the test says line by line."""

import json
import queue
import sys
import zlib

import omnibus

q = omnibus.TensorQueue(path=sys.argv[1])
held = []


def get(timeout):
    rid, shm_name, inputs = q.get(timeout)
    held.append(inputs)
    return [rid, shm_name, inputs and {"crc": zlib.crc32(inputs["x"].raw()), "shape": list(inputs["x"].shape), "n": inputs["n"]}]


def put(rid, n, size, timeout=None):
    inputs = {"x": omnibus.Tensor("uint8", (size // 4, 4), bytes([n]) * size), "n": n} if size else None
    q.put(rid, "psm_" + rid, inputs, timeout=timeout)


def sizes():
    return [q.qsize(), q.maxsize, q.empty(), q.full()]


do = {"get": get, "put": put, "sizes": sizes, "drop": held.clear, "drain": lambda: q.drain(60), "close": q.close}

for line in sys.stdin:
    name, *arguments = json.loads(line)
    try:
        answer = do[name](*arguments)
    except (omnibus.OmnibusError, queue.Full, queue.Empty) as e:
        answer = type(e).__name__
    print(json.dumps(answer), flush=True)
