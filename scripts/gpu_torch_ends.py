"""Both ends of gpu_torch.py: the readers of tensors in its process, and the processes that send them."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import ClassVar

import omnibus
from omnibus import dlpack
from omnibus.devices import cuda
from omnibus.devices.libcuda import NOT_READY
from omnibus.gpu import DeviceTensor, NoDriver
from omnibus.tensor import data_bytes

TRANSPORTS = ("default", "cuda_ipc", "cuda_ipc_pool")
#: The path without queues: tensors are results of a request, in a pool.
STAGE = "stage"

#: Elements are whole numbers below this, which a bfloat16 represents exactly. The count continues in the next row.
PERIOD = 251
COLUMNS = 1024

#: Timeouts, in seconds, of an answer, and of the start of the other process with torch: that import takes half a
#: minute on a loaded machine.
PATIENCE, BEGINNING = 20, 90


class Unavailable(Exception):
    """A program or a device is missing on this machine."""


class Wrong(Exception):
    """A promise does not hold."""


# The readers of tensors.


class Torch:
    """PyTorch, on the GPU or, for an emulated one, on the CPU."""

    def __init__(self, driver: str) -> None:
        try:
            import torch
        except ImportError as e:
            raise Unavailable(f"{sys.executable} cannot import torch: {e}") from None
        if driver == "cuda" and not torch.cuda.is_available():
            raise Unavailable(f"torch {torch.__version__} sees no GPU")
        self.torch = torch
        self.device = torch.device("cuda:0" if driver == "cuda" else "cpu")
        self.name = f"torch {torch.__version__} on {self.device}"

    def take(self, t):
        return self.torch.from_dlpack(t)

    def address(self, x) -> int:
        return x.data_ptr()

    def last(self, x) -> float:
        """The last element, read after a copy of x to the device."""
        return x.to(self.device)[-1, -1].item()

    def last_row(self, x):
        """A view."""
        return x[-1:]

    def total(self, x) -> int:
        """The sum of the elements, each with a weight by its row and its column: exact in a float64."""
        torch, x = self.torch, x.to(self.device).double()
        rows = torch.arange(1, x.shape[0] + 1, device=self.device).double()
        columns = (torch.arange(x.shape[1], device=self.device) % 7 + 1).double()
        return int(((x @ columns) @ rows).item())


class Plain:
    """The DLPack protocol and the standard library, for tests without torch. Slow."""

    name = "no torch"
    _bfloat16: ClassVar = {struct.unpack("<HH", struct.pack("<f", v))[1]: v for v in range(PERIOD)}

    def __init__(self, driver: str) -> None:
        self._gpu = self._stream = None
        if driver == "cuda":
            try:
                self._gpu = cuda.at(0)
            except (NoDriver, LookupError) as e:
                raise Unavailable(str(e)) from None
            with self._gpu.context:
                self._stream = self._gpu.libcuda.number("cuStreamCreate", 1, kind=ctypes.c_void_p)

    def take(self, t):
        return dlpack.borrow(t, self._stream if isinstance(t, DeviceTensor) else None)

    def address(self, x) -> int:
        return x.address

    def last(self, x) -> float:
        return self._elements(x.dtype, self._data(x)[-4:])[-1]

    def last_row(self, x):
        return x

    def total(self, x) -> int:
        elements, total = self._elements(x.dtype, self._data(x)), 0
        for row in range(len(elements) // COLUMNS):
            part = elements[row * COLUMNS : (row + 1) * COLUMNS]
            total += (row + 1) * sum((weight + 1) * sum(part[weight::7]) for weight in range(7))
        return int(total)

    def _data(self, x) -> memoryview:
        if x.device[0] in dlpack.HOST:
            return x.view()
        data = memoryview(bytearray(data_bytes(x.dtype, x.shape)))
        with self._gpu.context:
            self._gpu.call("cuMemcpyAsync", dlpack.address(data), x.address, data.nbytes, self._stream)
            while (code := self._gpu.libcuda.ask("cuStreamQuery", self._stream)) == NOT_READY:
                time.sleep(1e-4)
        if code:
            raise self._gpu.libcuda.failure("cuStreamQuery", code)
        return data

    def _elements(self, dtype: str, data: memoryview):
        if dtype == "float32":
            return data.cast("f")
        known = self._bfloat16
        return [known.get(bits, -1) for bits in data.cast("H")]


# The other end.


class Producer:
    """`omnibus-bench gpu producer`, and the queues that it puts into."""

    def __init__(self, programs: str, driver: str, largest: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="omnibus-torch-")
        self._queues: dict[str, omnibus.TensorQueue] = {}
        command = [os.path.join(programs, "omnibus-bench"), "gpu", "producer", self._folder.name]
        try:
            self._process = subprocess.Popen(
                [*command, "--driver", driver, "--largest", str(largest)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as e:
            self._folder.cleanup()
            raise Unavailable(f"{command[0]} cannot be run: {e.strerror}") from None
        try:
            greeting = self._answer()
            self.name = f"{greeting['gpu']}, {greeting['driver']}"
            self.missing = greeting["missing"]
            for transport in TRANSPORTS:
                path = os.path.join(self._folder.name, transport)
                self._queues[transport] = omnibus.TensorQueue(path=path, arena_bytes=1 << 20)
            self._bus = omnibus.connect(os.path.join(self._folder.name, STAGE))
        except BaseException:
            self.kill()
            raise

    def order(self, way: str, dtype: str, size: int, count: int, number: int, fresh: bool) -> None:
        """Order tensors. Fresh ones are numbered from number on; otherwise all have the first number."""
        order = {"transport": way, "dtype": dtype, "bytes": size, "count": count, "number": number, "fresh": fresh}
        line = json.dumps(order).encode()
        if way == STAGE:
            self._request = self._bus.submit(line)
            return
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Wrong("the producer has ended") from None

    def get(self, way: str):
        """A tensor, and its expected content. A tensor of the stage is done at the next call."""
        if way == STAGE:
            for d in self._request:
                return d.value()
            raise Wrong("stage: a tensor that was to come has not")
        try:
            return self._queues[way].get(PATIENCE)[2]
        except queue.Empty:
            raise Wrong(f"{way}: a tensor that was to come has not") from None
        except omnibus.OmnibusError:
            self._answer()  # raises with the reason why the queue is closed
            raise

    def done(self, way: str) -> None:
        """Wait until all sent tensors are done; in a queue the producer then has their memory back."""
        if way != STAGE:
            self._answer()
            return
        for _ in self._request:
            raise Wrong("stage: there are more tensors than were ordered")

    def _answer(self):
        readable, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        line = self._process.stdout.readline() if readable else b""
        if not line:
            raise Wrong("the producer has ended" if readable else "the producer has not got back what it gave")
        answer = json.loads(line)
        if why := answer.get("error"):
            raise Wrong(f"the producer says: {why}")
        return answer

    def close(self) -> None:
        """Wait for the end of the producer. Its status is not 0 if a reader has kept memory: raises Wrong."""
        for q in self._queues.values():
            q.close()
        self._bus.close()
        self._process.stdin.close()
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong("the producer does not end") from None
        self._process.stdout.close()
        self._folder.cleanup()
        if status != 0:
            raise Wrong(f"the producer has ended with status {status}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._folder.cleanup()


class Other:
    """A process with torch that puts tensors into a queue of torch.multiprocessing."""

    def __init__(self, arrays: Torch) -> None:
        import torch.multiprocessing as mp

        context = mp.get_context("spawn")
        self._queue = context.Queue()
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=produce, args=(theirs, self._queue, str(arrays.device)), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    def wait(self) -> None:
        """Wait until it has started, which includes the import of torch. Raises OSError."""
        if not self._ready:
            if not self._orders.poll(BEGINNING):
                raise TimeoutError("the process with torch does not begin")
            self._orders.recv()
            self._ready = True

    def order(self, size: int, count: int, number: int, copied: bool) -> None:
        self._orders.send((size, count, number, copied))

    def get(self):
        try:
            return self._queue.get(timeout=PATIENCE / 4)
        except queue.Empty:
            raise TimeoutError("a tensor that was put has not come") from None

    def close(self) -> None:
        self._orders.close()
        self._process.join(PATIENCE)
        self._process.kill()


def produce(orders, q, device: str) -> None:
    """The body of the other process."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    made = {}
    torch.zeros(1, device=device)
    orders.send(None)
    while True:
        try:
            size, count, number, copied = orders.recv()
        except EOFError:
            return
        if size not in made:
            elements = (torch.arange(size // 4, device=device) + number) % PERIOD
            made[size] = elements.float().view(-1, COLUMNS)
        for _ in range(count):
            q.put(made[size].clone() if copied else made[size])
