package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Receiver takes the messages of a connection one by one. Its methods are for one
// goroutine, but for Look.
type Receiver struct {
	conn  *Conn
	buf   []byte // a packet by the socket
	rest  []byte // messages of the packet that Next has not returned
	fds   []int  // their descriptors
	idle  func()
	rests func() bool // mayWait, made once
	order order
	over  error // why nothing more comes by the socket

	reading lockorder.Right[lockorder.ReceiverReading] // held by the goroutine that receives; guards all but arrived
	handle  Handler                                    // nil: Serve has not begun, or has returned
	waits   bool                                       // Serve waits for the socket, and does not hold the lock
	since   time.Time                                  // when it began to, or the last Look ended
	woken   bool                                       // Look has woken Serve
	failed  error                                      // what Look failed with, for Serve
	arrived atomic.Bool
	closing sync.Once
}

// Handler handles a message. The body is valid until it returns; the descriptors are the
// handler's to close.
type Handler func(h wire.Header, body []byte, fds []int) error

// OnIdle has f called each time Next finds no packet and is about to wait for one. It must not
// wait itself.
func (r *Receiver) OnIdle(f func()) { r.idle = f }

// NewReceiver returns a Receiver for a connection from which nobody else
// receives.
func NewReceiver(conn *Conn) *Receiver {
	r := &Receiver{conn: conn, buf: make([]byte, wire.MaxPacket)}
	r.rests = r.mayWait
	return r
}

// Next waits for the next message of a kind that is known. The body is valid until the next call; the
// descriptors are the caller's to close. An error is that of [Conn.Receive], or
// [wire.ErrProtocol] for a packet that is none; all descriptors that have come
// are then closed, and the connection is of no more use.
func (r *Receiver) Next() (h wire.Header, body []byte, fds []int, err error) {
	for {
		if h, body, fds, err = r.next(); err != nil || !h.Skip {
			return h, body, fds, err
		}
		process.CloseAll(fds)
	}
}

// next is Next of any message, also of one to be skipped.
func (r *Receiver) next() (h wire.Header, body []byte, fds []int, err error) {
	if len(r.rest) == 0 {
		if r.rest, r.fds, err = r.packet(); err != nil {
			return wire.Header{}, nil, nil, err
		}
	}
	h, body, rest, err := wire.Next(r.rest)
	if err == nil {
		fds, err = r.take(h, len(rest) == 0)
	}
	if err != nil {
		r.discard()
		return wire.Header{}, nil, nil, fmt.Errorf("receive message: %w", err)
	}
	r.rest = rest
	return h, body, fds, nil
}

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

// packet waits for the next packet, and returns it in the order in which the peer has sent
// it, by the lane or by the socket.
func (r *Receiver) packet() ([]byte, []int, error) {
	for {
		if p, fds, ok := r.order.next(r.conn.in); ok {
			return p, fds, nil
		}
		if err := r.order.broken(r.conn.in); err != nil {
			return nil, nil, err
		}
		if r.over != nil {
			return nil, nil, r.over
		}
		p, fds, err := r.await()
		switch {
		case r.failed != nil:
			process.CloseAll(fds)
			return nil, nil, r.failed
		case err == nil:
			if err := r.order.arrived(p, fds, r.conn.in != nil); err != nil {
				return nil, nil, err
			}
		case errors.Is(err, net.ErrClosed):
			return nil, nil, err
		case !errors.Is(err, errAwake):
			r.over = err // what the peer has left in the lane comes still
		}
	}
}

// await receives a packet by the socket. While Serve waits for that, Look can handle what
// comes by the lane. The error is errAwake when there may be something by the lane.
func (r *Receiver) await() ([]byte, []int, error) {
	n, fds, err := r.conn.receive(r.buf, r.rests)
	if r.waits {
		r.arrived.Store(true) // ends a Look
		r.reading.Lock()
		r.arrived.Store(false)
		r.waits = false
		if in := r.conn.in; in != nil {
			in.RecordSleep(time.Since(r.since))
		}
	}
	if in := r.conn.in; in != nil {
		in.EndSleep()
	}
	if r.woken && errors.Is(err, os.ErrDeadlineExceeded) {
		err = errAwake
	}
	if r.woken {
		r.woken = false
		if reset := r.conn.unix.SetReadDeadline(time.Time{}); reset != nil && err == nil {
			process.CloseAll(fds)
			err = reset
		}
	}
	return r.buf[:n], fds, err
}

// errAwake says that nothing came by the socket, and that there is no need to wait for it.
var errAwake = errors.New("not to wait")

// mayWait is called when there is nothing to receive by the socket. It is false if the
// Receiver is not to wait for it.
func (r *Receiver) mayWait() bool {
	if r.waits { // it has waited, and something came by the lane
		return false
	}
	if r.idle != nil {
		r.idle()
	}
	if !r.order.dozes(r.conn.in) {
		return false
	}
	r.since = time.Now()
	if r.handle != nil {
		r.waits = true
		r.reading.Unlock()
	}
	return true
}

// Serve calls handle for one message after the other, until that fails or the connection
// ends. The error says why, and is that of Next or of handle. It is called once, and calls
// handle on its own goroutine or has Look do so.
func (r *Receiver) Serve(handle Handler) error {
	r.reading.Lock()
	defer r.reading.Unlock()
	r.handle = handle
	defer func() { r.handle = nil }()
	for {
		if err := r.one(); err != nil {
			return err
		}
	}
}

// one handles the next message, if its kind is known.
func (r *Receiver) one() error {
	h, body, fds, err := r.next()
	switch {
	case err != nil:
		return err
	case h.Skip: // what comes next may be in no packet that is here
		process.CloseAll(fds)
		return nil
	}
	lockorder.AssertNone("the handler of messages is called")
	return r.handle(h, body, fds)
}

// Poll handles what the peer sends by the lane on the goroutine that calls it, which waits for
// the peer and holds no lock: for up to some tens of microseconds, as long as that has paid
// lately, or until stop reports true. Nothing has to be woken then, in either process, when
// the peer answers. Before it handles anything it calls begin, and leaves it to Serve when
// that reports false. Any goroutine may call it.
func (r *Receiver) Poll(stop, begin func() bool) (handled bool) {
	lockorder.AssertNone("a goroutine looks at a connection")
	if !r.reading.TryLock() {
		return false // another goroutine receives
	}
	defer r.reading.Unlock()
	in := r.conn.in
	enough := func() bool { return r.arrived.Load() || stop() }
	if in == nil || !r.waits || r.woken || !r.order.free() || enough() {
		return false
	}
	defer func() { r.since = time.Now() }()
	for {
		in.EndSleep()
		if !in.Poll(enough) && in.PrepareSleep() {
			return handled
		}
		if !handled && !begin() {
			r.wake()
			return false
		}
		handled = true
		switch r.frames(); {
		case r.failed != nil, in.Err() != nil:
			r.wake()
			return true
		case !r.order.free(): // Serve receives the packet that comes first
			return true
		case enough():
			if !r.order.dozes(in) {
				r.wake()
			}
			return true
		}
	}
}

// frames handles what has come by the lane.
func (r *Receiver) frames() {
	for r.failed == nil {
		p, _, ok := r.order.next(r.conn.in)
		if !ok {
			break
		}
		for r.rest = p; len(r.rest) > 0 && r.failed == nil; {
			r.failed = r.one()
		}
	}
	if r.idle != nil {
		r.idle()
	}
}

// wake has Serve go on.
func (r *Receiver) wake() {
	r.woken = true
	_ = r.conn.unix.SetReadDeadline(time.Unix(1, 0)) // of one that is closed, Serve does not wait
}

// Close closes the descriptors of messages that Next has not returned, and lets go of the
// lane's memory. The connection stays open. It comes after Serve.
func (r *Receiver) Close() {
	r.discard()
	r.closing.Do(r.conn.mem.leave)
}

func (r *Receiver) discard() {
	process.CloseAll(r.fds)
	r.rest, r.fds = nil, nil
	r.order.discard()
}
