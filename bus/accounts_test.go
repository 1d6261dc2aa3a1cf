package bus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestFinishReturnsCredit: on an edge with a window of one delivery and the
// policy Fail, all deliveries pass if each is finished before the next is sent.
func TestFinishReturnsCredit(t *testing.T) {
	for _, size := range []int{10, 1000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			p := testbus.Linear(bus.Stage("a", testbus.Upper))
			p.Edges = append(p.Edges, bus.Edge{From: "a", Window: 1, Policy: bus.Fail})
			b := testbus.Open(t, p, bus.Options{})
			r := testbus.StreamOf(t, b)
			for range 10 {
				if err := r.Send(t.Context(), strings.Repeat("x", size)); err != nil {
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
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			testbus.MustReceive(t, r, nil)
			mustDrain(t, b)
		})
	}
}

// TestDroppedPayloadsAreReleased: the store releases payloads that a policy
// drops, and payloads that are queued when their request ends.
func TestDroppedPayloadsAreReleased(t *testing.T) {
	for _, abort := range []bool{false, true} {
		t.Run(fmt.Sprintf("abort %v", abort), func(t *testing.T) {
			const inputs = 40
			g := testbus.NewGate()
			b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: 3, Policy: bus.DropOldest}), bus.Options{})
			r := testbus.StreamOf(t, b)
			for range inputs {
				if err := r.Send(t.Context(), strings.Repeat("x", 5000)); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			for b.Stats().Edges[0].Deliveries < inputs && t.Context().Err() == nil {
			}
			if abort {
				r.Abort(nil)
			}
			for range inputs {
				g.Leave <- struct{}{}
			}
			if _, err := testbus.Receive(t, r); (err != nil) != abort {
				t.Fatal(err)
			}
			if b.Stats().Edges[0].Dropped == 0 {
				t.Error("nothing was dropped")
			}
			mustDrain(t, b)
		})
	}
}

// TestKeptPayloadStays: the payload of a kept delivery is valid after its
// handler has returned, until the delivery is finished.
func TestKeptPayloadStays(t *testing.T) {
	kept := make(chan *bus.Kept, 2)
	b, err := bus.Open(t.Context(), testbus.Linear(bus.StageSpec{Name: "keeps", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		kept <- d.Keep()
		return nil
	}}), bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), testbus.Patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	r := testbus.StreamOf(t, b)
	for _, c := range []string{"a", "b"} {
		if err := r.Send(t.Context(), strings.Repeat(c, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	first, second := <-kept, <-kept // by now the first handler has returned
	if got, err := bus.Result[string](first.Delivery()); err != nil || got != strings.Repeat("a", 1000) {
		t.Errorf("the kept payload: %.10q, %v", got, err)
	}
	for _, k := range []*bus.Kept{first, second} {
		if err := k.Finish(nil); err != nil {
			t.Error(err)
		}
	}
	r.Close()
}

// TestEndOfStreamReachesEveryStage: the end of the inputs, sent without a
// payload, goes through fan-out and join. A deadline ends a request that hangs.
func TestEndOfStreamReachesEveryStage(t *testing.T) {
	end := func(name string) bus.StageSpec {
		st := testbus.Suffix(name)
		st.End = func(t *bus.Task) error { return t.Emit("end of " + name) }
		return st
	}
	b := testbus.Open(t, testbus.Diamond(end("s"), end("l"), end("r")), bus.Options{})
	r, err := b.Stream(t.Context(), bus.WithDeadline(time.Now().Add(testbus.Patience)))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"end of sl+end of sr", "end of l+end of r"})
	mustDrain(t, b)
}
