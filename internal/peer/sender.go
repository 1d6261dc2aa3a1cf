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

// Sender is the outgoing queue of a connection. Whoever has a message queues
// it and never waits for the peer.
//
// A message that comes when nothing waits is sent by the caller itself, which
// saves waking another goroutine. Whatever cannot be sent at once waits for the
// Sender's own goroutine. What comes while somebody is sending is gathered into
// as few packets as possible.
//
// One that can wait a little is taken by Later, and travels with the next, or by itself.
//
// A message that Queue or Later has taken is sent, or the connection ends: when one of those
// is lost, the next would make no sense to the peer. Both ends are told of that by
// the end of what they receive.
type Sender struct {
	conn  *Conn
	opts  SenderOptions
	delay time.Duration // of what rests; tests change it
	done  chan struct{} // closed when the goroutine has ended

	closeOnce sync.Once
	closeErr  error

	work chan struct{} // the goroutine waits here for a change of what follows

	mu    lockorder.Mutex[lockorder.Sender]
	queue []*packet // in order; the last one may take more messages
	// What waits, with what is being sent just now.
	bytes, descriptors int
	// writing says that somebody sends a packet that has left the queue. Only
	// who has set it may use the connection, so that packets keep their order.
	writing bool
	// delayed says that all of the queue can wait until the timer wakes it.
	delayed      bool
	delayedSince time.Time // since when
	timer        *time.Timer
	timerRunning bool // the timer runs
	batches      int  // turns that gather what is queued: see Turn
	closing      bool
	blockedSince time.Time // when the goroutine began to wait for room; zero: it does not
	err          error     // why nothing more can be sent
}

// packetsSent counts the packets that the Senders of this process have sent without waiting.
var packetsSent atomic.Int64

// PacketsSent is how many packets the Senders of this process have sent, but for those that
// had to wait for room.
func PacketsSent() int64 { return packetsSent.Load() }

// NewSender starts a Sender for a connection on which nobody else sends. The
// caller closes it, and the connection afterwards.
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
// After an error the message is not sent, and the next one may be: what to do about
// that is for the caller. One that breaks a bound is [wire.CodeInvalid].
// [ErrBacklog] says that the peer has not read for a while, and an error of the
// system that it lacks something, such as room for descriptors. [ErrClosed] comes
// after Close, and the error that [Sender.Err] returns when the connection has failed.
func (s *Sender) Queue(m wire.Message, fds ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.delayed || s.batches > 0) && len(fds) > 0 {
		s.flushLocked() // else they are duplicated, for which there may be no room
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

// closedErrLocked is why nothing can be queued any more.
func (s *Sender) closedErrLocked() error {
	switch {
	case s.err != nil:
		return s.err
	case s.closing:
		return ErrClosed
	}
	return nil
}

// QueueLater is Queue of a message that the peer need not know of at once: it is sent
// before the next one that is queued, or after a millisecond.
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
// runs is left alone: to set one may wake a thread.
func (s *Sender) startDelay() {
	s.delayed, s.delayedSince = true, time.Now()
	if !s.timerRunning {
		s.timerRunning = true
		s.timer.Reset(s.delay)
	}
}

// timerFired sends what has rested for long enough. s.mu is held.
func (s *Sender) timerFired() {
	s.timerRunning = false
	if !s.delayed {
		return
	}
	if s.batches > 0 {
		s.delayed = false // it is sent when the turns are over
		return
	}
	if left := s.delay - time.Since(s.delayedSince); left > 0 {
		s.timerRunning = true
		s.timer.Reset(left)
		return
	}
	s.flushLocked()
}

// signal has the goroutine look again.
func (s *Sender) signal() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// await waits for a signal, or for the end of a rest. s.mu is held, and given up meanwhile.
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

// flushLocked sends the queue on the caller's goroutine, as far as there is room. s.mu is
// held, and given up while it sends, when nobody else does.
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

// appendTail writes a message behind the last packet of the queue, or into a
// new one that is not in the queue yet. before is the length that the packet
// had.
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

// sendNow sends a message on the caller's goroutine, or queues it when there is no room. s.mu is
// held, and given up while it sends: a message that comes meanwhile is queued.
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

// requeue queues the packet of a sendNow that found no room, before what has
// come meanwhile. s.mu is held.
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

// uncount takes a packet out of the account. s.mu is held.
func (s *Sender) uncount(p *packet) {
	s.bytes -= len(p.buf)
	s.descriptors -= len(p.fds)
	p.recycle()
}

// run sends what is queued until the Sender is closed or has failed.
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

// write sends one packet, and notes since when it has to wait for room.
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

// discard forgets a packet that has been in the queue, and whose descriptors
// are therefore the Sender's. s.mu is held.
func (s *Sender) discard(p *packet) {
	process.CloseAll(p.fds)
	s.uncount(p)
}

// endsConnection reports whether an error of the connection is its end, or a peer that breaks the rules
// of its lane. After any other, nothing was sent.
func endsConnection(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, net.ErrClosed) || errors.Is(err, wire.ErrProtocol)
}

// Fail ends the connection: what waits is dropped, and nothing is sent any more. It
// is for whoever cannot do without a message that Queue has refused.
func (s *Sender) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(err)
}

// Err is why nothing more can be sent on the connection, or nil.
func (s *Sender) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// fail keeps the first error and drops what waits: after a packet that is lost
// the next ones make no sense to the peer. s.mu is held.
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

// Blocked returns for how long the next packet has been waiting for the peer to
// read; 0 when none waits.
func (s *Sender) Blocked() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blockedSince.IsZero() {
		return 0
	}
	return max(time.Since(s.blockedSince), 1)
}

// Close sends what is queued, for no longer than the flush timeout, and ends
// the Sender. It returns an error when not everything has been sent. The
// connection stays open. Close may be called twice, and returns when the
// Sender has ended.
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

// closeResult returns what has become of the queue, and takes the deadline away.
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
