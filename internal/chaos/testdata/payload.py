"""Payloads that describe themselves: see payload_linux_test.go."""

from zlib import crc32

SEQ_BITS = 13
INPUT, A, B, E, C = range(5)


def payload(tag: int, level: int, seq: int) -> bytes:
    """The payload of a place in a request."""
    ident = tag.to_bytes(4, "little") + (level << SEQ_BITS | seq).to_bytes(2, "little")
    h = crc32(ident)
    pattern = b"".join((h * (2 * i + 1) & 0xFFFFFFFF).to_bytes(4, "little") for i in range(16))[:61]
    size = _size(h)
    body = ident + (pattern * (size // 61 + 1))[: size - 10]
    return crc32(body).to_bytes(4, "little") + body


def _size(h: int) -> int:
    n = h >> 3
    match h & 7:
        case 0 | 1 | 2:
            return 10 + n % 502
        case 3 | 4 | 5:
            return (1 << 10) + n % (20 << 10)
        case 6:
            return (30 << 10) + n % (70 << 10)
        case _:
            return (100 << 10) + n % ((200 << 10) + 1)


def verify(p: memoryview | bytes, level: int, seq: int) -> int:
    """Check a payload; returns its request's tag."""
    if len(p) < 10 or crc32(p[4:]) != int.from_bytes(p[:4], "little"):
        raise ValueError(f"a payload of {len(p)} bytes with a wrong checksum")
    tag = int.from_bytes(p[4:8], "little")
    got = int.from_bytes(p[8:10], "little")
    if got != level << SEQ_BITS | seq:
        raise ValueError(
            f"request {tag:#x}: it is level {got >> SEQ_BITS}, sequence {got & (1 << SEQ_BITS) - 1},"
            f" and level {level}, sequence {seq} was to come"
        )
    if p != payload(tag, level, seq):
        raise ValueError(f"request {tag:#x}, level {level}, sequence {seq}: not what was sent")
    return tag
