package emul

import (
	"context"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// stream runs operations on a goroutine of its own.
type stream struct {
	primary *primary
	number  int
	wake    chan struct{} // wakes the goroutine
	ended   chan struct{} // closed when the goroutine has ended

	mu        sync.Mutex
	closed    bool
	drained   bool // the queue was dropped: later operations would never run
	queue     []task
	submitted uint64
	done      uint64
	waiting   []waiter
}

// task is a submitted operation.
type task struct {
	op cudaipc.Op
	at *point // the point to record or to await
}

// waiter waits until a number of operations is done.
type waiter struct {
	until  uint64
	passed chan struct{}
}

// NewStream implements [cudaipc.Device].
func (v *device) NewStream() (cudaipc.Stream, error) {
	if err := v.check("NewStream"); err != nil {
		return nil, err
	}
	return streamOrNil(v.primary.newStream("NewStream"))
}

// streamOrNil converts a nil pointer to a nil interface.
func streamOrNil(s *stream, err error) (cudaipc.Stream, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (p *primary) newStream(call string) (*stream, error) {
	s := &stream{
		primary: p,
		number:  p.driver.nextStream(),
		wake:    make(chan struct{}, 1),
		ended:   make(chan struct{}),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, contextDestroyed.with(call, p.gpu.uuid, cudaipc.ErrClosed, "the device was")
	}
	p.streams[s] = struct{}{}
	p.running.Go(s.run)
	return s, nil
}

// Raw implements [cudaipc.Stream]. No other library exists that could use it, but WrapStream does.
func (s *stream) Raw() uintptr { return rawStreams + uintptr(s.number) }

// Submit implements [cudaipc.Stream].
func (s *stream) Submit(ops ...cudaipc.Op) error {
	const call = "Submit"
	if err := s.primary.failure(call); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.drained {
		return s.unusable(call)
	}
	var err error
	for _, op := range ops {
		var t task
		if t, err = s.prepare(call, op); err != nil {
			break
		}
		s.queue = append(s.queue, t)
		s.submitted++
	}
	s.wakeUp()
	return err
}

// unusable returns the reason why no operation can be submitted. mu is held.
func (s *stream) unusable(call string) error {
	if s.drained {
		if err := s.primary.failure(call); err != nil {
			return err
		}
	}
	return invalidHandle.with(call, s.primary.gpu.uuid, cudaipc.ErrClosed, "the stream is")
}

// wakeUp wakes the goroutine, or keeps it from sleeping next time.
func (s *stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Synchronize implements [cudaipc.Stream].
func (s *stream) Synchronize(ctx context.Context) error {
	const call = "Synchronize"
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return invalidHandle.with(call, s.primary.gpu.uuid, cudaipc.ErrClosed, "the stream is")
	}
	err := s.wait(ctx)
	if failed := s.primary.failure(call); failed != nil {
		return failed
	}
	return err
}

// wait waits until all operations that were submitted before are done, or never will be.
func (s *stream) wait(ctx context.Context) error {
	s.mu.Lock()
	if s.done == s.submitted {
		s.mu.Unlock()
		return nil
	}
	w := waiter{s.submitted, make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.passed:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(o waiter) bool { return o == w })
	s.mu.Unlock()
	return ctx.Err()
}

// Close implements [cudaipc.Stream]. As in CUDA, submitted operations still run; the stream ends
// with its device at the latest.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	idle := s.done == s.submitted
	s.wakeUp()
	s.mu.Unlock()
	if idle {
		<-s.ended
	}
	return s.primary.failure("Stream.Close")
}

// run runs operations until the stream is closed.
func (s *stream) run() {
	defer s.unregister()
	r := newRunner(s)
	for {
		t, ok := s.next()
		if !ok {
			return
		}
		if cause := r.do(t); cause != nil {
			s.primary.fail(cause)
		}
		if s.primary.isHalted() {
			s.drain(t)
			return
		}
		s.finish(t)
	}
}

// next waits for the next operation; false means that there will be none.
func (s *stream) next() (task, bool) {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			t := s.queue[0]
			s.queue[0] = task{}
			s.queue = s.queue[1:]
			s.mu.Unlock()
			return t, true
		}
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return task{}, false
		}
		select {
		case <-s.wake:
		case <-s.primary.halted:
			s.drain(task{})
			return task{}, false
		}
	}
}

func (s *stream) finish(t task) {
	if t.op.Kind == cudaipc.OpRecord {
		close(t.at.passed)
	}
	s.mu.Lock()
	s.done++
	s.waiting = slices.DeleteFunc(s.waiting, func(w waiter) bool {
		if w.until > s.done {
			return false
		}
		close(w.passed)
		return true
	})
	s.mu.Unlock()
}

// drain drops the submitted operations, the current one first, when the device was halted, and ends
// all waits for them.
func (s *stream) drain(current task) {
	cause := s.primary.haltCause()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
	for _, t := range append([]task{current}, s.queue...) {
		if t.op.Kind == cudaipc.OpRecord {
			t.at.failed = cause
			close(t.at.passed)
		}
	}
	s.queue = nil
	s.done = s.submitted
	for _, w := range s.waiting {
		close(w.passed)
	}
	s.waiting = nil
}

// unregister removes the stream from the device.
func (s *stream) unregister() {
	s.primary.mu.Lock()
	delete(s.primary.streams, s)
	s.primary.mu.Unlock()
	close(s.ended)
}
