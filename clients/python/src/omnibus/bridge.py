"""A bridge to storage engines that have Python clients only, for a process in Go::

    python -m omnibus.bridge mooncake|yuanrong|nixl|mooncake-engine SOCKETS SETTINGS

SOCKETS is the number of descriptors, from 3 on, that are SOCK_SEQPACKET Unix sockets. The process at their other ends
starts this one, with the settings of a connector in JSON, and sends requests. The first packet of the first socket says
whether the engine's client could be opened. A packet is a header and text::

    operation, or its outcome | number of a buffer | size in bytes | text

    The text holds the stages and the key of each value, a line each. The metadata of a get follow in JSON on one line. The
    answer to a put holds its metadata in the same way.

    Payloads lie in buffers: memory of the asking process. The first packet with a buffer's number carries its descriptor.
    Only the asking process writes buffers of puts, and only this process writes buffers of gets. The asking process says
    which buffers are dropped. Each socket has a thread, which receives a packet, executes it and answers. So no work passes
    between threads, and the other end chooses the thread. When the sockets end, values that were put and not got are removed.
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
from .connector.drop_in import BACKENDS
from .connector.stores import Name, TooLarge, ValueStore

_HEADER = struct.Struct("<IIQ")
_MAX_PACKET_BYTES = 64 << 10
_MAX_TEXT_CHARS = 2000  # of an error
_FIRST_FD = 3  # the first socket's descriptor
_UNKNOWN_SIZE = (1 << 64) - 1  # stands for an unknown size of a value

PUT, GET, REMOVE, PRESENT, DROP, PUT_BACK = range(1, 7)

# Outcomes. A buffer that is too small stays empty, and the answer's size is the needed one.
OK, FAILED, MISSING, NO_ROOM, TOO_LARGE, UNAVAILABLE, DAMAGED, BAD_KEY, BUFFER_TOO_SMALL, GONE, BAD_METADATA = range(11)
_CODES = (
    (Gone, GONE), (Missing, MISSING), (TooLarge, TOO_LARGE), (NoRoom, NO_ROOM), (Unavailable, UNAVAILABLE), (Damaged, DAMAGED),
    (BadKey, BAD_KEY), (BadMetadata, BAD_METADATA),
)  # fmt: skip


class Bridge:
    """Executes the operations that arrive at its sockets on an engine."""

    def __init__(self, sockets: list[socket.socket], values: ValueStore) -> None:
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
        ancillary_bytes = socket.CMSG_SPACE(4)
        while True:
            try:
                packet, ancillary, _, _ = sock.recvmsg(_MAX_PACKET_BYTES, ancillary_bytes)
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
        elif op == PUT_BACK:
            name, metadata = self._parse_get(text)
            values.put_back(name, [self._buffers[number][:size]], metadata)
        elif op == GET:
            buffer = self._buffers[number]
            try:
                name, metadata = self._parse_get(text)
            except BadKey as e:
                raise Missing(str(e)) from None
            if size != _UNKNOWN_SIZE:
                metadata["size"] = size
            payload, found = values.take_value(name, metadata, len(buffer))
            if payload is None:
                return BUFFER_TOO_SMALL, found, ""
            buffer[:found] = memoryview(payload).cast("B")  # engines give buffers of several types
            return OK, found, ""
        elif op == REMOVE:
            values.remove(self._names(text))
        elif op == PRESENT:
            return OK, 0, "".join("01"[there] for there in values.present(self._names(text)))
        return OK, 0, ""

    def _parse_get(self, text: str) -> tuple[Name, dict[str, Any]]:
        source, target, key, *metadata = text.split("\n", 3)
        return self._values.name(Edge(source, target), key), json.loads(metadata[0]) if metadata else {}

    def _names(self, text: str) -> list[Name]:
        parts = iter(text.split("\n"))
        return [self._values.name(Edge(source, target), key) for source, target, key in zip(parts, parts, parts)]


def failure(e: Exception) -> tuple[int, int, str]:
    for kind, code in _CODES:
        if isinstance(e, kind):
            return code, 0, str(e)[:_MAX_TEXT_CHARS]
    return FAILED, 0, f"{type(e).__name__}: {e}"[:_MAX_TEXT_CHARS]


def main(kind: str, sockets: str, settings: str) -> None:
    # Ctrl-C reaches the process group, and the other end still has to finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lanes = [socket.socket(fileno=_FIRST_FD + i) for i in range(int(sockets))]
    try:
        values = BACKENDS[kind](json.loads(settings))
    except Exception as e:
        code, _, text = failure(e)
        lanes[0].send(_HEADER.pack(code, 0, 0) + text.encode())
        return
    lanes[0].send(_HEADER.pack(OK, 0, 0))
    Bridge(lanes, values).run()
    try:
        values.withdraw()
    finally:
        os._exit(0)  # joining the engine's own threads would take seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
