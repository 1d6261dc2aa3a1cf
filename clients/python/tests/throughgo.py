"""Sends the values of `valuelist` to a Go process, and gets them from it: `throughgo.py send|get CODEC`.

Each value is a line, its payload in hex, or `refused` and why. `get` writes a line for each that does not arrive as the
list says. The test in Go is in codec/internal/codectest.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import valuelist
from valuelist import ARRIVES, REFUSED, REFUSED_BY_GO, Row, unordered

from omnibus import codec
from omnibus.omni import marks

CODECS = {"msgpack": codec.MSGPACK, "bundle": codec.BUNDLE, "omni": codec.OMNI}


def cases(name: str) -> Iterator[tuple[Row, int, Any, str]]:
    """The values that are not refused where they are sent."""
    for r, i, v in valuelist.cases():
        if getattr(r.answers, name) != REFUSED:
            yield r, i, v, getattr(r.answers, name)


def fault(r: Row, v: Any, answer: str, line: str, number: int) -> str:
    """What is wrong with how a value arrives."""
    want_refused = r.answers.go == REFUSED_BY_GO and number == codec.MSGPACK
    if line.startswith("refused") or want_refused:
        return "" if line.startswith("refused") and want_refused else line[:200]
    want = unordered(ARRIVES[answer].of(v))  # a Go process keeps no order
    got = unordered(codec.decode(memoryview(bytes.fromhex(line)), number))
    return "" if valuelist.same(got, want) else f"{got!r:.200}, want {want!r:.200}"


def main(verb: str, name: str) -> None:
    marks._modules["torch"] = None  # which has other tensors
    number = CODECS[name]
    if verb == "send":
        for _, _, v, _ in cases(name):
            print(bytes(codec.encode(v, number)).hex())
        return
    for (r, i, v, answer), line in zip(cases(name), sys.stdin, strict=True):
        if wrong := fault(r, v, answer, line.strip(), number):
            print(f"{r.name}, {i}: {wrong}")


if __name__ == "__main__":
    main(*sys.argv[1:])
