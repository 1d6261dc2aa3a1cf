package peer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// sendBufferBytes is the kernel's buffer for packets that the peer has not read.
// It must hold a packet with the kernel's overhead; a larger one saves waiting.
const sendBufferBytes = 4 * wire.MaxPacket

// newConn makes a Conn of a connection. It owns the connection, even if it fails.
func newConn(uc *net.UnixConn) (*Conn, error) {
	c := &Conn{unix: uc, control: make([]byte, unix.CmsgSpace(wire.MaxDescriptors*4))}
	err := c.init()
	if err != nil {
		_ = uc.Close() // err is the cause
		return nil, fmt.Errorf("set up connection: %w", err)
	}
	return c, nil
}

func (c *Conn) init() (err error) {
	if c.since, err = process.SinceBoot(); err != nil {
		return err
	}
	if err := c.unix.SetWriteBuffer(sendBufferBytes); err != nil {
		return err
	}
	if c.raw, err = c.unix.SyscallConn(); err != nil {
		return err
	}
	c.sending.do, c.receiving.do = c.trySendmsg, c.tryRecvmsg
	var cred *unix.Ucred
	var credErr error
	err = c.raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return err
	}
	c.pid, c.uid, c.gid = int(cred.Pid), cred.Uid, cred.Gid
	return nil
}

// Pair returns the two ends of a new connection.
func Pair() (*Conn, *Conn, error) {
	fds, err := Sockets()
	if err != nil {
		return nil, nil, err
	}
	a, errA := Open(fds[0])
	b, errB := Open(fds[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, c := range []*Conn{a, b} {
			if c != nil {
				_ = c.Close() // unused; err is the cause
			}
		}
		return nil, nil, err
	}
	return a, b, nil
}

// Sockets returns the descriptors of the two ends of a new connection, for
// [Open] in other processes. The caller closes them. The credentials of either
// end are those of the process that called Sockets, and name no peer.
func Sockets() ([2]int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fds, fmt.Errorf("make pair of sockets: %w", err)
	}
	return fds, nil
}

// Open makes a Conn of one of [Sockets]. It owns the descriptor, even if it fails.
func Open(fd int) (*Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = f.Close() }() // FileConn has a descriptor of its own
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close() // no Unix socket
		return nil, fmt.Errorf("open socket: it is a %T", conn)
	}
	return newConn(uc)
}

func (c *Conn) send(packet []byte, fds []int) error {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	head := c.out.head()
	if len(head)+len(packet) > wire.MaxPacket { // then a packet of its own tells of the frames
		if err := c.send(nil, nil); err != nil {
			return err
		}
		head = nil
	}
	if head != nil {
		packet = append(head, packet...)
	}
	_, _, err := c.unix.WriteMsgUnix(packet, control, nil)
	if err == nil {
		c.out.countPacket()
	}
	return sendError(err)
}

// trySend is Send without blocking: it returns false, without an error, when
// there is no space.
func (c *Conn) trySend(packet []byte, fds []int) (sent bool, err error) {
	if len(fds) == 0 {
		sent, err = c.out.trySendFrame(packet)
	}
	if !sent && err == nil {
		sent, err = c.trySendPacket(packet, fds)
	}
	if sent {
		packetsSent.Add(1)
	}
	return sent, err
}

// trySendPacket is trySend by the socket. A packet of no bytes wakes the peer.
func (c *Conn) trySendPacket(packet []byte, fds []int) (sent bool, err error) {
	head := c.out.head()
	if len(head)+len(packet) > wire.MaxPacket { // then a packet of its own tells of the frames
		if sent, err := c.trySendPacket(nil, nil); !sent {
			return false, err
		}
		head = nil
	}
	out, sleep := c.out.sleeping()
	c.sending.head, c.sending.packet, c.sending.control = head, packet, nil
	if len(fds) > 0 {
		c.sending.control = unix.UnixRights(fds...)
	}
	err = c.raw.Write(c.sending.do)
	if err == nil {
		err = c.sending.err
	}
	c.sending.head, c.sending.packet, c.sending.control = nil, nil, nil
	if errors.Is(err, unix.EAGAIN) {
		return false, nil
	}
	if err != nil {
		return false, sendError(err)
	}
	c.out.countPacket()
	if out != nil { // the packet has woken the peer
		out.MarkWoken(sleep)
	}
	return true, nil
}

// trySendmsg sends the packet of c.sending. It always returns true: false would
// make the runtime wait for space.
func (c *Conn) trySendmsg(fd uintptr) bool {
	for {
		c.sending.err = sendmsg(fd, c.sending.head, c.sending.packet, c.sending.control)
		if !errors.Is(c.sending.err, unix.EINTR) {
			return true
		}
	}
}

func sendError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("send packet: %w", ErrGone)
	default:
		return fmt.Errorf("send packet: %w", err)
	}
}

// tryRecvmsg receives a packet for c.receiving. It returns false if it has to wait.
func (c *Conn) tryRecvmsg(fd uintptr) bool {
	t := &c.receiving
	for {
		t.n, t.controlLen, t.flags, t.err = recvmsg(fd, t.buf, c.control)
		switch {
		case errors.Is(t.err, unix.EINTR), errors.Is(t.err, unix.ECONNRESET):
			// The peer has closed without reading all packets. The kernel reports
			// that once, before the packets that the peer had sent.
			continue
		case errors.Is(t.err, unix.EAGAIN):
			return t.mayWait != nil && !t.mayWait()
		}
		return true
	}
}

func (c *Conn) receive(buf []byte, mayWait func() bool) (int, []int, error) {
	t := &c.receiving
	t.buf, t.mayWait, t.controlLen = buf, mayWait, 0
	err := c.raw.Read(t.do)
	n, controlLen, flags := t.n, t.controlLen, t.flags
	if err == nil {
		err = t.err
	} else {
		controlLen = 0
	}
	t.buf, t.mayWait = nil, nil
	if errors.Is(err, unix.EAGAIN) {
		return 0, nil, errAwake
	}
	fds := descriptorsOf(c.control[:controlLen])
	switch {
	case err == nil && n == 0:
		err = io.EOF
	case err != nil:
		err = fmt.Errorf("receive packet: %w", err)
	case flags&unix.MSG_TRUNC != 0:
		err = protocolError("a packet of more than %d bytes", len(buf))
	case flags&unix.MSG_CTRUNC != 0 && len(fds) < wire.MaxDescriptors: // c.control had space for more
		err = packetError(wire.CodeMemory, "process %d could not take the descriptors that came: it has too many files open, and may have %d: %s", os.Getpid(), limits.Files(), limits.FilesAdvice)
	case flags&unix.MSG_CTRUNC != 0 || len(fds) > wire.MaxDescriptors:
		err = protocolError("descriptors were lost: more than %d of them came", wire.MaxDescriptors)
	}
	if err != nil {
		process.CloseAll(fds)
		return 0, nil, err
	}
	return n, fds, nil
}

// descriptorsOf returns all descriptors in control messages. The kernel writes these
// messages, and sends other kinds only to sockets that have enabled them.
func descriptorsOf(control []byte) (fds []int) {
	if len(control) == 0 {
		return nil
	}
	messages, _ := unix.ParseSocketControlMessage(control)
	for i := range messages {
		got, _ := unix.ParseUnixRights(&messages[i])
		fds = append(fds, got...)
	}
	return fds
}

func (c *Conn) hungUp() bool {
	fds := []unix.PollFd{{Events: unix.POLLRDHUP}}
	var n int
	var err error
	if c.raw.Control(func(fd uintptr) {
		fds[0].Fd = int32(fd)
		n, err = unix.Poll(fds, 0)
	}) != nil {
		return true // closed here
	}
	return err == nil && n == 1
}

func (c *Conn) hangUp() {
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // it may have ended already
}
