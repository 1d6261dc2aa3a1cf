package node_test

import (
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// routingFixture is a stage with a replica in each of several nodes, which keep their deliveries.
type routingFixture struct {
	*hosted
	t    *testing.T
	kept []<-chan *bus.Kept // by replica
}

func newRoutingFixture(t *testing.T, routing bus.Routing, replicas int) *routingFixture {
	t.Helper()
	spec := bus.StageSpec{Name: "m", State: bus.StateNone, Remote: &bus.Remote{Routing: routing}, MaxInflight: 4}
	r := &routingFixture{t: t, hosted: listen(t, testbus.Linear(spec), bus.Options{Store: shmstore.Options{ArenaBytes: 8 << 20}})}
	for i := range replicas {
		spec, kept := keeping("m")
		spec.State = bus.StateNone
		r.serve(t, spec)
		r.kept = append(r.kept, kept)
		testbus.Await(t, func() bool { return r.server.Serving("m") == i+1 })
	}
	return r
}

// send sends a delivery, and returns the replica that received it.
func (r *routingFixture) send(to *bus.Request) (int, *bus.Kept) {
	r.t.Helper()
	if err := to.Input(r.t.Context()).EmitBytes([]byte("work")); err != nil {
		r.t.Fatal(err)
	}
	for r.t.Context().Err() == nil {
		for i, kept := range r.kept {
			select {
			case k := <-kept:
				return i, k
			default:
			}
		}
	}
	r.t.Fatal("no replica got a delivery")
	return 0, nil
}

// finish finishes a delivery, and returns when the host has received Finish.
func (r *routingFixture) finish(k *bus.Kept) {
	r.t.Helper()
	before := len(r.server.Holdings())
	mustFinish(r.t, k)
	testbus.Await(r.t, func() bool { return len(r.server.Holdings()) < before })
}

func (r *routingFixture) open() *bus.Request {
	r.t.Helper()
	req, err := r.bus.Stream(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(req.Close)
	return req
}

func TestRoundRobin(t *testing.T) {
	r := newRoutingFixture(t, bus.RoundRobin, 3)
	req := r.open()
	var got []int
	for range 9 {
		replica, k := r.send(req)
		got = append(got, replica)
		r.finish(k)
	}
	for i := range got[3:] {
		if got[i+3] != got[i] || slices.Contains(got[i+1:i+3], got[i]) {
			t.Fatalf("replicas got work in the order %v, which is not in turn", got)
		}
	}
}

// TestLeastQueue: the replica with the fewest deliveries gets the next one, whichever had the last.
func TestLeastQueue(t *testing.T) {
	r := newRoutingFixture(t, bus.LeastQueue, 3)
	req := r.open()
	held := make(map[int]*bus.Kept)
	for range 3 {
		replica, k := r.send(req)
		if held[replica] != nil {
			t.Fatalf("replica %d got a second delivery, and others had none", replica)
		}
		held[replica] = k
	}
	for _, idle := range []int{1, 1, 0, 2} {
		r.finish(held[idle])
		if replica, k := r.send(req); replica != idle {
			t.Fatalf("replica %d got a delivery, and %d had none", replica, idle)
		} else {
			held[idle] = k
		}
	}
	for _, k := range held {
		r.finish(k)
	}
}

// TestStickySpreads: open requests count even when they are idle or their streams are direct, so
// that no replica gets more than its share of requests.
func TestStickySpreads(t *testing.T) {
	const replicas, each = 2, 2
	r := newRoutingFixture(t, bus.Sticky, replicas)
	open := make(map[int]int)
	for range replicas * each {
		home, k := r.send(r.open())
		r.finish(k)
		open[home]++
	}
	for home, n := range open {
		if n != each {
			t.Errorf("replica %d has %d of %d requests", home, n, replicas*each)
		}
	}
}

// TestSticky: a request stays at its first replica, which was the one with the fewest requests.
func TestSticky(t *testing.T) {
	r := newRoutingFixture(t, bus.Sticky, 2)
	homes := make(map[int]bool)
	var held []*bus.Kept
	requests := []*bus.Request{r.open(), r.open()}
	first := make([]int, len(requests))
	for i, req := range requests {
		home, k := r.send(req)
		homes[home], first[i], held = true, home, append(held, k)
	}
	if len(homes) != 2 {
		t.Errorf("two requests began at replicas %v", first)
	}
	for i, req := range requests {
		for range 3 {
			replica, k := r.send(req)
			if replica != first[i] {
				t.Errorf("request %d began at replica %d and went on at %d", i, first[i], replica)
			}
			held = append(held, k)
		}
	}
	for _, k := range held {
		r.finish(k)
	}
}
