package host

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// source is what a client emits for: a task of one of its stages, or a request
// that it submitted. What it sends is done in order.
type source struct {
	sess    *session
	id      uint32
	ports   []bus.Port       // that it emits on
	task    *bus.ReplicaTask // nil: a request
	busTask *bus.Task        // the posting's

	mu       lockorder.Mutex[lockorder.Source] // guards what follows
	emitter  bus.Emitter                       // once the request has begun
	req      *bus.Request                      // nil: it has not begun
	over     bool                              // it was over before it had begun
	queue    []step                            // behind what is being done
	busy     bool
	skipping bool // a step was not done because the session had ended: none behind it is

	withdrawn error // why it is not to begin, or ends when it does; nil: it may begin
}

// step is one thing to be done for a source. An error ends the session, but for
// bus.ErrCanceled: with try the step would have to wait, and nothing is done; with
// wait the session ended first.
type step interface {
	run(how waitMode) error
	// keep copies what is the reader's until it returns, for a step that is done later.
	keep()
}

// stepFunc is a step that needs nothing of the reader's.
type stepFunc func(how waitMode) error

func (f stepFunc) run(how waitMode) error { return f(how) }
func (stepFunc) keep()                    {}

// waitMode says how a step is to be done.
type waitMode int

const (
	waitNot waitMode = iota // without waiting
	wait                    // when it can be, unless the session ends
	skip                    // not any more: one before it was not done either
)

// newSource gives a source its number, by which it is found from then on. It reports
// false when the client is gone: nobody will look.
func (s *session) newSource(src *source) bool {
	src.sess, src.id = s, s.srv.sources.Add(1)
	return s.sources.add(src)
}

// source finds a source. It is nil for one that is over, which the client
// need not know yet, and an error for one that never was.
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

// maxQueued bounds what a client may send for one source ahead of what the
// windows let through.
const maxQueued = 4096

// do does something behind all that was asked for before: now, if nothing is
// and it need not wait. It is for the reader's goroutine.
func (src *source) do(f step) error {
	src.mu.Lock()
	busy, waives, full := src.busy, src.skipping, len(src.queue) >= maxQueued
	if busy && !full {
		f.keep()
		src.queue = append(src.queue, f)
	}
	src.mu.Unlock()
	switch {
	case busy && full:
		_ = f.run(skip) // which gives back what it holds
		return fmt.Errorf("%w: more than %d messages wait for source %d: wait for answers", wire.ErrProtocol, maxQueued, src.id)
	case busy:
		return nil
	case waives:
		return f.run(skip)
	}
	err := f.run(waitNot)
	if !errors.Is(err, bus.ErrCanceled) {
		return err
	}
	f.keep()
	src.mu.Lock()
	src.busy = true
	src.mu.Unlock()
	src.sess.working.Go(func() { src.work(f) })
	return nil
}

// work does what had to wait, and what came behind it. When the session ends
// first, nothing behind it is done: an input counts as finished only if all its
// outputs are out.
func (src *source) work(f step) {
	how := wait
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

// goOn does what waits for a request that begins, or has been refused. With try it waits for nothing:
// the first step that has to wait, and what comes behind it, get a goroutine.
func (src *source) goOn(how waitMode) {
	for f := src.next(how); f != nil; f = src.next(how) {
		err := f.run(how)
		switch {
		case errors.Is(err, bus.ErrCanceled):
			if how == waitNot {
				src.sess.working.Go(func() { src.work(f) })
				return
			}
		case err != nil:
			src.sess.fail(err)
		}
	}
}

// next gives the next step of the queue, after one that was done so; nil: there is none.
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

// pressed reports whether the client may be waiting for what comes back: a message of it
// waits here, or a window that it emits into has no place for another payload like those in it.
func (src *source) pressed() bool {
	if src == nil {
		return true
	}
	src.mu.Lock()
	busy, e, begun := src.busy, src.emitter, src.req != nil
	src.mu.Unlock()
	return busy || !begun || e.Control().WindowFull()
}

// emits is what the source emits by, which does not wait if it is only to try; with a nil
// request it has not begun.
func (src *source) emits(how waitMode) (bus.Emitter, *bus.Request) {
	src.mu.Lock()
	e, req := src.emitter, src.req
	src.mu.Unlock()
	if how == waitNot {
		e = e.Control().NoWait()
	}
	return e, req
}

// behind does something for the task of a source, if that is open, in its order.
func (s *session) behind(source uint32, f func() error) error {
	if src, _ := s.sources.find(source); src != nil {
		return src.do(orSkip(f))
	}
	return f()
}

// emission makes a client's words an emission.
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

// orSkip makes something that never waits a step.
func orSkip(f func() error) step {
	return stepFunc(func(how waitMode) error {
		if how == skip {
			return nil
		}
		return f()
	})
}
