package emul

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// event is a point in a stream that other streams wait for.
type event struct {
	primary *primary

	mu     sync.Mutex
	closed bool
	at     *point // nil until a stream has recorded it
}

// point is one record of an event.
type point struct {
	passed chan struct{}
	failed *cudaipc.Error // why it was never reached; set before passed is closed
}

// NewEvent implements [cudaipc.Device].
func (v *device) NewEvent() (cudaipc.Event, error) {
	if err := v.check("NewEvent"); err != nil {
		return nil, err
	}
	p := v.primary
	p.mu.Lock()
	p.events++
	p.mu.Unlock()
	return &event{primary: p}, nil
}

// record sets the event to a new point; nil means that it is closed.
func (e *event) record() *point {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.at = &point{passed: make(chan struct{})}
	return e.at
}

// current returns the event's point; ok is false when it is closed.
func (e *event) current() (at *point, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at, !e.closed
}

// Done implements [cudaipc.Event].
func (e *event) Done() (bool, error) {
	const call = "Event.Done"
	at, ok := e.current()
	if !ok {
		return false, invalidHandle.with(call, e.primary.gpu.uuid, cudaipc.ErrClosed, "the event is")
	}
	if err := e.primary.failure(call); err != nil {
		return false, err
	}
	if at == nil {
		return true, nil
	}
	select {
	case <-at.passed:
		if at.failed != nil {
			return false, repeatError(call, at.failed)
		}
		return true, nil
	default:
		return false, nil
	}
}

// Close implements [cudaipc.Event]. Streams that wait for it continue to wait.
func (e *event) Close() error {
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.mu.Unlock()
	if closed {
		return nil
	}
	p := e.primary
	p.mu.Lock()
	p.events--
	p.mu.Unlock()
	return p.failure("Event.Close")
}
