"""A stage whose results are large, and a caller that reads them. The first argument says which."""

import sys
from typing import Any

import omnibus


@omnibus.stage("large")
def large(size: Any) -> Any:
    if isinstance(size, bytes):
        return len(size)
    return bytes(range(256)) * (size // 256)


def call(sizes: list[int]) -> None:
    with omnibus.connect() as bus:
        for size in sizes:
            with bus.submit(size) as request:
                (value,) = request.values()
            print(len(value) == size and bytes(value[-256:]) == bytes(range(256)), flush=True)
        with bus.submit(b"x" * sizes[0]) as request:
            print(request.values() == [sizes[0]], flush=True)


if sys.argv[1] == "serve":
    omnibus.run()
else:
    call([int(n) for n in sys.argv[2:]])
