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

// Receiver receives the messages of a connection one by one. Its methods are for one
// goroutine, except Poll.
type Receiver struct {
	conn        *Conn
	buf         []byte // a packet by the socket
	rest        []byte // messages of the packet that Next has not returned yet
	fds         []int  // their descriptors
	onIdle      func()
	mayWaitFunc func() bool // mayWait, made once
	order       packetOrder
	socketErr   error // the error that ended the socket

	reading      lockorder.Right[lockorder.ReceiverReading] // held by the goroutine that receives; guards all fields but socketReady
	handle       Handler                                    // nil: Serve has not begun, or has returned
	waiting      bool                                       // Serve waits for the socket, and does not hold the lock
	waitingSince time.Time                                  // when Serve began to wait, or the last Poll ended
	woken        bool                                       // Poll has woken Serve
	pollErr      error                                      // the error of Poll, for Serve
	socketReady  atomic.Bool
	closing      sync.Once
}

// Handler handles a message. The body is valid until the handler returns; the handler closes the
// descriptors.
type Handler func(h wire.Header, body []byte, fds []int) error

// OnIdle makes the Receiver call f each time it finds no packet and is about to wait for one. f
// must not block.
func (r *Receiver) OnIdle(f func()) { r.onIdle = f }

// NewReceiver returns the Receiver of a connection. Only it may receive from the
// connection.
func NewReceiver(conn *Conn) *Receiver {
	r := &Receiver{conn: conn, buf: make([]byte, wire.MaxPacket)}
	r.mayWaitFunc = r.mayWait
	return r
}

// Next waits for the next message of a known kind. The body is valid until the next call; the
// caller closes the descriptors. The error is that of [Conn.Receive], or [wire.ErrProtocol] for
// an invalid packet; then all received descriptors are closed, and the connection is of no more
// use.
func (r *Receiver) Next() (h wire.Header, body []byte, fds []int, err error) {
	for {
		if h, body, fds, err = r.next(); err != nil || !h.Skip {
			return h, body, fds, err
		}
		process.CloseAll(fds)
	}
}

// next is Next without skipping messages of unknown kinds.
func (r *Receiver) next() (h wire.Header, body []byte, fds []int, err error) {
	if len(r.rest) == 0 {
		if r.rest, r.fds, err = r.packet(); err != nil {
			return wire.Header{}, nil, nil, err
		}
	}
	h, body, rest, err := wire.Next(r.rest)
	if err == nil {
		fds, err = r.takeDescriptors(h, len(rest) == 0)
	}
	if err != nil {
		r.discard()
		return wire.Header{}, nil, nil, fmt.Errorf("receive message: %w", err)
	}
	r.rest = rest
	return h, body, fds, nil
}

// takeDescriptors returns the descriptors of a message. All remaining descriptors must belong
// to the last message of a packet.
func (r *Receiver) takeDescriptors(h wire.Header, last bool) ([]int, error) {
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
		if err := r.order.violation(r.conn.in); err != nil {
			return nil, nil, err
		}
		if r.socketErr != nil {
			return nil, nil, r.socketErr
		}
		p, fds, err := r.await()
		switch {
		case r.pollErr != nil:
			process.CloseAll(fds)
			return nil, nil, r.pollErr
		case err == nil:
			if err := r.order.addPacket(p, fds, r.conn.in != nil); err != nil {
				return nil, nil, err
			}
		case errors.Is(err, net.ErrClosed):
			return nil, nil, err
		case !errors.Is(err, errAwake):
			r.socketErr = err // frames that the peer has left in the lane come first
		}
	}
}

// await receives a packet by the socket. While Serve waits for it, Poll can handle frames of
// the lane. The error is errAwake if the lane may have a frame.
func (r *Receiver) await() ([]byte, []int, error) {
	n, fds, err := r.conn.receive(r.buf, r.mayWaitFunc)
	if r.waiting {
		r.socketReady.Store(true) // ends a Poll
		r.reading.Lock()
		r.socketReady.Store(false)
		r.waiting = false
		if in := r.conn.in; in != nil {
			in.RecordSleep(time.Since(r.waitingSince))
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

// errAwake reports that no packet came by the socket, and that the Receiver must not wait for one.
var errAwake = errors.New("not to wait")

// mayWait is called when there is no packet to receive by the socket. It reports whether the
// Receiver may wait for one.
func (r *Receiver) mayWait() bool {
	if r.waiting { // it has waited already, and was woken for the lane
		return false
	}
	if r.onIdle != nil {
		r.onIdle()
	}
	if !r.order.doze(r.conn.in) {
		return false
	}
	r.waitingSince = time.Now()
	if r.handle != nil {
		r.waiting = true
		r.reading.Unlock()
	}
	return true
}

// Serve calls handle for one message after the other, until handle fails or the connection
// ends. The error is that of Next or of handle. Serve is called once. It calls handle on its
// own goroutine; Poll calls it on another.
func (r *Receiver) Serve(handle Handler) error {
	r.reading.Lock()
	defer r.reading.Unlock()
	r.handle = handle
	defer func() { r.handle = nil }()
	for {
		if err := r.handleNext(); err != nil {
			return err
		}
	}
}

// handleNext handles the next message, or skips it if its kind is unknown.
func (r *Receiver) handleNext() error {
	h, body, fds, err := r.next()
	switch {
	case err != nil:
		return err
	case h.Skip: // returns, since the next message may not have come yet
		process.CloseAll(fds)
		return nil
	}
	lockorder.AssertNone("the handler of messages is called")
	return r.handle(h, body, fds)
}

// Poll handles messages of the lane on the caller's goroutine, which waits for the peer and
// holds no lock. It polls for some tens of microseconds at most, as long as polls have found
// messages lately, or until stop reports true. No goroutine has to be woken then, in either
// process, when the peer answers. Before Poll handles the first message it calls begin; if
// begin reports false, Poll leaves the messages to Serve. It reports whether it has handled any.
// Any goroutine may call it.
func (r *Receiver) Poll(stop, begin func() bool) (handled bool) {
	lockorder.AssertNone("a goroutine polls a connection")
	if !r.reading.TryLock() {
		return false // another goroutine receives
	}
	defer r.reading.Unlock()
	in := r.conn.in
	enough := func() bool { return r.socketReady.Load() || stop() }
	if in == nil || !r.waiting || r.woken || !r.order.noHeldFrame() || enough() {
		return false
	}
	defer func() { r.waitingSince = time.Now() }()
	for {
		in.EndSleep()
		if !in.Poll(enough) && in.PrepareSleep() {
			return handled
		}
		if !handled && !begin() {
			r.wakeServe()
			return false
		}
		handled = true
		switch r.handleFrames(); {
		case r.pollErr != nil, in.Err() != nil:
			r.wakeServe()
			return true
		case !r.order.noHeldFrame(): // Serve receives the packet before the frame
			return true
		case enough():
			if !r.order.doze(in) {
				r.wakeServe()
			}
			return true
		}
	}
}

// handleFrames handles the messages that have come by the lane.
func (r *Receiver) handleFrames() {
	for r.pollErr == nil {
		p, _, ok := r.order.next(r.conn.in)
		if !ok {
			break
		}
		for r.rest = p; len(r.rest) > 0 && r.pollErr == nil; {
			r.pollErr = r.handleNext()
		}
	}
	if r.onIdle != nil {
		r.onIdle()
	}
}

// wakeServe wakes Serve.
func (r *Receiver) wakeServe() {
	r.woken = true
	_ = r.conn.unix.SetReadDeadline(time.Unix(1, 0)) // if it is closed, Serve does not wait
}

// Close closes the descriptors of messages that Next has not returned, and releases the lane's
// memory. The connection stays open. Serve has returned before.
func (r *Receiver) Close() {
	r.discard()
	r.closing.Do(r.conn.mem.release)
}

func (r *Receiver) discard() {
	process.CloseAll(r.fds)
	r.rest, r.fds = nil, nil
	r.order.discard()
}
