"""What all ways of exchanging values have in common: keys, metadata, and what can go wrong.

The rules are those of the Go package `connector`.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..devices.contract import uuid_of
from ..errors import OmnibusError
from ..omni.encoder import Encoded
from ..puts import MODES as TRANSPORTS

MAX_KEY_BYTES = 237  #: with the affixes of its lock it is the name of a file
_MAX_STAGE_BYTES = 200
_MOST_SECONDS = 1e9  # which no timer outlasts

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DIRECTORIES = (".", "..")


class BadKey(OmnibusError, ValueError):
    """A key or a stage's name that could not name anything safely."""


class BadMetadata(OmnibusError, ValueError):
    """Metadata that no put returned."""


class Damaged(OmnibusError):
    """A payload that is not what was put: cut short, or changed under the reader."""


class Busy(OmnibusError, TimeoutError):
    """A living process kept something locked."""


class NoRoom(OmnibusError):
    """There is no room for the payload."""


class Unavailable(OmnibusError):
    """It cannot work here. The text says what is missing."""


class Missing(OmnibusError, LookupError):
    """Nothing lies under the key: it was not put yet, was got already, or was cleaned up."""


class Gone(Missing):
    """What the metadata name was there and is not any more, so there is nothing to wait for. The text says why."""


class Absent(Missing):
    """The sender is not there: not yet started, or dead. The text has its address."""


class Edge(NamedTuple):
    """The stage that puts and the stage that gets."""

    source: str
    target: str


class Transport(Protocol):
    """A way in which payloads go from stage to stage. Safe from any thread."""

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        """Store a payload, and return what a get may be told of it."""
        ...

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        """Take what lies under the key, without waiting, and return its value and its size.

        Raises Missing when there is nothing.
        """
        ...

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        """get, once there is something, until a time of time.monotonic. Raises Missing then."""
        ...

    def abandon(self, key: str) -> None:
        """End what waits for the key, if it can be ended before its deadline."""
        ...

    def cleanup(self, key: str) -> None:
        """Take back the values that were put here under exactly this key, on any edge, and were not got."""
        ...

    def reap(self) -> None:
        """Forget what others have got meanwhile."""
        ...

    def health(self) -> dict[str, Any]:
        """What is particular to it. `status` is "healthy" or says what is wrong."""
        ...

    def close(self) -> None:
        """Take back all that was put here and nobody got. Idempotent.

        What another thread is at just then it waits for, or leaves it to that thread: it does the same when it is done.
        """
        ...

    def drop(self) -> None:
        """close, for a finalizer, which comes in the middle of anything: it waits for nobody."""
        ...


class Placed(NamedTuple):
    """What became of a value that a transport encoded and put by itself."""

    metadata: dict[str, Any]
    size: int


class Decode(Protocol):
    """What makes a value of a payload."""

    def __call__(self, payload: bytes | bytearray | memoryview, *, padded: bool = False) -> Any: ...


@functools.lru_cache(1024)
def check_edge(source: str, target: str) -> Edge:
    """The edge between two stages. Raises BadKey for what cannot be a stage's name."""
    edge = Edge(str(source), str(target))
    for name in edge:
        if not 0 < len(_utf8(name)) <= _MAX_STAGE_BYTES or _CONTROL.search(name):
            raise BadKey(f"{name[:64]!r} is no name of a stage: it takes 1 to {_MAX_STAGE_BYTES} printable bytes")
    return edge


def check_key(key: Any) -> str:
    """The key, if it can be part of a file's name. Raises BadKey otherwise."""
    if type(key) is str and key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_BYTES:
        if "/" not in key and key not in _DIRECTORIES:
            return key  # as nearly all are
    if not isinstance(key, str):
        raise BadKey(f"a key is text, and this is of type {type(key).__name__}")
    size = len(_utf8(key))
    if not 0 < size <= MAX_KEY_BYTES:
        raise BadKey(f"a key of {size} bytes: it takes 1 to {MAX_KEY_BYTES}")
    if "/" in key or key in _DIRECTORIES or _CONTROL.search(key):
        raise BadKey(f"{key[:64]!r}: a key has no slash and no control character, and is not '.' or '..'")
    return key


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise BadKey(f"the text is not Unicode: {e}") from None


def metadata_for(key: str, metadata: Any) -> dict[str, Any]:
    """The metadata of one key, where those of several are wrapped by key. What is none is empty."""
    if not isinstance(metadata, dict):
        return {}
    wrapped = metadata.get(key)
    if not isinstance(wrapped, dict) or (key == "shm" and isinstance(wrapped.get("name"), str)):
        return metadata  # also of a key that is called as the segment in its metadata
    return wrapped


def inline_payload(metadata: dict[str, Any]) -> bytes | None:
    """The payload that travels in the metadata, if it does."""
    if "inline_bytes" not in metadata:
        return None
    payload = metadata["inline_bytes"]
    if isinstance(payload, str):
        try:
            payload = base64.b64decode(payload, validate=True)  # as JSON carries them
        except ValueError:
            raise BadMetadata("inline_bytes is text, and not base64") from None
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise BadMetadata(f"inline_bytes is of type {type(payload).__name__}, not bytes or base64")
    payload = bytes(payload)
    if metadata.get("size", len(payload)) != len(payload):
        raise BadMetadata(f"{len(payload)} bytes inline, and a size of {metadata['size']!r}")
    return payload


class Kind(NamedTuple):
    """What a setting takes: how it is said, and what reads it, which raises ValueError for what it is not."""

    want: str
    read: Callable[[Any], Any]


def text_of(*choices: str) -> Kind:
    """Text, one of the choices if there are any."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or (choices and value not in choices):
            raise ValueError
        return value

    return Kind(" or ".join(choices) or "text", read)


def _path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str):
        raise ValueError
    return path


def whole(least: int, most: int | None = None) -> Kind:
    """A whole number."""

    def read(value: Any) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value  # as JSON has it
        if type(number) is not int or number < least or (most is not None and number > most):
            raise ValueError
        return number

    return Kind(f"a whole number {f'of at least {least}' if most is None else f'from {least} to {most}'}", read)


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"\+?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:h|ms|m|s|us|\u00b5s|\u03bcs|ns))+|\+?0")


def seconds(value: Any) -> float:
    """A duration: a number of seconds, or text such as "30s" and "1m30s". Raises ValueError."""
    if isinstance(value, str) and _DURATION.fullmatch(value):
        number = sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9.]+)([a-z\u00b5\u03bc]+)", value))
    elif type(value) is int or isinstance(value, float):
        number = float(value)
    else:
        raise ValueError(f"{value!r} is no duration")
    if not 0 <= number < _MOST_SECONDS:
        raise ValueError(f"{value!r} is no duration")
    return number


def _timeout(value: Any) -> float:
    number = seconds(value)
    if number < 1e-9:
        raise ValueError
    return number


def _users(value: Any) -> frozenset[int]:
    if not isinstance(value, list):
        raise ValueError
    return frozenset(whole(0, _MOST_UID).read(uid) for uid in value)


TEXT = text_of()
TIMEOUT = Kind('a number of seconds above 0, or text such as "30s"', _timeout)
SECONDS = Kind('a number of seconds of at least 0, or text such as "30s"', seconds)

_LEAST_RING_BYTES = 64 << 10
_MOST_UID = 2**32 - 2

def _gpu(value: Any) -> Any:
    from ..gpu.pool import Options  # for those alone who have a GPU

    if isinstance(value, Options):
        return value
    options = dict(value)
    device = options.get("device")
    if isinstance(device, str):
        options["device"] = uuid_of(device)
    elif device is not None and type(device) is not int:
        raise ValueError
    return Options(**options)


#: The ways in which values travel.
MODES = ("ring", "segment", "mooncake", "yuanrong", "nixl", "mooncake-engine")

_GPU = Kind("a map of the options of omnibus.gpu.Options, such as {arena_bytes: 1073741824}", _gpu)

_SETTINGS = {
    "tensor_transport": text_of(*TRANSPORTS), "min_bytes": whole(0), "gpu": _GPU,
    "mode": text_of(*MODES), "bus": TEXT, "socket": Kind("a path", _path),
    "allow_uids": Kind("a list of the numbers of users, such as [1000]", _users),
    "dir": Kind("a path", _path), "arena_bytes": whole(1), "ring_bytes": whole(_LEAST_RING_BYTES),
    "shm_threshold_bytes": whole(0), "generation": whole(1, 2), "ttl": SECONDS, "timeout": TIMEOUT,
}  # fmt: skip

#: Settings that there were once, and what to do in place of each.
_GONE = {
    "store": "leave it out, and attach both processes to one host, which keeps the values, or take mode segment",
    "readers": "leave it out, together with store",
}


def setting(config: dict[str, Any], name: str, default: Any) -> Any:
    """A setting of a connector's `extra`. Raises ValueError for one that makes no sense."""
    value = config.get(name)
    if value is None:
        return default
    kind = _SETTINGS[name]
    try:
        return kind.read(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be {kind.want}, not {value!r}") from None


def check_settings(config: dict[str, Any]) -> None:
    """Raise ValueError if a setting makes no sense, also one of another mode. Unknown ones are the stages' own."""
    for name, instead in _GONE.items():
        if config.get(name) is not None:
            raise ValueError(f"{name} is gone: {instead}")
    for name in _SETTINGS:
        setting(config, name, None)
    mode, transport = setting(config, "mode", "ring"), setting(config, "tensor_transport", TRANSPORTS[0])
    if transport != TRANSPORTS[0] and mode != "ring":
        raise ValueError(f"tensor_transport {transport} needs the exchange of a host: use mode ring, not {mode}")


_ENTRY = re.compile(r"[0-9a-fA-F]+")


def entry_metadata(entry: int) -> dict[str, Any]:
    """The metadata of a value with a number."""
    return {"entry": f"{entry:x}"}


def entry_number(metadata: dict[str, Any] | None) -> int:
    """The number of the value that metadata name, 0 if they name none."""
    text = (metadata or {}).get("entry")
    if text is None:
        return 0
    number = int(text, 16) if isinstance(text, str) and _ENTRY.fullmatch(text) else 0
    if not 0 < number < 1 << 64:
        raise BadMetadata(f"{text!r} is no number of an entry")
    return number
