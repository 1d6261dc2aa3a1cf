package host

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// source stands for a task of one of the client's stages, or for a request that the client submitted: each
// emission of the client belongs to a source. The steps of a source run in order.
type source struct {
	sess    *session
	id      uint32
	ports   []bus.Port       // edges that it emits on
	task    *bus.ReplicaTask // nil: a request
	busTask *bus.Task        // of task

	mu         lockorder.Mutex[lockorder.Source] // guards the fields below
	emitter    bus.Emitter                       // set when the request begins
	req        *bus.Request                      // nil: the request has not begun
	endedEarly bool                              // the request ended before started had set req
	queue      []step                            // steps behind the one that runs
	busy       bool                              // a goroutine runs steps, or the request waits for its permit
	skipping   bool                              // the session ended and a step was dropped: later steps are dropped, too

	withdrawn error // why the request must not begin; one that begins all the same ends at once; nil: it may begin
}

// step is one action for a source. An error ends the session, except bus.ErrCanceled. With noWait,
// bus.ErrCanceled means that the step would have to wait and has done nothing. With mayWait, it means
// that the session ended before the step was done.
type step interface {
	run(how waitMode) error
	// retain copies the data that is valid only until the reader returns, for a step that runs later.
	retain()
}

// stepFunc is a step that uses no data of the reader.
type stepFunc func(how waitMode) error

func (f stepFunc) run(how waitMode) error { return f(how) }
func (stepFunc) retain()                  {}

// waitMode says how a step runs.
type waitMode int

const (
	noWait  waitMode = iota // without waiting
	mayWait                 // waits if it must, until the session ends
	skip                    // does not run, since an earlier step was dropped; releases what it holds
)

// newSource gives a source its number and adds it. It reports false when the client has departed.
func (s *session) newSource(src *source) bool {
	src.sess, src.id = s, s.srv.sources.Add(1)
	return s.sources.add(src)
}

// source returns a source by its number. It returns nil for a source that has ended: the client may not
// know of the end yet. A number that no source has had is an error.
func (s *session) source(id uint32) (*source, error) {
	src, last := s.sources.find(id)
	if id&wire.OwnSource == 0 {
		last = s.srv.sources.Load()
	}
	if src == nil && (id == 0 || id > last) {
		return nil, fmt.Errorf("%w: there is no source %d", wire.ErrProtocol, id)
	}
	return src, nil
}

func (s *session) dropSource(id uint32) {
	s.sources.drop(id)
	s.direct.forget(id)
}

// maxQueued bounds the queue of a source. The session of a client that sends more ahead ends.
const maxQueued = 4096

// do runs a step after all earlier steps of the source: now, if there are none and the step need not
// wait. Only the reader's goroutine calls it.
func (src *source) do(f step) error {
	src.mu.Lock()
	busy, skipping, full := src.busy, src.skipping, len(src.queue) >= maxQueued
	if busy && !full {
		f.retain()
		src.queue = append(src.queue, f)
	}
	src.mu.Unlock()
	switch {
	case busy && full:
		_ = f.run(skip) // releases what f holds
		return fmt.Errorf("%w: more than %d messages wait for source %d: wait for answers", wire.ErrProtocol, maxQueued, src.id)
	case busy:
		return nil
	case skipping:
		return f.run(skip)
	}
	err := f.run(noWait)
	if !errors.Is(err, bus.ErrCanceled) {
		return err
	}
	f.retain()
	src.mu.Lock()
	src.busy = true
	src.mu.Unlock()
	src.sess.working.Go(func() { src.runQueue(f) })
	return nil
}

// runQueue runs a step that has to wait, and the steps behind it. If the session ends during a step, no
// later step runs: else an input would count as finished although an output was not sent.
func (src *source) runQueue(f step) {
	how := mayWait
	for f != nil {
		switch err := f.run(how); {
		case errors.Is(err, bus.ErrCanceled):
			how = skip
		case err != nil:
			src.sess.fail(err)
		}
		f = src.next(how)
	}
}

// resume runs the steps of a request that begins or was refused. With noWait it does not wait: the
// first step that has to wait, and the steps behind it, run on a goroutine of their own.
func (src *source) resume(how waitMode) {
	for f := src.next(how); f != nil; f = src.next(how) {
		err := f.run(how)
		switch {
		case errors.Is(err, bus.ErrCanceled):
			if how == noWait {
				src.sess.working.Go(func() { src.runQueue(f) })
				return
			}
		case err != nil:
			src.sess.fail(err)
		}
	}
}

// next returns the next step of the queue, given how the last one ran; nil: the queue is empty.
func (src *source) next(how waitMode) (f step) {
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.queue) == 0 {
		src.busy, src.skipping = false, how == skip
		return nil
	}
	f = src.queue[0]
	src.queue[0] = nil
	src.queue = src.queue[1:]
	return f
}

// underPressure reports whether the client may be waiting for a return or for credit: a step of the source
// waits, or a window of its edges has no credit for another payload of average size. The answer is true
// for a source that has ended (nil).
func (src *source) underPressure() bool {
	if src == nil {
		return true
	}
	src.mu.Lock()
	busy, e, begun := src.busy, src.emitter, src.req != nil
	src.mu.Unlock()
	return busy || !begun || e.Control().WindowFull()
}

// emitterFor returns the source's emitter and its request; a nil request has not begun. With noWait the
// emitter does not wait.
func (src *source) emitterFor(how waitMode) (bus.Emitter, *bus.Request) {
	src.mu.Lock()
	e, req := src.emitter, src.req
	src.mu.Unlock()
	if how == noWait {
		e = e.Control().NoWait()
	}
	return e, req
}

// inSourceOrder runs f after the earlier steps of the source, or now if the source has ended.
func (s *session) inSourceOrder(source uint32, f func() error) error {
	if src, _ := s.sources.find(source); src != nil {
		return src.do(orSkip(f))
	}
	return f()
}

// emission makes an emission from the fields of a message.
func (src *source) emission(edge uint16, flags uint8, key string, attrs map[string]string) (bus.Emission, error) {
	em := bus.Emission{Key: key, Attrs: attrs, Last: flags&wire.FlagLast != 0}
	if edge == wire.AllEdges {
		return em, nil
	}
	if int(edge) >= len(src.ports) {
		return em, fmt.Errorf("%w: source %d has %d edges, none has the index %d", bus.ErrNoEdge, src.id, len(src.ports), edge)
	}
	em.Only = int(edge) + 1
	return em, nil
}

// orSkip makes a step of a function that never waits. With skip, the step does not call the function.
func orSkip(f func() error) step {
	return stepFunc(func(how waitMode) error {
		if how == skip {
			return nil
		}
		return f()
	})
}
