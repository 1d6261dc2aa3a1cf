"""A stage in Python that sends, or reads, tensors over the library that plays CUDA's, as the test says line by line."""

import ctypes
import gc
import json
import os
import sys
import zlib

import omnibus
from omnibus import dlpack, gpu
from omnibus.devices import cuda
from omnibus.devices.words import READY

BIAS = 1 << 60  # of the library's device addresses
SIZE = 64 << 10

device = cuda.at(0)
client = omnibus.connect(gpu=gpu.Options(arena_bytes=2 << 20, max_bytes=2 << 20, when_full="block", timeout=60))
deliveries = client.deliveries()
with device.context:
    stream = device._new_stream()
taken = []


class Other:
    """A tensor of another library's."""

    def __init__(self, memory, dtype, shape, strides):
        self.memory, self.of = memory, (memory.address, 2, 0, dtype, shape, strides, False)

    def __dlpack__(self, *, stream=None, max_version=None):
        if stream not in (None, -1):
            with device.context:
                event = device._new_event()
                device.call("cuEventRecord", event, globals()["stream"])
                device.call("cuStreamWaitEvent", stream, event, 0)
        return dlpack.capsule(*self.of, [self.memory].clear, max_version=max_version)

    def __dlpack_device__(self):
        return 2, 0


def content(n):
    return bytes((i * 7 + n * 31) & 255 for i in range(256)) * (SIZE // 256)


def emit(kind, n, stuck=False):
    """Handle the next delivery: send a tensor, whose stream may never come to its end. The answer is its checksum."""
    d = next(deliveries)
    data = content(n)
    if kind == "chunk":
        x = client.gpu.empty(SIZE, "uint8")
        x.__dlpack__(stream=stream)
        address = x.pointer
    else:
        memory = device.new_memory(SIZE)
        x = Other(memory, "uint8", (256, SIZE // 256), (1, 256) if kind == "strided" else None)
        address = memory.address
        if kind == "strided":
            data = b"".join(content(n)[i::256] for i in range(256))
    ctypes.memmove(address - BIAS, content(n), SIZE)
    if stuck:
        pool = client.gpu.pool(None)
        with device.context:
            at = pool.registered.address + 64 * 4000 + READY
            device.call("cuStreamWaitValue32_v2", stream, at, 1, 0)
    d.emit({"x": x})
    d.finish()
    return zlib.crc32(data)


def take():
    """Take the next tensor."""
    d = next(deliveries)
    t = d.value()["x"]
    d.finish()
    assert t.__dlpack_device__() == (2, 0), t
    taken.append(t)
    return t.ready


def read():
    """Wait for what was taken, and have it read by a stream. The answer is its checksum."""
    t = taken.pop(0)
    t.wait()
    b = dlpack.borrow(t, stream)
    packed = bytearray()
    base = ctypes.string_at(b.address - BIAS, SIZE)
    for i in range(256):
        packed += base[i::256] if b.strides else base[i * (SIZE // 256) :][: SIZE // 256]
    return zlib.crc32(packed)


def stats():
    s = client.gpu.stats
    return [s.default.messages, s.cuda_ipc.messages, s.cuda_ipc_pool.messages, s.fallbacks, s.small, s.spilt]


do = {"emit": emit, "take": take, "read": read, "stats": stats, "drain": lambda: gc.collect() and None or client.drain(60)}

for line in sys.stdin:
    q = json.loads(line)
    try:
        answer = do[q.pop("do")](**q)
    except omnibus.OmnibusError as e:
        answer = type(e).__name__
    print(json.dumps({"answer": answer, "errors": {}}), flush=True)

os._exit(0)  # the library's streams may be stuck
