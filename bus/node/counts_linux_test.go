package node_test

import (
	"context"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestCountsOfARequest: the packets, allocations and goroutines of a request with one message of 64
// bytes do not grow. The request goes from a node through a stage of another node and back, one at
// a time. Host and nodes share one process here, so that each count is the sum of all three.
func TestCountsOfARequest(t *testing.T) {
	const requests = 400
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	h.serve(t, bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) }})
	n := h.join(t, node.JoinOptions{})
	payload := make([]byte, 64)
	request := func() (packets int64) {
		before := peer.PacketsSent()
		r, err := n.Submit(t.Context(), payload)
		if err != nil {
			t.Fatal(err)
		}
		for d, err := range r.Results(context.Background()) {
			if err != nil || len(d.Bytes()) < len(payload) {
				t.Fatalf("a result of %d bytes, %v", len(d.Bytes()), err)
			}
		}
		return peer.PacketsSent() - before
	}
	for range requests { // until all buffers and links exist
		request()
	}
	started := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(started)
	goroutines := started[0].Value.Uint64()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	packets := make([]int64, requests)
	for i := range packets {
		packets[i] = request()
	}
	runtime.ReadMemStats(&after)
	metrics.Read(started)
	goroutines = started[0].Value.Uint64() - goroutines
	slices.Sort(packets)
	if most := packets[requests/2]; most != 4 {
		t.Errorf("a request takes %d packets, want 4", most)
	}
	if goroutines > requests/10 { // the runtime, and timers, start some
		t.Errorf("%d requests start %d goroutines", requests, goroutines)
	}
	allocations := (after.Mallocs - before.Mallocs) / requests
	if allocations > 75 && !racing() { // with the race detector a sync.Pool drops some of its objects
		t.Errorf("a request takes %d allocations, want at most 75", allocations)
	}
	t.Logf("%d packets, %d allocations; all of them started %d goroutines", packets[requests/2], allocations, goroutines)
}
