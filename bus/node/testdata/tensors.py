"""A stage in Python that reads tensors on a GPU, as the test says line by line."""

import gc
import json
import sys
import zlib

import omnibus
from omnibus import dlpack
from omnibus.gpu import DeviceTensor

try:
    import numpy
except ImportError:
    numpy = None

client = omnibus.connect()
deliveries = client.deliveries("reader")
taken, views = {}, {}


def crc(view):
    """A checksum of a view's elements, in row-major order."""
    if numpy is not None and isinstance(view, numpy.ndarray):
        return zlib.crc32(view.tobytes())
    data = bytearray(omnibus.tensor.data_bytes(view.dtype, view.shape))
    view.copy_into(memoryview(data))
    return zlib.crc32(data)


def viewed(t):
    """A view of a tensor, without a copy, and its address."""
    if numpy is not None and t.dtype != "bfloat16":
        a = numpy.from_dlpack(t)
        assert not a.flags.writeable
        return a, a.__array_interface__["data"][0]
    b = dlpack.borrow(t)
    assert b.readonly
    return b, b.address


def take(n):
    d = next(deliveries).keep()
    t = d.value()["x"]
    assert isinstance(t, DeviceTensor), t
    taken[n] = d, t
    return [t.dtype, list(t.shape), t.device[:4].decode()]


def view(n):
    t = taken[n][1]
    views[n], address = viewed(t)
    assert address == t.pointer and t.ready and t.error is None
    return crc(views[n])


def finish(n):
    """The delivery is finished and forgotten, and the tensor too: views are all that is left."""
    taken.pop(n)[0].finish()
    gc.collect()


def drop(n):
    del views[n]
    gc.collect()


def wait(n):
    t = taken[n][1]
    assert not t.wait(0)
    print(json.dumps({"answer": "waiting", "errors": {}}), flush=True)
    t.wait()


do = {"take": take, "view": view, "look": lambda n: crc(views[n]), "finish": finish, "drop": drop, "wait": wait}

for line in sys.stdin:
    q = json.loads(line)
    try:
        answer = do[q["do"]](q["n"])
    except omnibus.OmnibusError as e:
        answer = type(e).__name__
    print(json.dumps({"answer": answer, "errors": {}}), flush=True)
