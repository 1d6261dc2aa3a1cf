package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestPanicFailsItsRequestOnly: a panic in a stage with state fails the request
// that is being handled; other requests at the stage are not affected.
func TestPanicFailsItsRequestOnly(t *testing.T) {
	p := testbus.Linear(bus.Stage("a", testbus.Upper), bus.Stage("b", func(t *bus.Task, in string) (string, error) {
		n, _ := t.State.(int)
		t.State = n + 1
		if in == "BOOM" {
			panic("boom")
		}
		return fmt.Sprint(n), nil
	}))
	b := testbus.Open(t, p, bus.Options{})
	healthy := make([]*bus.Request, 3)
	for i := range healthy {
		r := testbus.StreamOf(t, b)
		if err := r.Send(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		healthy[i] = r
	}
	bad, err := b.Submit(t.Context(), "boom")
	if err != nil {
		t.Fatal(err)
	}
	_, err = testbus.Receive(t, bad)
	var at *bus.StageError
	if !errors.Is(err, bus.ErrPanic) || !errors.As(err, &at) || at.Stage != "b" || at.Edge != "a->b" || !strings.Contains(err.Error(), "boom") {
		t.Fatalf("got %v", err)
	}
	for _, r := range healthy {
		if err := r.Send(t.Context(), "y"); err != nil {
			t.Fatal(err)
		}
		if err := r.CloseSend(t.Context()); err != nil {
			t.Fatal(err)
		}
		testbus.MustReceive(t, r, []string{"0", "1"})
	}
	mustDrain(t, b)
	if s := b.Stats().Stages[1]; s.Panics != 1 || s.Restarts != 1 || s.SlotsFree != s.Slots {
		t.Errorf("stats: %+v", s)
	}
}

// TestStatelessStageIsRetried: each delivery emits two outputs and panics
// between them the first time; consumers see each output once.
func TestStatelessStageIsRetried(t *testing.T) {
	var failed sync.Map
	p := testbus.Linear(
		bus.StageSpec{Name: "a", State: bus.StateNone, Handle: func(t *bus.Task, d *bus.Delivery) error {
			in, err := bus.Result[string](d)
			if err != nil {
				return err
			}
			if err := t.Emit(in + "x"); err != nil {
				return err
			}
			if _, again := failed.LoadOrStore(in, true); !again {
				panic("half way")
			}
			return t.Emit(in + "y")
		}},
		bus.Stage("b", func(_ *bus.Task, in string) (string, error) { return in, nil }),
	)
	b := testbus.Open(t, p, bus.Options{})
	r := testbus.SendAll(t, b, 10)
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint(i, "x"), fmt.Sprint(i, "y"))
	}
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], " ", "")
	}
	testbus.MustReceive(t, r, want)
	mustDrain(t, b)
	if e := b.Stats().Edges[0]; e.Duplicates != 10 {
		t.Errorf("%d duplicates removed, 10 were sent", e.Duplicates)
	}
}

// TestPanicWhileFilling: after a panic of the function that fills a payload, its
// reservation and credit are returned, also if the request goes on.
func TestPanicWhileFilling(t *testing.T) {
	const tries, size = 4, 32 << 10
	left := tries
	tensor := bus.StageSpec{Name: "a", State: bus.StateNone, Attempts: tries, Handle: func(t *bus.Task, _ *bus.Delivery) error {
		return t.EmitTensor(codec.DTypeUint8, []int{size}, func([]byte) error {
			if left--; left > 0 {
				panic("half way")
			}
			return nil
		})
	}}
	p := testbus.Linear(tensor, bus.StageSpec{Name: "b", Handle: func(t *bus.Task, _ *bus.Delivery) error { return t.Emit("done") }})
	p.Edges[0].Window, p.Edges[0].Policy = 1, bus.Fail // an emission without credit fails instead of waiting
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := testbus.Receive(t, r); err != nil || len(got) != 1 {
		t.Errorf("received %q, %v", got, err)
	}
	mustDrain(t, b)
}

func TestAttemptsAreBounded(t *testing.T) {
	var tries atomic.Int32
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", State: bus.StateNone, Attempts: 3, Handle: func(*bus.Task, *bus.Delivery) error {
		tries.Add(1)
		panic("always")
	}}), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrPanic) {
		t.Fatalf("got %v", err)
	}
	if n := tries.Load(); n != 4 {
		t.Errorf("handled %d times: once and 3 times again was asked for", n)
	}
	mustDrain(t, b)
}

// TestReplay: a stage that adds up its input panics twice on the way; it is
// run again from the first input, and its earlier emissions are not seen twice.
func TestReplay(t *testing.T) {
	var panics atomic.Int32
	sum := bus.StageSpec{
		Name: "sum", Replay: true, Attempts: 2,
		Handle: func(t *bus.Task, d *bus.Delivery) error {
			in, err := bus.Result[string](d)
			if err != nil {
				return err
			}
			s, _ := t.State.(string)
			t.State = s + in
			if err := t.Emit(t.State); err != nil {
				return err
			}
			if (in == "5" && panics.CompareAndSwap(0, 1)) || (in == "3" && panics.CompareAndSwap(1, 2)) {
				panic("state is lost")
			}
			return nil
		},
		End: func(t *bus.Task) error { return t.Emit("end") },
	}
	b := testbus.Open(t, testbus.Linear(sum, bus.Stage("b", func(_ *bus.Task, in string) (string, error) { return in, nil })), bus.Options{})
	r := testbus.SendAll(t, b, 8)
	testbus.MustReceive(t, r, []string{"0", "01", "012", "0123", "01234", "012345", "0123456", "01234567", "end"})
	if panics.Load() != 2 {
		t.Error("the stage did not panic twice")
	}
	mustDrain(t, b)
}

// TestReplayWindow: input kept for a replay counts against the byte window, and
// a request that exceeds it fails instead of waiting for ever, also on an edge
// with a queue.
func TestReplayWindow(t *testing.T) {
	const fit = 9 // of these payloads in the byte window
	for _, tt := range []struct {
		name   string
		policy bus.Policy
		shared bool
	}{
		{name: "waits", policy: bus.Block},
		{name: "drops the oldest", policy: bus.DropOldest},
		{name: "one actor for all requests", shared: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			kept := make(chan struct{}, fit)
			keep := bus.StageSpec{Name: "keep", Replay: true, Handle: func(*bus.Task, *bus.Delivery) error {
				kept <- struct{}{}
				return nil
			}}
			emit := func(task *bus.Task) error {
				for i := range fit + 2 {
					if err := task.Emit(strings.Repeat("x", 1000)); err != nil {
						return err
					}
					if i < fit {
						<-kept
					}
				}
				return nil
			}
			src := bus.StageSpec{Name: "src", Handle: func(task *bus.Task, _ *bus.Delivery) error { return emit(task) }}
			if tt.shared {
				src.Handle, src.Batch = nil, func(batch []*bus.Delivery) error { return emit(batch[0].Task()) }
			}
			p := testbus.Linear(src, keep)
			p.Edges[0].WindowBytes, p.Edges[0].Policy = 10_000, tt.policy
			b := testbus.Open(t, p, bus.Options{})
			r, err := b.Submit(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrReplayFull) || !strings.Contains(err.Error(), "src->keep") {
				t.Fatalf("got %v", err)
			}
			mustDrain(t, b)
		})
	}
}

func TestPanicInEnd(t *testing.T) {
	st := bus.Stage("a", testbus.Upper)
	st.End = func(*bus.Task) error { panic("at the end") }
	b := testbus.Open(t, testbus.Linear(st), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = testbus.Receive(t, r)
	if !errors.Is(err, bus.ErrPanic) || !strings.Contains(err.Error(), `"a"`) {
		t.Fatalf("got %v", err)
	}
	mustDrain(t, b)
}

// TestKeep: a stage keeps its deliveries and finishes them later, in another
// order than that of the requests, as a batching model does.
func TestKeep(t *testing.T) {
	var mu sync.Mutex
	var kept []*bus.Kept
	const requests = 4
	full := make(chan struct{})
	st := bus.StageSpec{Name: "model", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		if kept = append(kept, d.Keep()); len(kept) == requests {
			close(full)
		}
		return nil
	}}
	b := testbus.Open(t, testbus.Linear(st), bus.Options{})
	var rs []*bus.Request
	for i := range requests {
		r, err := b.Submit(t.Context(), strings.Repeat(fmt.Sprint(i), 1000))
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	<-full
	for i := requests - 1; i >= 0; i-- {
		k := kept[i]
		in, err := bus.Result[string](k.Delivery())
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Emit(in[:1]); err != nil {
			t.Fatal(err)
		}
		if err := k.Finish(nil); err != nil {
			t.Fatal(err)
		}
		if err := k.Finish(nil); err == nil {
			t.Errorf("second finish: %v", err)
		}
	}
	for i, r := range rs {
		testbus.MustReceive(t, r, []string{fmt.Sprint(i)})
	}
	mustDrain(t, b)
}

// TestAbortWhileKept: the request is over at once; its slot and payload are
// released when the stage finishes the kept delivery.
func TestAbortWhileKept(t *testing.T) {
	kept := make(chan *bus.Kept, 1)
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "model", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		kept <- d.Keep()
		return nil
	}}), bus.Options{})
	r, err := b.Submit(t.Context(), strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	k := <-kept
	r.Abort(nil)
	if err := k.Emit("late"); !errors.Is(err, bus.ErrAborted) {
		t.Errorf("emission after the abort: %v", err)
	}
	if b.Stats().Live != 1 {
		t.Error("the request is forgotten while its delivery is kept")
	}
	if in, err := bus.Result[string](k.Delivery()); err != nil || len(in) != 1000 {
		t.Errorf("the kept payload: %d bytes, %v", len(in), err)
	}
	if err := k.Finish(nil); err != nil {
		t.Fatal(err)
	}
	mustDrain(t, b)
}

func TestBatch(t *testing.T) {
	var sizes []int
	st := bus.StageSpec{Name: "batch", MaxInflight: 8, BatchSize: 5, State: bus.StateNone, Batch: func(batch []*bus.Delivery) error {
		sizes = append(sizes, len(batch))
		for _, d := range batch {
			in, err := bus.Result[string](d)
			if err != nil {
				return err
			}
			if err := d.Task().Emit(in); err != nil {
				return err
			}
		}
		return nil
	}}
	b := testbus.Open(t, testbus.Linear(st), bus.Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { testbus.MustReceive(t, testbus.SendAll(t, b, 50), testbus.Numbers(50)) })
	}
	wg.Wait()
	mustDrain(t, b)
	if slices.Max(sizes) > 5 {
		t.Errorf("a batch of %d", slices.Max(sizes))
	}
}

// TestBatchPanic: the deliveries of a failed batch are retried one by one, so
// that only the request of the faulty one fails.
func TestBatchPanic(t *testing.T) {
	st := bus.StageSpec{Name: "batch", MaxInflight: 8, BatchSize: 4, State: bus.StateNone, Batch: func(batch []*bus.Delivery) error {
		for _, d := range batch {
			in, err := bus.Result[string](d)
			if err != nil {
				return err
			}
			if in == "poison" {
				panic(in)
			}
			if err := d.Task().Emit(in); err != nil {
				return err
			}
		}
		return nil
	}}
	b := testbus.Open(t, testbus.Linear(st), bus.Options{})
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { testbus.MustReceive(t, testbus.SendAll(t, b, 30), testbus.Numbers(30)) })
		wg.Go(func() {
			r, err := b.Submit(t.Context(), "poison")
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrPanic) {
				t.Errorf("got %v", err)
			}
		})
	}
	wg.Wait()
	mustDrain(t, b)
}

// TestBatchEmissionNeverWaits: a request whose results are not received must not
// block another one in the same batching stage.
func TestBatchEmissionNeverWaits(t *testing.T) {
	st := bus.StageSpec{Name: "batch", State: bus.StateNone, Batch: func(batch []*bus.Delivery) error {
		for _, d := range batch {
			if err := d.Task().Forward(d); err != nil {
				return err
			}
		}
		return nil
	}}
	p := testbus.Linear(st)
	p.Edges = append(p.Edges, bus.Edge{From: "batch", Window: 2})
	b := testbus.Open(t, p, bus.Options{})
	unread := testbus.SendAll(t, b, 50)
	testbus.WaitForStall(t, b, "batch->", 0)
	for range 5 {
		testbus.MustReceive(t, testbus.SendAll(t, b, 50), testbus.Numbers(50))
	}
	testbus.MustReceive(t, unread, testbus.Numbers(50))
	mustDrain(t, b)
}

// echo is a stage written as a plain protoactor actor.
type echo struct{ seen int }

func (e *echo) Receive(c actor.Context) {
	d, ok := c.Message().(*bus.Delivery)
	if !ok {
		return
	}
	e.seen++
	var err error
	if !d.Bare() {
		var in string
		if in, err = bus.Result[string](d); err == nil {
			if in == "boom" {
				panic("boom")
			}
			err = d.Task().Emit(in)
		}
	}
	_ = d.Finish(err)
}

func TestActorAsStage(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "echo", Props: actor.PropsFromProducer(func() actor.Actor { return &echo{} })}), bus.Options{})
	for range 3 {
		testbus.MustReceive(t, testbus.SendAll(t, b, 100), testbus.Numbers(100))
	}
	mustDrain(t, b)
}

func TestActorPanics(t *testing.T) {
	for _, state := range []bus.State{bus.StateRequest, bus.StateNone} {
		t.Run(state.String(), func(t *testing.T) {
			b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "echo", State: state, Props: actor.PropsFromProducer(func() actor.Actor { return &echo{} })}), bus.Options{})
			r, err := b.Submit(t.Context(), "boom")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrPanic) {
				t.Fatalf("got %v", err)
			}
			testbus.MustReceive(t, testbus.SendAll(t, b, 10), testbus.Numbers(10))
			mustDrain(t, b)
		})
	}
}

func TestReplicasShareTheLoad(t *testing.T) {
	const replicas = 3
	in := make(chan string, replicas)
	leave := make(chan struct{})
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Replicas: replicas, MaxInflight: 2, Handle: func(t *bus.Task, d *bus.Delivery) error {
		in <- fmt.Sprint(t.Replica())
		<-leave
		return nil
	}}), bus.Options{})
	var rs []*bus.Request
	for range replicas {
		r, err := b.Submit(context.Background(), "x")
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	seen := map[string]bool{}
	for range replicas {
		seen[<-in] = true // all run at the same time: each has its own replica
	}
	if len(seen) != replicas {
		t.Errorf("replicas at work: %v", seen)
	}
	close(leave)
	for _, r := range rs {
		testbus.MustReceive(t, r, nil)
	}
}

// TestAbortUnderQueuedOutput aborts while a stage with queued output sends and
// the results are being closed: no goroutine may wait for its own lock.
func TestAbortUnderQueuedOutput(t *testing.T) {
	st := bus.StageSpec{Name: "batch", State: bus.StateNone, Batch: func(batch []*bus.Delivery) error {
		for _, d := range batch {
			if err := d.Task().Forward(d); err != nil {
				return err
			}
		}
		return nil
	}}
	p := testbus.Linear(st)
	p.Edges = append(p.Edges, bus.Edge{From: "batch", Window: 1})
	b := testbus.Open(t, p, bus.Options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			r, err := b.Stream(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			for range 1 + i%20 {
				if r.Send(t.Context(), strings.Repeat("x", 600)) != nil {
					break
				}
			}
			if i%2 == 0 {
				d, err := r.Recv(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				go func() { _ = d.Finish(nil) }()
			}
			r.Close()
		})
	}
	wg.Wait()
	mustDrain(t, b)
}

// TestPanicAfterKeep: a delivery that was kept before the panic is not handled again.
func TestPanicAfterKeep(t *testing.T) {
	kept := make(chan *bus.Kept, 2)
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", State: bus.StateNone, Handle: func(_ *bus.Task, d *bus.Delivery) error {
		kept <- d.Keep()
		panic("after keeping")
	}}), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrPanic) {
		t.Fatalf("got %v", err)
	}
	if err := (<-kept).Finish(nil); err != nil {
		t.Fatal(err)
	}
	mustDrain(t, b)
	if len(kept) != 0 {
		t.Error("it was handled again")
	}
}

// TestCloseWithQueuedResults: Close also releases results that are queued behind
// those that the caller has not received.
func TestCloseWithQueuedResults(t *testing.T) {
	st := bus.StageSpec{Name: "batch", State: bus.StateNone, Batch: func(batch []*bus.Delivery) error {
		for _, d := range batch {
			for range 6 {
				if err := d.Task().Forward(d); err != nil {
					return err
				}
			}
		}
		return nil
	}}
	p := testbus.Linear(st)
	p.Edges = append(p.Edges, bus.Edge{From: "batch", Window: 2})
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), strings.Repeat("x", 1000))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Close()
	mustDrain(t, b)
}

// TestResultsBeforeTheFailure: the caller of a request that has failed, or is past its deadline, receives the results
// that had come by then, at any later time, and then its error. The results keep nothing of the request alive.
func TestResultsBeforeTheFailure(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	emitted := []string{"one", large, "three"}
	for name, late := range map[string]bool{"failed": false, "past its deadline": true} {
		for received := range len(emitted) + 1 {
			t.Run(fmt.Sprint(name, " after ", received), func(t *testing.T) {
				t.Parallel()
				goOn := make(chan struct{})
				p := testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
					for _, v := range emitted {
						if err := t.Emit(v); err != nil {
							return err
						}
					}
					<-goOn
					return errors.New("on purpose")
				}})
				b := testbus.Open(t, p, bus.Options{})
				ctx := t.Context()
				if late {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				}
				r, err := b.Submit(ctx, "in")
				if err != nil {
					t.Fatal(err)
				}
				receive := func(i int) {
					t.Helper()
					d, err := r.Recv(t.Context())
					if err != nil {
						t.Fatalf("result %d: %v", i, err)
					}
					if got, err := bus.Result[string](d); err != nil || got != emitted[i] || d.Seq != uint64(i) {
						t.Errorf("result %d is %.9q, %v, seq %d", i, got, err, d.Seq)
					}
					if err := d.Finish(nil); err != nil {
						t.Error(err)
					}
				}
				for i := range received {
					receive(i)
				}
				if late {
					<-r.Done()
				}
				close(goOn)
				<-r.Done()
				mustDrain(t, b) // although the other results are not received
				for i := received; i < len(emitted); i++ {
					receive(i)
				}
				for range 2 {
					if _, err := r.Recv(t.Context()); err == nil || !errors.Is(err, r.Err()) {
						t.Errorf("behind the results: %v, want %v", err, r.Err())
					}
				}
			})
		}
	}
}

// TestCloseDropsResultsBeforeTheFailure: a caller that closes a request which has failed receives no more of it.
func TestCloseDropsResultsBeforeTheFailure(t *testing.T) {
	p := testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
		if err := t.Emit("one"); err != nil {
			return err
		}
		return errors.New("on purpose")
	}})
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), "in")
	if err != nil {
		t.Fatal(err)
	}
	<-r.Done()
	r.Close()
	if d, err := r.Recv(t.Context()); err == nil {
		t.Errorf("received %v behind Close", d)
	}
	mustDrain(t, b)
}

// TestResultsBeforeTheFailureForMany: of goroutines that receive once each, as many as there were results before the
// failure get one, and all others get its error.
func TestResultsBeforeTheFailureForMany(t *testing.T) {
	const results, receivers = 3, 8
	for range 10 {
		p := testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
			for range results {
				if err := t.Emit(strings.Repeat("x", 1_000_000)); err != nil {
					return err
				}
			}
			return errors.New("on purpose")
		}})
		b := testbus.Open(t, p, bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20}, MaxRequests: 2})
		r, err := b.Submit(t.Context(), "in")
		if err != nil {
			t.Fatal(err)
		}
		<-r.Done() // the copies are made after it
		var got atomic.Int64
		var wg sync.WaitGroup
		for range receivers {
			wg.Go(func() {
				d, err := r.Recv(t.Context())
				switch {
				case err == nil:
					got.Add(1)
					err = d.Finish(nil)
				case errors.Is(err, r.Err()):
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got.Load() != results {
			t.Errorf("%d results were received, want %d", got.Load(), results)
		}
	}
}
