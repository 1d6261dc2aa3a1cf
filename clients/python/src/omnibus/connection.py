"""The socket to the host: packets out and in, with their descriptors, and what wakes whoever waits at it.

Open it for how messages are put into packets, when the host does not read as fast as this process writes, and
what is closed when. A connection knows no message's meaning. Its methods are called with
the session's lock held, but for `fileno`, `poll`, `poke` and `wake_on`.
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
_PIPE_BYTES = 1 << 16  # as much as a pipe takes

_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
# What Python has of these are enumerations, for which an operation takes longer than the system call.
_CUT_SHORT = int(socket.MSG_TRUNC)
_RIGHTS_CUT_SHORT = int(socket.MSG_CTRUNC)
_PACKET_BYTES = wire.MAX_PACKET_BYTES
_ANCILLARY_BYTES = socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * 4)


class Connection:
    """A socket after its handshake, and what was not sent yet."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # -1: closed
        self._wake_lock = threading.RLock()  # whoever pokes may be interrupted by one who does
        self.was_poked = False  #: since `poked`
        self._signals = -1  # what `wake_on` was given
        self._epoll = select.epoll()
        self._epoll.register(sock, select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)
        # Bounded by what may be answered: questions, deliveries and grants.
        self.outbox: deque[tuple[bytearray, int]] = deque()  # and a descriptor that goes with it, or -1
        self._held: list[bytearray] = []  # what waits for a message to leave with
        self._unheard = False  # the host has closed its end; what it said before is still to be read
        self._clogged = False  # the host does not read as fast as we write

    def __del__(self) -> None:
        # In a child this closes the child's own descriptors, and sends nothing.
        if getattr(self, "_wake", -1) >= 0:
            os.close(self._wake)

    # Waiting.

    def fileno(self) -> int:
        """A descriptor that is readable when something has arrived, or somebody has poked."""
        return self._epoll.fileno()

    def poll(self, timeout: float | None) -> None:
        """Wait until `fileno` is readable."""
        for fd, _ in self._epoll.poll(timeout):
            if fd == self._signals:
                try:
                    os.read(fd, _PIPE_BYTES)  # or it would be full one day, and nothing more come
                except BlockingIOError:
                    pass

    def wake_on(self, fd: int) -> None:
        """End `poll` also when more has come to be read from a pipe, the caller's, which does not block."""
        self._signals = fd
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def poke(self) -> None:
        """End `poll`. Safe in a signal handler."""
        with self._wake_lock:
            try:
                os.eventfd_write(self._wake, 1)
            except (OSError, ValueError):
                pass  # it is readable already, or closed, which is a ValueError since Python 3.13
            finally:
                self.was_poked = True  # and no sooner: whoever saw it before would read in vain, and not again

    def poked(self) -> None:
        """Undo `poke`: whoever calls looks around now."""
        if self.was_poked:
            self.was_poked = False
            try:
                os.eventfd_read(self._wake)
            except (OSError, ValueError):
                pass  # somebody read it before, or it is closed

    # Sending.

    def post(self, m: wire.Message, fd: int = -1) -> None:
        """Put a message into the outbox, until `flush`. Takes the descriptor, unless it raises."""
        if not self._unheard:
            if self._held:
                self.unhold()
            self.outbox.append((wire.encode(m, int(fd >= 0)), fd))
        elif fd >= 0:
            os.close(fd)

    def hold(self, m: wire.Message) -> None:
        """Have a message leave with the next one that is posted, or after `unhold`."""
        if not self._unheard:
            self._held.append(wire.encode(m))

    def unhold(self) -> None:
        """Put what is held into the outbox."""
        self.outbox += ((m, -1) for m in self._held)
        self._held.clear()

    def flush(self) -> None:
        """Send what the host takes without waiting. Raises HostGone."""
        outbox = self.outbox
        while outbox:
            first = outbox[0]
            packet, fd = ([first[0]], first[1]) if len(outbox) == 1 else self._next_packet()
            try:
                self._sock.sendmsg(packet, _rights(fd) if fd >= 0 else (), _SEND_FLAGS)
            except OSError as e:
                if e.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._clog(True)
                elif e.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._say_no_more()
                else:
                    raise _gone(e) from e
                return
            for _ in packet:
                outbox.popleft()
            if fd >= 0:
                os.close(fd)
        if self._clogged:
            self._clog(False)

    def _next_packet(self) -> tuple[list[bytearray], int]:
        """The messages that go out together. One with a descriptor goes alone."""
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

    def _say_no_more(self) -> None:
        self._unheard = True
        for _, fd in self.outbox:
            if fd >= 0:
                os.close(fd)
        self.outbox.clear()
        self._held.clear()

    def _clog(self, clogged: bool) -> None:
        if clogged != self._clogged:
            self._clogged = clogged
            self._epoll.modify(self._sock, select.EPOLLIN | (select.EPOLLOUT if clogged else 0))

    # Receiving.

    def receive(self) -> tuple[bytes, deque[int]] | None:
        """A packet and its descriptors, which the caller closes; None: none has come.

        Raises HostGone, ProtocolError for one that is cut short, and OutOfMemory where this process has no room for
        its descriptors.
        """
        try:
            try:
                packet, ancillary, flags, _ = self._sock.recvmsg(_PACKET_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
            except ConnectionResetError:  # it is reported before the last packets
                packet, ancillary, flags, _ = self._sock.recvmsg(_PACKET_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return None
        except OSError as e:
            raise _gone(e) from e
        if not packet and not ancillary:
            raise HostGone("the host has closed the connection")
        fds = descriptors(ancillary) if ancillary else deque()
        if flags & (_CUT_SHORT | _RIGHTS_CUT_SHORT):
            for fd in fds:
                os.close(fd)
            if flags & _RIGHTS_CUT_SHORT and len(fds) < wire.MAX_DESCRIPTORS:  # there was room for more
                raise out_of_memory("no room for the descriptors that came", errno.EMFILE)
            raise ProtocolError("a packet is too long, or brings too many descriptors")
        return packet, fds

    # The end.

    def hang_up(self) -> None:
        """Close the socket: nothing is sent or received any more, and `poke` alone ends `poll`."""
        try:
            self._epoll.unregister(self._sock)
        except (OSError, ValueError):
            pass
        self._sock.close()
        self._clogged = False
        self._say_no_more()

    def close(self) -> None:
        """Close what `poll` and `poke` use, which must not be waited for. Idempotent."""
        self._epoll.close()
        with self._wake_lock:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)


def _gone(e: OSError) -> HostGone:
    return HostGone(f"the host is gone: {e.strerror or e}")


def _rights(fd: int) -> list[tuple[int, int, bytes]]:
    """What sends a descriptor along."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> deque[int]:
    """The descriptors of a packet. The caller closes them."""
    fds: deque[int] = deque()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % 4
            fds.extend(memoryview(data)[:whole].cast("i"))
    return fds
