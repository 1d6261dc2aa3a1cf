"""The contract of all transports: keys, metadata, settings and errors.

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

MAX_KEY_BYTES = 237  #: with the affixes of its lock it is a file's name
_MAX_STAGE_BYTES = 200
_MAX_SECONDS = 1e9  # the bound of all durations

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DIRECTORIES = (".", "..")


class BadKey(OmnibusError, ValueError):
    """A key or a stage's name that is not safe as a name."""


class BadMetadata(OmnibusError, ValueError):
    """Metadata that no put can have returned."""


class Damaged(OmnibusError):
    """A payload that differs from the one that was put: truncated, or changed during the read."""


class Busy(OmnibusError, TimeoutError):
    """A living process kept a lock."""


class NoRoom(OmnibusError):
    """There is no space for the payload."""


class Unavailable(OmnibusError):
    """The transport cannot work here. The text says what is missing."""


class Missing(OmnibusError, LookupError):
    """No value has the key: it was not put yet, was got already, or was cleaned up."""


class Gone(Missing):
    """The value that the metadata name no longer exists, so a wait is in vain. The text says why."""


class Absent(Missing):
    """The sender does not run: it has not started yet, or is dead. The text has its address."""


class Edge(NamedTuple):
    """The stage that puts and the stage that gets."""

    source: str
    target: str


class Transport(Protocol):
    """Carries payloads from stage to stage. Safe from any thread."""

    def put(self, edge: Edge, key: str, payload: Encoded) -> dict[str, Any]:
        """Store a payload, and return its metadata, which a get may pass."""
        ...

    def get(self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode) -> tuple[Any, int]:
        """Take the value under the key, without waiting, and return it and its size.

        Raises Missing if no value has the key.
        """
        ...

    def wait(
        self, edge: Edge, key: str, metadata: dict[str, Any] | None, decode: Decode, deadline: float
    ) -> tuple[Any, int]:
        """Like `get`, but wait for the value until the deadline, of time.monotonic. Raises Missing at the deadline."""
        ...

    def abandon(self, key: str) -> None:
        """End the waits for the key, if the transport can end one before its deadline."""
        ...

    def cleanup(self, key: str) -> None:
        """Remove the values that this transport put under exactly this key, on any edge, and no reader has got."""
        ...

    def reap(self) -> None:
        """Forget the values that readers have got meanwhile."""
        ...

    def health(self) -> dict[str, Any]:
        """The transport's own figures. `status` is "healthy" or says what is wrong."""
        ...

    def close(self) -> None:
        """Remove all values that this transport put and no reader has got. Idempotent.

        It waits for a call in another thread, or that thread removes them when its call returns.
        """
        ...

    def close_nowait(self) -> None:
        """Like `close`, for a finalizer, which may interrupt any call: it waits for no other thread."""
        ...


class PutResult(NamedTuple):
    """The outcome of a put of a value that the transport encoded itself."""

    metadata: dict[str, Any]
    size: int


class Decode(Protocol):
    """Decodes a payload."""

    def __call__(self, payload: bytes | bytearray | memoryview, *, padded: bool = False) -> Any: ...


@functools.lru_cache(1024)
def check_edge(source: str, target: str) -> Edge:
    """The edge between two stages. Raises BadKey for a name that no stage can have."""
    edge = Edge(str(source), str(target))
    for name in edge:
        if not 0 < len(_utf8(name)) <= _MAX_STAGE_BYTES or _CONTROL.search(name):
            raise BadKey(f"{name[:64]!r} is no name of a stage: it takes 1 to {_MAX_STAGE_BYTES} printable bytes")
    return edge


def check_key(key: Any) -> str:
    """The key, if it can be part of a file's name. Raises BadKey otherwise."""
    if type(key) is str and key.isascii() and key.isprintable() and 0 < len(key) <= MAX_KEY_BYTES:
        if "/" not in key and key not in _DIRECTORIES:
            return key  # the common case
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
    """The metadata of one key, out of metadata by key if they are wrapped. Empty if they are no dict."""
    if not isinstance(metadata, dict):
        return {}
    wrapped = metadata.get(key)
    if not isinstance(wrapped, dict) or (key == "shm" and isinstance(wrapped.get("name"), str)):
        return metadata  # also if the key is "shm"
    return wrapped


def inline_payload(metadata: dict[str, Any]) -> bytes | None:
    """The payload that is inline in the metadata, or None."""
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


class SettingType(NamedTuple):
    """The type of a setting: its description, and its parser, which raises ValueError for another type."""

    description: str
    parse: Callable[[Any], Any]


def text_of(*choices: str) -> SettingType:
    """Text, one of the choices if there are any."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or (choices and value not in choices):
            raise ValueError
        return value

    return SettingType(" or ".join(choices) or "text", read)


def _path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str):
        raise ValueError
    return path


def integer(least: int, most: int | None = None) -> SettingType:
    """A whole number."""

    def read(value: Any) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value  # as JSON has it
        if type(number) is not int or number < least or (most is not None and number > most):
            raise ValueError
        return number

    return SettingType(f"a whole number {f'of at least {least}' if most is None else f'from {least} to {most}'}", read)


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
    if not 0 <= number < _MAX_SECONDS:
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
    return frozenset(integer(0, _MAX_UID).parse(uid) for uid in value)


TEXT = text_of()
TIMEOUT = SettingType('a number of seconds above 0, or text such as "30s"', _timeout)
SECONDS = SettingType('a number of seconds of at least 0, or text such as "30s"', seconds)

_MIN_RING_BYTES = 64 << 10
_MAX_UID = 2**32 - 2

def _gpu(value: Any) -> Any:
    from ..gpu.pool import Options  # imported only for processes with a GPU

    if isinstance(value, Options):
        return value
    options = dict(value)
    device = options.get("device")
    if isinstance(device, str):
        options["device"] = uuid_of(device)
    elif device is not None and type(device) is not int:
        raise ValueError
    return Options(**options)


#: The transports.
MODES = ("ring", "segment", "mooncake", "yuanrong", "nixl", "mooncake-engine")

_GPU = SettingType("a map of the options of omnibus.gpu.Options, such as {arena_bytes: 1073741824}", _gpu)

_SETTINGS = {
    "tensor_transport": text_of(*TRANSPORTS), "min_bytes": integer(0), "gpu": _GPU,
    "mode": text_of(*MODES), "bus": TEXT, "socket": SettingType("a path", _path),
    "allow_uids": SettingType("a list of the numbers of users, such as [1000]", _users),
    "dir": SettingType("a path", _path), "arena_bytes": integer(1), "ring_bytes": integer(_MIN_RING_BYTES),
    "shm_threshold_bytes": integer(0), "generation": integer(1, 2), "ttl": SECONDS, "timeout": TIMEOUT,
}  # fmt: skip

#: Removed settings, and the replacement of each.
_REMOVED = {
    "store": "leave it out, and attach both processes to one host, which keeps the values, or take mode segment",
    "readers": "leave it out, together with store",
}


def setting(config: dict[str, Any], name: str, default: Any) -> Any:
    """A setting of a connector's `extra`. Raises ValueError for an invalid one."""
    value = config.get(name)
    if value is None:
        return default
    kind = _SETTINGS[name]
    try:
        return kind.parse(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be {kind.description}, not {value!r}") from None


def check_settings(config: dict[str, Any]) -> None:
    """Raise ValueError if a setting is invalid, also one of another mode. Unknown settings belong to the stages."""
    for name, instead in _REMOVED.items():
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
    """The number of the value that the metadata name, 0 if they name none."""
    text = (metadata or {}).get("entry")
    if text is None:
        return 0
    number = int(text, 16) if isinstance(text, str) and _ENTRY.fullmatch(text) else 0
    if not 0 < number < 1 << 64:
        raise BadMetadata(f"{text!r} is no number of an entry")
    return number
