package node_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// TestOverComesAfterResults: a caller receives all results of a complete request, including those
// that wait for a slot in its window when the last stage ends.
func TestOverComesAfterResults(t *testing.T) {
	const results = 20
	h := listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", BatchSize: 1, Batch: func(batch []*bus.Delivery) error {
			for _, d := range batch {
				for i := range results {
					if err := d.Task().EmitBytes([]byte{byte(i)}); err != nil {
						return err
					}
				}
			}
			return nil
		}}},
		Edges: []bus.Edge{{From: "m", Window: 1}},
	}, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	for range 20 {
		r, err := n.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for d, err := range r.Results(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if int(d.Bytes()[0]) != got {
				t.Fatalf("result %d came as number %d", d.Bytes()[0], got)
			}
			got++
		}
		if got != results {
			t.Fatalf("%d results of %d came", got, results)
		}
	}
}
