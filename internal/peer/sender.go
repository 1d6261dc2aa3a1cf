package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Sender is the outgoing queue of a connection. Queue never waits for the peer.
//
// If the queue is empty, Queue sends a message on the caller's goroutine, which saves
// waking another. A message that cannot be sent at once waits for the Sender's own
// goroutine. Messages that come while a packet is being sent are gathered into as few
// packets as possible.
//
// QueueLater delays a message: it is sent with the next one, or after a delay.
//
// A message that Queue or QueueLater has accepted is sent, or the connection ends: the
// peer could not interpret messages behind a lost one. Both ends then receive the end of
// the connection.
type Sender struct {
	conn  *Conn
	opts  SenderOptions
	delay time.Duration // of QueueLater; tests change it
	done  chan struct{} // closed when the goroutine has ended

	closeOnce sync.Once
	closeErr  error

	work chan struct{} // signals the goroutine that a field below has changed

	mu    lockorder.Mutex[lockorder.Sender]
	queue []*packet // in order; the last one may take more messages
	// Of the messages that wait or are being sent.
	bytes, descriptors int
	// writing is set while a packet that has left the queue is being sent. Only the
	// goroutine that has set it may use the connection: packets keep their order.
	writing bool
	// delayed is set if all of the queue can wait until the timer fires.
	delayed      bool
	delayedSince time.Time // when delayed was last set
	timer        *time.Timer
	timerRunning bool // the timer is set
	batches      int  // batches that hold the queue back: see PacketBatch
	closing      bool
	blockedSince time.Time // when the goroutine began to wait for space; zero: it does not wait
	err          error     // the error that ended the connection
}

// packetsSent counts the packets that the Senders of this process have sent without waiting for space.
var packetsSent atomic.Int64

// PacketsSent is how many packets the Senders of this process have sent without waiting for
// space.
func PacketsSent() int64 { return packetsSent.Load() }

// NewSender starts the Sender of a connection. Only it may send on the connection.
// The caller closes it, and the connection afterwards.
func NewSender(conn *Conn, opts SenderOptions) (*Sender, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("sender options: %w", err)
	}
	opts = opts.withDefaults()
	s := &Sender{conn: conn, opts: opts, delay: QueueLaterDelay, done: make(chan struct{}), work: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	s.timer.Stop()
	go s.run()
	return s, nil
}

// Queue sends a message, now or as soon as the peer reads. It does not keep m.
// The descriptors stay the caller's and may be closed once Queue has returned:
// those of a message that waits are duplicated.
//
// After an error the message is not sent, but a later message may be; the caller
// decides whether the connection can go on. The error is [wire.CodeInvalid] for a message
// that breaks a bound, [ErrBacklog] if the peer has not read for a while, an error of
// the system if it lacks a resource, such as descriptors, [ErrClosed] after Close,
// and the error of [Sender.Err] if the connection has failed.
func (s *Sender) Queue(m wire.Message, fds ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.delayed || s.batches > 0) && len(fds) > 0 {
		s.flushLocked() // otherwise they are duplicated, and the bound may be reached
	}
	err := s.closedErrLocked()
	switch {
	case err != nil:
	case s.batches > 0 && len(fds) == 0:
		err = s.enqueue(m, fds)
		s.delayed = s.delayed && err != nil
	case s.delayed:
		if err = s.enqueue(m, fds); err == nil {
			s.flushLocked()
		}
	case s.writing || len(s.queue) > 0:
		err = s.enqueue(m, fds)
	default:
		err = s.sendNow(m, fds)
	}
	if err != nil {
		return fmt.Errorf("queue message: %w", err)
	}
	return nil
}

// closedErrLocked is the error of a Sender that accepts no more messages, or nil.
func (s *Sender) closedErrLocked() error {
	switch {
	case s.err != nil:
		return s.err
	case s.closing:
		return ErrClosed
	}
	return nil
}

// QueueLater is Queue for a message that is not urgent: it is sent with the next message
// that is queued, in order, or after QueueLaterDelay.
func (s *Sender) QueueLater(m wire.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	idle := !s.writing && len(s.queue) == 0
	err := s.closedErrLocked()
	if err == nil {
		err = s.enqueue(m, nil)
	}
	if err != nil {
		return fmt.Errorf("queue message: %w", err)
	}
	switch {
	case idle:
		s.startDelay()
	case s.delayed && len(s.queue) > 1 && s.batches == 0: // a whole packet
		s.flushLocked()
	}
	return nil
}

// startDelay leaves the queue to the next message, or to the timer. s.mu is held. A timer that
// runs is not set again: setting one may wake a thread.
func (s *Sender) startDelay() {
	s.delayed, s.delayedSince = true, time.Now()
	if !s.timerRunning {
		s.timerRunning = true
		s.timer.Reset(s.delay)
	}
}

// timerFired sends the queue if it was delayed for long enough. s.mu is held.
func (s *Sender) timerFired() {
	s.timerRunning = false
	if !s.delayed {
		return
	}
	if s.batches > 0 {
		s.delayed = false // it is sent when the batches have ended
		return
	}
	if left := s.delay - time.Since(s.delayedSince); left > 0 {
		s.timerRunning = true
		s.timer.Reset(left)
		return
	}
	s.flushLocked()
}

// signal wakes the goroutine.
func (s *Sender) signal() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// await waits for a signal, or for the timer. s.mu is held, and released meanwhile.
func (s *Sender) await() {
	s.mu.Unlock()
	select {
	case <-s.work:
		s.mu.Lock()
	case <-s.timer.C:
		s.mu.Lock()
		s.timerFired()
	}
}

// flushLocked sends the queue on the caller's goroutine, as far as there is space, unless
// another goroutine sends. s.mu is held, and released while it sends.
func (s *Sender) flushLocked() {
	s.delayed = false
	for len(s.queue) > 0 && !s.writing && s.err == nil {
		p := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		s.writing = true
		s.mu.Unlock()
		sent, err := s.conn.trySend(p.buf, p.fds)
		s.mu.Lock()
		s.writing = false
		if !sent && err == nil {
			s.queue = slices.Insert(s.queue, 0, p)
			break
		}
		s.discard(p)
		if err != nil {
			s.fail(err)
		}
	}
	if len(s.queue) > 0 && s.batches == 0 || s.closing {
		s.signal()
	}
}

// enqueue adds a message to the queue. s.mu is held.
func (s *Sender) enqueue(m wire.Message, fds []int) error {
	if s.descriptors+len(fds) > maxBacklogDescriptors {
		return ErrBacklog
	}
	own, err := process.DuplicateAll(fds)
	if err != nil {
		return err
	}
	p, before, err := s.appendTail(m, own)
	if err == nil && s.bytes+len(p.buf)-before > s.opts.BacklogBytes {
		p.buf, p.fds = p.buf[:before], p.fds[:len(p.fds)-len(own)]
		err = ErrBacklog
	}
	if err != nil {
		process.CloseAll(own)
		if before == 0 { // not in the queue
			p.recycle()
		}
		return err
	}
	if before == 0 {
		s.queue = append(s.queue, p)
	}
	s.bytes += len(p.buf) - before
	s.descriptors += len(fds)
	return nil
}

// appendTail appends a message to the last packet of the queue, or to a new one
// that is not in the queue yet. before is the former length of the packet.
func (s *Sender) appendTail(m wire.Message, fds []int) (p *packet, before int, err error) {
	if n := len(s.queue); n > 0 {
		p = s.queue[n-1]
		before = len(p.buf)
		if fits, err := p.add(m, fds); fits || err != nil {
			return p, before, err
		}
	}
	p = newPacket()
	_, err = p.add(m, fds) // one message always fits
	return p, 0, err
}

// sendNow sends a message on the caller's goroutine, or queues it if there is no space. s.mu is
// held, and released while it sends: a message that comes meanwhile is queued.
func (s *Sender) sendNow(m wire.Message, fds []int) error {
	p := newPacket()
	if _, err := p.add(m, fds); err != nil {
		p.recycle()
		return err
	}
	s.bytes, s.descriptors = s.bytes+len(p.buf), s.descriptors+len(p.fds)
	s.writing = true
	s.mu.Unlock()
	sent, err := s.conn.trySend(p.buf, p.fds)
	s.mu.Lock()
	s.writing = false
	if endsConnection(err) {
		s.fail(err)
	}
	switch {
	case sent || err != nil:
		s.uncount(p)
	default:
		err = s.requeue(p)
	}
	if len(s.queue) > 0 || s.closing {
		s.signal()
	}
	return err
}

// requeue queues the packet of a sendNow that found no space, before the messages
// that came meanwhile. s.mu is held.
func (s *Sender) requeue(p *packet) error {
	own, err := process.DuplicateAll(p.fds)
	if err != nil {
		s.uncount(p)
		return err
	}
	copy(p.fds, own)
	s.queue = slices.Insert(s.queue, 0, p)
	return nil
}

// uncount removes a packet from the counts and recycles it. s.mu is held.
func (s *Sender) uncount(p *packet) {
	s.bytes -= len(p.buf)
	s.descriptors -= len(p.fds)
	p.recycle()
}

// run sends the queue until the Sender is closed or has failed.
func (s *Sender) run() {
	defer close(s.done)
	defer s.conn.mem.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for s.writing || (len(s.queue) == 0 || s.delayed || s.batches > 0) && !s.closing && s.err == nil {
			s.await()
		}
		if len(s.queue) == 0 {
			return
		}
		p := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		s.writing = true
		s.mu.Unlock()
		err := s.write(p)
		s.mu.Lock()
		s.writing = false
		s.discard(p)
		if err != nil {
			s.fail(err)
		}
	}
}

// write sends one packet. If it has to wait for space, it notes since when.
func (s *Sender) write(p *packet) error {
	sent, err := s.conn.trySend(p.buf, p.fds)
	if sent || err != nil {
		return err
	}
	s.setBlocked(time.Now())
	defer s.setBlocked(time.Time{})
	return s.conn.Send(p.buf, p.fds)
}

func (s *Sender) setBlocked(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blockedSince = since
}

// discard removes a packet that has been in the queue, and closes its descriptors,
// which are the Sender's duplicates. s.mu is held.
func (s *Sender) discard(p *packet) {
	process.CloseAll(p.fds)
	s.uncount(p)
}

// endsConnection reports whether an error ends the connection: its end, or a peer that breaks the
// protocol of the lane. After any other error, nothing was sent.
func endsConnection(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, net.ErrClosed) || errors.Is(err, wire.ErrProtocol)
}

// Fail ends the connection: the queue is dropped, and no message is sent any more. A
// caller uses it if the connection cannot go on without a message that Queue has refused.
func (s *Sender) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(err)
}

// Err is the error that ended the connection, or nil.
func (s *Sender) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// fail keeps the first error and drops the queue: the peer could not interpret
// messages behind a lost packet. s.mu is held.
func (s *Sender) fail(err error) {
	if s.err == nil {
		s.err = err
		s.conn.hangUp()
	}
	for _, p := range s.queue {
		s.discard(p)
	}
	s.queue = nil
	s.signal()
}

// Blocked returns for how long the next packet has waited for the peer to read; 0 if
// none waits.
func (s *Sender) Blocked() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blockedSince.IsZero() {
		return 0
	}
	return max(time.Since(s.blockedSince), 1)
}

// Close sends the queue, for no longer than the flush timeout, and returns when
// the Sender has ended. The error reports that not all messages were sent. The
// connection stays open. Close may be called twice.
func (s *Sender) Close() error {
	s.closeOnce.Do(func() {
		s.mu.Lock()
		s.closing = true
		s.signal()
		s.mu.Unlock()
		deadlineErr := s.conn.SetWriteDeadline(time.Now().Add(s.opts.FlushTimeout))
		<-s.done
		s.closeErr = s.closeResult(deadlineErr)
	})
	return s.closeErr
}

// closeResult is the error of Close. It also removes the write deadline.
func (s *Sender) closeResult(deadlineErr error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(s.err, os.ErrDeadlineExceeded):
		return errors.Join(fmt.Errorf("close sender: the peer has not read within %v: %w", s.opts.FlushTimeout, s.err), s.conn.SetWriteDeadline(time.Time{}))
	case s.err != nil:
		return fmt.Errorf("close sender: %w", s.err)
	case deadlineErr != nil:
		return fmt.Errorf("close sender: %w", deadlineErr)
	default:
		return s.conn.SetWriteDeadline(time.Time{})
	}
}
