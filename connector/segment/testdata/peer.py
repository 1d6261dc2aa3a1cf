"""The other end of an edge, for the tests of package segment.

It executes the operation in each line of JSON on its standard input, and answers
with a line. With a directory that has the package vllm_omni it uses that package's
connector, with stubs for the packages that it imports and does not need. Without one
it uses the standard library.
"""

import fcntl
import importlib
import json
import os
import struct
import sys
import types
from multiprocessing import shared_memory

PATTERN = bytes(range(251)) * 4096
HELLO = f"omnibus-test-hello-{os.getpid()}"


def content(seed, size):
    """The content of a value of a size, the same as in the tests."""
    times = (seed % 251 + size) // len(PATTERN) + 1
    return (PATTERN * times)[seed % 251 :][:size]


def encode(value):
    """Bytes in MessagePack."""
    size = len(value)
    if size < 1 << 8:
        return b"\xc4" + struct.pack(">B", size) + value
    if size < 1 << 16:
        return b"\xc5" + struct.pack(">H", size) + value
    return b"\xc6" + struct.pack(">I", size) + value


def decode(payload):
    """Bytes from MessagePack."""
    head = {0xC4: 2, 0xC5: 3, 0xC6: 5}[payload[0]]
    value = bytes(payload[head:])
    if encode(value) != bytes(payload):
        raise ValueError("trailing bytes")
    return value


def lock_path(name):
    return f"/dev/shm/shm_{name}_lockfile.lock"


class Plain:
    """The format without vllm_omni, by key or by metadata."""

    def __init__(self, by_key):
        self.by_key = by_key

    def put(self, _from, _to, key, value):
        payload = encode(value)
        size = len(payload)
        if not self.by_key:
            if size <= 65536:
                return True, size, {"inline_bytes": payload, "size": size}
            return True, size, {"shm": self.write(None, payload), "size": size}
        with open(lock_path(key), "wb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return True, size, {"shm": self.write(key, payload), "size": size}

    def write(self, name, payload):
        try:
            shm = shared_memory.SharedMemory(name=name, create=True, size=len(payload))
        except FileExistsError:
            old = shared_memory.SharedMemory(name=name)
            old.unlink()
            old.close()
            shm = shared_memory.SharedMemory(name=name, create=True, size=len(payload))
        shm.buf[: len(payload)] = payload
        shm.close()
        return {"name": shm.name, "size": len(payload)}

    def get(self, _from, _to, key, metadata):
        metadata = metadata or {}
        if "inline_bytes" in metadata:
            return decode(metadata["inline_bytes"]), metadata["size"]
        handle = metadata.get("shm") or {"name": key}
        try:
            if not self.by_key:
                return self.read(handle) if "shm" in metadata else None
            with open(lock_path(handle["name"]), "rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                got = self.read(handle)
            os.remove(lock_path(handle["name"]))
            return got
        except (FileNotFoundError, BlockingIOError):
            return None

    def read(self, handle):
        shm = shared_memory.SharedMemory(name=handle["name"])
        size = handle.get("size", shm.size)
        payload = bytes(shm.buf[:size])
        shm.close()
        shm.unlink()
        return decode(payload), size


class Anything(types.ModuleType):
    """A package whose every name is a class that nothing is an instance of."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def real(directory):
    """The connector of vllm_omni in a directory."""
    for name in ("torch", "PIL", "PIL.Image", "vllm", "vllm.outputs"):
        sys.modules[name] = Anything(name)
    sys.modules["vllm"].__path__ = []
    sys.modules["PIL"].Image = sys.modules["PIL.Image"]
    sys.modules["torch"].dtype = type("dtype", (), {})
    packages = ["vllm_omni"]
    for rest in ("distributed.omni_connectors.connectors", "distributed.omni_connectors.utils", "entrypoints"):
        name = "vllm_omni"
        for part in rest.split("."):
            name += "." + part
            packages.append(name)
    for name in packages:  # without what their __init__ imports
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(directory, *name.split("."))]
        sys.modules[name] = module
    for name in ("config", "config.yaml_util", "platforms", "platforms.interface", "utils", "outputs"):
        sys.modules["vllm_omni." + name] = Anything("vllm_omni." + name)
    sys.modules["omegaconf"] = Anything("omegaconf")
    module = importlib.import_module("vllm_omni.distributed.omni_connectors.connectors.shm_connector")
    return module.SharedMemoryConnector({})


def bytes_from_wire(metadata):
    """Metadata as they were before JSON had them."""
    if isinstance(metadata, dict) and isinstance(metadata.get("inline_bytes"), str):
        import base64

        metadata["inline_bytes"] = base64.b64decode(metadata["inline_bytes"])
    return metadata


def to_wire(value):
    import base64

    return base64.b64encode(value).decode()


class Peer:
    def __init__(self, connector):
        self.connector = connector
        self.locks = {}
        self.halves = []

    def hello(self, _):
        _, _, metadata = self.connector.put("a", "b", HELLO, b"hello")
        if "inline_bytes" in metadata:
            return {"generation": 1}
        if self.connector.get("a", "b", HELLO, metadata) is None:
            raise RuntimeError("it does not find its own value")
        return {"generation": 2}

    def put(self, q):
        ok, size, metadata = self.connector.put("a", "b", q["key"], content(q["seed"], q["size"]))
        return {"ok": ok, "size": size, "meta": metadata}

    def get(self, q):
        got = self.connector.get("a", "b", q["key"], bytes_from_wire(q.get("meta")))
        if got is None or got[0] is None:
            return {"found": False}
        return {"found": True, "equal": bytes(got[0]) == content(q["seed"], q["size"])}

    def cleanup(self, q):
        self.connector.cleanup(q["key"])
        return {}

    def lock(self, q):
        """Lock and do nothing."""
        self.locks[q["key"]] = open(lock_path(q["key"]), "ab+")
        fcntl.flock(self.locks[q["key"]], fcntl.LOCK_EX)
        return {}

    def unlock(self, q):
        self.locks.pop(q["key"]).close()
        return {}

    def half(self, q):
        """Put half of a value."""
        self.lock(q)
        shm = shared_memory.SharedMemory(name=q["key"], create=True, size=q["size"])
        payload = encode(content(q["seed"], q["size"] - 5))
        shm.buf[: q["size"] // 2] = payload[: q["size"] // 2]
        self.halves.append(shm)
        return {}

    def attach(self, q):
        """Open a segment without taking it."""
        shared_memory.SharedMemory(name=q["key"]).close()
        return {}


def main():
    which = sys.argv[1]
    if which in ("by key", "by metadata"):
        connector = Plain(which == "by key")
    else:
        connector = real(which)
    peer = Peer(connector)
    for line in sys.stdin:
        q = json.loads(line)
        try:
            answer = getattr(peer, q["op"])(q)
        except Exception as e:  # told, and the next is served
            answer = {"error": repr(e)}
        print(json.dumps(answer, default=to_wire), flush=True)


if __name__ == "__main__":
    main()
