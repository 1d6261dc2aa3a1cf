"""The talker of the speech codec as a process: it quantises chunks of coefficients and codes them.

A port of `talk` in examples/internal/speech, and with it of the encoder in examples/internal/codec, whose
documentation explains the format. What comes out is the same, byte for byte; quantise_test.go
compares the two. For that, each calculation is as wide as its original, and sums are made in the same
order: Python's numbers are float64, and go through an array where the original has float32.
"""

import math
import struct
from array import array
from dataclasses import dataclass

from omnibus import Delivery, PayloadError, Task, Tensor, run, stage


@dataclass(frozen=True)
class Shape:
    """The format of a chunk of coefficients: float32, [frames][channels][hop]."""

    rate: int  # of the samples, in Hz
    channels: int
    frames: int
    hop: int  # coefficients of a frame of one channel
    samples: int  # of each channel, that the frames complete

    def __post_init__(self) -> None:
        if self.hop & (self.hop - 1) or not 16 <= self.hop <= 4096:
            raise PayloadError(f"hop is {self.hop}, must be a power of two from 16 to 4096")
        for name, value, low, high in (
            ("rate", self.rate, 1, (1 << 31) - 1),
            ("channels", self.channels, 1, 2),
            ("frames", self.frames, 0, 64),
            ("samples", self.samples, 0, self.frames * self.hop),
        ):
            if not low <= value <= high:
                raise PayloadError(f"{name} is {value}, must be from {low} to {high}")

    @property
    def coefficients(self) -> int:
        return self.frames * self.channels * self.hop


@stage("talker")
def talker(coefficients: Tensor, task: Task, delivery: Delivery) -> None:
    """Code one chunk."""
    if coefficients.dtype != "float32" or len(coefficients.shape) != 3:
        raise PayloadError(f"{coefficients!r} are no coefficients: they are float32[frame, channel, coefficient]")
    frames, channels, hop = coefficients.shape
    attrs = delivery.attrs
    shape = Shape(int(attrs["rate"]), channels, frames, hop, int(attrs["samples"]))
    task.emit_bytes(encode_chunk(coefficients.data, shape, float(attrs["quality"])))


# The chunk.

# magic, version, kind, channels, frames, hop, zero, samples, rate, step, payload's size, checksum
_HEADER = struct.Struct("<4sBBBBHHIIfII")
_CHECKSUM_BYTES = 4
_RAW, _CODED, _ROTATED = range(3)  # kinds: as they are, range coded, the same of sum and difference


def encode_chunk(coefficients: memoryview, shape: Shape, quality: float) -> bytearray:
    """The coded chunk. The quality is the quantiser's step as a fraction of the level; 0 is lossless.

    Coefficients are stored as they are when coding them would take more room.
    """
    values = coefficients.tolist()
    if len(values) != shape.coefficients:
        raise PayloadError(f"{len(values)} coefficients with {shape}")
    if not all(map(math.isfinite, values)):
        raise PayloadError("a coefficient is not finite")
    kind, step, payload = _RAW, step_for(values, quality), None
    if step > 0:
        kind = _kind_for(values, shape)
        payload = _encode_levels(values, shape, kind, step)
    if payload is None:
        kind, step, payload = _RAW, 0.0, coefficients.cast("B")
    return _seal(shape, kind, step, payload)


def step_for(values: list[float], quality: float) -> float:
    """The quantiser's step: a fraction of the root mean square."""
    if not 0 <= quality < math.inf:  # so written, it catches NaN too
        raise PayloadError(f"quality is {quality}: use 0, or a positive number")
    if quality == 0:
        return 0.0
    energy = 0.0
    for v in values:  # sum() would be more exact, and so another number
        energy += v * v
    level = math.sqrt(energy / max(1, len(values)))
    return array("f", [min(max(0.25, quality * level), 1 << 22)])[0]


def _seal(shape: Shape, kind: int, step: float, payload: bytes | bytearray | memoryview) -> bytearray:
    def header(checksum: int) -> bytes:
        return _HEADER.pack(
            b"OMDC", 1, kind, shape.channels, shape.frames, shape.hop, 0,
            shape.samples, shape.rate, step, len(payload), checksum,
        )  # fmt: skip

    checksum = _crc32c(payload, _crc32c(header(0)[:-_CHECKSUM_BYTES]))
    return bytearray(header(checksum)) + payload


def _crc32c_table() -> list[int]:
    table = []
    for c in range(256):
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
        table.append(c)
    return table


_CRC32C = _crc32c_table()


def _crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    table = _CRC32C
    crc ^= 0xFFFFFFFF
    for b in data:
        crc = table[(crc ^ b) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# Two channels.


def _rows(values: list[float], shape: Shape) -> list[list[float]]:
    """The frames of the channels, one after the other."""
    return [values[at : at + shape.hop] for at in range(0, len(values), shape.hop)]


def _kind_for(values: list[float], shape: Shape) -> int:
    """Which pair has the smaller magnitudes: the channels, or their sum and difference."""
    if shape.channels != 2:
        return _CODED
    rows = _rows(values, shape)
    plain = rotated = 0.0
    for left, right in zip(rows[::2], rows[1::2]):
        for a, b in zip(left, right):
            plain += abs(a) + abs(b)
            rotated += (abs(a + b) + abs(a - b)) * math.sqrt(2) / 2
    return _ROTATED if rotated < plain else _CODED


_HALF_ROOT = array("f", [math.sqrt(2) / 2])[0]


def _rotate(left: list[float], right: list[float]) -> list[list[float]]:
    """Sum and difference, scaled to keep their energy; both steps round to float32."""
    pair = array("f", [a + b for a, b in zip(left, right)]), array("f", [a - b for a, b in zip(left, right)])
    return [array("f", [v * _HALF_ROOT for v in values]).tolist() for values in pair]


# Levels.

_ROUNDING = 0.45  # added to a magnitude before its fraction is dropped
_MAX_CLASS = 20  # the largest bit length of a magnitude


def _encode_levels(values: list[float], shape: Shape, kind: int, step: float) -> bytearray | None:
    """The range-coded levels; None when they take more room than the values, or do not fit a level."""
    rows = _rows(values, shape)
    if kind == _ROTATED:
        rows = [row for left, right in zip(rows[::2], rows[1::2]) for row in _rotate(left, right)]
    limit = struct.calcsize("f") * len(values)
    scale = 1 / step
    encoder = _RangeEncoder()
    before = [[0] * (shape.hop + _MARGINS)] * shape.channels
    for i, row in enumerate(rows):
        scaled = [abs(v) * scale + _ROUNDING for v in row]
        if max(scaled) >= 1 << _MAX_CLASS:
            return None
        channel = i % shape.channels
        current = [0, 0, *map(int, scaled), 0]
        encoder.encode(_decisions(channel, current, before[channel], [v < 0 for v in row]))
        before[channel] = current
        if len(encoder.out) > limit:
            return None
    payload = encoder.finish()
    return payload if len(payload) <= limit else None


# A decision is twice its slot, plus 1 for a yes. A slot learns how likely a yes is. All slots of the
# original's model lie in one list, behind that of the decisions that are even, which does not learn.
_CONTEXTS = 24
_TOP_BITS = 2  # behind the leading one of a magnitude, that are learnt
_TOP_NODES = (1 << _TOP_BITS) - 1
_EVEN = 0
_CLASS_SLOTS = 1  # [channel][context][class]
_TOP_SLOTS = _CLASS_SLOTS + 2 * _CONTEXTS * _MAX_CLASS  # [context][class][node]
_SLOTS = _TOP_SLOTS + _CONTEXTS * (_MAX_CLASS + 1) * _TOP_NODES

# A list of magnitudes has two zeros before the first, and one behind the last.
_MARGINS = 3


def _context(total: int) -> int:
    """Classes the magnitudes around a level: by value while they are small, by half powers of two above."""
    if total < 4:
        return total
    log = total.bit_length() - 1
    return min(2 * log + (total >> log - 1 & 1), _CONTEXTS - 1)


_SMALL_CONTEXTS = [_context(total) for total in range(256)]


def _decisions(channel: int, current: list[int], before: list[int], negative: list[bool]) -> list[int]:
    """How the levels of one frame of one channel are told."""
    decisions: list[int] = []
    tell = decisions.append
    first = _CLASS_SLOTS + channel * _CONTEXTS * _MAX_CLASS
    for k, minus in enumerate(negative):
        total = current[k] + 2 * current[k + 1] + before[k + 1] + 2 * before[k + 2] + before[k + 3] >> 1
        context = _SMALL_CONTEXTS[total] if total < 256 else _context(total)
        slot = first + context * _MAX_CLASS
        magnitude = current[k + 2]
        if magnitude == 0:
            tell(2 * slot)
            continue
        size = magnitude.bit_length()  # its class, in unary
        decisions += range(2 * slot + 1, 2 * (slot + size) + 1, 2)
        if size < _MAX_CLASS:
            tell(2 * (slot + size))
        rest, node = size - 1, 0
        slot = _TOP_SLOTS + (context * (_MAX_CLASS + 1) + size) * _TOP_NODES
        while rest > max(size - 1 - _TOP_BITS, 0):
            rest -= 1
            bit = magnitude >> rest & 1
            tell(2 * (slot + node) + bit)
            node = 2 * node + 1 + bit
        while rest > 0:
            rest -= 1
            tell(2 * _EVEN + (magnitude >> rest & 1))
        tell(2 * _EVEN + minus)
    return decisions


# The entropy coder: probabilities are fractions of 1 << 15, the mean of a quick and a slow estimate.
_PROB_BITS, _QUICK_SHIFT, _SLOW_SHIFT = 15, 4, 6
_CERTAIN = 1 << _PROB_BITS
_MIN_WIDTH = 1 << 24


class _RangeEncoder:
    """A binary range coder whose carries go back into what is written."""

    def __init__(self) -> None:
        self.out = bytearray(1)  # a zero that no carry reaches
        self.low, self.width = 0, (1 << 32) - 1
        self.quick = [_CERTAIN // 2] * _SLOTS  # estimates of a no
        self.slow = list(self.quick)

    def encode(self, decisions: list[int]) -> None:
        quick, slow, out = self.quick, self.slow, self.out
        low, width = self.low, self.width
        for decision in decisions:
            slot = decision >> 1
            if slot == _EVEN:
                width >>= 1
                if decision & 1:
                    low += width
            else:
                q, s = quick[slot], slow[slot]
                bound = (width >> _PROB_BITS) * (q + s >> 1)
                if decision & 1:
                    low += bound
                    width -= bound
                    quick[slot] = q - (q >> _QUICK_SHIFT)
                    slow[slot] = s - (s >> _SLOW_SHIFT)
                else:
                    width = bound
                    quick[slot] = q + (_CERTAIN - q >> _QUICK_SHIFT)
                    slow[slot] = s + (_CERTAIN - s >> _SLOW_SHIFT)
            while width < _MIN_WIDTH:
                width <<= 8
                if low >> 32:
                    low = self.carry(low)
                out.append(low >> 24)
                low = low << 8 & 0xFFFFFFFF
        self.low, self.width = low, width

    def carry(self, low: int) -> int:
        """Add 1 to what is written, and take it from low."""
        at = len(self.out) - 1
        while self.out[at] == 0xFF:
            self.out[at] = 0
            at -= 1
        self.out[at] += 1
        return low & 0xFFFFFFFF

    def finish(self) -> bytearray:
        if self.low >> 32:
            self.low = self.carry(self.low)
        return self.out + self.low.to_bytes(4, "big")


if __name__ == "__main__":
    run()
