package node_test

import (
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestNodeForgetsEndedTasks: a completed task whose request is aborted before the host has asked
// for the end of the task has ended: the node does not wait for the question.
func TestNodeForgetsEndedTasks(t *testing.T) {
	taken, release := make(chan struct{}, 1), make(chan struct{})
	h := listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "a", Remote: &bus.Remote{}},
			{Name: "b", MaxInflight: 1, Handle: func(*bus.Task, *bus.Delivery) error {
				taken <- struct{}{}
				<-release
				return nil
			}},
		},
		Edges: []bus.Edge{{From: "a", To: "b"}},
	}, bus.Options{})
	done := make(chan struct{}, 1)
	n := h.join(t, node.JoinOptions{})
	served := make(chan error, 1)
	go func() {
		served <- n.Serve(context.Background(), bus.StageSpec{
			Name:   "a",
			Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) },
			End:    func(*bus.Task) error { done <- struct{}{}; return nil },
		})
	}()
	first, err := h.bus.Submit(t.Context(), "takes the only place at b")
	if err != nil {
		t.Fatal(err)
	}
	<-taken
	<-done
	for range 20 { // in some rounds the abort comes before the node's work is done
		r, err := h.bus.Submit(t.Context(), "waits for that place, and with it the end of a")
		if err != nil {
			t.Fatal(err)
		}
		<-done
		r.Abort(nil)
		r.Close()
	}
	close(release)
	if err := first.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.server.Drain()
	if err := <-served; err != nil { // no task is open
		t.Fatal(err)
	}
}

// TestNodeForgetsFailedTasks: a node whose handler has failed keeps nothing of the task.
func TestNodeForgetsFailedTasks(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n, _ := h.serve(t, bus.StageSpec{Name: "a", Handle: func(*bus.Task, *bus.Delivery) error { return errors.New("no") }})
	for range 10 {
		r, err := h.bus.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Wait(t.Context()); err == nil {
			t.Fatal("the request has completed")
		}
	}
	testbus.Await(t, func() bool {
		_, sources := node.OpenCounts(n)
		return sources == 0
	})
}

// TestLateClientIsToldToDrain: a client that attaches to a draining host gets Drain too, and the
// host does not wait for its stages.
func TestLateClientIsToldToDrain(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	h.server.Drain()
	n := h.join(t, node.JoinOptions{})
	if _, err := n.Call(t.Context(), "status", nil); err != nil { // the answer comes after Drain
		t.Fatal(err)
	}
	if !node.DrainReceived(n) {
		t.Fatal("the host did not say that it is going to stop")
	}
	if err := n.Serve(t.Context(), bus.Stage("a", testbus.Upper)); err != nil { // no task is open
		t.Fatal(err)
	}
}

// TestClosingNodeReturnsUnhandled: the unhandled deliveries of a closing node are handled
// elsewhere, where the stage has Attempts: the delivery in a handler, whichever error the handler
// returns, and those queued behind it.
func TestClosingNodeReturnsUnhandled(t *testing.T) {
	for name, handled := range map[string]error{"a handler that fails": context.Canceled, "a handler that ends": nil} {
		t.Run(name, func(t *testing.T) {
			spec := bus.StageSpec{Name: "a", State: bus.StateNone, Attempts: 1, Remote: &bus.Remote{}}
			h := listen(t, testbus.Linear(spec), bus.Options{})
			begun := make(chan struct{})
			leaves, _ := h.serve(t, bus.StageSpec{Name: "a", Handle: func(t *bus.Task, _ *bus.Delivery) error {
				close(begun)
				<-t.Context().Done()
				return handled
			}})
			r := submitAll(t, h.bus, "one", "two", "three")
			<-begun
			if err := leaves.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.serve(t, bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }})
			testbus.MustReceive(t, r, []string{large("one"), large("two"), large("three")})
		})
	}
}

// TestHeldResultsTakeNoPermit: a stage's results stay in the node's memory, and their requests in
// its bus, while callers hold them. The host still opens as many tasks at the node as it has
// requests.
func TestHeldResultsTakeNoPermit(t *testing.T) {
	const requests = 80 // more than the default of JoinOptions.MaxRequests
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a", Handle: func(*bus.Task, *bus.Delivery) error { return nil }})), bus.Options{MaxRequests: requests})
	h.serve(t, bus.StageSpec{Name: "a", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		return t.EmitBytes(make([]byte, 3000)) // larger than what travels in messages
	}})
	for i := range requests {
		r, err := h.bus.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatalf("with %d results held: %v", i, err)
		}
		t.Cleanup(func() { mustFinishResult(t, d) })
	}
}

func mustFinishResult(t *testing.T, d *bus.Delivery) {
	t.Helper()
	if err := d.Finish(nil); err != nil {
		t.Error(err)
	}
}
