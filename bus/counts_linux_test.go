package bus_test

import (
	"context"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
)

// requestCounts is what one request costs, in the host and both processes together.
type requestCounts struct{ packets, goroutines, allocations int64 }

// countRequests counts requests of one message of 64 bytes, from a node through a stage of
// another and back, one at a time, and returns the medians.
func countRequests(t *testing.T, requests int) requestCounts {
	t.Helper()
	h := listen(t, remotes(linear(bus.StageSpec{Name: "a"})), bus.Options{})
	h.serve(t, bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) }})
	n := h.join(t, bus.JoinOptions{})
	payload := make([]byte, 64)
	var all [3][]int64
	for i := range 2 * requests {
		before := countsNow()
		r, err := n.Submit(t.Context(), payload)
		if err != nil {
			t.Fatal(err)
		}
		for d, err := range r.Results(context.Background()) {
			if err != nil {
				t.Fatal(err)
			}
			if len(d.Bytes()) < len(payload) {
				t.Fatalf("a result of %d bytes", len(d.Bytes()))
			}
		}
		after := countsNow()
		if i < requests { // until all have what they need
			continue
		}
		all[0] = append(all[0], after.packets-before.packets)
		all[1] = append(all[1], after.goroutines-before.goroutines)
		all[2] = append(all[2], after.allocations-before.allocations)
	}
	for _, counts := range all {
		slices.Sort(counts)
	}
	return requestCounts{all[0][requests/2], all[1][requests/2], all[2][requests/2]}
}

func countsNow() requestCounts {
	samples := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}, {Name: "/gc/heap/allocs:objects"}}
	metrics.Read(samples)
	return requestCounts{peer.PacketsSent(), int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64())}
}

// TestCountsOfARequest: what a request costs does not grow.
func TestCountsOfARequest(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	got := countRequests(t, 200)
	t.Logf("%+v", got)
	if got.packets != 4 {
		t.Errorf("a request takes %d packets, not 4", got.packets)
	}
	if got.goroutines > 0 {
		t.Errorf("a request starts %d goroutines", got.goroutines)
	}
	if got.allocations > 80 {
		t.Errorf("a request takes %d allocations, more than 80", got.allocations)
	}
}
