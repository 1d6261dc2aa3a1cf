package peer

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// packet gathers messages that are sent together.
type packet struct {
	buf []byte
	fds []int
}

// packetPool keeps the buffers of packets: most messages are small and are sent at
// once, and a new buffer for each would cost more than the rest of sending.
var packetPool = sync.Pool{New: func() any { return new(packet) }}

func newPacket() *packet { return packetPool.Get().(*packet) }

// recycle puts the packet into the pool. It must not be used any more.
func (p *packet) recycle() {
	p.reset()
	packetPool.Put(p)
}

func (p *packet) reset() { p.buf, p.fds = p.buf[:0], p.fds[:0] }

// add appends a message, or returns false if it does not fit.
func (p *packet) add(m wire.Message, fds []int) (fits bool, err error) {
	b, err := wire.Append(p.buf, m, len(fds))
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
