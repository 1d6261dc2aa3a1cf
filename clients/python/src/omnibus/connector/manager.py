"""Metadata of requests, each in a segment that another process reads by its name.

It is the SharedMemoryManager of programs that pass metadata beside a queue of tensors, over the segments of
`segment`: a value is written under a name that has the request's id, and removed by its reader.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

from ..omni.decoder import decode
from ..omni.encoder import encode
from .contract import Edge, Missing, check_key
from .segment import Segments

_EDGE = Edge("", "")  # the names of segments have no edge

_opening = threading.Lock()
_opened: Segments | None = None


class SharedMemoryManager:
    """Writes metadata of requests to shared memory, and reads them there. Safe from any thread, and in a forked child.

    Go programs write and read the same segments: package connector/segment, with the serializer of codec/omni. A
    segment that was not read is removed when its writer exits, or, if the writer was killed, when any process next
    opens segments.
    """

    @staticmethod
    def write_metadata(rid: str, metadata: Any) -> str:
        """Write the metadata of a request, and return the name of their segment.

        The metadata replace those of the same id. Raises BadKey for an id that names no file (up to 228 bytes, without a slash
        or control characters), PayloadError, with the path, for a value that has no encoding, NoRoom without
        memory, and Busy while another process has the segment locked for 30 s.
        """
        if not isinstance(rid, str):
            raise TypeError(f"rid must be text, not of type {type(rid).__name__}")
        name = check_key(f"metadata_{rid}")
        _segments().put(_EDGE, name, encode(metadata))
        return name

    @staticmethod
    def read_metadata(shm_name: str, unlink: bool = True) -> Any:
        """Read metadata by the name of their segment, and remove the segment if `unlink`.

        Raises Missing if there is no segment, Busy while another process has it locked, Damaged for a truncated segment,
        which stays for `cleanup`, and PayloadError for one whose content is no value.
        """
        try:
            value, _ = _segments().get(_EDGE, check_key(shm_name), None, decode, unlink)
        except Missing:
            raise Missing(f"there are no metadata {shm_name}: they have been read or cleaned up, or their writer has ended") from None
        return value

    @staticmethod
    def cleanup(shm_name: str) -> None:
        """Remove a segment of any process, without a read. It need not exist."""
        _segments().remove(check_key(shm_name))


def _segments() -> Segments:
    """The segments of this process, opened with the first use."""
    global _opened
    with _opening:
        if _opened is None:
            _opened = Segments({"ttl": 0.0})
            atexit.register(_opened.close_nowait)
        return _opened
