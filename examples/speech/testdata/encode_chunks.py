"""Codes chunks with quantise.py, for a test that compares: from standard input to standard output."""

import struct
import sys
from array import array

import quantise

_ASKED = struct.Struct("<dIIIII")  # quality, rate, channels, frames, hop, samples
_ANSWERED = struct.Struct("<I")  # size of the chunk

while head := sys.stdin.buffer.read(_ASKED.size):
    quality, *shape = _ASKED.unpack(head)
    shape = quantise.Shape(*shape)
    coefficients = array("f")
    coefficients.frombytes(sys.stdin.buffer.read(coefficients.itemsize * shape.coefficients))
    try:
        chunk = quantise.encode_chunk(memoryview(coefficients), shape, quality)
    except quantise.PayloadError:
        chunk = b""
    sys.stdout.buffer.write(_ANSWERED.pack(len(chunk)) + chunk)
