package node_test

import (
	"context"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestRedeliveryAfterLast: the unfinished input of a replica that leaves is handled by another
// replica, even after the last input has come.
func TestRedeliveryAfterLast(t *testing.T) {
	for name, end := range map[string]func(*bus.Task) error{"no end": nil, "an end": func(*bus.Task) error { return nil }} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testbus.Patience)
			defer cancel()
			h := listen(t, testbus.Linear(bus.StageSpec{Name: "m", State: bus.StateNone, Attempts: 2, Remote: &bus.Remote{Routing: bus.LeastQueue}, MaxInflight: 4}), bus.Options{})
			var nodes []*node.Node
			got := make(chan int, 8)
			leaving := make(chan struct{})
			for i := range 2 {
				n, _ := h.serve(t, bus.StageSpec{Name: "m", State: bus.StateNone, End: end, Handle: func(t *bus.Task, d *bus.Delivery) error {
					got <- i
					if i == 0 { // never returns by itself
						<-t.Context().Done()
						return t.Context().Err()
					}
					<-leaving
					return t.Forward(d)
				}})
				nodes = append(nodes, n)
				testbus.Await(t, func() bool { return h.server.Serving("m") == i+1 })
			}
			r, err := h.bus.Stream(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for at := -1; at != 0; at = <-got { // the first input goes to either replica
				if at == 1 {
					t.Fatal("the first input went to the second replica")
				}
				if err := r.Send(ctx, "one"); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Send(ctx, "two", bus.Last()); err != nil {
				t.Fatal(err)
			}
			if err := nodes[0].Close(ctx); err != nil {
				t.Fatal(err)
			}
			testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
			close(leaving)
			var results []string
			for d, err := range r.Results(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				var s string
				if err := d.Decode(&s); err != nil {
					t.Fatal(err)
				}
				results = append(results, s)
			}
			slices.Sort(results)
			if !slices.Equal(results, []string{"one", "two"}) {
				t.Errorf("the results are %q", results)
			}
		})
	}
}
