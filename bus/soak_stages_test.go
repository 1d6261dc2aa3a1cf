package bus_test

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// pipeline has every policy, every kind of handler and every kind of retry:
//
//	       ,- (fail) left, StateNone -----.
//	split -+- (block) right, replayed ----+-> join -> batch -> hold ->
//	       `- (drop-oldest) meter ->
//
// split turns each input into chunks; left and right work on each chunk; join
// compares the two; batch forwards them by reference; hold finishes them late,
// on other goroutines. Each stage checks every payload completely.
func (s *soak) pipeline() bus.Pipeline {
	const (
		one   = 72 << 10               // the largest payload
		whole = 2*soakMaxRequest + one // all chunks of a request: reservations are up to twice as large
	)
	edge := func(from, to string, e bus.Edge) bus.Edge {
		e.From, e.To = from, to
		if e.WindowBytes == 0 {
			e.WindowBytes = one
		}
		return e
	}
	return bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: stageSplit, Handle: s.split},
			{Name: stageLeft, Handle: s.workLeft, State: bus.StateNone, Attempts: 3, Replicas: 2, MaxInflight: 2},
			{Name: stageRight, Handle: s.workRight, Replay: true, Attempts: 3},
			{Name: stageMeter, Handle: s.meter},
			{Name: stageJoin, Join: s.join},
			{Name: stageBatch, Batch: s.batch, State: bus.StateNone, Attempts: 3, BatchSize: 6},
			{Name: stageHold, Handle: s.hold},
		},
		Edges: []bus.Edge{
			edge("", stageSplit, bus.Edge{Window: 2}),
			edge(stageSplit, stageLeft, bus.Edge{Window: soakMaxChunks, WindowBytes: whole, Policy: bus.Fail}),
			edge(stageSplit, stageRight, bus.Edge{Window: 2, WindowBytes: whole}),
			edge(stageSplit, stageMeter, bus.Edge{Window: 2, Policy: bus.DropOldest}),
			edge(stageLeft, stageJoin, bus.Edge{Window: 1}),
			edge(stageRight, stageJoin, bus.Edge{Window: 3}),
			edge(stageJoin, stageBatch, bus.Edge{Window: bus.Unbounded}),
			// Emissions that a retry repeats take credit, too, while hold keeps
			// those before: the window has credit for all of them.
			edge(stageBatch, stageHold, bus.Edge{WindowBytes: 3 * whole}),
			// The caller holds each result until it has the next.
			edge(stageHold, "", bus.Edge{Window: soakResultWindow, WindowBytes: soakResultWindow * one}),
			edge(stageMeter, "", bus.Edge{WindowBytes: 4 << 10}),
		},
	}
}

const (
	soakPermits    = 12 // MaxRequests
	soakArenaBytes = 16 << 20
)

func soakOptions(memory shmstore.Memory) bus.Options {
	return bus.Options{
		MaxRequests: soakPermits,
		JoinBytes:   1 << 20,
		Serializer:  codec.RawSerializer{},
		Store:       shmstore.Options{ArenaBytes: soakArenaBytes, Memory: memory},
	}
}

// open checks a delivery's payload, and calls reach for its chunk.
func (s *soak) open(t *bus.Task, d *bus.Delivery, from string) (e *soakRequest, chunk, word uint32, err error) {
	e = entryOf(t)
	chunk, word, err = s.check(e, t.Stage(), d.Bytes(), from)
	if err != nil {
		return e, 0, 0, err
	}
	err = e.reach(t.Stage(), chunk)
	return e, chunk, word, err
}

// check unseals a payload, and reports a broken one: the end of its request need
// not show it.
func (s *soak) check(e *soakRequest, where string, payload []byte, from string) (chunk, word uint32, err error) {
	chunk, word, err = e.unseal(payload, from)
	if err != nil {
		s.broken(e, where, err)
	}
	return chunk, word, err
}

// emit fills a payload in place.
func (s *soak) emit(out bus.Emitter, e *soakRequest, size int, chunk, word uint32, from string, opts ...bus.EmitOption) error {
	b, err := out.Reserve(size, codec.IDRaw, opts...)
	if err != nil {
		return err
	}
	e.seal(b.Bytes(), chunk, word, from)
	s.stored(size)
	return b.Send(size)
}

// split sends the chunks of an input along three edges.
func (s *soak) split(t *bus.Task, d *bus.Delivery) error {
	e := entryOf(t)
	input, _, err := s.check(e, t.Stage(), d.Bytes(), soakCaller)
	if err != nil {
		return err
	}
	next, _ := t.State.(uint32)
	for range e.inputs[input] {
		if err := e.reach(stageSplit, next); err != nil {
			return err
		}
		var opts []bus.EmitOption
		if e.marked && int(next) == len(e.sizes)-1 {
			opts = append(opts, bus.Last())
		}
		if err := s.emit(t.Emitter, e, e.sizes[next], next, next*next, stageSplit, opts...); err != nil {
			return err
		}
		next++
	}
	t.State = next
	return nil
}

// workLeft may panic before or after it has sent its output.
func (s *soak) workLeft(t *bus.Task, d *bus.Delivery) error {
	e := entryOf(t)
	chunk, word, err := s.check(e, t.Stage(), d.Bytes(), stageSplit)
	if err != nil {
		return err
	}
	if e.holds(stageLeft, chunk) {
		s.finishLate(t, e, d.Keep(), stageSplit)
		return nil
	}
	early := chunk%2 == 0
	if early {
		if err := e.reach(stageLeft, chunk); err != nil {
			return err
		}
	}
	if err := s.emit(t.Emitter, e, e.sizes[chunk], chunk, word, stageLeft); err != nil || early {
		return err
	}
	return e.reach(stageLeft, chunk)
}

// workRight adds up its chunks: a replay has to get the same sum.
func (s *soak) workRight(t *bus.Task, d *bus.Delivery) error {
	e := entryOf(t)
	sum, _ := t.State.(uint32)
	chunk, word, err := s.check(e, t.Stage(), d.Bytes(), stageSplit)
	if err != nil {
		return err
	}
	t.State = sum + word
	if err := s.emit(t.Emitter, e, soakHeader+e.sizes[chunk]/2, chunk, sum+word, stageRight); err != nil {
		return err
	}
	return e.reach(stageRight, chunk)
}

// meter counts its chunks, and those that were dropped before them. For some
// requests it keeps its deliveries until the rest of the pipeline has finished,
// so that its edge has to drop.
func (s *soak) meter(t *bus.Task, d *bus.Delivery) error {
	e, chunk, _, err := s.open(t, d, stageSplit)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.metered += 1 + d.Dropped
	e.mu.Unlock()
	s.dropped.Add(int64(d.Dropped))
	switch {
	case e.holds(stageMeter, chunk):
		s.finishLate(t, e, d.Keep(), stageSplit)
	case e.slow:
		k, over := d.Keep(), t.Context().Done()
		s.late.Go(func() {
			select {
			case <-e.joined:
			case <-over:
			}
			_ = k.Finish(s.recheck(e, k, stageSplit))
		})
	}
	return nil
}

// join requires the same chunk from both branches, and right's sum over all
// chunks up to this one.
func (s *soak) join(t *bus.Task, parts []*bus.Delivery) error {
	e, left, word, err := s.open(t, parts[0], stageLeft)
	if err != nil {
		return err
	}
	right, sum, err := s.check(e, t.Stage(), parts[1].Bytes(), stageRight)
	if err != nil {
		return err
	}
	want, _ := t.State.(uint32)
	want += word
	t.State = want
	if left != right || sum != want {
		err := fmt.Errorf("%w: chunk %d meets chunk %d, whose sum is %d instead of %d", errSoakBroken, left, right, sum, want)
		s.broken(e, t.Stage(), err)
		return err
	}
	if int(left) == len(e.sizes)-1 {
		close(e.joined)
	}
	return s.emit(t.Emitter, e, e.sizes[left], left, word, stageJoin)
}

func (s *soak) batch(batch []*bus.Delivery) error {
	for _, d := range batch {
		t := d.Task()
		// The error of one request must not fail the others of the batch, so
		// the handler returns none.
		if _, _, _, err := s.open(t, d, stageJoin); err != nil {
			t.Fail(err)
			continue
		}
		if err := t.Forward(d); err != nil {
			t.Fail(err)
		}
	}
	return nil
}

// hold keeps every delivery: those of requests that must not complete until the
// request is over, the others until another goroutine has finished them.
func (s *soak) hold(t *bus.Task, d *bus.Delivery) error {
	e, chunk, word, err := s.open(t, d, stageJoin)
	if err != nil {
		return err
	}
	k := d.Keep()
	if e.holds(stageHold, chunk) {
		s.finishLate(t, e, k, stageJoin)
		return nil
	}
	s.late.Go(func() {
		var err error
		if chunk%3 == 0 {
			err = k.Forward(k.Delivery())
		} else {
			err = s.emit(k.Emitter, e, e.sizes[chunk], chunk, word, stageJoin)
		}
		_ = k.Finish(errors.Join(s.recheck(e, k, stageJoin), err))
	})
	return nil
}

// finishLate finishes a delivery, with an error, when its request is over. The
// error must not change the outcome.
func (s *soak) finishLate(t *bus.Task, e *soakRequest, k *bus.Kept, from string) {
	over := t.Context().Done()
	s.late.Go(func() {
		<-over
		_ = s.recheck(e, k, from)
		_ = k.Finish(errSoakLate)
	})
}

// recheck checks a kept payload again: no process may have written to it
// meanwhile.
func (s *soak) recheck(e *soakRequest, k *bus.Kept, from string) error {
	_, _, err := s.check(e, "late", k.Delivery().Bytes(), from)
	return err
}
