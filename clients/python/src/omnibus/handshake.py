"""Finding a host's socket, and the handshake: the messages hello and welcome."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterable

from . import wire
from .connection import descriptors
from .errors import HostGone, ProtocolError, Refused, Untrusted

#: How long the host may take to send welcome.
HANDSHAKE_SECONDS = 10.0

#: The longest path of a socket on Linux.
MAX_PATH_BYTES = 107


def socket_path(path: str | None = None, bus: str | None = None) -> str:
    """The path at which the host listens: `path`, else $OMNIBUS_SOCKET, else that of the bus's name.

    The name is `bus` or $OMNIBUS_BUS. Its socket is in $XDG_RUNTIME_DIR/omnibus or, if
    that is not set, in this user's folder in $TMPDIR or /tmp. A name with a slash would
    lead out of that folder, and raises ValueError.
    """
    if path:
        return path
    if bus is None and (path := os.environ.get("OMNIBUS_SOCKET")):
        return path
    bus = bus or os.environ.get("OMNIBUS_BUS")
    if not bus:
        raise ValueError("no host is named: give the name of its bus, or the path of its socket, or set OMNIBUS_SOCKET or OMNIBUS_BUS")
    if "/" in bus:
        raise ValueError(f"{bus!r} is no name of a bus, but a path: give the path of its socket")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(runtime, "omnibus", bus + ".sock")
    # Not tempfile's folder: the host uses this one, whether or not it is writable.
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"omnibus-{os.getuid()}", bus + ".sock")


def dial(path: str, allow_uids: Iterable[int] = ()) -> socket.socket:
    """Connect to a host's socket, and send nothing yet. Raises HostGone if no process listens.

    Raises Untrusted if the host may belong to a user other than this process's and those of `allow_uids`: see
    docs/protocol.md.
    """
    if (size := len(os.fsencode(path))) > MAX_PATH_BYTES:
        raise ValueError(
            f"the socket's path {path} has {size} bytes, and the system allows {MAX_PATH_BYTES}: "
            "use a shorter one, for example by setting XDG_RUNTIME_DIR"
        )
    trusted = {os.geteuid(), *allow_uids}
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _check_folder(os.path.dirname(path) or ".", trusted)
        _check_user(os.stat(path).st_uid, trusted, path, "the socket belongs to")
        sock.settimeout(HANDSHAKE_SECONDS)
        sock.connect(path)
        # The files may have been replaced since the check.
        pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        _check_user(uid, trusted, path, f"process {pid}, which listens, is one of")
    except Untrusted:
        sock.close()
        raise
    except OSError as e:
        sock.close()
        raise HostGone(
            f"no host listens at {path}: {e.strerror or e}; start one with `omnibus run FILE`, "
            f"or with `omnibus exchange --socket {path}` for values under keys alone, or say where it is (its bus, the path of its socket, OMNIBUS_SOCKET)"
        ) from e
    return sock


def _check_folder(folder: str, trusted: set[int]) -> None:
    """Raise Untrusted if another user could create a socket in the folder, or remove one.

    The superuser always can. In a sticky folder, such as /tmp, an existing socket is safe.
    """
    s = os.stat(folder)
    if s.st_uid != 0:
        _check_user(s.st_uid, trusted, folder, "the folder belongs to")
    if s.st_mode & 0o022 and not s.st_mode & stat.S_ISVTX:
        raise Untrusted(
            f"the host is not to be trusted: others may write to the folder {folder} (mode {s.st_mode & 0o7777:04o}), "
            "and could listen there in the host's place: chmod go-w it, or have the host listen in a folder of its own"
        )


def _check_user(uid: int, trusted: set[int], where: str, what: str) -> None:
    if uid not in trusted:
        raise Untrusted(
            f"the host is not to be trusted: {where}: {what} user {uid}, and this process runs as user {os.geteuid()}: "
            "run as the host's user, or set XDG_RUNTIME_DIR to a folder of this user's; "
            f"if the host of user {uid} is meant, allow it by name (allow_uids)"
        )


def shake_hands(sock: socket.socket, bus: str | None, name: str | None) -> wire.Welcome:
    """Send hello and return the host's welcome. Without a welcome the socket is closed."""
    hello = wire.Hello(
        wire.MAGIC, wire.VERSION, wire.VERSION, os.getpid(),
        bus or os.environ.get("OMNIBUS_BUS", ""), name or f"python {os.getpid()}",
    )  # fmt: skip
    try:
        sock.settimeout(HANDSHAKE_SECONDS)
        sock.sendall(wire.encode(hello))
        # The first packet holds the welcome alone; the packets behind it are
        # the session's.
        packet, ancillary, _, _ = sock.recvmsg(wire.MAX_PACKET_BYTES, 256, socket.MSG_CMSG_CLOEXEC)
        fds = descriptors(ancillary)
        for fd in fds:
            os.close(fd)
        if not packet:
            raise HostGone("the host closed the connection before it said welcome")
        messages = wire.decode(packet, len(fds))
        m, _ = next(messages)
        if isinstance(m, wire.Refuse):
            raise Refused(m.code, m.text)
        if not isinstance(m, wire.Welcome) or next(messages, None) is not None:
            raise ProtocolError("the host's first packet is not the message welcome alone")
        if m.version != wire.VERSION or m.inline_bytes > wire.MAX_INLINE_BYTES:
            raise ProtocolError(f"welcome to version {m.version}, this client speaks {wire.VERSION}; {m.inline_bytes} bytes inline")
        return m
    except OSError as e:
        sock.close()
        if isinstance(e, HostGone):
            raise
        raise HostGone(f"the host did not say welcome: {e}") from e
    except BaseException:
        sock.close()
        raise
