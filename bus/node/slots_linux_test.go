package node_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// kinds are stages of each kind that handle one delivery at a time with handle.
func kinds(name string, handle bus.Handler) map[string]bus.StageSpec {
	return map[string]bus.StageSpec{
		"handle": {Name: name, Handle: handle},
		"batch": {Name: name, BatchSize: 1, Batch: func(batch []*bus.Delivery) error {
			return handle(batch[0].Task(), batch[0])
		}},
		"actor": {Name: name, Props: actor.PropsFromFunc(func(c actor.Context) {
			if d, ok := c.Message().(*bus.Delivery); ok && d.Bare() {
				_ = d.Finish(nil)
			} else if ok {
				_ = d.Finish(handle(d.Task(), d))
			}
		})},
	}
}

// TestRequestEndsWithOwnWork: a request ends when its own delivery is handled at a node, and waits
// for no handler of another request.
func TestRequestEndsWithOwnWork(t *testing.T) {
	for _, kind := range []string{"handle", "batch"} {
		for _, inflight := range []int{1, 4} {
			for _, quickHere := range []bool{false, true} {
				t.Run(fmt.Sprint(kind, inflight, quickHere), func(t *testing.T) {
					slow := testbus.NewOneByOne()
					quick := bus.StageSpec{Name: "quick", MaxInflight: inflight, Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
					p := testbus.Linear(quick, bus.StageSpec{Name: "slow", MaxInflight: inflight, Remote: &bus.Remote{}})
					if !quickHere {
						p = testbus.Remotes(p)
					}
					h := listen(t, p, bus.Options{})
					if !quickHere {
						h.serve(t, quick)
					}
					h.serve(t, kinds("slow", func(t *bus.Task, _ *bus.Delivery) error { return slow.Visit(t) })[kind])
					slow.Run(t, h.bus, 4, "quick", "slow", int64(inflight))
				})
			}
		}
	}
}

// TestRequestsThatHoldEachOthersStage: two requests of which each waits for the other's slot at a
// node both complete: the node opens the task that the host admits above the bound.
func TestRequestsThatHoldEachOthersStage(t *testing.T) {
	for _, kind := range []string{"handle", "batch", "actor"} {
		t.Run(kind, func(t *testing.T) {
			c := testbus.NewCrossing()
			remote := func(name string) bus.StageSpec {
				return bus.StageSpec{Name: name, MaxInflight: 1, Remote: &bus.Remote{}}
			}
			h := listen(t, c.Pipeline(remote("left"), remote("right")), bus.Options{})
			h.serve(t, kinds("left", func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })[kind])
			h.serve(t, kinds("right", func(t *bus.Task, d *bus.Delivery) error {
				c.Visit()
				return t.Forward(d)
			})[kind])
			c.Run(t, h.bus)
		})
	}
}

// TestEndAtANode: the end handler of a stage runs at a node, even for a request without inputs to
// the stage.
func TestEndAtANode(t *testing.T) {
	for name, spec := range map[string]bus.StageSpec{
		"End": {
			Name: "m", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) },
			End: func(t *bus.Task) error { return t.Emit("end") },
		},
		"actor": {Name: "m", Props: actor.PropsFromFunc(func(c actor.Context) {
			if d, ok := c.Message().(*bus.Delivery); ok && d.Bare() {
				_ = d.Finish(d.Task().Emit("end"))
			} else if ok {
				_ = d.Finish(d.Task().Forward(d))
			}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			h := serveAll(t, testbus.Linear(spec), bus.Options{})
			testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
			for _, inputs := range [][]string{{"x"}, nil, {"x", "y"}} {
				r := testbus.StreamOf(t, h.bus)
				for _, in := range inputs {
					if err := r.Send(t.Context(), in); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.CloseSend(t.Context()); err != nil {
					t.Fatal(err)
				}
				testbus.MustComplete(t, r, append(inputs, "end"))
			}
		})
	}
}

// endingClient is a client that serves the stage of a host.
type endingClient struct {
	*thinClient
	h *hosted
}

func newEndingClient(t *testing.T, flags uint32) endingClient {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	c := endingClient{dialThin(t, h.path), h}
	c.serve(flags)
	return c
}

func (c endingClient) serve(flags uint32) {
	c.send(&wire.Serve{Token: 1, Stage: "m", Flags: flags})
	c.await(wire.KindServing)
}

// handle has the client handle a request with one input: it emits a result and finishes the input.
func (c endingClient) handle(apart bool, flags uint8) (r *bus.Request, task uint32) {
	c.t.Helper()
	r = testbus.StreamOf(c.t, c.h.bus)
	var opts []bus.EmitOption
	if !apart {
		opts = append(opts, bus.Last())
	}
	if err := r.Send(c.t.Context(), "x", opts...); err != nil {
		c.t.Fatal(err)
	}
	if err := r.CloseSend(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	d := c.await(wire.KindDeliver).(*wire.Deliver)
	c.send(inMessage(1, d.Source, "y"))
	c.send(&wire.Finish{Delivery: d.Delivery, Flags: flags})
	return r, d.Source
}

// complete requires that a request completes with the client's emission.
func (c endingClient) complete(r *bus.Request) {
	c.t.Helper()
	if err := r.Wait(testbus.Soon(c.t)); err != nil {
		c.t.Fatal(err)
	}
	var got []string
	for d, err := range r.Results(c.t.Context()) {
		if err != nil {
			c.t.Fatal(err)
		}
		got = append(got, string(d.Bytes()))
	}
	if len(got) != 1 || got[0] != "y" {
		c.t.Errorf("the results are %q, want the emission", got)
	}
}

// TestTaskEndIsNotAsked: a client whose stage has no end handler is not asked to end a task whose
// handlers have returned. An unasked Ended has no effect. The client receives Over, unless it has
// received the ends of all inputs.
func TestTaskEndIsNotAsked(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprint("end apart: ", apart), func(t *testing.T) {
			c := newEndingClient(t, wire.ServeEnds)
			const requests = 3
			for range requests {
				r, task := c.handle(apart, wire.FinishHandled)
				c.complete(r)
				c.send(&wire.Ended{Task: task})
			}
			none := testbus.StreamOf(t, c.h.bus)
			if err := none.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := none.Wait(testbus.Soon(t)); err != nil { // the host skipped the stage
				t.Fatal(err)
			}
			c.send(&wire.Call{Token: 2, Method: "stats"})
			c.await(wire.KindReply) // the host has handled all earlier messages
			over := map[bool]int{true: requests}[apart]
			if c.count(wire.KindEnd) != 0 || c.count(wire.KindOver) != over || c.count(wire.KindOpen) != requests {
				t.Errorf("%d tasks were opened, %d were asked to end and %d got Over; want %d, 0 and %d",
					c.count(wire.KindOpen), c.count(wire.KindEnd), c.count(wire.KindOver), requests, over)
			}
			c.send(&wire.Bye{})
		})
	}
}

// TestTaskEndIsAsked: a client is asked to end a task if its stage has an end handler, or if the
// handler of the last finished delivery has not returned. The request does not end before the
// answer.
func TestTaskEndIsAsked(t *testing.T) {
	for name, tc := range map[string]struct {
		serve  uint32
		finish uint8
	}{
		"it acts at the end":           {0, wire.FinishHandled},
		"its handler has not returned": {wire.ServeEnds, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newEndingClient(t, tc.serve)
			r, task := c.handle(true, tc.finish)
			if m := c.await(wire.KindEnd).(*wire.End); m.Task != task {
				t.Fatalf("task %d is asked to end, want %d", m.Task, task)
			}
			if r.Outcome() != bus.Running {
				t.Errorf("the request is %v before the answer", r.Outcome())
			}
			c.send(&wire.Ended{Task: task})
			c.complete(r)
			c.send(&wire.Bye{})
		})
	}
}

// TestEndOfAStageNotServedYet: the host cannot know whether a stage has an end handler before a
// process serves it: the first process is asked to end a task without deliveries.
func TestEndOfAStageNotServedYet(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	r := testbus.StreamOf(t, h.bus)
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := endingClient{dialThin(t, h.path), h}
	c.serve(wire.ServeEnds)
	task := c.await(wire.KindEnd).(*wire.End).Task
	c.send(&wire.Ended{Task: task})
	if err := errors.Join(r.Wait(testbus.Soon(t)), r.Err()); err != nil {
		t.Fatal(err)
	}
	c.send(&wire.Bye{})
}
