"""An end of a queue in Python, that does what the test says line by line."""

import gc
import json
import queue
import sys
import zlib

import omnibus
from omnibus import dlpack, gpu, tensorqueue
from omnibus.gpu import emul

# On a busy machine an owner may have no time for that long.
tensorqueue._MIN_GET_SECONDS = tensorqueue._WITHDRAW_SECONDS = 60.0

mode = sys.argv[2] if len(sys.argv) > 2 else "default"
options = gpu.Options(device=emul.uuid(), arena_bytes=512 << 10, max_bytes=512 << 10, when_full="block", timeout=60)
q = omnibus.TensorQueue(path=sys.argv[1], transport_mode=mode, gpu=options)
held = []


def raw(t):
    """The bytes of a tensor, wherever it is."""
    return t.raw() if isinstance(t, omnibus.Tensor) else bytes(dlpack.borrow(t).view())


def get(timeout):
    rid, shm_name, inputs = q.get(timeout)
    held.append(inputs)
    return [rid, shm_name, inputs and {"crc": zlib.crc32(raw(inputs["x"])), "shape": list(inputs["x"].shape), "n": inputs["n"]}]


def unwrap(device):
    """Get an item, and keep copies of its tensors alone."""
    rid, shm_name, inputs = q.get(60)
    out = q.unwrap(inputs, device)
    held.append(out)
    del inputs
    gc.collect()
    return [rid, shm_name, {name: zlib.crc32(raw(t)) for name, t in (("gpu", out["gpu"][0]), ("host", out["host"]))}]


def put(rid, n, size, timeout=None):
    inputs = {"x": omnibus.Tensor("uint8", (size // 4, 4), bytes([n]) * size), "n": n} if size else None
    q.put(rid, "psm_" + rid, inputs, timeout=timeout)


def fill(n, size, arena_bytes):
    """Put so many items, of which few fit the memory that lies ready. How many wait then."""
    q._client._session.arena_bytes = arena_bytes
    for i in range(n):
        put(str(i), i % 256, size)
    return q.qsize()


def put_on_gpu(rid, n, size):
    """Put a tensor that is filled in place."""
    x = q.gpu.empty((size // 4, 4), "uint8")
    dlpack.borrow(x).view()[:] = bytes([n]) * size
    q.put(rid, "psm_" + rid, {"x": x, "n": n})


def drop():
    held.clear()
    gc.collect()


def stats():
    s = q.gpu.stats
    return [s.default.messages, s.cuda_ipc.messages, s.cuda_ipc_pool.messages, s.fallbacks, s.small, s.spilt]


def sizes():
    return [q.qsize(), q.maxsize, q.empty(), q.full()]


do = {"get": get, "put": put, "fill": fill, "put_on_gpu": put_on_gpu, "stats": stats, "sizes": sizes, "drop": drop, "unwrap": unwrap, "drain": lambda: q.drain(60), "close": q.close}

for line in sys.stdin:
    name, *arguments = json.loads(line)
    try:
        answer = do[name](*arguments)
    except (omnibus.OmnibusError, queue.Full, queue.Empty) as e:
        answer = type(e).__name__
    print(json.dumps(answer), flush=True)
