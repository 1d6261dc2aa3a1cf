package bus

import (
	"errors"
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// source is what a client emits for: a task of one of its stages, or a request
// that it submitted. What it sends is done in order.
type source struct {
	sess    *session
	id      uint32
	emitter Emitter
	posting *posting // nil: a request
	req     *Request // nil: a task

	mu    sync.Mutex
	queue []step // behind what is being done
	busy  bool
}

// step is one thing to be done for a source. Unless it may wait, it gives
// errCanceled back, with nothing done, when it would have to. Any other error
// ends the session.
type step func(mayWait bool) error

func (s *session) newSource(e Emitter) *source {
	src := &source{sess: s, id: s.srv.sources.Add(1), emitter: e}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.sources[src.id] = src
	}
	return src
}

// source finds a source. It is nil for one that is over, which the client
// need not know yet, and an error for one that never was.
func (s *session) source(id uint32) (*source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[id]
	if src == nil && (id == 0 || id > s.srv.sources.Load()) {
		return nil, fmt.Errorf("%w: there is no source %d", wire.ErrProtocol, id)
	}
	return src, nil
}

func (s *session) dropSource(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sources, id)
}

// maxQueued bounds what a client may send for one source ahead of what the
// windows let through.
const maxQueued = 4096

// do does something behind all that was asked for before: now, if nothing is
// and it need not wait. It is for the reader's goroutine.
func (src *source) do(f step) error {
	src.mu.Lock()
	if src.busy {
		defer src.mu.Unlock()
		if len(src.queue) >= maxQueued {
			return fmt.Errorf("%w: more than %d messages wait for source %d: wait for answers", wire.ErrProtocol, maxQueued, src.id)
		}
		src.queue = append(src.queue, f)
		return nil
	}
	src.mu.Unlock()
	err := f(false)
	if !errors.Is(err, errCanceled) {
		return err
	}
	src.mu.Lock()
	src.busy = true
	src.mu.Unlock()
	src.sess.wg.Go(func() { src.work(f) })
	return nil
}

// work does what had to wait, and what came behind it.
func (src *source) work(f step) {
	for f != nil {
		if err := f(true); err != nil {
			src.sess.fail(err)
		}
		f = src.next()
	}
}

func (src *source) next() (f step) {
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.queue) == 0 {
		src.busy = false
		return nil
	}
	f = src.queue[0]
	src.queue[0] = nil
	src.queue = src.queue[1:]
	return f
}

// behind does something for a task, in the order of its source.
func (s *session) behind(rt *remoteTask, f func() error) error {
	if src := s.sourceOf(rt); src != nil {
		return src.do(func(bool) error { return f() })
	}
	return f()
}

func (s *session) sourceOf(rt *remoteTask) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.sources {
		if src.posting != nil && src.posting.rt == rt {
			return src
		}
	}
	return nil
}

// emission makes a client's words an emission.
func (src *source) emission(edge uint16, flags uint8, key string, attrs map[string]string) (emission, error) {
	em := emission{key: key, attrs: attrs, last: flags&wire.FlagLast != 0}
	if edge == wire.AllEdges {
		return em, nil
	}
	if int(edge) >= len(src.emitter.out.edges) {
		return em, fmt.Errorf("%w: source %d has %d edges, none has the index %d", ErrNoEdge, src.id, len(src.emitter.out.edges), edge)
	}
	em.only = int(edge) + 1
	return em, nil
}

// repeated counts an emission of the client, and reports whether an earlier
// handling of the same input made it.
func (s *session) repeated(src *source, delivery uint32) bool {
	if src.posting == nil {
		return false
	}
	s.mu.Lock()
	h := s.held[delivery]
	s.mu.Unlock()
	r := src.posting.replica.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	if h != nil && h.work != nil && r.stage.spec.State == StateNone {
		return h.work.output.repeat()
	}
	return src.posting.rt.output.repeat()
}

// once makes one emission a step, and then tells what became of it.
func (src *source) once(emit func(Emitter) error, then func(error)) step {
	return func(mayWait bool) error {
		e := src.emitter
		if !mayWait {
			e.cancel = atOnce
		}
		err := emit(e)
		switch {
		case !errors.Is(err, errCanceled):
			then(err)
		case !mayWait:
			return err
		default: // the session ends, and nobody hears it
			then(ErrEnded)
		}
		return nil
	}
}
