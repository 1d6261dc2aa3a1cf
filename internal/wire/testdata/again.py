"""Reads a list of packets, of one message each, and changes of single bytes. It answers with the encoding of the
decoded message of each packet, unchanged and with each change; with "" for a packet that it refuses."""

import json
import sys

from omnibus import ProtocolError, wire


def again(packet: bytes, descriptors: int) -> str:
    try:
        ((m, _),) = wire.decode(packet, descriptors)
    except ProtocolError:
        return ""
    return wire.encode(m, descriptors).hex()


for line in sys.stdin:
    answers = []
    for p in json.loads(line):
        b = bytes.fromhex(p["hex"])
        answers.append(again(b, p["descriptors"]))
        for at, value in p["changes"]:
            answers.append(again(b[:at] + bytes([value]) + b[at + 1 :], p["descriptors"]))
    print(json.dumps(answers), flush=True)
