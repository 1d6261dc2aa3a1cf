package testbus

import (
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// MustComplete requires that a request completes with these results.
func MustComplete(t *testing.T, r *bus.Request, want []string) {
	t.Helper()
	if err := r.Wait(Soon(t)); err != nil {
		t.Fatalf("%v; want %v", err, want)
	}
	MustReceive(t, r, want)
}

// Crossing is a diamond in which each of two requests holds a slot for which the other one waits: one is sent
// to the stage "left" and then to "right", the other to "right" and then to "left".
type Crossing struct {
	halfway chan struct{} // receives one value from each request that has been sent to its first stage
	onward  chan struct{} // closed when both have been sent
	entered chan struct{} // closed when the first handler of "right" runs
	leave   chan struct{} // closed when that handler may return
	both    chan struct{} // closed when the second handler of "right" runs

	running, most, visits atomic.Int32 // handlers of "right"
}

// NewCrossing makes a Crossing for two requests.
func NewCrossing() *Crossing {
	return &Crossing{
		halfway: make(chan struct{}, 2), onward: make(chan struct{}),
		entered: make(chan struct{}), leave: make(chan struct{}), both: make(chan struct{}),
	}
}

// Visit must be called by each handler of "right".
func (c *Crossing) Visit() {
	defer c.running.Add(-1)
	if n := c.running.Add(1); n > c.most.Load() {
		c.most.Store(n)
	}
	switch c.visits.Add(1) {
	case 1:
		close(c.entered)
		<-c.leave
	case 2:
		close(c.both)
	}
}

// Pipeline is the diamond with those two stages.
func (c *Crossing) Pipeline(left, right bus.StageSpec) bus.Pipeline {
	// Each request has its own replica: in one, the first handler would block the second.
	return Diamond(bus.StageSpec{Name: "s", Replicas: 2, MaxInflight: 1, Handle: c.send}, left, right)
}

// send sends an input to the stages that it names. The request that is admitted above the bound keeps its slots until
// it is handled there: it does not wait for a slot of the other request.
func (c *Crossing) send(t *bus.Task, d *bus.Delivery) error {
	in, err := bus.Result[string](d)
	if err != nil {
		return err
	}
	first, second, _ := strings.Cut(in, " ")
	if err := t.Emit(in, bus.To(first)); err != nil {
		return err
	}
	c.halfway <- struct{}{}
	select {
	case <-c.onward:
	case <-t.Context().Done():
	}
	if err := t.Emit(in, bus.To(second)); err != nil {
		return err
	}
	select {
	case <-c.both:
	case <-t.Context().Done():
	}
	return nil
}

// Run sends the two requests through a bus with the diamond. Both complete, one slot is granted above the bound, to the
// older one, and its handler waits for the handler lock.
func (c *Crossing) Run(t *testing.T, b *bus.Bus) {
	t.Helper()
	defer func() {
		select {
		case <-c.leave:
		default:
			close(c.leave)
		}
	}()
	var all []*bus.Request
	for _, in := range []string{"left right", "right left"} {
		r, err := b.Submit(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		Next(t, c.halfway)
	}
	Next(t, c.entered)
	close(c.onward)
	Await(t, func() bool { return EdgeStats(b, "s", "right").Deliveries == 2 })
	for range 1000 { // a handler that does not wait for the lock runs now
		runtime.Gosched()
	}
	close(c.leave)
	MustComplete(t, all[0], []string{"left right+left right"})
	MustComplete(t, all[1], []string{"right left+right left"})
	for _, st := range b.Stats().Stages {
		if want := map[string]int64{"right": 1}[st.Name]; st.AdmittedAbove != want {
			t.Errorf("stage %q has admitted %d requests above its bound, want %d", st.Name, st.AdmittedAbove, want)
		}
	}
	if n := c.most.Load(); n != 1 {
		t.Errorf("%d handlers of one replica have run side by side", n)
	}
}

// EdgeStats are the figures of one edge.
func EdgeStats(b *bus.Bus, from, to string) bus.EdgeStats {
	for _, e := range b.Stats().Edges {
		if e.From == from && e.To == to {
			return e
		}
	}
	return bus.EdgeStats{}
}

// StageStats are the figures of one stage.
func StageStats(b *bus.Bus, name string) bus.StageStats {
	for _, st := range b.Stats().Stages {
		if st.Name == name {
			return st
		}
	}
	return bus.StageStats{}
}

// OneByOne is a stage whose handlers report their request, and return one at a time when Run says so.
type OneByOne struct {
	entered chan uint64
	leave   chan struct{}
}

// NewOneByOne makes a OneByOne.
func NewOneByOne() *OneByOne {
	return &OneByOne{entered: make(chan uint64), leave: make(chan struct{})}
}

// Visit must be called by each handler.
func (o *OneByOne) Visit(t *bus.Task) error {
	select {
	case o.entered <- uint64(t.Request()):
	case <-t.Context().Done():
		return t.Context().Err()
	}
	select {
	case <-o.leave:
		return nil
	case <-t.Context().Done():
		return t.Context().Err()
	}
}

// Run sends one input for each of so many requests to a bus with that stage behind the edge, and lets the handlers
// return one after the other, the first when the edge has had so many deliveries. Each request is over before the next
// handler returns.
func (o *OneByOne) Run(t *testing.T, b *bus.Bus, requests int, from, to string, deliveries int64) {
	t.Helper()
	all := make(map[uint64]*bus.Request, requests)
	sent := make(chan error, requests)
	for range requests {
		r := StreamOf(t, b)
		all[uint64(r.ID())] = r
		go func() { sent <- errors.Join(r.Send(t.Context(), "x"), r.CloseSend(t.Context())) }()
	}
	Await(t, func() bool { return EdgeStats(b, from, to).Deliveries == deliveries })
	for handled := range requests {
		r := all[Next(t, o.entered)]
		o.leave <- struct{}{}
		if err := r.Wait(Soon(t)); err != nil {
			t.Fatalf("a request whose own work is done, of which %d others are handled: %v", handled, err)
		}
	}
	for range requests {
		if err := Next(t, sent); err != nil {
			t.Error(err)
		}
	}
}
