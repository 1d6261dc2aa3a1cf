"""One of two processes that hand values over: it puts them, or gets and reads them.

The argument is JSON and says by what means. Beside each value a line of JSON goes from
one process to the other, which answers with what the words of the value add up to. Whoever
puts reads lines of standard input: for each, so many values are handed over, and what that
took is printed in nanoseconds.
"""

import array
import fcntl
import importlib
import json
import os
import sys
import time
import types

try:
    import numpy as np
except ImportError:
    np = None
try:
    import msgspec
except ImportError:
    msgspec = None


class Missing(Exception):
    """A package that is needed is not here."""


class Anything(types.ModuleType):
    """A package whose every name is a class that nothing is an instance of."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def reference(directory):
    """vLLM-Omni's connector, as it is in a directory; what it imports and does not need is replaced."""
    if np is None or msgspec is None:
        raise Missing("vLLM-Omni needs numpy and msgspec")
    for name in ("torch", "PIL", "PIL.Image", "vllm", "vllm.outputs", "omegaconf"):
        sys.modules[name] = Anything(name)
    sys.modules["vllm"].__path__ = []
    sys.modules["PIL"].Image = sys.modules["PIL.Image"]
    sys.modules["torch"].dtype = type("dtype", (), {})
    packages = ["vllm_omni", "vllm_omni.distributed", "vllm_omni.entrypoints"]
    connectors = "vllm_omni.distributed.omni_connectors"
    packages += [connectors, connectors + ".connectors", connectors + ".utils"]
    for name in packages:  # without what their __init__ imports
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(directory, *name.split("."))]
        sys.modules[name] = module
    for name in ("config", "config.yaml_util", "platforms", "platforms.interface", "utils", "outputs"):
        sys.modules["vllm_omni." + name] = Anything("vllm_omni." + name)
    try:
        return importlib.import_module(connectors + ".connectors.shm_connector").SharedMemoryConnector({})
    except ImportError as e:
        raise Missing(f"vLLM-Omni in {directory} cannot be loaded: {e}") from None


class StandIn:
    """What vLLM-Omni's connector does, step by step: a lock, a segment, and msgspec where it is."""

    def put(self, _from, _to, key, value):
        from multiprocessing import shared_memory

        payload = self.encode(value)
        with open(self.lock(key), "wb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            shm = shared_memory.SharedMemory(name=key, create=True, size=len(payload))
            shm.buf[: len(payload)] = payload
            shm.close()
        return True, len(payload), {"shm": {"name": key, "size": len(payload)}, "size": len(payload)}

    def get(self, _from, _to, key, metadata):
        from multiprocessing import shared_memory

        with open(self.lock(key), "rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shm = shared_memory.SharedMemory(name=key)
            payload = bytes(shm.buf[: metadata["size"]])
            shm.close()
            shm.unlink()
        os.remove(self.lock(key))
        return self.decode(payload), len(payload)

    def close(self):
        pass

    @staticmethod
    def lock(key):
        return f"/dev/shm/shm_{key}_lockfile.lock"

    @staticmethod
    def encode(value):
        if np is None or msgspec is None:
            return bytes(ours().encode(value))

        def marked(a):
            return {"__ndarray__": True, "dtype": a.dtype.str, "shape": list(a.shape), "data": a.tobytes()}

        return msgspec.msgpack.encode(value, enc_hook=marked)

    @staticmethod
    def decode(payload):
        if np is None or msgspec is None:
            return ours().decode(payload)
        value = msgspec.msgpack.decode(payload)
        marked = value["hidden"]
        value["hidden"] = np.frombuffer(marked["data"], dtype=marked["dtype"]).reshape(marked["shape"])
        return value


class Bare:
    """Files with nothing around them: no lock, no journal, there before they are whole."""

    def put(self, _from, _to, key, value):
        payload = ours().encode(value)
        fd = os.open("/dev/shm/" + key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        written = os.writev(fd, [p for p in payload.pieces if len(p)])
        os.close(fd)
        return written == payload.size, payload.size, {"size": payload.size}

    def get(self, _from, _to, key, metadata):
        fd = os.open("/dev/shm/" + key, os.O_RDONLY)
        payload = os.read(fd, metadata["size"])
        os.close(fd)
        os.unlink("/dev/shm/" + key)
        return ours().decode(payload), len(payload)

    def close(self):
        pass


class Locked(Bare):
    """The same with a lock file for each, as the format of segments asks for."""

    def put(self, _from, _to, key, value):
        fd = os.open(StandIn.lock(key), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            return super().put(_from, _to, key, value)
        finally:
            os.close(fd)

    def get(self, _from, _to, key, metadata):
        fd = os.open(StandIn.lock(key), os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            return super().get(_from, _to, key, metadata)
        finally:
            os.unlink(StandIn.lock(key))
            os.close(fd)


def ours():
    try:
        import omnibus.connector
    except ImportError as e:
        raise Missing(f"the package omnibus cannot be loaded: {e}") from None
    return omnibus.connector


def opened(q):
    if q["by"] == "reference":
        return reference(q["directory"])
    ours()
    if q["by"] == "stand-in":
        return StandIn()
    if q["by"] == "bare":
        return Bare()
    if q["by"] == "locked":
        return Locked()
    config = {"mode": q["by"], "shm_threshold_bytes": 0}
    if q["socket"]:
        config["socket"] = q["socket"]
    return ours().OmnibusConnector(config)


def made(size):
    """A value of which the words are 0, 1, 2 and so on, and what they add up to."""
    words = size // 8
    if np is not None:
        hidden = np.arange(words, dtype="<u8")
    else:
        from omnibus.tensor import Tensor

        hidden = Tensor("uint64", [words], array.array("Q", range(words)))
    return {"request_id": "bench", "hidden": hidden}, words * (words - 1) // 2


def added(hidden):
    """What the words add up to."""
    return int(hidden.sum()) if np is not None else sum(hidden.data)


def put_all(connector, size, inbox, outbox):
    value, want = made(size)
    print("ready", flush=True)
    count = 0
    for line in sys.stdin:
        start = time.perf_counter_ns()
        for _ in range(int(line)):
            count += 1
            key = f"omnibus-bench-{os.getpid()}_0_{count}"
            ok, _, metadata = connector.put("0", "1", key, value)
            if not ok:
                raise SystemExit("nothing was put")
            outbox.write(json.dumps({"key": key, "meta": metadata}).encode() + b"\n")
            answer = inbox.readline()
            if not answer:
                raise SystemExit("the other process has ended")
            if int(answer) != want:
                raise SystemExit(f"a value arrived as something else: its words add up to {answer!r} and not to {want}")
        print(time.perf_counter_ns() - start, flush=True)


def get_all(connector, inbox, outbox):
    for line in inbox:
        note = json.loads(line)
        found = connector.get("0", "1", note["key"], note["meta"])
        if found is None:
            raise SystemExit("nothing was there to get")
        outbox.write(b"%d\n" % added(found[0]["hidden"]))
        found = None  # so that its memory goes back


def main():
    q = json.loads(sys.argv[1])
    inbox, outbox = os.fdopen(q["read"], "rb"), os.fdopen(q["write"], "wb", buffering=0)
    try:
        connector = opened(q)
    except Missing as e:
        print("missing", e, flush=True)
        return
    try:
        if q["gets"]:
            get_all(connector, inbox, outbox)
        else:
            put_all(connector, q["size"], inbox, outbox)
    except BrokenPipeError:
        raise SystemExit("the other process has ended") from None
    finally:
        connector.close()


main()
