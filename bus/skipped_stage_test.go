package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// mustReturn requires that a call returns without waiting.
func mustReturn(t *testing.T, call func() error) error {
	t.Helper()
	returned := make(chan error, 1)
	go func() { returned <- call() }()
	return testbus.Next(t, returned)
}

// TestEndWaitsForSlot: a stage runs End for a request that has sent it no delivery when its inputs have ended, also
// when all its slots are taken. The end waits for a slot, and its sender does not wait. A report names the request that
// holds the slot.
func TestEndWaitsForSlot(t *testing.T) {
	for _, from := range []string{"", "router"} {
		t.Run("behind "+from, func(t *testing.T) {
			g := testbus.NewGate()
			stalls := make(chan []bus.Stall, 2) // at each end
			tail, other := withOneSlot(g.Stage("tail")), testbus.Suffix("other")
			var b *bus.Bus
			tail.End = func(t *bus.Task) error {
				stalls <- b.Stalls(0)
				return t.Emit("end")
			}
			p := bus.Pipeline{Stages: []bus.StageSpec{tail, other}}
			if from != "" {
				p.Stages = append(p.Stages, withOneSlot(routingStage(from)))
				p.Edges = []bus.Edge{{From: from, To: "tail"}, {From: from, To: "other"}}
			}
			b = testbus.Open(t, p, bus.Options{})
			send := func(r *bus.Request, to string) {
				t.Helper()
				var opts []bus.EmitOption
				if from == "" {
					opts = append(opts, bus.To(to))
				}
				if err := mustReturn(t, func() error { return r.Send(t.Context(), to, opts...) }); err != nil {
					t.Fatal(err)
				}
			}
			holds := testbus.StreamOf(t, b)
			send(holds, "tail")
			testbus.Next(t, g.Entered)
			if err := holds.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			waits := testbus.StreamOf(t, b)
			send(waits, "other")
			if err := mustReturn(t, func() error { return waits.CloseSend(t.Context()) }); err != nil {
				t.Fatal(err)
			}
			s := testbus.WaitForStall(t, b, from+"->tail", 0)
			if s.Request != waits.ID() || !strings.Contains(s.Holder, holds.ID().String()) {
				t.Errorf("report: %v; request %v holds the slot", s, holds.ID())
			}
			if from != "" { // it has returned and released its slot
				testbus.Await(t, func() bool { return testbus.StageStats(b, from).SlotsFree == 1 })
			}
			g.Leave <- struct{}{}
			testbus.Next(t, stalls)
			testbus.MustComplete(t, holds, []string{"tail", "end"})
			if all := testbus.Next(t, stalls); len(all) > 0 {
				t.Errorf("the end has its slot, and waits: %v", all)
			}
			if err := waits.Wait(testbus.Soon(t)); err != nil {
				t.Fatal(err)
			}
			if got, err := testbus.Receive(t, waits); err != nil || len(got) != 2 {
				t.Errorf("got %q, %v; want the result of the other stage, and the end", got, err)
			}
		})
	}
}

// TestStageWithoutInputIsSkipped: a request that sends no delivery to a stage needs no slot there, nor at the stages and
// joins behind it.
func TestStageWithoutInputIsSkipped(t *testing.T) {
	held := testbus.Diamond(withOneSlot(testbus.Suffix("s")), withOneSlot(testbus.Suffix("l")), withOneSlot(testbus.Suffix("r")))
	for i := range held.Stages {
		held.Stages[i].MaxInflight = 1
	}
	held.Stages = append(held.Stages, withOneSlot(testbus.Suffix("z")), testbus.Suffix("other"))
	held.Edges = append(held.Edges, bus.Edge{From: "join", To: "z"})
	b := testbus.Open(t, held, bus.Options{})
	holds := testbus.StreamOf(t, b) // all slots but those of "other"
	if err := holds.Send(t.Context(), "x", bus.To("s")); err != nil {
		t.Fatal(err)
	}
	d, err := holds.Recv(testbus.Soon(t))
	if err == nil {
		err = d.Finish(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r := testbus.StreamOf(t, b)
		if err := r.Send(t.Context(), "x", bus.To("other")); err != nil {
			t.Fatal(err)
		}
		if err := mustReturn(t, func() error { return r.CloseSend(t.Context()) }); err != nil {
			t.Fatal(err)
		}
		testbus.MustComplete(t, r, []string{"xother"})
	}
	empty := testbus.StreamOf(t, b)
	if err := mustReturn(t, func() error { return empty.CloseSend(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	testbus.MustComplete(t, empty, nil)
	if err := holds.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.MustComplete(t, holds, nil)
	for _, st := range b.Stats().Stages {
		if st.AdmittedAbove != 0 {
			t.Errorf("stage %q has admitted %d requests above its bound", st.Name, st.AdmittedAbove)
		}
	}
}

// TestJoinOfSkippedStage: if one branch of a join is skipped, and another has a delivery, the join reports that the
// branch ended early, in both orders of the two events.
func TestJoinOfSkippedStage(t *testing.T) {
	for _, first := range []string{"end", "delivery"} {
		t.Run(first, func(t *testing.T) {
			delivered, ended := make(chan struct{}), make(chan struct{})
			src := bus.StageSpec{Name: "s", Handle: func(t *bus.Task, _ *bus.Delivery) error {
				err := t.Emit("x", bus.To("l"))
				if first == "delivery" {
					<-delivered
				}
				return err
			}}
			left := bus.Expand("l", func(_ *bus.Task, in string, emit func(string) error) error {
				if first == "end" {
					<-ended
				}
				return emit(in)
			})
			b := testbus.Open(t, testbus.Diamond(src, left, testbus.Suffix("r")), bus.Options{})
			r, err := b.Submit(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if first == "end" { // the source has ended, and the stage behind it was skipped before that
				testbus.Await(t, func() bool { st := testbus.StageStats(b, "s"); return st.SlotsFree == st.Slots })
				close(ended)
			} else {
				testbus.Await(t, func() bool { return testbus.StageStats(b, "join").SlotsFree < bus.DefaultMaxInflight })
				close(delivered)
			}
			err = r.Wait(testbus.Soon(t))
			at, ok := errors.AsType[*bus.StageError](err)
			if !errors.Is(err, bus.ErrSequence) || !ok || at.Stage != "join" || !strings.Contains(err.Error(), "ended early: r->join ended with 0 deliveries") {
				t.Errorf("the request ended with %v", err)
			}
		})
	}
}

// TestCanceledSendNeedsNoSlot: a request whose only input to a stage was canceled while it waited for a slot needs no
// slot there, and an input that waits when the inputs end fails with ErrAfterEnd.
func TestCanceledSendNeedsNoSlot(t *testing.T) {
	for _, canceled := range []bool{true, false} {
		t.Run(fmt.Sprint("canceled: ", canceled), func(t *testing.T) {
			a, b := testbus.NewGate(), testbus.NewGate()
			on := testbus.Open(t, bus.Pipeline{Stages: []bus.StageSpec{withOneSlot(a.Stage("a")), b.Stage("b")}}, bus.Options{})
			holds, r := testbus.StreamOf(t, on), testbus.StreamOf(t, on)
			if err := errors.Join(holds.Send(t.Context(), "holds", bus.To("a")), r.Send(t.Context(), "x", bus.To("b"))); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			sent := make(chan error, 1)
			go func() { sent <- r.Send(ctx, "given up", bus.To("a")) }()
			testbus.WaitForStall(t, on, "->a", 0)
			want := bus.ErrAfterEnd
			if canceled {
				want = context.Canceled
				cancel()
				testbus.Await(t, func() bool { return len(sent) == 1 })
			}
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := testbus.Next(t, sent); !errors.Is(err, want) {
				t.Errorf("the input that waits: %v, want %v", err, want)
			}
			b.Leave <- struct{}{}
			testbus.MustComplete(t, r, []string{"x"})
			a.Leave <- struct{}{}
			if err := holds.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			testbus.MustComplete(t, holds, []string{"holds"})
		})
	}
}

// TestSendToSkippedStage: an input after the end of the inputs fails with ErrAfterEnd, and takes no slot.
func TestSendToSkippedStage(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, bus.Pipeline{Stages: []bus.StageSpec{testbus.Suffix("a"), g.Stage("b")}}, bus.Options{})
	r := testbus.StreamOf(t, b)
	if err := r.Send(t.Context(), "x", bus.To("b")); err != nil {
		t.Fatal(err)
	}
	testbus.Next(t, g.Entered)
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{"late", strings.Repeat("late", 1000)} {
		for _, to := range []string{"a", "b"} {
			err := mustReturn(t, func() error { return r.Send(t.Context(), in, bus.To(to)) })
			if at, ok := errors.AsType[*bus.StageError](err); !errors.Is(err, bus.ErrAfterEnd) || !ok || at.Edge != "->"+to {
				t.Errorf("%d bytes to %s behind the end: %v, want ErrAfterEnd with the edge", len(in), to, err)
			}
		}
	}
	if st := testbus.StageStats(b, "a"); st.SlotsFree != st.Slots {
		t.Errorf("stage a, which was skipped, has %d of %d slots free", st.SlotsFree, st.Slots)
	}
	g.Leave <- struct{}{}
	testbus.MustComplete(t, r, []string{"x"})
}
