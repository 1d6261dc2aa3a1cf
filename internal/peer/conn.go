package peer

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// Conn is one end of a connection.
type Conn struct {
	unix *net.UnixConn
	raw  syscall.RawConn // of unix

	// Of the process that connected, or that listened; at that time.
	pid      int
	uid, gid uint32
	since    time.Duration // when this end was made, since the machine started

	mem laneMemory
	out outgoing
	in  *lane.Receiver // nil: all packets come by the socket

	control   []byte   // Receive's buffer for control messages
	sending   sendCall // the call of trySend
	receiving recvCall // the call of Receive
}

// recvCall holds the arguments and the results of a Receive, as sendCall does.
type recvCall struct {
	do                   func(fd uintptr) bool // runs on the descriptor; false: wait for a packet
	buf                  []byte
	mayWait              func() bool // called before a wait: whether to wait; nil: wait
	n, controlLen, flags int
	err                  error
}

// sendCall holds the arguments and the results of a trySend. They are fields and
// not variables of a closure, so that a packet costs no allocation.
type sendCall struct {
	do      func(fd uintptr) bool // runs on the descriptor; always true
	head    []byte                // before the packet
	packet  []byte
	control []byte
	err     error
}

// Send sends one packet, with descriptors that stay the caller's. It blocks
// while the peer's queue is full, up to the deadline. After an error, which is
// [ErrGone] when the peer has closed the connection, nothing has been sent.
func (c *Conn) Send(packet []byte, fds []int) error {
	if err := checkPacket(packet, fds); err != nil {
		return err
	}
	return c.send(packet, fds)
}

// checkPacket checks the size of a packet. The peer would take an empty packet
// for the end of the connection.
func checkPacket(packet []byte, fds []int) error {
	if len(packet) == 0 || len(packet) > wire.MaxPacket || len(fds) > wire.MaxDescriptors {
		return fmt.Errorf("send packet: %d bytes with %d descriptors; a packet has 1 to %d bytes and at most %d descriptors: %w",
			len(packet), len(fds), wire.MaxPacket, wire.MaxDescriptors, wire.CodeInvalid)
	}
	return nil
}

// Receive waits for a packet and reads it into buf, which should have space for
// [wire.MaxPacket] bytes. The caller closes the descriptors. Receive returns
// io.EOF when the peer has closed the connection and all its packets have been
// read, or when the peer has sent a packet of no bytes, which looks the same. The
// error for a packet that is longer than buf, or has more than
// [wire.MaxDescriptors] descriptors, is [wire.ErrProtocol]; the error if this
// process cannot have more descriptors open is [wire.CodeMemory]. After an error
// there are no descriptors to close.
func (c *Conn) Receive(buf []byte) (n int, fds []int, err error) {
	return c.receive(buf, nil)
}

// Credentials returns the process that connected, or that listened, and the
// user and group that it ran as at that time. pid is 0 when the process is in a
// pid namespace that cannot be seen from here.
func (c *Conn) Credentials() (pid int, uid, gid uint32) { return c.pid, c.uid, c.gid }

// Unix is the socket, for a protocol other than this package's: its users call no other method of Conn than Credentials
// and Close, and [Watch].
func (c *Conn) Unix() *net.UnixConn { return c.unix }

// SetDeadline bounds Send and Receive, including calls that wait already; the
// zero time removes the bound.
func (c *Conn) SetDeadline(t time.Time) error { return c.unix.SetDeadline(t) }

// SetWriteDeadline bounds Send alone.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.unix.SetWriteDeadline(t) }

// HungUp reports whether the connection has ended: the peer or this process has
// closed its end. It asks the kernel, and does not block. Packets that the peer has
// sent before may still be unread.
func (c *Conn) HungUp() bool { return c.hungUp() }

// HangUp shuts the connection down for both ends without closing it: packets that the peer has
// sent before can still be received.
func (c *Conn) HangUp() { c.hangUp() }

// Close closes this end. The peer can read the packets that were sent. Calls of
// Send and Receive that wait return net.ErrClosed.
func (c *Conn) Close() error { return c.unix.Close() }
