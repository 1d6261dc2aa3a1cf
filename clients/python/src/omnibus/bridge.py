"""An engine of other programs for a process that cannot have one, as there is none for Go::

    python -m omnibus.bridge mooncake|yuanrong|nixl|mooncake-engine SOCKETS SETTINGS

SOCKETS is a number of descriptors, from 3 on, which are Unix sockets of packets. The process at their other ends starts
this one, with the settings of a connector in JSON, and asks. The first packet of the first socket says whether the client
could be opened. A packet is a header and text::

    operation, or how it ended | number of a buffer | size in bytes | text

The text is the stages and the key of each value, a line each. Behind them the metadata that a get is told stand in JSON,
on a line; so do those of a put, in its answer.

Payloads lie in buffers: memory of the asking process, whose descriptor comes with the first packet that has its number.
Only it writes into those that it puts from; only this process into those that it gets into. It says which are dropped.
Each socket has a thread, which receives a packet, does what it asks and answers: so nothing is handed from thread to
thread, and the other end chooses the thread. When the sockets end, what was put and not got is removed.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
from typing import Any

from .connector.contract import BadKey, BadMetadata, Damaged, Edge, Gone, Missing, NoRoom, Unavailable
from .connector.drop_in import ENGINES
from .connector.stores import Keeper, Name, TooLarge

_HEADER = struct.Struct("<IIQ")
_MOST_PACKET = 64 << 10
_MOST_TEXT = 2000  # of an error
_FIRST = 3  # the first descriptor
_UNTOLD = (1 << 64) - 1  # the size of a value that is not known

PUT, GET, REMOVE, PRESENT, DROP, BACK = range(1, 7)

# How it ended. A buffer that is too small stays empty: the size says what it takes.
OK, FAILED, MISSING, NO_ROOM, TOO_LARGE, UNAVAILABLE, DAMAGED, BAD_KEY, SMALL, GONE, BAD_METADATA = range(11)
_CODES = (
    (Gone, GONE), (Missing, MISSING), (TooLarge, TOO_LARGE), (NoRoom, NO_ROOM), (Unavailable, UNAVAILABLE), (Damaged, DAMAGED),
    (BadKey, BAD_KEY), (BadMetadata, BAD_METADATA),
)  # fmt: skip


class Bridge:
    """Does with an engine what the other end of its sockets asks for."""

    def __init__(self, sockets: list[socket.socket], values: Keeper) -> None:
        self._sockets, self._values = sockets, values
        self._buffers: dict[int, memoryview] = {}

    def run(self) -> None:
        """Answer until the sockets end."""
        threads = [threading.Thread(target=self._serve, args=(sock,), daemon=True) for sock in self._sockets]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def _serve(self, sock: socket.socket) -> None:
        room = socket.CMSG_SPACE(4)
        while True:
            try:
                packet, ancillary, _, _ = sock.recvmsg(_MOST_PACKET, room)
            except OSError:
                return
            if not packet:
                return
            op, number, size = _HEADER.unpack_from(packet)
            try:
                for _, _, data in ancillary:
                    self._map(number, struct.unpack("i", data)[0], op)
                if op == DROP:
                    self._buffers.pop(number, None)
                    continue
                code, size, text = self._do(op, number, size, packet[_HEADER.size :].decode())
            except Exception as e:
                code, size, text = failure(e)
            try:
                sock.send(_HEADER.pack(code, number, size) + text.encode())
            except OSError:
                return

    def _map(self, number: int, fd: int, op: int) -> None:
        try:
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if op == GET else 0)
            self._buffers[number] = memoryview(mmap.mmap(fd, 0, mmap.MAP_SHARED, prot))
        finally:
            os.close(fd)

    def _do(self, op: int, number: int, size: int, text: str) -> tuple[int, int, str]:
        values = self._values
        if op == PUT:
            metadata = values.put(self._names(text)[0], [self._buffers[number][:size]])
            return OK, 0, json.dumps(metadata) if metadata else ""
        elif op == BACK:
            name, metadata = self._told(text)
            values.back(name, [self._buffers[number][:size]], metadata)
        elif op == GET:
            buffer = self._buffers[number]
            try:
                name, metadata = self._told(text)
            except BadKey as e:
                raise Missing(str(e)) from None
            if size != _UNTOLD:
                metadata["size"] = size
            payload, found = values.take(name, metadata, len(buffer))
            if payload is None:
                return SMALL, found, ""
            buffer[:found] = memoryview(payload).cast("B")  # engines give buffers of several types
            return OK, found, ""
        elif op == REMOVE:
            values.remove(self._names(text))
        elif op == PRESENT:
            return OK, 0, "".join("01"[there] for there in values.present(self._names(text)))
        return OK, 0, ""

    def _told(self, text: str) -> tuple[Name, dict[str, Any]]:
        source, target, key, *metadata = text.split("\n", 3)
        return self._values.name(Edge(source, target), key), json.loads(metadata[0]) if metadata else {}

    def _names(self, text: str) -> list[Name]:
        parts = iter(text.split("\n"))
        return [self._values.name(Edge(source, target), key) for source, target, key in zip(parts, parts, parts)]


def failure(e: Exception) -> tuple[int, int, str]:
    for kind, code in _CODES:
        if isinstance(e, kind):
            return code, 0, str(e)[:_MOST_TEXT]
    return FAILED, 0, f"{type(e).__name__}: {e}"[:_MOST_TEXT]


def main(kind: str, sockets: str, settings: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, where the other end still has to end its work
    lanes = [socket.socket(fileno=_FIRST + i) for i in range(int(sockets))]
    try:
        values = ENGINES[kind](json.loads(settings))
    except Exception as e:
        code, _, text = failure(e)
        lanes[0].send(_HEADER.pack(code, 0, 0) + text.encode())
        return
    lanes[0].send(_HEADER.pack(OK, 0, 0))
    Bridge(lanes, values).run()
    try:
        values.leave()
    finally:
        os._exit(0)  # the clients' own threads would take seconds to end


if __name__ == "__main__":
    main(*sys.argv[1:])
