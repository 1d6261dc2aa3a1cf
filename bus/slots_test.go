package bus_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// withOneSlot is the stage with one slot.
func withOneSlot(st bus.StageSpec) bus.StageSpec {
	st.MaxInflight = 1
	return st
}

// routingStage is a stage that sends each input to the stage that the input names.
func routingStage(name string) bus.StageSpec {
	return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error {
		to, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		return t.Emit(to, bus.To(to))
	}}
}

// TestUnusedStageNeedsNoSlot: a request does not wait for a slot of a stage to which it sends no delivery, in each
// order of the stages in the pipeline.
func TestUnusedStageNeedsNoSlot(t *testing.T) {
	for _, order := range [][2]string{{"image", "text"}, {"text", "image"}} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprint(order, " alone: ", alone), func(t *testing.T) {
				g := testbus.NewGate()
				stages := map[string]bus.StageSpec{"image": withOneSlot(g.Stage("image")), "text": withOneSlot(testbus.Suffix("text"))}
				p := bus.Pipeline{Stages: []bus.StageSpec{stages[order[0]], stages[order[1]]}}
				from := ""
				if !alone {
					from = "router"
					p.Stages = append([]bus.StageSpec{routingStage(from)}, append(p.Stages, testbus.Suffix("merge"))...)
					for _, branch := range order {
						p.Edges = append(p.Edges, bus.Edge{From: from, To: branch}, bus.Edge{From: branch, To: "merge"})
					}
				}
				b := testbus.Open(t, p, bus.Options{})
				send := func(to string) *bus.Request {
					r := testbus.StreamOf(t, b)
					var opts []bus.EmitOption
					if alone {
						opts = append(opts, bus.To(to))
					}
					go func() { _ = errors.Join(r.Send(t.Context(), to, opts...), r.CloseSend(t.Context())) }()
					return r
				}
				var images []*bus.Request
				for range 2 { // one holds the slot, the other waits for it
					images = append(images, send("image"))
				}
				testbus.Next(t, g.Entered)
				testbus.WaitForStall(t, b, from+"->image", 0)
				suffix := map[bool]string{false: "merge"}[alone]
				for range 5 {
					testbus.MustComplete(t, send("text"), []string{"texttext" + suffix})
				}
				for range images {
					g.Leave <- struct{}{}
				}
				for _, r := range images {
					testbus.MustComplete(t, r, []string{"image" + suffix})
				}
			})
		}
	}
}

// TestRequestEndsWithItsOwnWork: a request is over when its own delivery is handled, without waiting for handlers of
// other requests.
func TestRequestEndsWithItsOwnWork(t *testing.T) {
	for _, inflight := range []int{1, 4} {
		t.Run(fmt.Sprint(inflight), func(t *testing.T) {
			slow := testbus.NewOneByOne()
			p := testbus.Linear(
				bus.StageSpec{Name: "quick", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }},
				bus.StageSpec{Name: "slow", Handle: func(t *bus.Task, _ *bus.Delivery) error { return slow.Visit(t) }})
			for i := range p.Stages {
				p.Stages[i].MaxInflight = inflight
			}
			b := testbus.Open(t, p, bus.Options{})
			slow.Run(t, b, 4, "quick", "slow", int64(inflight))
		})
	}
}

// forwardingStages has a stage of each kind, with one slot, that calls visit for each delivery and forwards it.
func forwardingStages(name string, visit func()) map[string]bus.StageSpec {
	forward := func(t *bus.Task, d *bus.Delivery) error {
		visit()
		return t.Forward(d)
	}
	return map[string]bus.StageSpec{
		"handle": {Name: name, MaxInflight: 1, Handle: forward},
		"batch": {Name: name, MaxInflight: 1, Batch: func(batch []*bus.Delivery) (err error) {
			for _, d := range batch {
				err = errors.Join(err, forward(d.Task(), d))
			}
			return err
		}},
		"actor": {Name: name, MaxInflight: 1, Props: actor.PropsFromFunc(func(c actor.Context) {
			if d, ok := c.Message().(*bus.Delivery); ok && d.Bare() {
				_ = d.Finish(nil)
			} else if ok {
				_ = d.Finish(forward(d.Task(), d))
			}
		})},
	}
}

// TestSlotCycleIsBroken: two requests, each of which waits for the other's slot, both complete, at each kind of stage.
// One of them is admitted above the bound.
func TestSlotCycleIsBroken(t *testing.T) {
	for _, kind := range []string{"handle", "batch", "actor"} {
		t.Run(kind, func(t *testing.T) {
			c := testbus.NewCrossing()
			left, right := forwardingStages("left", func() {})[kind], forwardingStages("right", c.Visit)[kind]
			c.Run(t, testbus.Open(t, c.Pipeline(left, right), bus.Options{}))
		})
	}
}

// TestSlotCyclesOfManyRequests: a source sends to two branches in a different order for each request, and each
// branch has one slot. All requests complete.
func TestSlotCyclesOfManyRequests(t *testing.T) {
	src := bus.StageSpec{Name: "s", MaxInflight: 8, Handle: func(t *bus.Task, d *bus.Delivery) error {
		order := []string{"l", "r"}
		if t.Request()%2 == 0 {
			order = []string{"r", "l"}
		}
		for _, to := range order {
			if err := t.Forward(d, bus.To(to)); err != nil {
				return err
			}
		}
		return nil
	}}
	p := testbus.Diamond(src, withOneSlot(testbus.Suffix("l")), withOneSlot(testbus.Suffix("r")), bus.Edge{From: "l", To: "join", Window: 1}, bus.Edge{From: "r", To: "join", Window: 1})
	b := testbus.Open(t, p, bus.Options{MaxRequests: 8})
	ends := make(chan error)
	const requests, inputs = 40, 20
	for range requests {
		go func() {
			r, err := b.Stream(t.Context())
			if err != nil {
				ends <- err
				return
			}
			go func() {
				for i := range inputs {
					_ = r.Send(t.Context(), fmt.Sprint(i))
				}
				_ = r.CloseSend(t.Context())
			}()
			got, err := testbus.Receive(t, r)
			if err == nil && len(got) != inputs {
				err = fmt.Errorf("%d results", len(got))
			}
			ends <- err
		}()
	}
	for range requests {
		if err := testbus.Next(t, ends); err != nil {
			t.Error(err)
		}
	}
}

// openTasks counts the requests that are open at a stage, from their first delivery to the end.
type openTasks struct{ now, most atomic.Int64 }

func (o *openTasks) stage(name string, replicas, inflight int) bus.StageSpec {
	return bus.StageSpec{
		Name: name, Replicas: replicas, MaxInflight: inflight,
		Handle: func(t *bus.Task, d *bus.Delivery) error {
			if t.State == nil {
				t.State = o
				for n := o.now.Add(1); ; {
					if most := o.most.Load(); n <= most || o.most.CompareAndSwap(most, n) {
						break
					}
				}
			}
			return t.Forward(d)
		},
		End: func(*bus.Task) error {
			o.now.Add(-1)
			return nil
		},
	}
}

// TestChainKeepsMaxInflight: where requests pass the stages in one order, no more of them are open at a stage than
// Replicas times MaxInflight.
func TestChainKeepsMaxInflight(t *testing.T) {
	const requests, inputs = 12, 3
	bounds := []int64{4, 3, 2}
	open := make([]openTasks, len(bounds))
	b := testbus.Open(t, testbus.Linear(open[0].stage("a", 2, 2), open[1].stage("b", 1, 3), open[2].stage("c", 2, 1)), bus.Options{MaxRequests: requests})
	waiting := func() (n int) {
		for _, s := range b.Stalls(0) {
			if slices.Contains([]string{"->a", "a->b", "b->c"}, s.Edge) {
				n++
			}
		}
		return n
	}
	stopped := make(chan struct{})
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			r, err := b.Stream(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			err = r.Send(t.Context(), "x")
			<-stopped
			for range inputs - 1 {
				err = errors.Join(err, r.Send(t.Context(), "x"))
			}
			err = errors.Join(err, r.CloseSend(t.Context()))
			got, failed := testbus.Receive(t, r)
			if err := errors.Join(err, failed); err != nil || len(got) != inputs {
				t.Errorf("%d results, %v", len(got), err)
			}
		})
	}
	// Two requests have all slots of c, and one waits there; it is one of three at b, and so on.
	testbus.Await(t, func() bool { return waiting() == requests-2 })
	close(stopped)
	all.Wait()
	for i, st := range b.Stats().Stages {
		if most := open[i].most.Load(); most != bounds[i] || st.AdmittedAbove != 0 {
			t.Errorf("%d requests were open at stage %q, and it has admitted %d above its bound; want %d and 0", most, st.Name, st.AdmittedAbove, bounds[i])
		}
	}
}

// TestOldestRequestGetsTheSlot: of the requests that wait for a slot, the one that was submitted first gets it, even if
// another began to wait before.
func TestOldestRequestGetsTheSlot(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Linear(withOneSlot(g.Stage("m"))), bus.Options{})
	names := []string{"holds", "old", "young", "younger"}
	requests := make(map[string]*bus.Request)
	for _, name := range names {
		requests[name] = testbus.StreamOf(t, b)
	}
	send := func(name string, waiting int) {
		go func() { _ = requests[name].Send(t.Context(), name, bus.Last()) }()
		testbus.Await(t, func() bool { return len(b.Stalls(0)) == waiting })
	}
	send("holds", 0)
	if got := testbus.Next(t, g.Entered); got != "holds" {
		t.Fatalf("%q has the slot", got)
	}
	for i, name := range []string{"younger", "old", "young"} {
		send(name, i+1)
	}
	for _, want := range names[1:] {
		g.Leave <- struct{}{}
		if got := testbus.Next(t, g.Entered); got != want {
			t.Fatalf("%q has got the slot, want %q", got, want)
		}
	}
	g.Leave <- struct{}{}
	for _, name := range names {
		testbus.MustComplete(t, requests[name], []string{name})
	}
}

// TestTrySubmitTakesNoAwaitedSlot: TrySubmit gets a slot only if no other request waits for it.
func TestTrySubmitTakesNoAwaitedSlot(t *testing.T) {
	had := make(chan string, 2)
	leave := make(chan struct{})
	b := testbus.Open(t, testbus.Linear(withOneSlot(bus.Expand("m", func(_ *bus.Task, in string, _ func(string) error) error {
		if in == "holds" {
			<-leave
		} else {
			had <- in
		}
		return nil
	}))), bus.Options{})
	for range 50 {
		holds, err := b.Submit(t.Context(), "holds")
		if err != nil {
			t.Fatal(err)
		}
		waits := testbus.StreamOf(t, b)
		sent := make(chan error, 1)
		go func() { sent <- waits.Send(t.Context(), "waits", bus.Last()) }()
		testbus.WaitForStall(t, b, "->m", 0)
		if _, err := b.TrySubmit(t.Context(), "tries"); !errors.Is(err, bus.ErrOverloaded) {
			t.Fatalf("try: %v", err)
		}
		tried := make(chan *bus.Request, 1)
		go func() {
			for t.Context().Err() == nil {
				if r, err := b.TrySubmit(t.Context(), "tries"); err == nil {
					tried <- r
					return
				}
			}
		}()
		leave <- struct{}{}
		first, second := testbus.Next(t, had), testbus.Next(t, had)
		if first != "waits" || second != "tries" {
			t.Fatalf("the stage had %q and then %q", first, second)
		}
		for _, r := range []*bus.Request{holds, waits, testbus.Next(t, tried)} {
			testbus.MustComplete(t, r, nil)
		}
		if err := testbus.Next(t, sent); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAbortedRequestLeavesSlotQueue: a request that ends while it waits for a slot no longer waits, and the next
// request gets the slot.
func TestAbortedRequestLeavesSlotQueue(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Linear(withOneSlot(g.Stage("m"))), bus.Options{})
	send := func(in string) (*bus.Request, <-chan error) {
		r, sent := testbus.StreamOf(t, b), make(chan error, 1)
		go func() { sent <- r.Send(t.Context(), in, bus.Last()) }()
		return r, sent
	}
	holds, _ := send("holds")
	testbus.Next(t, g.Entered)
	aborted, refused := send("aborted")
	next, _ := send("next")
	testbus.Await(t, func() bool { return bus.Waiting(b, "m") == 2 })
	aborted.Abort(nil)
	if n := bus.Waiting(b, "m"); n != 1 {
		t.Errorf("%d requests wait for the slot, want 1", n)
	}
	if err := testbus.Next(t, refused); !errors.Is(err, bus.ErrAborted) {
		t.Errorf("the input of the request that was aborted: %v", err)
	}
	g.Leave <- struct{}{}
	if got := testbus.Next(t, g.Entered); got != "next" {
		t.Fatalf("%q has got the slot, want next", got)
	}
	g.Leave <- struct{}{}
	testbus.MustComplete(t, holds, []string{"holds"})
	testbus.MustComplete(t, next, []string{"next"})
	if st := testbus.StageStats(b, "m"); st.SlotsFree != st.Slots {
		t.Errorf("%d of %d slots are free", st.SlotsFree, st.Slots)
	}
}
