package node_test

import (
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestDropOldestOfANode: a producer in another process never blocks on an edge that drops the
// oldest, even when the deliveries that wait fill the window in bytes: the host accepts each
// emission, and drops older ones for it.
func TestDropOldestOfANode(t *testing.T) {
	const inputs = 60
	emitted := make(chan struct{})
	src := bus.Expand("src", func(_ *bus.Task, in string, emit func(string) error) error {
		defer close(emitted)
		for range inputs {
			if err := emit(strings.Repeat(in, 1000)); err != nil {
				return err
			}
		}
		return nil
	})
	var handled, dropped int
	slow := bus.StageSpec{Name: "slow", Handle: func(task *bus.Task, d *bus.Delivery) error {
		select {
		case <-emitted:
		case <-task.Context().Done():
		}
		handled++
		dropped += int(d.Dropped)
		return nil
	}}
	p := testbus.Linear(src, slow)
	p.Edges[0].Policy, p.Edges[0].Window, p.Edges[0].WindowBytes = bus.DropOldest, bus.Unbounded, 10_000
	remote := testbus.Remotes(p)
	remote.Stages[1] = p.Stages[1]
	h := listen(t, remote, bus.Options{})
	h.serve(t, src)
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, nil)
	if dropped == 0 || handled+dropped != inputs {
		t.Errorf("%d handled and %d dropped of %d", handled, dropped, inputs)
	}
	if err := h.bus.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}
