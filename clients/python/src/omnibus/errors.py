"""What can go wrong.

Everything that this package raises on purpose is an `OmnibusError`. Where a
built-in class says the same, the error is one of those too: `HostGone` is a
`ConnectionError`, `DeadlineExceeded` a `TimeoutError`, `PayloadError` a
`ValueError`.
"""

from __future__ import annotations

import errno
import os
import resource
from enum import IntEnum
from typing import Any, TypeVar


class Code(IntEnum):
    """Why the host did not do what it was asked."""

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
        # What pickle does of its own accord is to call the class with the text alone, which many of these do not take.
        return _like, (type(self), self.args, self.__dict__)


_E = TypeVar("_E", bound=OmnibusError)


def again(error: _E) -> _E:
    """The same error, to be raised in one more place.

    What was raised refers to the frames that it passed, and so to all that was
    viewed there: an error that is kept is never raised itself.
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
    """A key or attributes that no message takes. Nothing was sent, and the source goes on."""


class PayloadError(OmnibusError, ValueError):
    """A payload that is not what its codec says, or a value with no encoding."""


class Poisoned(OmnibusError):
    """Tensors that will never be complete: whoever filled them failed, or died before it was done.

    What was read of them is garbage. Or tensors that are gone: whoever lent them died, or freed them, before they
    were opened here.
    """


class Forged(PayloadError):
    """A place in a GPU's memory that cannot be, or that is another generation's than the message says."""


class ForeignDevice(OmnibusError):
    """Tensors on a GPU that this process cannot see."""


class PoolFull(OmnibusError):
    """There was no room for tensors in a pool of GPU memory, for as long as one may wait."""


class ForkedError(OmnibusError, RuntimeError):
    """The connection belongs to the process that this one was forked from.

    The host watches that process, not this one. Connect again here.
    """


class Finished(OmnibusError, ValueError):
    """A delivery, buffer or view was used after it was given back."""


class HostGone(OmnibusError, ConnectionError):
    """The connection to the host has ended: it left, died or was closed here."""


class Untrusted(HostGone):
    """The socket may be another user's, and nothing was sent to it. The text says whose it is, and what to do."""


class Refused(HostGone):
    """The host refused this client and closed the connection.

    `code` is PROTOCOL for what breaks the protocol, MEMORY where the host lacks memory or descriptors for what came
    (the text says what to do), and others where it does not take the client in.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the host refused the connection: {text or code_name(code)}")
        self.code = code
        self.text = text


class HostError(OmnibusError):
    """The host's answer to a question is no. The subclass says why, and `code` where there is none for it.

    Of an emission, `edge`, `key` and `seq` say which it was, as far as that is known; `seq` says
    nothing where `edge` is empty. `source` is whose it was, by its number.
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
    """The stage runs inside the host, or the name is another descriptor's."""


class TooLarge(HostError, ValueError):
    """The payload exceeds the edge's byte window or the store."""


class WindowFull(HostError):
    """The edge's window is full and its policy is to fail."""


class RequestOver(HostError):
    """The request has ended, so nothing more can be sent for it."""


class Closing(HostError):
    """The host is draining or closing, or the session ended before an emission was made."""


class Overloaded(HostError):
    """There is no place for the request, or for one more name."""


class OutOfMemory(HostError):
    """The host, or this process, has not enough memory for it."""


class Nothing(HostError, LookupError):
    """Nothing lies under the key, or the name."""


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
    """The error for the host's answer `failed`."""
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
    """The error for what the system had no room for, with its `errno`, and what to do about it."""
    remedy = _remedy(number)
    return OutOfMemory(Code.MEMORY, f"{what}: {os.strerror(number)}" + (f": {remedy}" if remedy else ""))


def code_name(code: int) -> str:
    """The name of a code, for error texts."""
    try:
        return Code(code).name.lower().replace("_", " ")
    except ValueError:
        return f"code {code}"


class RequestEnded(OmnibusError):
    """A request ended otherwise than by completing.

    `stage`, `edge`, `key` and `seq` say where, as far as that is known.
    """

    what = "ended"
    _said = ""  # what the host's text begins with, which says the same

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
    """Somebody aborted the request."""

    what = "was aborted"
    _said = "bus: request aborted"


class DeadlineExceeded(RequestEnded, TimeoutError):
    """The request was not complete by its deadline."""

    what = "is past its deadline"
    _said = "bus: deadline exceeded"
