package bus_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const f32 = codec.DTypeFloat32

func TestJoin(t *testing.T) {
	b := testbus.Open(t, testbus.Diamond(testbus.Suffix("s"), testbus.Suffix("l"), testbus.Suffix("r")), bus.Options{})
	r := testbus.StreamOf(t, b)
	const n = 200
	go func() {
		for i := range n {
			_ = r.Send(t.Context(), fmt.Sprint(i))
		}
		_ = r.CloseSend(t.Context())
	}()
	got, err := testbus.Receive(t, r)
	if err != nil || len(got) != n {
		t.Fatalf("%d results, %v", len(got), err)
	}
	for i, s := range got {
		if want := fmt.Sprintf("%dsl+%dsr", i, i); s != want {
			t.Fatalf("result %d is %q, want %q", i, s, want)
		}
	}
}

func TestJoinBranchEndsWithoutOutput(t *testing.T) {
	silent := bus.Expand("r", func(*bus.Task, string, func(string) error) error { return nil })
	b := testbus.Open(t, testbus.Diamond(testbus.Suffix("s"), testbus.Suffix("l"), silent), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.Is(err, bus.ErrSequence) || !errors.As(err, &at) {
		t.Fatalf("got %v", err)
	}
	if at.Stage != "join" || !strings.Contains(err.Error(), "r->join ended with 0") {
		t.Errorf("the branch is not named: %v", err)
	}
}

// TestJoinBranchRunsAhead drives the deadlock of a join that waits for one
// branch while the other's window is full: the source sends all of one branch
// before any of the other.
func TestJoinBranchRunsAhead(t *testing.T) {
	const n = 100
	src := bus.StageSpec{Name: "s", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		for _, to := range []string{"l", "r"} {
			for i := range n {
				if err := t.Emit(fmt.Sprint(i), bus.To(to)); err != nil {
					return err
				}
			}
		}
		return nil
	}}
	small := func(from, to string) bus.Edge { return bus.Edge{From: from, To: to, Window: 2} }
	b := testbus.Open(t, testbus.Diamond(src, testbus.Suffix("l"), testbus.Suffix("r"), small("s", "l"), small("s", "r"), small("l", "join"), small("r", "join")), bus.Options{})
	r, err := b.Submit(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := testbus.Receive(t, r); err != nil || len(got) != n {
		t.Fatalf("%d results, %v", len(got), err)
	}
	if held := b.Stats().JoinBytes; held != 0 {
		t.Errorf("JoinBytes is %d at the end, want 0", held)
	}
}

func TestJoinSpaceIsBounded(t *testing.T) {
	src := bus.StageSpec{Name: "s", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		for range 100 {
			if err := t.EmitBytes(make([]byte, 1000), bus.To("l")); err != nil {
				return err
			}
		}
		return nil
	}}
	pass := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
	}
	b := testbus.Open(t, testbus.Diamond(src, pass("l"), pass("r")), bus.Options{JoinBytes: 20_000})
	r, err := b.Submit(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrJoinFull) || !strings.Contains(err.Error(), "l->join") {
		t.Fatalf("got %v", err)
	}
}

// TestSuspendedRequestBlocksNoOther drives the deadlock of a shared window:
// the last stage takes one request at a time, and the requests that wait for it
// must not use up the credit that the first one needs to finish.
func TestSuspendedRequestBlocksNoOther(t *testing.T) {
	last := testbus.Suffix("c")
	last.MaxInflight = 1
	p := testbus.Linear(testbus.Suffix("a"), testbus.Suffix("b"), last)
	for i := range p.Edges {
		p.Edges[i].Window = 1
	}
	b := testbus.Open(t, p, bus.Options{})
	ctx := t.Context()
	first, err := b.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// The first request takes the only slot at c, and pauses.
	if err := first.Send(ctx, "1"); err != nil {
		t.Fatal(err)
	}
	if d, err := first.Recv(ctx); err != nil {
		t.Fatal(err)
	} else if err := d.Finish(nil); err != nil {
		t.Fatal(err)
	}
	// Three others pile up in front of c.
	var others []*bus.Request
	for range 3 {
		r, err := b.Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, r)
		go func() {
			for range 10 {
				_ = r.Send(ctx, "2")
			}
			_ = r.CloseSend(ctx)
		}()
	}
	testbus.WaitForStall(t, b, "b->c", 0)
	// The first one still gets through.
	go func() {
		for range 10 {
			_ = first.Send(ctx, "1")
		}
		_ = first.CloseSend(ctx)
	}()
	if got, err := testbus.Receive(t, first); err != nil || len(got) != 10 {
		t.Fatalf("%d results, %v", len(got), err)
	}
	for _, r := range others {
		if got, err := testbus.Receive(t, r); err != nil || len(got) != 10 {
			t.Fatalf("%d results, %v", len(got), err)
		}
	}
}

// TestOutputSpaceWhileInputIsHeld drives the deadlock of stages that hold their
// input while they reserve output, in the smallest store that all windows
// together fit.
func TestOutputSpaceWhileInputIsHeld(t *testing.T) {
	const size = 20_000
	grow := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error {
			for range 2 {
				if err := t.EmitBytes(make([]byte, size)); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	p := testbus.Linear(grow("a"), grow("b"), grow("c"))
	for i := range p.Edges {
		p.Edges[i].Window = 1
	}
	b := testbus.Open(t, p, bus.Options{
		MaxRequests: 4,
		Store:       shmstore.Options{ArenaBytes: 702_000, Memory: shmstore.Heap},
	})
	ends := make(chan error)
	for range 8 {
		go func() {
			r, err := b.Submit(t.Context(), "go")
			n := 0
			if err == nil {
				for _, e := range r.Results(t.Context()) {
					if err = e; err != nil {
						break
					}
					n++
				}
			}
			if err == nil && n != 8 {
				err = fmt.Errorf("%d results", n)
			}
			ends <- err
		}()
	}
	for range 8 {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
}

var _ = time.Second
