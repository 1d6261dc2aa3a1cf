package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestWindowHoldsTheProducerBack: while the consumer handles its first delivery,
// the producer sends as many deliveries as the window has.
func TestWindowHoldsTheProducerBack(t *testing.T) {
	const window, inputs = 3, 10
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: window}), bus.Options{})
	r := testbus.StreamOf(t, b)
	for i := range inputs {
		if err := r.Send(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	<-g.Entered
	stalls := testbus.WaitForStall(t, b, "first->second", window)
	if got := b.Stats().Edges[0].Deliveries; got != window {
		t.Errorf("%d deliveries sent, the window is %d", got, window)
	}
	if stalls.Deliveries != window || !strings.Contains(stalls.Holder, `"second"`) {
		t.Errorf("stall does not name the holder: %v", stalls)
	}
	for range inputs {
		g.Leave <- struct{}{}
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := testbus.Receive(t, r); err != nil || len(got) != inputs {
		t.Fatalf("%d results, %v", len(got), err)
	}
}

// TestByteWindowHoldsTheProducerBack is the same for the byte window.
func TestByteWindowHoldsTheProducerBack(t *testing.T) {
	g := testbus.NewGate()
	payload := strings.Repeat("p", 10_000)
	b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: bus.Unbounded, WindowBytes: 40_000}), bus.Options{})
	r := testbus.StreamOf(t, b)
	for range 5 {
		if err := r.Send(t.Context(), payload); err != nil {
			t.Fatal(err)
		}
	}
	testbus.WaitForStall(t, b, "first->second", 2)
	if got := b.Stats().Edges[0].Deliveries; got != 2 {
		t.Errorf("%d deliveries of 10 kB, which take 16 KiB each, fit a window of 40 kB", got)
	}
	for range 5 {
		g.Leave <- struct{}{}
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := testbus.Receive(t, r); err != nil || len(got) != 5 {
		t.Fatalf("%d results, %v", len(got), err)
	}
}

func TestPolicyFail(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: 2, Policy: bus.Fail}), bus.Options{})
	r := testbus.StreamOf(t, b)
	for i := range 5 {
		if err := r.Send(t.Context(), fmt.Sprint(i)); err != nil {
			break // the request may be over already
		}
	}
	_, err := testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.Is(err, bus.ErrWindowFull) || !errors.As(err, &at) {
		t.Fatalf("got %v", err)
	}
	if at.Stage != "first" || at.Edge != "first->second" || at.Seq != 2 {
		t.Errorf("wrong place: %+v", at)
	}
	if r.Outcome() != bus.Failed {
		t.Errorf("outcome %v", r.Outcome())
	}
}

// TestPolicyDropOldest: the next delivery carries the count of dropped ones, the
// newest and the end of the stream always arrive, and the producer never waits.
func TestPolicyDropOldest(t *testing.T) {
	const inputs, window = 50, 4
	g := testbus.NewGate()
	var dropped atomic.Int64
	p := testbus.Windowed(g, bus.Edge{Window: window, Policy: bus.DropOldest})
	inner := p.Stages[1].Handle
	p.Stages[1].Handle = func(t *bus.Task, d *bus.Delivery) error {
		dropped.Add(int64(d.Dropped))
		return inner(t, d)
	}
	b := testbus.Open(t, p, bus.Options{})
	r := testbus.StreamOf(t, b)
	for i := range inputs {
		if err := r.Send(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	for b.Stats().Edges[0].Deliveries < inputs && t.Context().Err() == nil {
	}
	for range inputs {
		g.Leave <- struct{}{}
	}
	got, err := testbus.Receive(t, r)
	if err != nil {
		t.Fatal(err)
	}
	s := b.Stats().Edges[0]
	if s.Dropped == 0 || s.Dropped != dropped.Load() {
		t.Errorf("dropped %d, the consumer was told of %d", s.Dropped, dropped.Load())
	}
	if len(got)+int(s.Dropped) != inputs {
		t.Errorf("%d results and %d dropped of %d", len(got), s.Dropped, inputs)
	}
	if last := got[len(got)-1]; last != fmt.Sprint(inputs-1) {
		t.Errorf("the newest was dropped: the last result is %q", last)
	}
}

// TestBrokenSequence: a missing or repeated delivery fails the request with an error that
// names the sequence.
func TestBrokenSequence(t *testing.T) {
	for _, tc := range []struct {
		by   int // added to the sequences from 5 on
		says string
	}{
		{1, "sequence 5 is missing, 6 came instead"},
		{-1, "sequence 4 came again, 5 was next"},
	} {
		for _, size := range []int{10, 1000} {
			t.Run(fmt.Sprint(tc.says, size), func(t *testing.T) {
				a := bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
					if d.Seq == 5 {
						bus.Renumber(t, tc.by)
					}
					return t.EmitBytes(make([]byte, size))
				}}
				b := testbus.Open(t, testbus.Linear(a, bus.Stage("b", testbus.Upper)), bus.Options{})
				r := testbus.StreamOf(t, b)
				go func() {
					for range 10 {
						_ = r.Send(t.Context(), "x")
					}
					_ = r.CloseSend(t.Context())
				}()
				_, err := testbus.Receive(t, r)
				if !errors.Is(err, bus.ErrSequence) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "a->b") {
					t.Fatalf("got %v", err)
				}
			})
		}
	}
}

// TestNoCopies: a later stage sees a payload at the address where the first one
// filled it; the copies of a stage that copies are counted.
func TestNoCopies(t *testing.T) {
	const size = 10_000
	var filled, seen, copied *byte
	p := testbus.Linear(
		bus.StageSpec{Name: "fill", Handle: func(t *bus.Task, _ *bus.Delivery) error {
			return t.EmitTensor(f32, []int{size / 4}, func(data []byte) error {
				filled = &data[0]
				return nil
			})
		}},
		bus.StageSpec{Name: "forward", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }},
		bus.StageSpec{Name: "copy", Handle: func(t *bus.Task, d *bus.Delivery) error {
			x, err := d.Tensor()
			if err != nil {
				return err
			}
			seen = &x.Data[0]
			return t.EmitBytes(x.Data)
		}},
		bus.StageSpec{Name: "last", Handle: func(_ *bus.Task, d *bus.Delivery) error {
			copied = &d.Bytes()[0]
			return nil
		}},
	)
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testbus.Receive(t, r); err != nil {
		t.Fatal(err)
	}
	if filled == nil || filled != seen {
		t.Errorf("filled at %p, seen at %p", filled, seen)
	}
	if copied == seen {
		t.Error("the copying stage did not copy")
	}
	var copies []int64
	for _, e := range b.Stats().Edges[:3] {
		copies = append(copies, e.Copies)
	}
	if fmt.Sprint(copies) != "[0 0 1]" {
		t.Errorf("copies per edge: %v", copies)
	}
}

// TestWindowsMustFitTheStore: Open and Bounds refuse windows that exceed the store, and name the edges.
func TestWindowsMustFitTheStore(t *testing.T) {
	p := testbus.Linear(bus.Stage("a", testbus.Upper))
	p.Edges = append(p.Edges, bus.Edge{To: "a", WindowBytes: 10 << 20})
	opts := bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Heap}}
	_, err := bus.Open(t.Context(), p, opts)
	if !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), "->a for 4 requests") {
		t.Fatalf("got %v", err)
	}
	if _, alone := p.Bounds(opts); alone == nil || alone.Error() != err.Error() {
		t.Errorf("without being opened: %v, want %v", alone, err)
	}
	opts.Store.ArenaBytes = 64 << 20
	if _, err := p.Bounds(opts); err != nil {
		t.Errorf("in a store that is large enough: %v", err)
	}
	opts.Store.Slots = -1
	if _, err := p.Bounds(opts); !errors.Is(err, shmstore.ErrOptions) {
		t.Errorf("in a store with invalid options: %v", err)
	}
}

func TestFanOutStoresOnce(t *testing.T) {
	count := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(*bus.Task, *bus.Delivery) error { return nil }}
	}
	p := bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "src", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(make([]byte, 5000)) }},
			count("x"), count("y"), count("z"),
		},
		Edges: []bus.Edge{{From: "src", To: "x"}, {From: "src", To: "y"}, {From: "src", To: "z"}},
	}
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testbus.Receive(t, r); err != nil {
		t.Fatal(err)
	}
	if n := b.Stats().Store.ReservedTotal; n != 1 {
		t.Errorf("%d reservations for one payload", n)
	}
}

func TestEmitToOneEdge(t *testing.T) {
	tag := func(name string) bus.StageSpec {
		return bus.Stage(name, func(_ *bus.Task, in string) (string, error) { return name + in, nil })
	}
	p := bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "split", Handle: func(t *bus.Task, _ *bus.Delivery) error {
				if err := t.Emit("1", bus.To("x"), bus.Key("k1")); err != nil {
					return err
				}
				if err := t.Emit("2", bus.To("nowhere")); !errors.Is(err, bus.ErrNoEdge) {
					return fmt.Errorf("emission to a stage that is no successor: %w", err)
				}
				return t.Emit("2", bus.To("y"))
			}},
			tag("x"), tag("y"),
		},
		Edges: []bus.Edge{{From: "split", To: "x"}, {From: "split", To: "y"}},
	}
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(context.Background(), "go")
	if err != nil {
		t.Fatal(err)
	}
	got, err := testbus.Receive(t, r)
	if err != nil || len(got) != 2 || strings.Contains(strings.Join(got, ","), "x2") {
		t.Fatalf("%v, %v", got, err)
	}
}

// TestUnboundedWindowOfALargeStore: an unbounded window of a large store bounds
// deliveries by their bytes alone.
func TestUnboundedWindowOfALargeStore(t *testing.T) {
	p := testbus.Linear(bus.Stage("a", testbus.Upper), bus.Stage("b", testbus.Upper))
	p.Edges[0].Window = bus.Unbounded
	p.Edges[0].WindowBytes = 200 << 20
	_, err := bus.Open(t.Context(), p, bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20, Memory: shmstore.Heap}})
	if !errors.Is(err, bus.ErrConfig) {
		t.Fatalf("windows larger than the store: %v", err)
	}
	p.Edges[0].WindowBytes = 0
	b := testbus.Open(t, p, bus.Options{MaxRequests: 1, Store: shmstore.Options{ArenaBytes: 512 << 20, Memory: shmstore.Heap}})
	testbus.MustReceive(t, testbus.SendAll(t, b, 1000), testbus.Numbers(1000))
}
