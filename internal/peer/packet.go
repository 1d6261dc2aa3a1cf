package peer

import (
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// packet gathers messages that will travel together.
type packet struct {
	buf []byte
	fds []int
}

// packetPool keeps the buffers of packets: most messages are small and leave at
// once, and a buffer for each would cost more than the rest of sending them.
var packetPool = sync.Pool{New: func() any { return new(packet) }}

func newPacket() *packet { return packetPool.Get().(*packet) }

// recycle gives the packet back, which must not be used any more.
func (p *packet) recycle() {
	p.reset()
	packetPool.Put(p)
}

func (p *packet) reset() { p.buf, p.fds = p.buf[:0], p.fds[:0] }

// add writes a message behind the others, or returns false when it does not
// fit.
func (p *packet) add(version uint16, m wire.Message, fds []int) (fits bool, err error) {
	b, err := wire.Append(p.buf, version, m, len(fds))
	if err != nil {
		return false, err
	}
	if len(b) > wire.MaxPacket || len(p.fds)+len(fds) > wire.MaxDescriptors {
		p.buf = b[:len(p.buf)]
		return false, nil
	}
	p.buf, p.fds = b, append(p.fds, fds...)
	return true, nil
}

// Packer sends messages in as few packets as possible, for one goroutine that
// may block. Messages stay in it until Flush, or until a packet is full.
type Packer struct {
	conn    *Conn
	version uint16
	packet  packet
}

// NewPacker returns a Packer for a connection whose ends have agreed on a
// version of the protocol.
func NewPacker(conn *Conn, version uint16) *Packer {
	return &Packer{conn: conn, version: version}
}

// Add adds a message. The descriptors stay the caller's, who keeps them open
// until Flush has returned. A message that breaks a bound is an error that is
// [wire.CodeInvalid] and changes nothing; any other error is that of Send.
func (p *Packer) Add(m wire.Message, fds ...int) error {
	fits, err := p.packet.add(p.version, m, fds)
	if err == nil && !fits {
		if err = p.Flush(); err == nil {
			_, err = p.packet.add(p.version, m, fds) // one message always fits
		}
	}
	if err != nil {
		return fmt.Errorf("add message: %w", err)
	}
	return nil
}

// Flush sends what has been added. After an error of Send it is lost.
func (p *Packer) Flush() error {
	if len(p.packet.buf) == 0 {
		return nil
	}
	defer p.packet.reset()
	return p.conn.Send(p.packet.buf, p.packet.fds)
}
