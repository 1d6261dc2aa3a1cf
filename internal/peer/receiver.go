package peer

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Receiver takes the messages of a connection one by one. It is for one
// goroutine.
type Receiver struct {
	conn *Conn
	buf  []byte
	rest []byte // messages of the packet that Next has not returned
	fds  []int  // their descriptors
	idle func()
}

// OnIdle has f called each time Next finds no packet and is about to wait for one. It must not
// wait itself.
func (r *Receiver) OnIdle(f func()) { r.idle = f }

// NewReceiver returns a Receiver for a connection from which nobody else
// receives.
func NewReceiver(conn *Conn) *Receiver {
	return &Receiver{conn: conn, buf: make([]byte, wire.MaxPacket)}
}

// Next waits for the next message. The body is valid until the next call; the
// descriptors are the caller's to close. An error is that of [Conn.Receive], or
// [wire.ErrProtocol] for a packet that is none; all descriptors that have come
// are then closed, and the connection is of no more use.
func (r *Receiver) Next() (h wire.Header, body []byte, fds []int, err error) {
	if len(r.rest) == 0 {
		n, got, err := r.conn.receive(r.buf, r.idle)
		if err != nil {
			return wire.Header{}, nil, nil, err
		}
		r.rest, r.fds = r.buf[:n], got
	}
	h, body, rest, err := wire.Next(r.rest)
	if err == nil {
		fds, err = r.take(h, len(rest) == 0)
	}
	if err != nil {
		r.Close()
		return wire.Header{}, nil, nil, fmt.Errorf("receive message: %w", err)
	}
	r.rest = rest
	return h, body, fds, nil
}

// More reports whether the packet has messages that Next has not returned.
func (r *Receiver) More() bool { return len(r.rest) > 0 }

// take returns the descriptors of a message. The last message of a packet must
// have all that are left.
func (r *Receiver) take(h wire.Header, last bool) ([]int, error) {
	if n := len(r.fds); h.Descriptors > n || last && h.Descriptors < n {
		return nil, &wire.Error{
			Code: wire.CodeProtocol,
			Text: fmt.Sprintf("%v says that %d descriptors belong to it, and the packet has %d left", h.Kind, h.Descriptors, n),
		}
	}
	fds := r.fds[:h.Descriptors:h.Descriptors]
	r.fds = r.fds[h.Descriptors:]
	return fds, nil
}

// Close closes the descriptors that have come and that Next has not returned.
// The connection stays open.
func (r *Receiver) Close() {
	CloseAll(r.fds)
	r.rest, r.fds = nil, nil
}
