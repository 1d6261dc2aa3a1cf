"""Objects under keys beside vLLM's storage of objects in shared memory, in one run, with the sides in turn::

    PYTHON bench/python_keyed.py [--rounds N] [--sizes BYTES,...] [--kinds tensor,bytes] [--sides vllm,omnibus]

Each side has one process that writes and one that reads. The steps of a round: the writer puts values under new keys into a
store that is full, so that old ones go; the reader gets them; the writer asks for the handles of these keys again (a hit);
the reader gets the values again and adds up all their bytes. Values that are `bytes` are then read once more: in place with
omnibus's `view`, and by `get` with vLLM's storage, which has no views. The table has medians over the rounds, in microseconds for each
value, and the median over the rounds of vLLM's time divided by omnibus's.

A value is a torch tensor of int64, which both readers get as such, or `bytes`. Without torch it is a NumPy array; NumPy is
needed in any case.

OMNIBUS_VLLM names an unpacked source of vLLM, whose storage runs unchanged on torch, NumPy and msgspec; stubs stand for the
modules that the storage imports and does not call here. vLLM's readers accept signed handles alone, so its puts and hits
include the signature. Without that variable omnibus alone is measured.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import logging
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from contextlib import closing, nullcontext
from typing import Any

import numpy as np

try:
    import torch
except ImportError:
    torch = None

SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
BATCH_BYTES = 64 << 20  # of the values of one round, which are MIN_BATCH to MAX_BATCH
MIN_BATCH, MAX_BATCH = 8, 1000
STORE_BATCHES = 2  # the rounds whose values a store has room for, at least
MIN_STORE_BYTES = 32 << 20
HEADER_BYTES = 4096  # the most that a value takes beside its own bytes
OPERATIONS = ("put", "get", "hit", "get, read", "view, read")  # the last is for bytes alone
GOAL = 1.5


class Stub(types.ModuleType):
    """A module whose every name is a class without instances."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})
        setattr(self, name, made)
        return made


def load_vllm(directory: str) -> Any:
    """Import the module of vLLM's storage."""
    for name in ("zmq", "pydantic", "pydantic_core", "cloudpickle", "PIL", "PIL.Image", "vllm.multimodal.media"):
        sys.modules[name] = Stub(name)
    sys.modules["pydantic_core"].core_schema = Stub("core_schema")
    packages = ("vllm", "vllm.utils", "vllm.multimodal", "vllm.v1", "vllm.distributed", "vllm.distributed.device_communicators")
    for name in packages:  # their own __init__ modules do not run
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(directory, *name.split("."))]
        sys.modules[name] = module
    with open(os.path.join(directory, "vllm", "v1", "utils.py")) as f:
        source = ast.parse(f.read())
    source.body = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == "tensor_data"]
    parts: dict[str, dict[str, Any]] = {
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.utils.import_utils": {"LazyLoader": lambda _name, _globals, module: importlib.import_module(module)},
        "vllm.utils.torch_utils": {"PIN_MEMORY": False},
        "vllm.v1.utils": {"torch": torch},
    }
    for name, attributes in parts.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(attributes)
    exec(compile(source, "vllm/v1/utils.py", "exec"), vars(sys.modules["vllm.v1.utils"]))
    return importlib.import_module("vllm.distributed.device_communicators.shm_object_storage")


class VllmWriter:
    def __init__(self, place: dict[str, Any]) -> None:
        storage = load_vllm(place["directory"])
        ring = storage.SingleWriterShmRingBuffer(place["arena"], place["name"], create=True)
        self.storage = storage.SingleWriterShmObjectStorage(place["largest"], 1, ring)

    def put(self, key: str, value: Any) -> Any:
        address, number = self.storage.put(key, value)
        return address, number, self.storage.get_signature(key), key

    def hit(self, key: str) -> Any:
        address, number = self.storage.get_cached(key)
        return address, number, self.storage.get_signature(key), key

    def close(self) -> None:
        self.storage.close()


class VllmReader:
    def __init__(self, place: dict[str, Any]) -> None:
        storage = load_vllm(place["directory"])
        self.storage = storage.SingleWriterShmObjectStorage.create_from_handle(
            storage.ShmObjectStorageHandle(
                place["largest"], 1, (place["arena"], place["name"]), storage.MsgpackSerde, place["lock"]
            )
        )

    def get(self, handle: Any) -> Any:
        return self.storage.get(*handle)

    def view(self, handle: Any) -> Any:
        return nullcontext(self.get(handle))

    def close(self) -> None:
        self.storage.close()


class OmnibusWriter:
    def __init__(self, place: dict[str, Any]) -> None:
        from omnibus.keyed import KeyedStore

        self.store = KeyedStore.create(arena_bytes=place["arena"], max_object_bytes=place["largest"])
        self.store.listen(place["path"])
        self.put, self.hit, self.close = self.store.put, self.store.get_cached, self.store.close


class OmnibusReader:
    def __init__(self, place: dict[str, Any]) -> None:
        from omnibus.keyed import KeyedReader

        self.reader = KeyedReader.dial(place["path"])
        self.close, self.view = self.reader.close, self.reader.view
        self.get = self._get_tensor if place["kind"] == "tensor" and torch is not None else self.reader.get

    def _get_tensor(self, handle: Any) -> Any:
        return torch.from_dlpack(self.reader.get(handle))


ENDS = {"vllm": (VllmWriter, VllmReader), "omnibus": (OmnibusWriter, OmnibusReader)}


def made(kind: str, size: int) -> list[Any]:
    """Values that differ."""
    words = [np.arange(first, first + size // 8, dtype=np.int64) for first in (1, 3)]
    if kind == "bytes":
        return [w.tobytes() for w in words]
    return words if torch is None else [torch.from_numpy(w) for w in words]


def added(value: Any) -> int:
    """The sum of the words of a value: all its bytes are read."""
    if isinstance(value, (bytes, memoryview)):
        words = np.frombuffer(value, np.int64)
    elif hasattr(value, "numpy"):
        words = value.numpy()
    else:
        words = value
    return int(words.sum())


def write(place: dict[str, Any], pipe: Any) -> None:
    """The process that writes."""
    values = made(place["kind"], place["size"])
    keys: list[str] = []
    numbers = itertools.count()
    with closing(ENDS[place["side"]][0](place)) as end:
        pipe.send(None)
        for operation, n in iter(pipe.recv, None):
            if operation == "put":
                keys = [f"image-{next(numbers):032x}" for _ in range(n)]
                call = end.put
                calls = [(key, values[i % 2]) for i, key in enumerate(keys)]
            else:
                call = end.hit
                calls = [(key,) for key in keys]
            handles = [None] * n
            begin = time.perf_counter()
            for i, arguments in enumerate(calls):
                handles[i] = call(*arguments)
            took = time.perf_counter() - begin
            pipe.send((took / n, [tuple(h) for h in handles]))


def read(place: dict[str, Any], pipe: Any) -> None:
    """The process that reads."""
    want = [added(v) for v in made(place["kind"], place["size"])]
    of_handle: Any = tuple
    if place["side"] == "omnibus":
        from omnibus.keyed import Handle

        of_handle = Handle._make
    with closing(ENDS[place["side"]][1](place)) as end:
        pipe.send(None)
        get, value = end.get, None
        for operation, given in iter(pipe.recv, None):
            handles = [of_handle(h) for h in given]
            sums = []
            begin = time.perf_counter()
            if operation == "get":
                for h in handles:
                    value = get(h)
                    value = None
            elif operation == "view, read":
                for h in handles:
                    with end.view(h) as value:
                        sums.append(added(value))
                    value = None
            else:
                for h in handles:
                    value = get(h)
                    sums.append(added(value))
                    value = None
            took = time.perf_counter() - begin
            if any(s != want[i % 2] for i, s in enumerate(sums)):
                raise SystemExit("a value arrived as another")
            pipe.send((took / len(handles), None))


class Side:
    """The two processes of a side."""

    def __init__(self, context: Any, place: dict[str, Any]) -> None:
        self.kind, self.pipes, self.processes = place["kind"], [], []
        for run in (write, read):
            here, there = context.Pipe()
            process = context.Process(target=run, args=(place, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
            here.recv()

    def ask(self, end: int, *question: Any) -> Any:
        self.pipes[end].send(question)
        return self.pipes[end].recv()

    def round(self, n: int) -> list[float]:
        put, handles = self.ask(0, "put", n)
        get, _ = self.ask(1, "get", handles)
        hit, handles = self.ask(0, "hit", n)
        took = [put, get, hit, self.ask(1, "get, read", handles)[0]]
        if self.kind == "bytes":
            _, handles = self.ask(0, "hit", n)
            took.append(self.ask(1, "view, read", handles)[0])
        return took

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes):
            pipe.send(None)
            process.join()


def measure(kind: str, size: int, sides: list[str], rounds: int, folder: str) -> Iterator[tuple[str, list[float], float | None]]:
    """For each operation: its name, the median of each side, and the median of the ratios to the last side."""
    n = min(max(BATCH_BYTES // size, MIN_BATCH), MAX_BATCH)
    largest = size + HEADER_BYTES
    arena = max(STORE_BATCHES * n * (size + 256), MIN_STORE_BYTES, 4 * largest)
    context = multiprocessing.get_context("spawn")
    place = {
        "kind": kind, "size": size, "arena": arena, "largest": largest, "directory": os.environ.get("OMNIBUS_VLLM"),
        "name": f"omnibus-bench-{os.getpid()}-{kind}-{size}", "path": os.path.join(folder, f"{kind}-{size}"),
        "lock": context.Lock(),
    }  # fmt: skip
    ends = [Side(context, {**place, "side": side}) for side in sides]
    times: list[list[list[float]]] = [[] for _ in sides]
    try:
        warm = arena // (n * size) + 2  # rounds until the store is full
        for r in range(warm + rounds):
            for i in range(len(sides)) if r % 2 else reversed(range(len(sides))):
                took = ends[i].round(n)
                if r >= warm:
                    times[i].append(took)
    finally:
        for end in ends:
            end.close()
    for o, operation in enumerate(OPERATIONS[: len(times[0][0])]):
        columns = [[took[o] for took in side] for side in times]
        ratio = statistics.median(a / b for a, b in zip(columns[0], columns[-1])) if len(sides) > 1 else None
        yield operation, [statistics.median(c) for c in columns], ratio


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--kinds", default="tensor,bytes")
    parser.add_argument("--sides", help="vllm, omnibus, or both with a comma")
    args = parser.parse_args()
    sides = args.sides.split(",") if args.sides else ["vllm", "omnibus"] if os.environ.get("OMNIBUS_VLLM") else ["omnibus"]
    if "vllm" in sides and (torch is None or not os.environ.get("OMNIBUS_VLLM")):
        parser.error("vLLM's storage needs torch, and OMNIBUS_VLLM, the directory of its source")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: there are two processes, and few processors
    with tempfile.TemporaryDirectory() as folder:
        print(f"median of {args.rounds} rounds, microseconds for each value; goal {GOAL}")
        print(f"{'value':<7} {'bytes':>9} {'operation':<10}" + "".join(f"{side:>10}" for side in sides) + "  ratio")
        for kind in args.kinds.split(","):
            for size in map(int, args.sizes.split(",")):
                for operation, medians, ratio in measure(kind, size, sides, args.rounds, folder):
                    shown = "".join(f"{m * 1e6:>10.1f}" for m in medians)
                    if ratio is not None:
                        shown += f"{ratio:>7.2f}" + ("" if ratio >= GOAL else "  missed")
                    print(f"{kind:<7} {size:>9} {operation:<10}{shown}", flush=True)


if __name__ == "__main__":
    main()
