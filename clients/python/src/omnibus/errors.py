"""The errors of this package.

All of them derive from `OmnibusError`, and also from a built-in class with the
same meaning, if there is one: `HostGone` is a `ConnectionError`,
`DeadlineExceeded` a `TimeoutError`, `PayloadError` a `ValueError`.
"""

from __future__ import annotations

import errno
import os
import resource
from enum import IntEnum
from typing import Any, TypeVar


class Code(IntEnum):
    """The reason of a failed answer of the host."""

    OK = 0
    PROTOCOL = 1
    VERSION = 2
    BUS = 3
    DENIED = 4
    UNKNOWN = 5
    TAKEN = 6
    TOO_LARGE = 7
    WINDOW_FULL = 8
    OVER = 9
    CLOSING = 10
    OVERLOADED = 11
    MEMORY = 12
    INVALID = 13
    INTERNAL = 14
    NOTHING = 15


class OmnibusError(Exception):
    """The base of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle calls the class with the text only, which many of these classes do not accept.
        return _like, (type(self), self.args, self.__dict__)


_E = TypeVar("_E", bound=OmnibusError)


def again(error: _E) -> _E:
    """A copy of an error, to be raised in one more place.

    A raised error refers to the frames that it passed, and so to payloads that
    were viewed there. So a stored error is never raised itself.
    """
    return _like(type(error), error.args, error.__dict__)


def _like(kind: type[_E], args: tuple[Any, ...], attributes: dict[str, Any]) -> _E:
    new = kind.__new__(kind)
    new.args = args
    new.__dict__.update(attributes)
    return new


class ProtocolError(OmnibusError):
    """Bytes that the node protocol does not allow."""


class LabelError(ProtocolError, ValueError):
    """A key or attributes that break a bound of messages. Nothing was sent, and the source stays usable."""


class PayloadError(OmnibusError, ValueError):
    """A payload that does not match its codec, or a value without an encoding."""


class Poisoned(OmnibusError):
    """Tensors that will never be complete, since the process that filled them failed or died; data read from them is
    garbage. Or tensors that are gone, since the process that lent them died or freed them before they were opened here.
    """


class Forged(PayloadError):
    """A place in GPU memory that is out of bounds, or of another generation than the message states."""


class ForeignDevice(OmnibusError):
    """Tensors on a GPU that is not visible to this process."""


class PoolFull(OmnibusError):
    """A pool of GPU memory had no space for tensors within the timeout."""


class ForkedError(OmnibusError, RuntimeError):
    """The connection belongs to the process that this one was forked from.

    The host watches that process, not this one. Connect again here.
    """


class Finished(OmnibusError, ValueError):
    """A delivery, buffer or view was used after it was finished, sent or released."""


class HostGone(OmnibusError, ConnectionError):
    """The connection to the host has ended: the host left or died, or the client was closed."""


class Untrusted(HostGone):
    """The socket may belong to another user, and nothing was sent to it. The text names the user, and the remedies."""


class Refused(HostGone):
    """The host refused this client and closed the connection.

    `code` is PROTOCOL for a message that breaks the protocol, MEMORY if the host lacks memory or descriptors for a message
    (the text names a remedy), and another one if the host refuses the handshake.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the host refused the connection: {text or code_name(code)}")
        self.code = code
        self.text = text


class HostError(OmnibusError):
    """The host's answer to a question is an error. Its subclass gives the reason, or else `code`.

    `edge`, `key` and `seq` name the emission that failed, as far as it is known; `seq` is invalid if `edge` is empty.
    `source` is the number of the task or request that emitted it.
    """

    source = 0
    edge = ""
    key = ""
    seq = 0

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"the host gives no reason but its code: {code_name(code)}")
        self.code = code
        self.text = text


class Unknown(HostError, LookupError):
    """No such stage, edge, request, task, delivery or method."""


class Taken(HostError):
    """The stage runs inside the host, the name has another descriptor, or the path is in use by another process."""


class TooLarge(HostError, ValueError):
    """The payload exceeds the edge's byte window or the store."""


class WindowFull(HostError):
    """The edge's window is full and its policy is to fail."""


class RequestOver(HostError):
    """The request has ended, so nothing more can be sent for it."""


class Closing(HostError):
    """The host is draining or closing, or the session ended before an emission was made."""


class Overloaded(HostError):
    """The host has no permit for the request, or no space for one more name."""


class OutOfMemory(HostError):
    """The host, or this process, has not enough memory."""


class Nothing(HostError, LookupError):
    """There is no payload under the key, or no descriptor under the name."""


_BY_CODE: dict[int, type[HostError]] = {
    Code.UNKNOWN: Unknown,
    Code.TAKEN: Taken,
    Code.TOO_LARGE: TooLarge,
    Code.WINDOW_FULL: WindowFull,
    Code.OVER: RequestOver,
    Code.CLOSING: Closing,
    Code.OVERLOADED: Overloaded,
    Code.MEMORY: OutOfMemory,
    Code.NOTHING: Nothing,
}


def host_error(code: int, text: str) -> HostError:
    """The error of the host's message `failed`."""
    return _BY_CODE.get(code, HostError)(code, text)


_REMEDIES = {
    errno.EFBIG: "raise this process's limit (ulimit -f)",
    errno.ENOMEM: "raise this process's limit of address space (ulimit -v), or free memory",
}


def _remedy(number: int) -> str:
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"process {os.getpid()} may have {most} descriptors open: raise its limit (ulimit -n, or LimitNOFILE= in a "
            "systemd unit)"
        )
    return _REMEDIES.get(number, "")


def out_of_memory(what: str, number: int) -> OutOfMemory:
    """The error of a failed allocation, with its `errno` and a remedy."""
    remedy = _remedy(number)
    return OutOfMemory(Code.MEMORY, f"{what}: {os.strerror(number)}" + (f": {remedy}" if remedy else ""))


def code_name(code: int) -> str:
    """The name of a code, for error texts."""
    try:
        return Code(code).name.lower().replace("_", " ")
    except ValueError:
        return f"code {code}"


class RequestEnded(OmnibusError):
    """A request did not complete.

    `stage`, `edge`, `key` and `seq` say where it ended, as far as that is known.
    """

    what = "ended"
    _said = ""  # a redundant prefix of the host's text

    def __init__(self, stage: str, edge: str, key: str, seq: int, text: str) -> None:
        at = [f"stage {stage}"] if stage else []
        if edge:
            at += [f"edge {edge}", f"seq {seq}"]
        if key:
            at.append(f"key {key!r}")
        where = f" at {', '.join(at)}" if at else ""
        why = text.removeprefix(self._said).removeprefix(": ")
        super().__init__(f"the request {self.what}{where}" + (f": {why}" if why else ""))
        self.stage = stage
        self.edge = edge
        self.key = key
        self.seq = seq
        self.text = text


class RequestFailed(RequestEnded):
    """A stage failed the request."""

    what = "failed"


class RequestAborted(RequestEnded):
    """The request was aborted."""

    what = "was aborted"
    _said = "bus: request aborted"


class DeadlineExceeded(RequestEnded, TimeoutError):
    """The request was not complete by its deadline."""

    what = "is past its deadline"
    _said = "bus: deadline exceeded"
