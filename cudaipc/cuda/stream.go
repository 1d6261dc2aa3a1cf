//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"context"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// stream is a CUstream.
type stream struct {
	g       *gpu
	raw     uintptr
	foreign bool // another library owns it
	closed  atomic.Bool
}

// newStream makes a stream that does not wait for the legacy default stream, which other libraries
// use a lot.
func (g *gpu) newStream() (*stream, error) {
	s := &stream{g: g}
	return s, g.do(func(c *caller) error {
		if err := g.must(c, symStreamCreate, address(&c.word), streamNonBlocking); err != nil {
			return err
		}
		s.raw = uintptr(c.word)
		g.streams[s] = struct{}{}
		return nil
	})
}

// wrapStream wraps a stream of another owner. Recording a point on it shows that it belongs to this
// context; an invalid handle is the caller's fault.
func (g *gpu) wrapStream(raw uintptr) (*stream, error) {
	switch raw {
	case 0:
		return nil, g.invalid(symEventRecord, "stream 0 is one default stream or another: pass %d for the legacy one", cudaipc.LegacyStream)
	case streamPerThread:
		return nil, g.invalid(symEventRecord, "stream %d is that of the thread that calls, which is another here: pass a stream of your own", raw)
	}
	s := &stream{g: g, raw: raw, foreign: true}
	return s, g.do(func(c *caller) error {
		point, err := g.recordRaw(c, raw)
		if err != nil {
			return err
		}
		g.releasePoint(c, point)
		g.streams[s] = struct{}{}
		return nil
	})
}

// Submit implements cudaipc.Stream. It takes the lock once, and once more for each copy of plain
// memory that has to wait for earlier operations.
func (s *stream) Submit(ops ...cudaipc.Op) error {
	for {
		c, err := s.g.lockContext(false)
		if err != nil {
			return err
		}
		queued, point, err := s.g.submit(c, s, ops)
		s.g.unlockContext(c)
		if err != nil || point == 0 {
			return err
		}
		if err := s.g.await(context.Background(), point); err != nil {
			return err
		}
		ops = ops[queued:]
	}
}

// Synchronize implements cudaipc.Stream.
func (s *stream) Synchronize(ctx context.Context) error {
	c, err := s.g.lockContext(false)
	if err != nil {
		return err
	}
	point, err := s.g.record(c, s)
	s.g.unlockContext(c)
	if err != nil {
		return err
	}
	return s.g.await(ctx, point)
}

// Raw implements cudaipc.Stream: the CUstream.
func (s *stream) Raw() uintptr { return s.raw }

// Close implements cudaipc.Stream. Submitted operations still run. A wrapped stream is not
// destroyed.
func (s *stream) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	return s.g.doFreeing(func(c *caller) error {
		delete(s.g.streams, s)
		// CUDA destroys a stream when its operations are done. Until then synchronize has to wait
		// for them.
		if c.call(symStreamQuery, s.raw) == notReady {
			point, err := s.g.recordRaw(c, s.raw)
			if err != nil {
				return err
			}
			s.g.closedTails = append(s.g.closedTails, point)
		}
		return nil
	}, func(c *caller) error {
		if s.foreign {
			return nil
		}
		return s.g.must(c, symStreamDestroy, s.raw)
	})
}

// event is a CUevent. Streams of other GPUs may wait for it.
type event struct {
	g      *gpu
	raw    uintptr
	closed atomic.Bool
}

func (g *gpu) newEvent() (*event, error) {
	e := &event{g: g}
	return e, g.do(func(c *caller) (err error) {
		e.raw, err = g.makeEvent(c)
		return err
	})
}

// Done implements cudaipc.Event.
func (e *event) Done() (done bool, err error) {
	err = e.g.do(func(c *caller) error {
		if e.closed.Load() {
			return e.g.closed(symEventQuery, invalidHandle, "event")
		}
		done, err = e.g.query(c, e.raw)
		return err
	})
	return done, err
}

// Close implements cudaipc.Event.
func (e *event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.g.doClosing(func(c *caller) error {
		return e.g.dropEvent(c, e.raw)
	})
}
