"""Payloads that describe themselves: see payload_linux_test.go."""

from struct import pack, unpack_from
from zlib import crc32


class Header:
    """The header of a payload."""

    def __init__(self, tag: int, seq: int, chain: int, total: int) -> None:
        self.tag, self.seq, self.chain, self.total = tag, seq, chain, total

    def payload(self) -> bytes:
        head = b"LOAD" + pack("<QIII", self.tag, self.seq, self.chain, self.total)
        h = crc32(head)
        pattern = b"".join((h * (2 * i + 3) & 0xFFFFFFFF).to_bytes(4, "little") for i in range(16))[:61]
        size = self.total - len(head)
        return head + (pattern * (size // 61 + 1))[:size]


def tag_of(p: bytes) -> int:
    """The tag of a payload that was made here."""
    return int.from_bytes(p[4:12], "little")


def number_of(tag: int) -> int:
    """The number of a request: see plan_linux_test.go."""
    return tag & (1 << 30) - 1


def branches_of(tag: int) -> tuple[str, ...]:
    """The branches that a request goes to."""
    return (("image",), ("text",), ("image", "text"), ("text", "image"))[tag >> 30 & 3]


def input_of(tag: int, seq: int, total: int) -> Header:
    """The header of an input of a request."""
    return Header(tag, seq, crc32(pack("<QI", tag, seq)), total)


def following(stage: str, j: int, of: int, *parts: Header) -> Header:
    """The header of emission j, of so many, of a stage for an input, or for those of a join."""
    chain = crc32(b"".join(pack("<I", p.chain) for p in parts) + stage[:1].encode() + bytes([j]))
    return Header(parts[0].tag, parts[0].seq * of + j, chain, parts[0].total)


def parse(p: memoryview | bytes) -> Header:
    """Check a payload."""
    if len(p) < 24 or bytes(p[:4]) != b"LOAD":
        raise ValueError(f"broken payload: it has {len(p)} bytes, and no header")
    h = Header(*unpack_from("<QIII", p, 4))
    if h.total != len(p) or h.payload() != p:
        raise ValueError(f"broken payload: its {len(p)} bytes do not follow from its header, request {h.tag}, {h.seq}")
    return h
