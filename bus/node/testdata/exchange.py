"""A Python process that exchanges values with others, as the test says line by line."""

import json
import sys
import time

from omnibus import Tensor
from omnibus.connector import OmnibusConnector
from omnibus.omni import marks

marks._modules.update(torch=None, numpy=None)  # tensors are the client's own, wherever this runs
c = OmnibusConnector({"arena_bytes": 32 << 20})
held = {}


def pattern(n, size):
    return bytes((n + i) & 0xFF for i in range(256)) * (size // 256)


def describe(value):
    """Whether every byte is there, and the number that the value was made with."""
    data = value["data"]
    data = bytes(data.raw()) if isinstance(data, Tensor) else data
    return {"n": value["n"], "size": len(data), "whole": data == pattern(value["n"], len(data))}


for line in sys.stdin:
    q = json.loads(line)
    key, answer, found = q.get("key", ""), None, None
    if q["do"] == "put":
        data = pattern(q["n"], q["size"])
        if q.get("tensor"):
            data = Tensor("uint8", (len(data),), data)
        answer = c.put("thinker", "talker", key, {"n": q["n"], "data": data})[0]
    elif q["do"] == "get":
        found = c.get_with_deadline("thinker", "talker", key, deadline=time.monotonic() + q["seconds"])
        answer = found and describe(found[0])
        found = None  # or the payload would stay until the next
    elif q["do"] == "hold":
        found = c.get("thinker", "talker", key)
        held[key] = found and found[0]
        answer = held[key] is not None
    elif q["do"] == "look":
        answer = describe(held[key])
    elif q["do"] == "drop":
        del held[key]
    elif q["do"] == "cleanup":
        c.cleanup(key)
    elif q["do"] == "close":
        c.close()
    answer = {"answer": answer, "errors": c.health()["error_kinds"]}
    print(json.dumps(answer), flush=True)
