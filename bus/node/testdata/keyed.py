"""A process that puts values with tensors on an emulated GPU under keys, and gets them, as the test says line by line."""

import gc
import json
import os
import sys
import threading
import time
import zlib

import omnibus
from omnibus import dlpack
from omnibus.futures import PolledFuture
from omnibus.connector import OmnibusConnector, gpu_values
from omnibus.devices import emul
from omnibus.devices.contract import uuid_text
from omnibus.gpu.layout import Layout
from omnibus.omni import marks
from omnibus.tensor import data_bytes

EDGE = "thinker", "talker"
settings = {
    "tensor_transport": "cuda_ipc_pool", "timeout": 5, "gpu": {"device": uuid_text(emul.uuid()), "arena_bytes": 512 << 10, "max_bytes": 512 << 10},
} | (json.loads(os.environ.get("EXTRA", "null")) or {})  # fmt: skip
torch = None
if settings.pop("torch", False):
    del sys.path[0]  # where a script is called as a package that torch needs
    import torch
else:
    marks._modules.update(torch=None, numpy=None)  # tensors are the client's own, wherever this runs
c = OmnibusConnector(settings)
other = OmnibusConnector(settings)  # keeps the connection when the first is closed
device = emul.device(emul.uuid())
held, finish, sending = {}, threading.Event(), emul._Fill


class View:
    """Memory on the device, as a tensor of another library has it."""

    def __init__(self, dtype, shape, keep):
        self.of, self.keep = (keep.address, 1, 0, dtype, shape, None, False), keep

    def __dlpack__(self, *, stream=None, max_version=None):
        return dlpack.capsule(*self.of, [self.keep].clear, max_version=max_version)

    def __dlpack_device__(self):
        return 1, 0


class Late(emul._Fill):
    """What is complete only when the test says so."""

    def complete(self):
        piece = self._piece
        threading.Thread(target=lambda: finish.wait() and piece.mark_complete(), daemon=True).start()


def pattern(n, size):
    return bytes((i * 7 + n * 31) & 255 for i in range(min(size, 256))) * (size // 256 + 1)


def tensor(n, dtype="uint8", shape=(100 << 10,)):
    """A tensor in memory of its own on the device."""
    nbytes = data_bytes(dtype, tuple(shape))
    t = View(dtype, tuple(shape), device.new_memory(nbytes))
    dlpack.borrow(t).view()[:] = pattern(n, nbytes)[:nbytes]
    return t if torch is None else torch.from_dlpack(t)


def value_of(n, tensors=1, **of):
    host = omnibus.Tensor("int16", (3, 5000), pattern(n, 30_000)[:30_000])
    return {"n": n, "host": host, "x": [tensor(n + i, **of) for i in range(tensors)], "none": None}


def put(key, n, change=True, **of):
    value = value_of(n, **of)
    ok, size, metadata = c.put(*EDGE, key, value)
    for t in value["x"] if change else ():
        memory_of(t)[:1] = b"!"  # in the pool lies a copy
    return ok


def memory_of(t):
    """The bytes of a tensor, where they are."""
    if isinstance(t, omnibus.Tensor):
        return t.raw()
    return dlpack.borrow(t if torch is None else t.reshape(-1).view(torch.uint8)).view()


def describe(value):
    """Which of the tensors are on the device, and whether every byte is there, but for the first."""
    n, host = value["n"], value["host"]
    if bytes(memory_of(host)) != pattern(n, 30_000)[:30_000] or tuple(host.shape) != (3, 5000):
        return "the tensor in host memory is another"
    out = []
    for i, t in enumerate(value["x"]):
        data = bytes(memory_of(t))
        whole = zlib.crc32(data[1:]) == zlib.crc32(pattern(n + i, len(data))[1 : len(data)])
        first = data[:1] == pattern(n + i, 1)[:1]
        kind = "torch" if torch is not None and isinstance(t, torch.Tensor) else type(t).__name__
        out.append([kind, str(t.dtype).removeprefix("torch."), list(t.shape), whole, first])
    return [n, out]


def got(key, seconds=0.0):
    return c.get_with_deadline(*EDGE, key, deadline=time.monotonic() + seconds) if seconds else c.get(*EDGE, key)


def get(key, seconds=0.0):
    found = got(key, seconds)
    return found and describe(found[0])


def hold(key, seconds=0.0):
    found = got(key, seconds)
    if found:
        held[key] = found[0]
    return found is not None


def hold_part(key):
    """Keep a part of the tensor alone."""
    held[key] = held[key]["x"][0].reshape(2, -1)[1:, ::2]
    gc.collect()
    return list(held[key].shape)


def fetch(key):
    """Take the payload, and look at it later."""
    held[key] = c._transport._open_exchange().get(*EDGE, key)
    return len(held[key].data)


def take(key, seconds=5.0):
    return describe(gpu_values.take_value(held.pop(key), time.monotonic() + seconds)[0])


def put_late(key, n):
    """Put a value that is not complete: the answer is whether the put has ended, and what lies there by then."""
    emul._Fill = Late
    done = threading.Event()
    threading.Thread(target=lambda: (put(key, n, False), done.set()), daemon=True).start()
    session = other._transport._open_exchange()._session
    while not (session.sender and session.sender._pool and session.sender._pool.in_use):
        time.sleep(0.001)
    return [done.is_set(), get(key)]


def put_incomplete(key, n):
    """Put a value as no connector does, before it is complete, which it never is."""
    emul._Fill, Layout.wait_complete = Late, lambda layout: None
    return put(key, n, False)


def complete(key):
    finish.set()
    answer = get(key, 60)
    emul._Fill = sending
    return answer


def until_in_use(n):
    """Wait until so many chunks, and buffers that were lent, are in use, and say how many are."""
    gc.collect()
    session = other._transport._open_exchange()._session
    pool = session.sender._pool

    def work():
        a = PolledFuture(lambda: pool.in_use == n or None, 0)
        a.limit = time.monotonic() + 20
        yield session.polled.add(a)

    session.run(work())
    with session.locked:
        return pool.in_use


def stats():
    s = other._transport._open_exchange()._session.sender.stats
    return [s.default.messages, s.cuda_ipc.messages, s.cuda_ipc_pool.messages, s.fallbacks, s.small, s.spilt]


def again(key, to):
    """Put what is held under another key."""
    return c.put(*EDGE, to, {"n": held[key]["n"], "host": held[key]["host"], "x": held[key]["x"]})[0]


def odd(key):
    """Put tensors of torch that no other library has as they are: a gradient, a conjugate view, and a parameter."""
    x = torch.from_dlpack(View("complex64", (1000,), device.new_memory(8000)))
    x.copy_(torch.arange(1000) * (1 + 2j))
    y = torch.from_dlpack(View("float32", (1000,), device.new_memory(4000))).zero_()
    value = {"conj": x.conj(), "grad": y.requires_grad_(), "parameter": torch.nn.Parameter(y.detach()), "raw": b"x" * 5000}
    return c.put(*EDGE, key, value)[0]


def get_odd(key):
    v = got(key)[0]
    right = v["conj"].equal(torch.arange(1000) * (1 - 2j)) and not v["grad"].any() and not v["parameter"].any()
    return bool(right) and v["raw"] == b"x" * 5000 and not v["grad"].requires_grad


def blind():
    """See no GPU from now on."""

    def device(uuid):
        raise omnibus.ForeignDevice(f"{uuid_text(uuid)} is not visible to this process")

    emul.device = device


do = {
    "put": put, "get": get, "hold": hold, "look": lambda key: describe(held[key]), "drop": lambda key: held.pop(key) is not None,
    "hold_part": hold_part, "fetch": fetch, "take": take, "put_late": put_late, "put_incomplete": put_incomplete,
    "complete": complete, "until_in_use": until_in_use, "stats": stats,
    "cleanup": lambda key: c.cleanup(key), "close": lambda: c.close(), "blind": blind, "again": again, "odd": odd, "get_odd": get_odd,
    "raw": lambda: c.supports_raw_data, "errors": lambda: c.health()["error_kinds"],
    "last_error": lambda: c.health().get("last_error", ""),
}  # fmt: skip

for line in sys.stdin:
    q = json.loads(line)
    try:
        answer = do[q.pop("do")](**q)
    except omnibus.OmnibusError as e:
        answer = f"{type(e).__name__}"
    print(json.dumps({"answer": answer, "errors": {}}), flush=True)
