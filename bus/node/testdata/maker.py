"""A stage in Python that sends tensors on an emulated GPU, as the test says line by line."""

import gc
import json
import os
import sys
import threading
import time
import zlib

import omnibus
from omnibus import dlpack, gpu
from omnibus.futures import PolledFuture
from omnibus.gpu import emul
from omnibus.tensor import data_bytes

ARENA = 512 << 10
options = gpu.Options(
    device=emul.uuid(), arena_bytes=ARENA, max_bytes=int(os.environ.get("ARENAS", "1")) * ARENA,
    when_full=os.environ.get("WHEN_FULL", "spill"), timeout=float(os.environ.get("TIMEOUT", "0.02")),
)  # fmt: skip
ROLE = os.environ.get("ROLE", "pulls")
device = emul.device(emul.uuid())
held = []


class View:
    """Some elements of memory on the device, as a tensor of another library has them."""

    def __init__(self, address, dtype, shape, strides, keep):
        self.of, self.keep = (address, 1, 0, dtype, shape, strides, False), keep

    def __dlpack__(self, *, stream=None, max_version=None):
        return dlpack.capsule(*self.of, [self.keep].clear, max_version=max_version)

    def __dlpack_device__(self):
        return 1, 0


def pattern(n, size):
    return bytes((i * 7 + n * 31) & 255 for i in range(min(size, 256))) * (size // 256 + 1)


def fill(t, n, nbytes):
    """Fill a tensor as other libraries do, and return its bytes."""
    data = pattern(n, nbytes)[:nbytes]
    if nbytes:
        dlpack.borrow(t).view()[:] = data
    return data


def chunk(n, dtype, shape):
    """Two tensors of one message in a chunk, filled in place."""
    size = data_bytes(dtype, tuple(shape))
    c = client.gpu.chunk(-(-size // 256) * 256 + 64)
    x, beside = c.empty(shape, dtype), c.empty(64, "uint8")
    fill(beside, n, 64)
    return {"x": x, "beside": [beside]}, zlib.crc32(fill(x, n, size))


def alias(n, dtype, shape):
    """What views a chunk is in the chunk."""
    t = client.gpu.empty(shape, dtype)
    return {"x": View(t.pointer, dtype, tuple(shape), None, t)}, zlib.crc32(fill(t, n, t.nbytes))


def memory(n, dtype, shape):
    """A tensor in memory of its own."""
    nbytes = data_bytes(dtype, tuple(shape))
    m = device.new_memory(nbytes + 4096)
    t = View(m.address + 4096, dtype, tuple(shape), None, m)
    return {"x": t}, zlib.crc32(fill(t, n, nbytes))


def strided(n, dtype, shape):
    """The transpose of a matrix in memory of its own."""
    rows, columns = shape
    size = data_bytes(dtype, (1,))
    m = device.new_memory(rows * columns * size)
    data = fill(View(m.address, dtype, (rows, columns), None, m), n, rows * columns * size)
    at = [data[(i * columns + j) * size :][:size] for j in range(columns) for i in range(rows)]
    return {"x": View(m.address, dtype, (columns, rows), (1, columns), m)}, zlib.crc32(b"".join(at))


def host(n, dtype, shape):
    data = pattern(n, data_bytes(dtype, tuple(shape)))[: data_bytes(dtype, tuple(shape))]
    return {"x": omnibus.Tensor(dtype, tuple(shape), data)}, zlib.crc32(data)


makes = {"chunk": chunk, "alias": alias, "memory": memory, "strided": strided, "host": host}


def emit(kind, n, dtype="uint8", shape=(100 << 10,)):
    """Handle the next delivery: send a tensor. The answer is its checksum."""
    d = next(deliveries)
    try:
        value, crc = makes[kind](n, dtype, shape)
        d.emit(value)
    finally:
        d.finish()
    return crc


def submit(**what):
    """Submit a request: the answer is which of its results are of a tensor on the device, all with its checksum."""
    value, crc = makes[what.pop("kind")](**what)
    results = client.submit(value).values()
    assert all(r["CRC"] == crc for r in results), (crc, results)
    return sorted(r["OnDevice"] for r in results)


def again():
    """What was sent is refused."""
    d = next(deliveries)
    value, _ = chunk(1, "uint8", [4096])
    d.emit(value)
    d.finish()
    refused = []
    for again in (lambda: d.emit(value), lambda: value["x"].__dlpack__(), lambda: value["x"].chunk.empty(1)):
        try:
            again()
        except omnibus.Finished:
            refused.append("Finished")
    return refused


def forked():
    """A child may not use what it has inherited."""
    t = client.gpu.empty(64, "uint8")
    r, w = os.pipe()
    if os.fork() == 0:
        said = []
        for use in (lambda: t.__dlpack__(), lambda: client.gpu.empty(64, "uint8")):
            try:
                use()
            except omnibus.ForkedError:
                said.append("ForkedError")
        os.write(w, json.dumps(said).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(r, 4096))


def hold(nbytes):
    """Keep a chunk."""
    held.append(client.gpu.chunk(nbytes))


def in_use():
    """The number of chunks in use."""
    client.process()
    gc.collect()
    with client._session.locked:
        return client.gpu._pool.in_use if client.gpu._pool else 0


def until_in_use(n):
    """Wait until so many chunks are in use."""
    sender = client.gpu

    def work():
        yield client._session.polled.add(PolledFuture(lambda: sender._pool is None or sender._pool.in_use == n or None, 0))

    client._session.run(work())


def emit_dropping(**what):
    """emit, while another thread lets go of a chunk once that waits for room."""

    def drop():
        while not client._session.polled:
            time.sleep(0.001)
        held.clear()

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        return emit(**what)
    finally:
        thread.join()


def stats():
    s = client.gpu.stats
    return [s.default.messages, s.cuda_ipc.messages, s.cuda_ipc_pool.messages, s.fallbacks, s.small, s.spilt]


@omnibus.stage("maker")
def sync_maker(n: memoryview, task):
    """Two messages, by a generator."""
    for i in (n[-1], n[-1] + 1):
        x = task.gpu.empty(4096, "uint8")
        fill(x, i, 4096)
        yield {"x": x}


@omnibus.stage("maker")
async def async_maker(n: memoryview, task):
    x, chunk = await task.gpu.aempty(4096, "uint8"), await task.gpu.achunk(4096)
    y = chunk.empty(4096, "uint8")
    for t, i in ((x, n[-1]), (y, n[-1] + 1)):
        fill(t, i, 4096)
        await task.emit({"x": t})


if ROLE in ("runs", "runs async"):
    omnibus.run(sync_maker if ROLE == "runs" else async_maker, gpu=options)
    sys.exit()

client = omnibus.connect(gpu=options)
deliveries = client.deliveries("maker") if ROLE == "pulls" else None

do = {
    "emit": emit, "submit": submit, "again": again, "forked": forked, "hold": hold, "drop": held.clear, "in_use": in_use,
    "until_in_use": until_in_use, "until_free": lambda: until_in_use(0), "emit_dropping": emit_dropping, "stats": stats,
}  # fmt: skip

for line in sys.stdin:
    q = json.loads(line)
    try:
        answer = do[q.pop("do")](**q)
    except omnibus.OmnibusError as e:
        answer = type(e).__name__
    print(json.dumps({"answer": answer, "errors": {}}), flush=True)
