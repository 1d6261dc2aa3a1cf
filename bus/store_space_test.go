package bus_test

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// rawOptions are the options of a small bus for payloads of plain bytes.
func rawOptions(arenaBytes int64, maxRequests int) bus.Options {
	return bus.Options{
		MaxRequests: maxRequests,
		Serializer:  codec.RawSerializer{},
		Store:       shmstore.Options{ArenaBytes: arenaBytes, Memory: shmstore.Heap},
	}
}

// countResults receives all results of a request, and counts them.
func countResults(t *testing.T, r *bus.Request) (n int) {
	t.Helper()
	for _, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// TestPriceCoversReservation: the store rounds reservations of extents up, and the
// price must include that. Otherwise a store that the windows just fit is full before
// the credit is used up, and the request waits for ever.
func TestPriceCoversReservation(t *testing.T) {
	p := testbus.Linear(
		bus.Expand("a", func(_ *bus.Task, _ []byte, emit func([]byte) error) error {
			for range 100 {
				if err := emit(make([]byte, 33<<10)); err != nil {
					return err
				}
			}
			return nil
		}),
		bus.Stage("b", func(_ *bus.Task, in []byte) ([]byte, error) { return in, nil }))
	p.Edges[0].WindowBytes = 600 << 10
	for i := range p.Stages {
		p.Stages[i].MaxInflight = 1
	}
	b := testbus.Open(t, p, bus.Patient(rawOptions(2<<20, 1)))
	r, err := b.Submit(t.Context(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if n := countResults(t, r); n != 100 {
		t.Errorf("%d results", n)
	}
	for _, e := range b.Stats().Edges {
		if e.Spilled != 0 {
			t.Errorf("edge %s->%s: %d payloads went to the heap", e.From, e.To, e.Spilled)
		}
	}
}

// TestFragmentedStoreSpills: payloads that are kept for a replay fragment the
// store. A payload that is larger than the free pieces goes to the heap, and is
// forwarded from there by reference, instead of waiting for payloads that its own
// request holds.
func TestFragmentedStoreSpills(t *testing.T) {
	const inputs, small, large = 18, 100 << 10, 1000 << 10
	size := small
	islands := bus.StageSpec{Name: "islands", MaxInflight: 1, Replay: true, Handle: func(t *bus.Task, _ *bus.Delivery) error {
		return t.EmitBytes(make([]byte, size))
	}}
	var first *byte
	pass := bus.StageSpec{Name: "pass", MaxInflight: 1, Handle: func(t *bus.Task, d *bus.Delivery) error {
		first = &d.Bytes()[0]
		return t.Forward(d)
	}}
	p := testbus.Linear(islands, pass)
	p.Edges = []bus.Edge{{To: "islands"}, {From: "islands", To: "pass"}, {From: "pass"}}
	for i := range p.Edges {
		p.Edges[i].WindowBytes = 3 << 20 // so that kept payloads and the gaps between them fill the store
	}
	opts := rawOptions(4<<20, 1)
	opts.Overcommit = true
	b := testbus.Open(t, p, opts)
	r := testbus.StreamOf(t, b)
	trip := func() *bus.Delivery {
		t.Helper()
		if err := r.Send(t.Context(), make([]byte, small)); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Bytes()) != size || first != &d.Bytes()[0] {
			t.Fatalf("a result of %d bytes in place of %d, or a copy", len(d.Bytes()), size)
		}
		return d
	}
	var between []*bus.Delivery
	for range inputs {
		between = append(between, trip())
	}
	for _, d := range between {
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	size = large
	if err := trip().Finish(nil); err != nil {
		t.Fatal(err)
	}
	r.Close()
	mustDrain(t, b)
	if n := b.Stats().Edges[1].Spilled; n != 1 {
		t.Errorf("%d payloads went to the heap", n)
	}
}

// TestStoreSpaceIsReused: payloads that follow each other reuse the space of finished
// payloads.
func TestStoreSpaceIsReused(t *testing.T) {
	const messages, size = 50, 100 << 10
	places := make(map[*byte]bool)
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
		places[&d.Bytes()[0]] = true
		return t.EmitBytes(d.Bytes())
	}}), rawOptions(16<<20, 1))
	r := testbus.StreamOf(t, b)
	for range messages {
		if err := r.Send(t.Context(), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	r.Close()
	mustDrain(t, b)
	// An input and a result, and as many again that are being finished.
	if n := len(places); n > 4 {
		t.Errorf("%d payloads had %d addresses", messages, n)
	}
}

// TestDropOldestStaysInItsWindow: the queue of an edge that drops never holds
// more than its byte window.
func TestDropOldestStaysInItsWindow(t *testing.T) {
	const window, payloads = 180 << 10, 20
	gate := make(chan struct{})
	p := testbus.Linear(
		bus.StageSpec{Name: "a", MaxInflight: 2, Handle: func(t *bus.Task, _ *bus.Delivery) error {
			for range payloads {
				if err := t.EmitBytes(make([]byte, window-256)); err != nil {
					return err
				}
			}
			return nil
		}},
		bus.StageSpec{Name: "b", MaxInflight: 2, Handle: func(t *bus.Task, d *bus.Delivery) error {
			<-gate
			return t.EmitBytes([]byte{byte(d.Dropped)})
		}})
	p.Edges[0].WindowBytes, p.Edges[0].Policy = window, bus.DropOldest
	b := testbus.Open(t, p, bus.Patient(rawOptions(2<<20, 2)))
	var rs []*bus.Request
	for range 2 {
		r, err := b.Submit(t.Context(), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	// One payload of each request is at b, and one is queued: the others were dropped.
	for b.Stats().Edges[0].Dropped < 2*(payloads-2) && t.Context().Err() == nil {
	}
	close(gate)
	for _, r := range rs {
		var got []byte
		for d, err := range r.Results(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, d.Bytes()...)
		}
		if len(got) != 2 || got[0] != 0 || got[1] != payloads-2 {
			t.Errorf("dropped before each delivery: %v", got)
		}
	}
	if s := b.Stats().Edges[0]; s.Spilled != 0 {
		t.Errorf("%d payloads went to the heap", s.Spilled)
	}
}

// TestOvercommit: windows that exceed the store are refused without Overcommit;
// with it, payloads without space go to the heap.
func TestOvercommit(t *testing.T) {
	const n = 8
	p := testbus.Linear(bus.Stage("a", func(_ *bus.Task, in []byte) (int, error) { return len(in), nil }))
	p.Stages[0].MaxInflight = n
	p.Edges = []bus.Edge{{To: "a", WindowBytes: 1 << 20}, {From: "a", WindowBytes: 4 << 10}}
	opts := rawOptions(2<<20, n)
	opts.Serializer = nil
	if _, err := bus.Open(t.Context(), p, opts); !errors.Is(err, bus.ErrConfig) {
		t.Fatalf("windows of 8 MiB over a store of 2: %v", err)
	}
	opts.Overcommit = true
	b := testbus.Open(t, p, opts)
	held := make(chan struct{})
	var all []*bus.Request
	for range n {
		r := testbus.StreamOf(t, b)
		room, err := r.Input(t.Context()).Reserve(400<<10, codec.IDRaw)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			<-held
			if err := room.Send(400<<10, bus.Last()); err != nil {
				t.Error(err)
			}
		}()
		all = append(all, r)
	}
	close(held) // all payloads have memory at the same time
	for _, r := range all {
		if got := countResults(t, r); got != 1 {
			t.Errorf("%d results", got)
		}
	}
	if s := b.Stats().Edges[0]; s.Spilled == 0 {
		t.Error("3 MiB fitted a store of 2")
	}
}
