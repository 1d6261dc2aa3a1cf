"""A process that writes or reads a store under keys, and does what its standard input says, a line of JSON each."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

SRC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src")


class Peer:
    """The other process."""

    def __init__(self, role: str, path: str, **options: Any) -> None:
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([SRC, os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, role, path, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.first = self._answer()

    def __call__(self, name: str, *arguments: Any) -> Any:
        self._in.write(json.dumps([name, *arguments]) + "\n")
        self._in.flush()
        return self._answer()

    def _answer(self) -> Any:
        return json.loads(self._out.readline())

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self._in.close()
        self.process.wait()
        self._out.close()


def main() -> None:
    from omnibus import Tensor, keyed

    role, path, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    held: list[Any] = []  # views, and their bytes
    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            os.close(1)
            sys.stdin.read()  # which has the parent's other end, and lasts as long
            os._exit(0)
        return pid

    do: dict[str, Any] = {"let_go": held.clear, "fork": fork}
    if role == "writer":
        store = keyed.KeyedStore.create(**options)
        store.listen(path)
        do |= {
            "put": lambda key, size, value: store.put(key, bytes([value]) * size),
            "cached": store.get_cached,
            "tensor": lambda key, shape: store.put(key, Tensor("uint8", shape, bytes(range(math.prod(shape))))),
            "readers": lambda: store.stats().readers,
            "delete": store.delete,
            "close": store.close,
        }
    else:
        reader = keyed.KeyedReader.dial(path)

        def get(*handle: int) -> list[int]:
            value = reader.get(keyed.Handle(*handle))
            data = value.raw() if isinstance(value, Tensor) else value
            return [len(data), *sorted(set(data))]

        def hold(*handle: int) -> int:
            view = reader.view(keyed.Handle(*handle))
            held.append((view, view.__enter__()))
            return len(held)

        def lie(slot: int) -> None:
            reader._reader._ledger[1024 + 2 * slot + 1] += 5

        do |= {
            "lie": lie,
            "get": get, "hold": hold, "drop": lambda *handle: reader.drop(keyed.Handle(*handle)), "close": reader.close,
            "read": lambda: [len(held[0][1]), *set(held[0][1])],
        }  # fmt: skip
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = do[name](*arguments)
        except Exception as e:
            answer = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
