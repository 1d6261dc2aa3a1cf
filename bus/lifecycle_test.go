package bus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

func TestAbort(t *testing.T) {
	for _, size := range []int{10, 2000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			g := testbus.NewGate()
			b := testbus.Open(t, testbus.Windowed(g, bus.Edge{Window: 3}), bus.Options{})
			r := testbus.StreamOf(t, b)
			for range 8 {
				if err := r.Send(t.Context(), strings.Repeat("x", size)); err != nil {
					t.Fatal(err)
				}
			}
			testbus.WaitForStall(t, b, "first->second", 0)
			why := errors.New("the user hung up")
			r.Abort(why)
			if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrAborted) || !errors.Is(err, why) {
				t.Fatalf("got %v", err)
			}
			if err := r.Send(t.Context(), "late"); !errors.Is(err, bus.ErrAborted) {
				t.Errorf("send after the abort: %v", err)
			}
			r.Abort(errors.New("again"))
			if r.Outcome() != bus.Aborted || !errors.Is(r.Err(), why) {
				t.Errorf("ended twice: %v, %v", r.Outcome(), r.Err())
			}
			mustDrain(t, b)
		})
	}
}

// mustDrain waits until all requests are forgotten, and checks that no payload
// is held.
func mustDrain(t *testing.T, b *bus.Bus) {
	t.Helper()
	if err := b.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held := bus.HeldBytes(b); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
}

// TestDeadline: a request ends at its deadline. Time advances only while all goroutines of the test are blocked.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := testbus.NewGate()
		b := testbus.Open(t, testbus.Linear(g.Stage("slow")), bus.Options{})
		r, err := b.Submit(t.Context(), "x", bus.WithDeadline(time.Now().Add(20*time.Millisecond)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrDeadline) {
			t.Fatalf("got %v", err)
		}
		if r.Outcome() != bus.PastDeadline {
			t.Errorf("outcome %v", r.Outcome())
		}
		mustDrain(t, b)
	})
}

// TestDeadlineInThePast: the error of a request with a deadline in the past says by how much.
func TestDeadlineInThePast(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Linear(g.Stage("slow")), bus.Options{})
	r, err := b.Submit(t.Context(), "x", bus.WithDeadline(time.Now().Add(-time.Hour)))
	if err == nil {
		_, err = testbus.Receive(t, r)
	}
	if !errors.Is(err, bus.ErrDeadline) || !strings.Contains(err.Error(), "deadline exceeded: by 1h") || !strings.HasSuffix(err.Error(), " when the request began") {
		t.Errorf("got %v", err)
	}
	mustDrain(t, b)
}

// TestExpiredRequestEndsPastDeadline: a request that fails or is aborted after its deadline ends as
// PastDeadline, although its timer is late. A completed request stays completed.
func TestExpiredRequestEndsPastDeadline(t *testing.T) {
	send := func(r *bus.Request, in string) {
		if err := r.Send(t.Context(), in, bus.Last()); err != nil {
			t.Error(err)
		}
	}
	for name, tc := range map[string]struct {
		end  func(r *bus.Request)
		want bus.Outcome
	}{
		"failed":    {func(r *bus.Request) { send(r, "bad") }, bus.PastDeadline},
		"aborted":   {func(r *bus.Request) { r.Abort(errors.New("enough")) }, bus.PastDeadline},
		"closed":    {(*bus.Request).Close, bus.PastDeadline},
		"completed": {func(r *bus.Request) { send(r, "good") }, bus.Completed},
	} {
		t.Run(name, func(t *testing.T) {
			b := testbus.Open(t, testbus.Linear(bus.Stage("picky", func(_ *bus.Task, in string) (string, error) {
				if in == "bad" {
					return "", errors.New("it is bad")
				}
				return in, nil
			})), bus.Options{})
			r, err := b.Stream(t.Context(), bus.WithDeadline(time.Now().Add(time.Hour)))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			bus.Overdue(r)
			tc.end(r)
			err = r.Wait(t.Context())
			if r.Outcome() != tc.want || errors.Is(err, bus.ErrDeadline) != (tc.want == bus.PastDeadline) {
				t.Errorf("it is %v: %v; want %v", r.Outcome(), err, tc.want)
			}
			if s := b.Stats(); s.Failed+s.Aborted > 0 || s.Deadline+s.Completed != 1 {
				t.Errorf("the bus counts %d completed, %d failed, %d aborted and %d past their deadline", s.Completed, s.Failed, s.Aborted, s.Deadline)
			}
		})
	}
}

func TestContextEndsTheRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		"canceled": {context.WithCancel, bus.ErrAborted},
		"timed out": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 20*time.Millisecond)
		}, bus.ErrDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // in real time the timeout could end before the request begins
				g := testbus.NewGate()
				b := testbus.Open(t, testbus.Linear(g.Stage("slow")), bus.Options{})
				ctx, cancel := tc.ctx(t.Context())
				defer cancel()
				r, err := b.Submit(ctx, "x")
				if err != nil {
					t.Fatal(err)
				}
				if tc.want == bus.ErrAborted {
					<-g.Entered
					cancel()
				}
				if _, err := testbus.Receive(t, r); !errors.Is(err, tc.want) {
					t.Fatalf("got %v", err)
				}
				mustDrain(t, b)
			})
		})
	}
}

func TestCanceledContextSubmitsNothing(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Submit(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	mustDrain(t, b)
}

func TestAdmission(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Linear(g.Stage("slow")), bus.Options{MaxRequests: 2})
	var rs []*bus.Request
	for range 2 {
		r, err := b.TrySubmit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	if _, err := b.TrySubmit(t.Context(), "x"); !errors.Is(err, bus.ErrOverloaded) {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := b.Submit(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	waited := make(chan error)
	go func() {
		r, err := b.Submit(t.Context(), "x")
		if err == nil {
			_, err = testbus.Receive(t, r)
		}
		waited <- err
	}()
	for range 3 {
		g.Leave <- struct{}{}
	}
	for _, r := range rs {
		if _, err := testbus.Receive(t, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

func TestTrySubmitFindsNoSlot(t *testing.T) {
	g := testbus.NewGate()
	st := g.Stage("slow")
	st.MaxInflight = 1
	b := testbus.Open(t, testbus.Linear(st), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TrySubmit(t.Context(), "x"); !errors.Is(err, bus.ErrOverloaded) || !strings.Contains(err.Error(), `"slow"`) {
		t.Fatalf("got %v", err)
	}
	g.Leave <- struct{}{}
	if _, err := testbus.Receive(t, r); err != nil {
		t.Fatal(err)
	}
}

func TestClosedBus(t *testing.T) {
	g := testbus.NewGate()
	b := testbus.Open(t, testbus.Linear(g.Stage("slow")), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	<-g.Entered
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(r.Err(), bus.ErrAborted) || !errors.Is(r.Err(), bus.ErrClosed) {
		t.Errorf("the open request ended with %v", r.Err())
	}
	if _, err := b.Submit(t.Context(), "x"); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("submit: %v", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Errorf("second close: %v", err)
	}
	b.Stats()
}

// TestCloseNamesAHandlerThatDoesNotReturn: Close fails when its context ends,
// and succeeds once the handler has returned.
func TestCloseNamesAHandlerThatDoesNotReturn(t *testing.T) {
	stuck := make(chan struct{})
	entered := make(chan struct{})
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "stuck", Handle: func(*bus.Task, *bus.Delivery) error {
		close(entered)
		<-stuck
		return nil
	}}), bus.Options{})
	if _, err := b.Submit(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := b.Close(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `stage "stuck" is at work`) {
		t.Fatalf("got %v", err)
	}
	close(stuck)
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestCloseResumesAfterContextEnds: after a Close whose context has ended, the next Close does the rest.
func TestCloseResumesAfterContextEnds(t *testing.T) {
	ignored := goleak.IgnoreCurrent()
	for range 10 {
		b, err := bus.Open(t.Context(), testbus.Linear(bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }, MaxInflight: 200}), bus.Options{MaxRequests: 200})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("close with a context that has ended: %v", err)
		}
		for range 2 {
			if err := b.Close(t.Context()); err != nil {
				t.Errorf("close again: %v", err)
			}
		}
	}
	goleak.VerifyNone(t, ignored)
}

// TestCloseWaitsForTheCallersPayloads: a payload that is being filled or sent when its
// request ends has space in the store, which must stay until the payload is released.
func TestCloseWaitsForTheCallersPayloads(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	r := testbus.StreamOf(t, b)
	buf, err := r.Input(t.Context()).Reserve(1000, codec.IDRaw)
	if err != nil {
		t.Fatal(err)
	}
	r.Abort(nil)
	if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrAborted) {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Close(ctx); err == nil || !strings.Contains(err.Error(), "the caller has 1 payloads that it has neither sent nor aborted") {
		t.Errorf("close with a payload in the caller's hand: %v", err)
	}
	if err := buf.Send(1000); !errors.Is(err, bus.ErrAborted) {
		t.Errorf("send after the abort: %v", err)
	}
	mustDrain(t, b)
	if _, err := r.Input(t.Context()).Reserve(1000, codec.IDRaw); !errors.Is(err, bus.ErrAborted) {
		t.Errorf("reserve when the request is forgotten: %v", err)
	}
}

func TestCloseReleasesUnreadResults(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{MaxRequests: 1})
	for range 5 {
		r, err := b.Submit(t.Context(), strings.Repeat("x", 3000))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	mustDrain(t, b)
}

// TestContextReleasesUnreadResults: when the context of a completed request ends, its unreceived results are released,
// and its permit is returned. Recv then returns the context's error, or io.EOF if all results were received.
func TestContextReleasesUnreadResults(t *testing.T) {
	expand := bus.Expand("n", func(_ *bus.Task, in string, emit func(string) error) error {
		return errors.Join(emit(in), emit(in), emit(in))
	})
	for _, read := range []int{0, 1, 3} {
		b := testbus.Open(t, testbus.Linear(expand), bus.Options{MaxRequests: 1})
		for range 3 { // more requests than permits
			ctx, cancel := context.WithCancel(t.Context())
			r, err := b.Submit(ctx, "x")
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range read {
				d, err := r.Recv(t.Context())
				if err == nil {
					err = d.Finish(nil)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if read == 3 {
				_, err = r.Recv(t.Context())
			} else {
				cancel()
				mustDrain(t, b)
				_, err = r.Recv(t.Context())
			}
			want := map[bool]error{true: io.EOF, false: context.Canceled}[read == 3]
			if !errors.Is(err, want) || r.Outcome() != bus.Completed {
				t.Errorf("%d read: got %v of a request that is %v, want %v", read, err, r.Outcome(), want)
			}
			cancel()
		}
	}
}

// TestContextKeepsNoEndedRequest: a context that does not end has no reference to ended requests.
func TestContextKeepsNoEndedRequest(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begin := func(end func(*bus.Request)) weak.Pointer[bus.Request] {
		r, err := b.Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		end(r)
		return weak.Make(r)
	}
	send := func(r *bus.Request) {
		if err := errors.Join(r.Send(ctx, "x"), r.CloseSend(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(r *bus.Request) { send(r); testbus.MustReceive(t, r, []string{"X"}) }
	for name, end := range map[string]func(*bus.Request){
		"received": receive,
		"closed":   func(r *bus.Request) { send(r); _ = r.Wait(t.Context()); r.Close() },
		"aborted":  func(r *bus.Request) { r.Abort(nil) }, // before it completes: its unreceived result would keep it
	} {
		r := begin(end)
		begin(receive) // the stage may refer to its last request
		mustDrain(t, b)
		testbus.Await(t, func() bool {
			runtime.GC()
			return r.Value() == nil
		})
		t.Log(name)
	}
}

func TestResultsInterruptedByTheCaller(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Expand("n", func(_ *bus.Task, in string, emit func(string) error) error {
		for range 100 {
			if err := emit(strings.Repeat(in, 1000)); err != nil {
				return err
			}
		}
		return nil
	})), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	r.Close()
	mustDrain(t, b)
}

func TestHandlerErrorNamesLocation(t *testing.T) {
	bad := errors.New("bad chunk")
	b := testbus.Open(t, testbus.Linear(
		bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
			return t.EmitBytes(d.Bytes(), bus.Key(fmt.Sprintf("chunk-%d", d.Seq)))
		}},
		bus.StageSpec{Name: "b", Handle: func(_ *bus.Task, d *bus.Delivery) error {
			if d.Seq == 3 {
				return bad
			}
			return nil
		}}), bus.Options{})
	r := testbus.StreamOf(t, b)
	go func() {
		for range 10 {
			_ = r.Send(t.Context(), "x")
		}
		_ = r.CloseSend(t.Context())
	}()
	_, err := testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.Is(err, bad) || !errors.As(err, &at) {
		t.Fatalf("got %v", err)
	}
	if at.Stage != "b" || at.Edge != "a->b" || at.Seq != 3 || at.Key != "chunk-3" {
		t.Errorf("wrong place: %+v", at)
	}
	mustDrain(t, b)
}

func TestWrongTypes(t *testing.T) {
	number := bus.Stage("n", func(_ *bus.Task, in string) (int, error) { return len(in), nil })
	if _, err := bus.Open(t.Context(), testbus.Linear(number, bus.Stage("s", testbus.Upper)), bus.Options{}); !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), "n->s") {
		t.Errorf("an edge whose types differ: %v", err)
	}
	untyped := bus.StageSpec{Name: "u", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Emit(42) }}
	b := testbus.Open(t, testbus.Linear(untyped, bus.Stage("s", testbus.Upper)), bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.Is(err, bus.ErrPayload) || !errors.As(err, &at) || at.Edge != "u->s" {
		t.Errorf("a payload of the wrong type: %v", err)
	}
}

// TestBusWithoutStages: a bus without stages refuses requests, and has an exchange.
func TestBusWithoutStages(t *testing.T) {
	b := testbus.Open(t, bus.Pipeline{}, bus.Options{})
	_, submitted := b.Submit(t.Context(), "a")
	_, tried := b.TrySubmit(t.Context(), "a")
	_, streamed := b.Stream(t.Context())
	for _, err := range []error{submitted, tried, streamed} {
		if !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), "no stages") {
			t.Errorf("a request: %v", err)
		}
	}
	x, edge := b.Exchange(), connector.Edge{From: "a", To: "b"}
	meta, err := x.Put(t.Context(), edge, "k", 5, func(dst []byte) error { copy(dst, "value"); return nil })
	if err != nil {
		t.Fatal(err)
	}
	got, err := x.Get(t.Context(), edge, "k", meta)
	if err != nil || string(got.Bytes()) != "value" {
		t.Fatalf("got %q, %v", got.Bytes(), err)
	}
	got.Release()
}

// joinOf is a pipeline with a join of a number and a text, whose edges come from the given stages in this order.
func joinOf(first, second string) bus.Pipeline {
	return bus.Pipeline{
		Stages: []bus.StageSpec{
			bus.Stage("source", testbus.Upper),
			bus.Stage("text", testbus.Upper),
			bus.Stage("number", func(_ *bus.Task, in string) (int, error) { return len(in), nil }),
			bus.Join2("join", func(_ *bus.Task, n int, text string) (string, error) { return strings.Repeat(text, n), nil }),
		},
		Edges: []bus.Edge{{From: "source", To: "text"}, {From: "source", To: "number"}, {From: first, To: "join"}, {From: second, To: "join"}},
	}
}

// TestDropsBeforeFanOutAreAllowed: an edge on every path to a join may drop, because the branches miss the same
// deliveries.
func TestDropsBeforeFanOutAreAllowed(t *testing.T) {
	p := testbus.Diamond(bus.Stage("b", testbus.Upper), bus.Stage("c", testbus.Upper), bus.Stage("d", testbus.Upper))
	p.Stages = append(p.Stages, bus.Stage("a", testbus.Upper))
	p.Edges = append(p.Edges, bus.Edge{From: "a", To: "b", Policy: bus.DropOldest}, bus.Edge{From: "join", Policy: bus.DropOldest})
	testbus.Open(t, p, bus.Options{})
}

// TestTypesOfInputs: Submit checks the type of an input against that of the first stage.
func TestTypesOfInputs(t *testing.T) {
	b := testbus.Open(t, joinOf("number", "text"), bus.Options{})
	if r, err := b.Submit(t.Context(), 3); !errors.Is(err, bus.ErrPayload) || !strings.Contains(err.Error(), `the input is int, and stage "source" takes string`) {
		t.Errorf("submit a number: %v, %v", r, err)
	}
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"X"})
	open := testbus.Open(t, testbus.Linear(bus.Stage("any", func(_ *bus.Task, in any) (string, error) { return fmt.Sprint(in), nil })), bus.Options{})
	if r, err = open.Submit(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"3"})
}

func TestPipelinesThatCannotWork(t *testing.T) {
	a, c := bus.Stage("a", testbus.Upper), bus.Stage("c", testbus.Upper)
	scattered := testbus.Remotes(testbus.Diamond(a, c, bus.Stage("d", testbus.Upper)))
	scattered.Stages[1].State, scattered.Stages[1].Remote = bus.StateNone, &bus.Remote{Routing: bus.LeastQueue}
	three := joinOf("number", "text")
	three.Edges = append(three.Edges, bus.Edge{From: "source", To: "join"})
	for name, tc := range map[string]struct {
		p    bus.Pipeline
		says string
	}{
		"no such stage":              {bus.Pipeline{Edges: []bus.Edge{{From: "a"}}}, `there is no stage "a"`},
		"twice":                      {bus.Pipeline{Stages: []bus.StageSpec{a, a}}, `stage "a" is listed twice`},
		"no name":                    {bus.Pipeline{Stages: []bus.StageSpec{bus.Stage("", testbus.Upper)}}, "needs a name"},
		"long name":                  {bus.Pipeline{Stages: []bus.StageSpec{bus.Stage(strings.Repeat("n", 100), testbus.Upper)}}, "its name has 100 bytes: use up to 99"},
		"no UTF-8":                   {bus.Pipeline{Stages: []bus.StageSpec{bus.Stage("\xff", testbus.Upper)}}, "of UTF-8"},
		"no handler":                 {bus.Pipeline{Stages: []bus.StageSpec{{Name: "x"}}}, "set exactly one of"},
		"unknown stage":              {bus.Pipeline{Stages: []bus.StageSpec{a}, Edges: []bus.Edge{{From: "a", To: "z"}}}, `there is no stage "z"`},
		"self":                       {bus.Pipeline{Stages: []bus.StageSpec{a}, Edges: []bus.Edge{{From: "a", To: "a"}}}, "joins a stage to itself"},
		"edge twice":                 {bus.Pipeline{Stages: []bus.StageSpec{a, c}, Edges: []bus.Edge{{From: "a", To: "c"}, {From: "a", To: "c"}}}, "is listed twice"},
		"cycle":                      {bus.Pipeline{Stages: []bus.StageSpec{a, c}, Edges: []bus.Edge{{From: "a", To: "c"}, {From: "c", To: "a"}}}, "cycle: "},
		"tensors":                    {bus.Pipeline{Stages: []bus.StageSpec{a, c}, Edges: []bus.Edge{{From: "a", To: "c", Tensors: 3}}}, "unknown transport 3 of tensors"},
		"few tensors":                {bus.Pipeline{Stages: []bus.StageSpec{a, c}, Edges: []bus.Edge{{From: "a", To: "c", TensorMinBytes: -1}}}, "TensorMinBytes is -1"},
		"window":                     {bus.Pipeline{Stages: []bus.StageSpec{a, c}, Edges: []bus.Edge{{From: "a", To: "c", Window: -2}}}, "Window is -2"},
		"join of one":                {bus.Pipeline{Stages: []bus.StageSpec{a, testbus.Concat("j")}, Edges: []bus.Edge{{From: "a", To: "j"}}}, "only one in-edge"},
		"join of drops":              {testbus.Diamond(a, c, bus.Stage("d", testbus.Upper), bus.Edge{From: "c", To: "join", Policy: bus.DropOldest}), `edge c->join: its policy drops deliveries of one branch before the join "join"`},
		"drops before a branch":      {testbus.Diamond(a, c, bus.Stage("d", testbus.Upper), bus.Edge{From: "a", To: "d", Policy: bus.DropOldest}), `edge a->d: its policy drops deliveries of one branch before the join "join"`},
		"drops before a remote join": {testbus.Remotes(testbus.Diamond(a, c, bus.Stage("d", testbus.Upper), bus.Edge{From: "c", To: "join", Policy: bus.DropOldest})), `edge c->join: its policy`},
		"branches of a join":         {three, `stage "join": its function joins 2 branches, and the pipeline gives it 3: number, text, source`},
		"a join behind any order":    {scattered, `edge c->join: the routing least-queue of stage "c" reorders deliveries of one branch before the join "join"`},
		"types of a join":            {joinOf("text", "number"), `edge text->join: stage "text" emits string, stage "join" takes int as its input 1`},
		"replay":                     {bus.Pipeline{Stages: []bus.StageSpec{{Name: "x", Batch: func([]*bus.Delivery) error { return nil }, Replay: true}}}, "Replay needs Handle"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := bus.Open(t.Context(), tc.p, bus.Options{})
			if !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v, %v", b, err)
			}
			if _, alone := tc.p.Bounds(bus.Options{}); alone == nil || alone.Error() != err.Error() {
				t.Errorf("without being opened: %v, want %v", alone, err)
			}
		})
	}
}

// TestManyRequestsAtOnce runs more requests than there are permits and slots.
func TestManyRequestsAtOnce(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper), bus.Stage("b", testbus.Upper), bus.Stage("c", testbus.Upper)), bus.Options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			in := strings.Repeat("x", i*10)
			r, err := b.Submit(t.Context(), in)
			if err != nil {
				t.Error(err)
				return
			}
			got, err := testbus.Receive(t, r)
			if want := strings.ToUpper(in); err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("request %d: %d results, %v", i, len(got), err)
			}
			if _, err := r.Recv(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("behind the end: %v", err)
			}
		})
	}
	wg.Wait()
	mustDrain(t, b)
	if s := b.Stats(); s.Completed != 200 || s.Live != 0 {
		t.Errorf("stats: %+v", s)
	}
}
