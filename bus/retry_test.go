package bus_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// stateless is a stage whose handler also gets its input as a string.
func stateless(name string, h func(t *bus.Task, d *bus.Delivery, in string) error) bus.StageSpec {
	return bus.StageSpec{Name: name, State: bus.StateNone, Handle: func(t *bus.Task, d *bus.Delivery) error {
		in, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		return h(t, d, in)
	}}
}

// TestEachStageHasItsOwnAttempts: attempts at one stage do not count at the next.
func TestEachStageHasItsOwnAttempts(t *testing.T) {
	once := func(name string) bus.StageSpec {
		var failed atomic.Bool
		return stateless(name, func(t *bus.Task, _ *bus.Delivery, in string) error {
			if in == "3" && failed.CompareAndSwap(false, true) {
				panic("once in " + name)
			}
			return t.Emit(in)
		})
	}
	b := testbus.Open(t, testbus.Linear(once("a"), once("b")), bus.Options{})
	testbus.MustReceive(t, testbus.SendAll(t, b, 6), testbus.Numbers(6))
}

// TestBatchRetryKeepsWhatWasFinished: the emissions of a batch for a delivery that it
// finished before a panic are neither lost nor repeated.
func TestBatchRetryKeepsWhatWasFinished(t *testing.T) {
	var failed atomic.Bool
	st := bus.StageSpec{Name: "batch", State: bus.StateNone, BatchSize: 2, BatchWait: time.Hour, Batch: func(batch []*bus.Delivery) error {
		for i, d := range batch {
			if i == 1 && failed.CompareAndSwap(false, true) {
				panic("at the second")
			}
			if err := d.Task().Forward(d); err != nil {
				return err
			}
			if err := d.Finish(nil); err != nil {
				return err
			}
		}
		return nil
	}}
	b := testbus.Open(t, testbus.Linear(st), bus.Options{})
	testbus.MustReceive(t, testbus.SendAll(t, b, 2), testbus.Numbers(2))
}

// TestKeptOutputIsNotLostInARetry: a retry repeats the emissions of the handler,
// and consumers drop the repeats. Emissions of a kept delivery in between cannot be
// told apart, so the request fails instead.
func TestKeptOutputIsNotLostInARetry(t *testing.T) {
	kept := make(chan *bus.Kept, 1)
	b := testbus.Open(t, testbus.Linear(stateless("k", func(_ *bus.Task, d *bus.Delivery, in string) error {
		if in == "0" {
			kept <- d.Keep()
			return nil
		}
		k := <-kept
		panic(fmt.Sprint("after ", errors.Join(k.Emit("0"), k.Finish(nil))))
	})), bus.Options{})
	_, err := testbus.Receive(t, testbus.SendAll(t, b, 2))
	if !errors.Is(err, bus.ErrPanic) {
		t.Fatalf("got %v", err)
	}
	mustDrain(t, b)
}

// TestKeptInputIsNotReplayed: the bus cannot repeat an input that a handler has
// kept, so a panic fails the request.
func TestKeptInputIsNotReplayed(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "r", Replay: true, Handle: func(t *bus.Task, d *bus.Delivery) error {
		if d.Seq > 0 {
			panic("state is lost")
		}
		k := d.Keep()
		return errors.Join(k.Emit("0"), k.Finish(nil))
	}}), bus.Options{})
	if _, err := testbus.Receive(t, testbus.SendAll(t, b, 3)); !errors.Is(err, bus.ErrPanic) {
		t.Fatalf("got %v", err)
	}
	mustDrain(t, b)
}

// TestRetryOntoAnEdgeThatDrops: the count of dropped deliveries stays correct when
// a retry sends some of them again.
func TestRetryOntoAnEdgeThatDrops(t *testing.T) {
	g := testbus.NewGate()
	var failed atomic.Bool
	p := testbus.Linear(bus.StageSpec{Name: "a", State: bus.StateNone, Handle: func(t *bus.Task, _ *bus.Delivery) error {
		for i := range 10 {
			if err := t.Emit(fmt.Sprint(i)); err != nil {
				return err
			}
		}
		if failed.CompareAndSwap(false, true) {
			panic("once")
		}
		close(g.Leave)
		return nil
	}}, g.Stage("b"))
	p.Edges[0].Window, p.Edges[0].Policy = 2, bus.DropOldest
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	got, err := testbus.Receive(t, r)
	if err != nil || !slices.IsSorted(got) || len(got) < 2 {
		t.Fatalf("got %v, %v", got, err)
	}
}

// TestEndOfStreamDropsNoPayload: on an edge that drops, with a window of one,
// the end of the stream does not push out the last payload.
func TestEndOfStreamDropsNoPayload(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: 1, Policy: bus.DropOldest}), bus.Options{})
	r := testbus.SendAll(t, b, 5)
	for s := b.Stats(); s.Edges[0].Deliveries < 5 || s.Stages[0].SlotsFree < s.Stages[0].Slots; s = b.Stats() {
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	close(g.Leave)
	got, err := testbus.Receive(t, r)
	if err != nil || got[len(got)-1] != "4" {
		t.Fatalf("got %v, %v", got, err)
	}
}

// TestKeepFromABatch: a kept delivery of a batch is finished by its Kept, and not with the batch.
func TestKeepFromABatch(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "batch", Batch: func(batch []*bus.Delivery) error {
		for _, d := range batch {
			k := d.Keep()
			go func() { _ = errors.Join(k.Forward(k.Delivery()), k.Finish(nil)) }()
		}
		return nil
	}}), bus.Options{})
	got, err := testbus.Receive(t, testbus.SendAll(t, b, 20))
	want := testbus.Numbers(20)
	slices.Sort(got) // in the order of their finish
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v", got, err)
	}
	mustDrain(t, b)
}

// TestKeptDeliveriesEmitSideBySide has kept deliveries emit concurrently, one of them with an error: for the race detector.
func TestKeptDeliveriesEmitSideBySide(t *testing.T) {
	kept := make(chan *bus.Kept, 2)
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "k", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		kept <- d.Keep()
		return nil
	}}), bus.Options{})
	r := testbus.SendAll(t, b, 2)
	x, y := <-kept, <-kept
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := errors.Join(x.Emit("x"), x.Finish(nil)); err != nil {
			t.Error(err)
		}
	})
	wg.Go(func() {
		if _, err := y.Reserve(1<<46, codec.IDRaw); !errors.Is(err, bus.ErrTooLarge) {
			t.Errorf("a payload larger than any memory: %v", err)
		}
		if err := y.Finish(nil); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	testbus.MustReceive(t, r, []string{"x"})
}

// TestBatchEndPanics: End of a batching stage runs for one request, so a panic
// there fails only this request.
func TestBatchEndPanics(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{
		Name: "batch",
		Batch: func(batch []*bus.Delivery) error {
			for _, d := range batch {
				in, err := bus.Result[string](d)
				if err != nil {
					return err
				}
				d.Task().State = in
			}
			return nil
		},
		End: func(t *bus.Task) error {
			if t.State == "bad" {
				panic("at the end")
			}
			return nil
		},
	}), bus.Options{})
	for _, in := range []string{"bad", "good"} {
		r, err := b.Submit(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := testbus.Receive(t, r); errors.Is(err, bus.ErrPanic) != (in == "bad") {
			t.Errorf("%s: the request ended with %v", in, err)
		}
	}
	mustDrain(t, b)
}
