#!/usr/bin/env python3
"""Tensors on a GPU, from a Go program into PyTorch: checked, and measured beside torch.multiprocessing.

It needs torch, the package omnibus (clients/python) and the programs of scripts/gpu-build.sh. One of these puts
tensors into tensor queues, one for each transport, and sends them as results of a stage. The script checks that each
tensor came by its transport, that torch reads it in place, and the sum of its elements there; and that its memory is
reused as soon as the last view of it is gone, and not before. The exit status is 1 if a check fails, and 3 if this
machine has no torch, or none that sees the GPU.

The figures are times from the order to the last tensor's last element, for each tensor. For comparison a second
process with torch puts as many into a torch.multiprocessing.Queue. It sends a copy of its own tensor, as a producer
that refills the tensor has to; beside cuda_ipc, which copies nothing, it sends the tensor itself. With --driver emul
all of this is host memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time

import omnibus
from gpu_torch_ends import PERIOD, STAGE, TRANSPORTS, Other, Plain, Producer, Torch, Unavailable, Wrong
from omnibus import dlpack
from omnibus.gpu import DeviceTensor

KIB, MIB = 1 << 10, 1 << 20
UNAVAILABLE = 3

DTYPES = ("float32", "bfloat16")

#: The number of largest tensors that fit into the producer's pool.
IN_POOL = 4
SMALL, LARGE = 4 * KIB, 16 * MIB
#: The largest tensors that are measured through host memory: for larger ones it is only a fallback.
MOST_BY_DEFAULT = 16 * MIB

#: Bounds, in seconds, of the rounds of one figure, and of all figures.
A_FIGURE, ALL_FIGURES = 1.0, 18.0


# The checks.


class Checks:
    """Counts the checked tensors, and raises Wrong if a check fails."""

    def __init__(self, arrays, producer: Producer) -> None:
        self.arrays, self.producer = arrays, producer
        self.tensors = 0
        self._number = 0

    def hold_all(self, way: str, dtype: str, size: int) -> None:
        """The pool can be filled with held tensors, after earlier tensors of any size."""
        held = []
        for inputs in self._ordered(way, dtype, size, IN_POOL):
            held.append((inputs["sum"], self._taken(way, inputs)))
        del inputs
        for want, x in held:
            self._total(way, want, x)  # once more
        del want, x
        held.clear()
        self.producer.done(way)

    def hold_some(self, way: str, dtype: str, size: int) -> None:
        """Many tensors pass through the pool while two are held, by a view of each."""
        held = []
        for inputs in self._ordered(way, dtype, size, 2 + 2 * IN_POOL):
            x = self._taken(way, inputs)
            if len(held) < 2:
                held.append((element(size, dtype, inputs["number"]), self.arrays.last_row(x)))
            del x, inputs  # before the wait for the next one, which may need its space
        for want, row in held:
            if (got := self.arrays.last(row)) != want:
                raise Wrong(f"{way}: the last element of a view is {got}, and not {want} any more")
        del row
        held.clear()
        self.producer.done(way)

    def _ordered(self, way: str, dtype: str, size: int, count: int):
        self.producer.order(way, dtype, size, count, self._number, True)
        for number in range(self._number, self._number + count):
            inputs = self.producer.get(way)
            if inputs["number"] != number:
                raise Wrong(f"{way}: tensor {inputs['number']}, and not {number}")
            yield inputs
            del inputs
        self._number += count

    def _taken(self, way: str, inputs):
        """The tensor of an item, as an array that aliases it."""
        t, arrays = inputs["x"], self.arrays
        if isinstance(t, DeviceTensor) != (way != "default"):
            raise Wrong(f"{way}: a tensor came as {t!r}")
        at = t.pointer if isinstance(t, DeviceTensor) else dlpack.address(t.data)
        x = arrays.take(t)
        if not arrays.address(x) == arrays.address(arrays.take(t)) == at:
            raise Wrong(f"{way}: a tensor at {at:#x} was copied to {arrays.address(x):#x}")
        self._total(way, inputs["sum"], x)
        self.tensors += 1
        return x

    def _total(self, way: str, want: int, x) -> None:
        if (got := self.arrays.total(x)) != want:
            raise Wrong(f"{way}: the elements of a tensor add up to {got}, and not to {want}")


def element(size: int, dtype: str, number: int) -> int:
    """The last element of a tensor."""
    return (size // dlpack.DTYPES[dtype][1] - 1 + number) % PERIOD


def check(checks: Checks, ways, largest: int) -> None:
    for way in ways:
        for dtype in DTYPES:
            checks.hold_all(way, dtype, SMALL)
            checks.hold_some(way, dtype, SMALL)
    if "cuda_ipc_pool" not in ways:
        return
    checks.hold_all("cuda_ipc_pool", "float32", largest)
    checks.hold_some("cuda_ipc_pool", "float32", largest)
    checks.hold_all("cuda_ipc_pool", "bfloat16", largest)
    checks.hold_all("cuda_ipc_pool", "float32", largest)


# The measurements.


class Race:
    """Alternates between the two senders, and keeps the best time of each count."""

    number = 7

    def __init__(self, arrays, producer: Producer, quick: bool) -> None:
        self.arrays, self.producer, self.quick = arrays, producer, quick
        self.figures: list[dict] = []
        self.missing = ""  # why there is nothing to compare with
        self._other: Other | None = None
        self._end = time.monotonic() + ALL_FIGURES

    def start(self) -> None:
        if isinstance(self.arrays, Torch):
            self._other = Other(self.arrays)

    def run(self, way: str, size: int) -> None:
        count = min(max(64 * MIB // size, 4), 16 if self.quick else 64)
        ours, theirs = [], []
        self._round(way, size, count, [], [], False)  # warms up
        start = time.monotonic()
        for n in range(2 if self.quick else 10):
            now = time.monotonic()
            if n > 1 and (now - start > A_FIGURE or now > self._end):
                break
            self._round(way, size, count, ours, theirs, n % 2 == 1)
        self.figures.append(figure(f"gpu/torch/{way}/size={named(size)}", ours, theirs))

    def _round(self, way: str, size: int, count: int, ours: list[float], theirs: list[float], swapped: bool) -> None:
        sides = [(ours, self._ours), (theirs, self._theirs)]
        for times, run in sides[::-1] if swapped else sides:
            if (took := run(way, size, count)) is not None:
                times.append(took)

    def _ours(self, way: str, size: int, count: int) -> float:
        start = time.perf_counter()
        self.producer.order(way, "float32", size, count, self.number, False)
        for _ in range(count):
            inputs = self.producer.get(way)
            last = self.arrays.last(self.arrays.take(inputs["x"]))
            del inputs
            self._right(last, size)
        took = time.perf_counter() - start
        self.producer.done(way)
        return took / count * 1e6

    def _theirs(self, way: str, size: int, count: int) -> float | None:
        if self._other is None:
            return None
        try:
            self._other.wait()
            start = time.perf_counter()
            self._other.order(size, count, self.number, way != "cuda_ipc")
            for _ in range(count):
                x = self._other.get()
                last = self.arrays.last(x)
                del x
                self._right(last, size)
        except (EOFError, OSError, RuntimeError) as e:  # torch.multiprocessing is not under test
            self.missing = f"{type(e).__name__}: {e}".strip(": ")
            self.close()
            return None
        return (time.perf_counter() - start) / count * 1e6

    def _right(self, last: float, size: int) -> None:
        if last != (want := element(size, "float32", self.number)):
            raise Wrong(f"the last element is {last}, and not {want}")

    def close(self) -> None:
        if self._other is not None:
            self._other.close()
            self._other = None


def figure(name: str, ours: list[float], theirs: list[float]) -> dict:
    """A figure, in the words of `omnibus-bench`: the best of both, and the ratios of the rounds."""
    f = {"name": name, "value": min(ours), "unit": "µs", "baseline": None, "ratio": None, "ratio_low": None}
    f |= {"ratio_high": None, "target": None, "met": None, "rounds": len(ours)}
    if len(theirs) == len(ours):
        ratios = [o / t for o, t in zip(ours, theirs)]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        f |= {"baseline": min(theirs), "ratio": min(ours) / min(theirs), "ratio_low": low, "ratio_high": high}
        f["speed"] = 1 / f["ratio"]
    return f


def named(size: int) -> str:
    return f"{size // MIB}MiB" if size >= MIB else f"{size // KIB}KiB"


def table(figures: list[dict]) -> list[str]:
    """The figures for people."""
    width = max(len(f["name"]) for f in figures)
    lines = [f"{'NAME':{width}}  {'OURS':>8}  BASELINE  UNIT  RATIO   QUARTILES   ROUNDS"]
    for f in figures:
        baseline, ratio, quartiles = "-", "-", "-"
        if f["baseline"] is not None:
            baseline = digits(f["baseline"])
            ratio = f"{f['speed']:.2f}x"
            quartiles = f"{1 / f['ratio_high']:.2f}–{1 / f['ratio_low']:.2f}x"
        lines.append(
            f"{f['name']:{width}}  {digits(f['value']):>8}  {baseline:>8}  {f['unit']:4}  {ratio:6}  {quartiles:10}  {f['rounds']}"
        )
    return lines


def digits(v: float) -> str:
    return f"{v:.{0 if v >= 100 else 1 if v >= 10 else 2}f}"


# The program.


def run(options: argparse.Namespace) -> str:
    """Check and measure everything. Returns a summary."""
    arrays = {"torch": Torch, "plain": Plain}[options.arrays](options.driver)
    largest = options.largest or (64 * MIB if options.driver == "cuda" else LARGE)
    producer = Producer(options.programs, options.driver, largest)
    race = Race(arrays, producer, options.quick)
    try:
        print(f"{arrays.name}; {producer.name}", flush=True)
        for transport, why in producer.missing.items():
            print(f"not {transport}: {why}")
        ways = [t for t in TRANSPORTS if t not in producer.missing]
        if "cuda_ipc_pool" in ways:
            ways.append(STAGE)
        checks = Checks(arrays, producer)
        race.start()  # which takes its time
        check(checks, ways, largest)
        try:
            measure(race, ways, largest)
        finally:
            report(race, options.lines)
        gc.collect()
        producer.close()
    except BaseException:
        producer.kill()
        raise
    finally:
        race.close()
    return f"{checks.tensors} tensors are right, in place, and given back, by {', '.join(ways)}"


def measure(race: Race, ways, largest: int) -> None:
    for way in ways:
        for size in (SMALL, MIB, LARGE, 64 * MIB):
            if size <= min(largest, MOST_BY_DEFAULT if way == "default" else largest):
                race.run(way, size)


def report(race: Race, lines: str | None) -> None:
    if race.missing:
        print(f"torch.multiprocessing has failed, and is not compared with: {race.missing}")
    if race.figures:
        print("", *table(race.figures), "", sep="\n")
    if lines:
        with open(lines, "a") as f:
            f.writelines(
                json.dumps(figure, ensure_ascii=False, separators=(",", ":")) + "\n" for figure in race.figures
            )


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--driver", choices=("emul", "cuda"), default="emul", help="the GPU's")
    p.add_argument("--programs", required=True, metavar="FOLDER", help="where the program omnibus is")
    p.add_argument("--lines", metavar="FILE", help="also append each figure to a file, as a line of JSON")
    p.add_argument("--quick", action="store_true", help="fewer rounds")
    p.add_argument(
        "--largest", type=int, metavar="BYTES", help="the largest tensor; from 4 MiB on a pool is full of them"
    )
    p.add_argument(
        "--arrays",
        choices=("torch", "plain"),
        default="torch",
        help="what reads them; plain is for tests without torch",
    )
    try:
        print(run(p.parse_args()))
    except Unavailable as e:
        print(f"not available here: {e}")
        return UNAVAILABLE
    except (Wrong, omnibus.OmnibusError) as e:
        print(f"wrong: {e}")
        return 1
    except KeyboardInterrupt:
        print("interrupted")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
