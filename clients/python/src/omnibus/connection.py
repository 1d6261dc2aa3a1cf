"""The socket to the host: sends and receives packets with their descriptors, and wakes the thread that polls it.

It puts messages into packets, queues them while the host reads more slowly than this process writes, and knows no
message's meaning. The session's lock is held for all methods except `fileno`, `poll`, `wake` and
`wake_when_readable`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
from collections import deque

from . import wire
from .errors import HostGone, ProtocolError, out_of_memory

_MESSAGES_A_PACKET = 64
_PIPE_BYTES = 1 << 16  # the capacity of a pipe

_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
# As ints: an operation on Python's enumerations takes longer than the system call.
_CUT_SHORT = int(socket.MSG_TRUNC)
_RIGHTS_CUT_SHORT = int(socket.MSG_CTRUNC)
_PACKET_BYTES = wire.MAX_PACKET_BYTES
_ANCILLARY_BYTES = socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * 4)


class Connection:
    """A socket after its handshake, and its outbox."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # -1: closed
        self._wake_lock = threading.RLock()  # reentrant: a signal handler may call `wake` inside `wake`
        self.woken = False  #: `wake` was called since `clear_wake`
        self._signal_fd = -1  # the descriptor of `wake_when_readable`
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        # Bounded by the bounds of questions, deliveries and grants.
        self.outbox: deque[tuple[bytearray, int]] = deque()  # a message, and the descriptor it carries, or -1
        self._deferred: list[bytearray] = []  # messages that are sent with the next one
        self._send_closed = False  # the host reads no more; its earlier packets are still to be received
        self._send_blocked = False  # the socket's buffer is full

    def __del__(self) -> None:
        # In a forked child this closes the child's copies, and sends nothing.
        if getattr(self, "_wake_fd", -1) >= 0:
            os.close(self._wake_fd)

    # Waiting.

    def fileno(self) -> int:
        """A descriptor that is readable when a packet has arrived, or after `wake`."""
        return self._epoll.fileno()

    def poll(self, timeout: float | None) -> None:
        """Wait until `fileno` is readable."""
        for fd, _ in self._epoll.poll(timeout):
            if fd == self._signal_fd:
                try:
                    os.read(fd, _PIPE_BYTES)  # a full pipe would report no more signals
                except BlockingIOError:
                    pass

    def wake_when_readable(self, fd: int) -> None:
        """Make `poll` end also when bytes arrive in a non-blocking pipe, which the caller owns."""
        self._signal_fd = fd
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def wake(self) -> None:
        """End `poll`. Safe in a signal handler."""
        with self._wake_lock:
            try:
                os.eventfd_write(self._wake_fd, 1)
            except (OSError, ValueError):
                pass  # it is readable already, or closed (a ValueError since Python 3.13)
            finally:
                # Set last: a reader that saw it before the write would read nothing, and not try again.
                self.woken = True

    def clear_wake(self) -> None:
        """Undo `wake`: the caller checks for news now."""
        if self.woken:
            self.woken = False
            try:
                os.eventfd_read(self._wake_fd)
            except (OSError, ValueError):
                pass  # it was read before, or is closed

    # Sending.

    def post(self, m: wire.Message, fd: int = -1) -> None:
        """Put a message into the outbox, which `flush` sends. Takes the descriptor, unless it raises."""
        if not self._send_closed:
            if self._deferred:
                self.post_deferred()
            self.outbox.append((wire.encode(m, int(fd >= 0)), fd))
        elif fd >= 0:
            os.close(fd)

    def defer(self, m: wire.Message) -> None:
        """Send a message with the next one that is posted, or after `post_deferred`."""
        if not self._send_closed:
            self._deferred.append(wire.encode(m))

    def post_deferred(self) -> None:
        """Put the deferred messages into the outbox."""
        self.outbox += ((m, -1) for m in self._deferred)
        self._deferred.clear()

    def flush(self) -> None:
        """Send as much of the outbox as the socket takes without waiting. Raises HostGone."""
        outbox = self.outbox
        while outbox:
            first = outbox[0]
            packet, fd = ([first[0]], first[1]) if len(outbox) == 1 else self._next_packet()
            try:
                self._sock.sendmsg(packet, _rights(fd) if fd >= 0 else (), _SEND_FLAGS)
            except OSError as e:
                if e.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._set_send_blocked(True)
                elif e.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._close_outbox()
                else:
                    raise _host_gone(e) from e
                return
            for _ in packet:
                outbox.popleft()
            if fd >= 0:
                os.close(fd)
        if self._send_blocked:
            self._set_send_blocked(False)

    def _next_packet(self) -> tuple[list[bytearray], int]:
        """The messages of the next packet. A message with a descriptor is the packet's only one."""
        packet: list[bytearray] = []
        size = 0
        for m, fd in self.outbox:
            size += len(m)
            if packet and (size > wire.MAX_PACKET_BYTES or len(packet) == _MESSAGES_A_PACKET or fd >= 0):
                break
            packet.append(m)
            if fd >= 0:
                return packet, fd
        return packet, -1

    def _close_outbox(self) -> None:
        self._send_closed = True
        for _, fd in self.outbox:
            if fd >= 0:
                os.close(fd)
        self.outbox.clear()
        self._deferred.clear()

    def _set_send_blocked(self, clogged: bool) -> None:
        if clogged != self._send_blocked:
            self._send_blocked = clogged
            self._epoll.modify(self._sock, select.EPOLLIN | (select.EPOLLOUT if clogged else 0))

    # Receiving.

    def receive(self) -> tuple[bytes, deque[int]] | None:
        """A packet and its descriptors, which the caller closes; None: no packet has arrived.

        Raises HostGone, ProtocolError for a truncated packet, and OutOfMemory if this process can open no more
        descriptors.
        """
        try:
            try:
                packet, ancillary, flags, _ = self._sock.recvmsg(_PACKET_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
            except ConnectionResetError:  # reported before the last packets are received
                packet, ancillary, flags, _ = self._sock.recvmsg(_PACKET_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return None
        except OSError as e:
            raise _host_gone(e) from e
        if not packet and not ancillary:
            raise HostGone("the host has closed the connection")
        fds = descriptors(ancillary) if ancillary else deque()
        if flags & (_CUT_SHORT | _RIGHTS_CUT_SHORT):
            for fd in fds:
                os.close(fd)
            if flags & _RIGHTS_CUT_SHORT and len(fds) < wire.MAX_DESCRIPTORS:  # the control buffer had space for more
                raise out_of_memory("no space for the received descriptors", errno.EMFILE)
            raise ProtocolError("a packet is too long, or brings too many descriptors")
        return packet, fds

    # The end.

    def close_socket(self) -> None:
        """Close the socket. After that only `wake` ends `poll`."""
        try:
            self._epoll.unregister(self._sock)
        except (OSError, ValueError):
            pass
        self._sock.close()
        self._send_blocked = False
        self._close_outbox()

    def close(self) -> None:
        """Close the descriptors of `poll` and `wake`. No thread may be in `poll`. Idempotent."""
        self._epoll.close()
        with self._wake_lock:
            wake, self._wake_fd = self._wake_fd, -1
        if wake >= 0:
            os.close(wake)


def _host_gone(e: OSError) -> HostGone:
    return HostGone(f"the host is gone: {e.strerror or e}")


def _rights(fd: int) -> list[tuple[int, int, bytes]]:
    """The ancillary data that carries a descriptor."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> deque[int]:
    """The descriptors of a packet. The caller closes them."""
    fds: deque[int] = deque()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            fds.extend(memoryview(data)[:whole].cast("i"))
    return fds
