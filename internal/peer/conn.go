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
	in  *lane.Receiver // nil: all comes by the socket

	control   []byte   // Receive's room for control messages
	sending   sendCall // what trySend is about
	receiving recvCall // what Receive is about
}

// recvCall holds the arguments and the results of a Receive, as attempt does.
type recvCall struct {
	do                   func(fd uintptr) bool // runs on the descriptor; false: it is to wait
	buf                  []byte
	mayWait              func() bool // before it waits: whether it is to; nil: it is
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

// checkPacket checks what a caller wants to send. An empty packet would be
// taken for the end of the connection.
func checkPacket(packet []byte, fds []int) error {
	if len(packet) == 0 || len(packet) > wire.MaxPacket || len(fds) > wire.MaxDescriptors {
		return fmt.Errorf("send packet: %d bytes with %d descriptors; a packet has 1 to %d bytes and at most %d descriptors: %w",
			len(packet), len(fds), wire.MaxPacket, wire.MaxDescriptors, wire.CodeInvalid)
	}
	return nil
}

// Receive waits for a packet and reads it into buf, which should have room for
// [wire.MaxPacket] bytes. The descriptors are the caller's to close. Receive
// returns io.EOF when the peer has closed the connection and all its packets
// have been read, and when the peer has sent a packet of no bytes, which looks
// the same. A packet that is longer than buf, or has more than
// [wire.MaxDescriptors] descriptors, is [wire.ErrProtocol]. One whose descriptors
// this process has no place for is [wire.CodeMemory]. After an error there are no
// descriptors to close.
func (c *Conn) Receive(buf []byte) (n int, fds []int, err error) {
	return c.receive(buf, nil)
}

// Credentials returns the process that connected, or that listened, and the
// user and group that it ran as at that time. pid is 0 when the process is in a
// pid namespace that cannot be seen from here.
func (c *Conn) Credentials() (pid int, uid, gid uint32) { return c.pid, c.uid, c.gid }

// Unix is the connection below, for a protocol that is not this package's: then nothing else of Conn but Credentials,
// [Watch] and Close is used.
func (c *Conn) Unix() *net.UnixConn { return c.unix }

// SetDeadline bounds Send and Receive, those that wait as well; the zero time
// takes the bound away.
func (c *Conn) SetDeadline(t time.Time) error { return c.unix.SetDeadline(t) }

// SetWriteDeadline bounds Send alone.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.unix.SetWriteDeadline(t) }

// HungUp reports whether the connection has ended: the peer has closed its end, or
// this one was closed. It asks the kernel, and does not wait. What the peer has sent
// before may be there to be read still.
func (c *Conn) HungUp() bool { return c.hungUp() }

// HangUp ends the connection for both ends, and leaves it open: what the peer has sent before
// can be received still.
func (c *Conn) HangUp() { c.hangUp() }

// Close closes this end. The peer can read what has been sent. Send and
// Receive that wait return net.ErrClosed.
func (c *Conn) Close() error { return c.unix.Close() }
