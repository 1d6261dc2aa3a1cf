"""Values under keys from one process to another, one after the other.

The arguments are a connector (ring or segment of omnibus, or vllm-omni), the number of bytes of the array in a value, and
a place: the socket of ring's host, or the directory of vllm-omni's package. This process puts a value and sends its key and metadata
to a second process, which gets the value, adds up the words of its array, and answers with the sum. For each line of standard
input, so many values are handed over, and the time that they took is printed in nanoseconds. A size of 0 opens the connector and
ends.
"""

import importlib
import multiprocessing
import os
import sys
import time
import types

import numpy as np


class Stub(types.ModuleType):
    """A module whose every name is a class without instances."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def vllm_omni(directory):
    """vLLM-Omni's SharedMemoryConnector. Stubs stand for the modules that it imports and does not call here."""
    for name in ("torch", "PIL", "PIL.Image", "vllm", "vllm.outputs", "omegaconf"):
        sys.modules[name] = Stub(name)
    sys.modules["vllm"].__path__ = []
    sys.modules["PIL"].Image = sys.modules["PIL.Image"]
    sys.modules["torch"].dtype = type("dtype", (), {})
    packages = ["vllm_omni", "vllm_omni.distributed", "vllm_omni.entrypoints"]
    connectors = "vllm_omni.distributed.omni_connectors"
    packages += [connectors, connectors + ".connectors", connectors + ".utils"]
    for name in packages:  # their own __init__ modules do not run
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(directory, *name.split("."))]
        sys.modules[name] = module
    for name in ("config", "config.yaml_util", "platforms", "platforms.interface", "utils", "outputs"):
        sys.modules["vllm_omni." + name] = Stub("vllm_omni." + name)
    return importlib.import_module(connectors + ".connectors.shm_connector").SharedMemoryConnector({})


def opened(name, place):
    if name == "vllm-omni":
        return vllm_omni(place)
    from omnibus.connector import OmnibusConnector

    config = {"mode": name, "shm_threshold_bytes": 0}  # values of every size go through memory, not metadata
    return OmnibusConnector({**config, "socket": place} if place else config)


def put_all(connector, size, pipe):
    hidden = np.arange(size // 8, dtype="<u8")
    value, want = {"request_id": "bench", "hidden": hidden}, int(hidden.sum())
    count = 0
    for line in sys.stdin:
        start = time.perf_counter_ns()
        for _ in range(int(line)):
            count += 1
            key = f"omnibus-bench-{os.getpid()}_0_{count}"  # of a request, a stage and a chunk, as vLLM-Omni's stages have them
            ok, _, metadata = connector.put("0", "1", key, value)
            if not ok:
                raise SystemExit("nothing was put")
            pipe.send((key, metadata))
            got = pipe.recv()
            if got != want:
                raise SystemExit(f"a value arrived as something else: its words add up to {got} and not to {want}")
        print(time.perf_counter_ns() - start, flush=True)


def get_all(connector, pipe):
    while True:
        key, metadata = pipe.recv()
        found = connector.get("0", "1", key, metadata)
        if found is None:
            raise SystemExit("nothing was there to get")
        pipe.send(int(found[0]["hidden"].sum()))
        found = None  # its memory goes back


def getter(name, place, pipe, other):
    other.close()
    connector = opened(name, place)
    try:
        get_all(connector, pipe)
    except EOFError:
        pass
    finally:
        connector.close()


def main():
    name, size, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if size == 0:
        opened(name, place).close()
        return
    here, there = multiprocessing.Pipe()
    # A fork before the connector is opened: each process has its own.
    process = multiprocessing.get_context("fork").Process(target=getter, args=(name, place, there, here), daemon=True)
    process.start()
    there.close()
    connector = opened(name, place)
    try:
        put_all(connector, size, here)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise SystemExit("the process that gets has ended") from None
    finally:
        here.close()
        process.join()
        connector.close()


main()
