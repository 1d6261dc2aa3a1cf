package bus_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var (
	soakRequests = flag.Int("soak.requests", 3000, "requests that TestSoak sends over heap memory; a fifth of them over shared memory")
	soakSeed     = flag.Uint64("soak.seed", 1, "what TestSoak draws its requests from")
)

// TestSoak sends requests of every kind through a pipeline with every kind of
// stage, many at a time, and compares each with its plan (see planRequest): its
// results, and its end. At the end no payload, lease or goroutine may be left.
func TestSoak(t *testing.T) {
	requests := *soakRequests
	if testing.Short() {
		requests = min(requests, 1000)
	}
	for _, tc := range []struct {
		memory   shmstore.Memory
		requests int
	}{
		{shmstore.Heap, requests},
		{shmstore.Shared, requests / 5},
	} {
		t.Run(tc.memory.String(), func(t *testing.T) {
			if tc.memory == shmstore.Shared && runtime.GOOS != "linux" {
				t.Skip("shared memory is for Linux")
			}
			ignored := goleak.IgnoreCurrent()
			defer goleak.VerifyNone(t, ignored)
			runSoak(t, tc.memory, tc.requests)
		})
	}
}

const (
	soakCaller  = "call" // as a payload's origin
	soakCallers = 3 * soakPermits

	// soakPatience is how long a wait may last before the run is stopped.
	soakPatience = time.Minute

	// maxBroken bounds the report of a failed run.
	maxBroken = 20

	// minWrapsPerMillion is how often a million requests have to fill the
	// store from end to end, at least.
	minWrapsPerMillion = 1000
)

// soak is one run, and its record.
type soak struct {
	t      *testing.T
	ctx    context.Context // canceled when the run is stopped
	giveUp context.CancelFunc
	bus    *bus.Bus
	late   sync.WaitGroup // goroutines that finish kept deliveries

	bytes     atomic.Int64 // of payloads written into the store
	dropped   atomic.Int64 // chunks whose drop was reported to meter
	overloads atomic.Int64 // calls of TrySubmit with ErrOverloaded
	refused   atomic.Int64 // requests whose context ended before they began
	brokenN   atomic.Int64
	plans     [endings]atomic.Int64
	outcomes  [bus.PastDeadline + 1]atomic.Int64
}

func runSoak(t *testing.T, memory shmstore.Memory, requests int) {
	s := &soak{t: t}
	s.ctx, s.giveUp = context.WithCancel(context.Background())
	defer s.giveUp()
	opts := soakOptions(memory)
	opts.StallTimeout, opts.OnStall = soakPatience, s.stalled
	b, err := bus.Open(s.ctx, s.pipeline(), opts)
	if err != nil {
		t.Fatal(err)
	}
	s.bus = b

	began := time.Now()
	s.sendAll(requests)
	took := time.Since(began)
	s.late.Wait()

	if err := b.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	if held := bus.HeldBytes(b); held != 0 {
		t.Errorf("%d bytes are still held", held)
	}
	stats := b.Stats()
	if err := b.Close(context.Background()); err != nil { // checks the store
		t.Error(err)
	}
	s.checkRecord(requests, stats)
	t.Logf("%d requests in %v, %.0f a second, %d times round the store", requests, took.Round(time.Millisecond), float64(requests)/took.Seconds(), s.wraps())
	t.Logf("%d completed, %d failed, %d aborted, %d past their deadline, %d refused; %d overloads, %d chunks dropped",
		s.outcomes[bus.Completed].Load(), s.outcomes[bus.Failed].Load(), s.outcomes[bus.Aborted].Load(), s.outcomes[bus.PastDeadline].Load(),
		s.refused.Load(), s.overloads.Load(), s.dropped.Load())
}

// sendAll sends all requests from several goroutines, and waits for them.
func (s *soak) sendAll(requests int) {
	var callers sync.WaitGroup
	var next atomic.Uint64
	for range soakCallers {
		callers.Go(func() {
			for {
				index := next.Add(1)
				if index > uint64(requests) || s.ctx.Err() != nil {
					return
				}
				s.runRequest(planRequest(*soakSeed, index))
			}
		})
	}
	callers.Wait()
}

func (s *soak) wraps() int64        { return s.bytes.Load() / soakArenaBytes }
func (s *soak) stored(n int)        { s.bytes.Add(int64(n)) }
func (s *soak) share(n int64) int64 { return n * 100 / max(s.total(), 1) }

func (s *soak) total() (n int64) {
	for i := range s.outcomes {
		n += s.outcomes[i].Load()
	}
	return n + s.refused.Load()
}

// stalled stops a run that hangs, and reports the stalls.
func (s *soak) stalled(stalls []bus.Stall) {
	for _, stall := range stalls {
		s.t.Error(stall)
	}
	s.giveUp()
}

// broken reports a fault of a request, a bounded number of times.
func (s *soak) broken(e *soakRequest, where string, err error) {
	if s.brokenN.Add(1) <= maxBroken {
		s.t.Errorf("request %d (%v at %v), at %s: %v", e.index, e.end, e.at, where, err)
	}
}

// checkRecord checks the record as a whole.
func (s *soak) checkRecord(requests int, stats bus.Stats) {
	t := s.t
	if s.ctx.Err() != nil {
		return // stopped
	}
	if n := s.total(); n != int64(requests) {
		t.Errorf("%d requests were sent, %d have ended", requests, n)
	}
	o := &s.outcomes
	if c, f := o[bus.Completed].Load(), o[bus.Failed].Load(); stats.Completed != c || stats.Failed != f {
		t.Errorf("the bus counts %d completed and %d failed, the record %d and %d", stats.Completed, stats.Failed, c, f)
	}
	if stats.JoinBytes != 0 {
		t.Errorf("JoinBytes is %d at the end, want 0", stats.JoinBytes)
	}
	if got, want := s.bytes.Load()*1_000_000, int64(requests)*soakArenaBytes*minWrapsPerMillion; got < want {
		t.Errorf("%d bytes of payload in %d requests: the store is wrapped too seldom", s.bytes.Load(), requests)
	}
	if requests < 500 {
		return // too few requests for shares
	}
	for _, want := range []struct {
		name  string
		share int64
		least int64
	}{
		{"completions", s.share(o[bus.Completed].Load()), 40},
		{"aborts", s.share(o[bus.Aborted].Load()), 5},
		{"deadlines", s.share(o[bus.PastDeadline].Load()), 5},
		{"panics", s.share(s.plans[panicsEnd].Load()), 5},
	} {
		if want.share < want.least {
			t.Errorf("%s are %d %% of the endings, want at least %d %%", want.name, want.share, want.least)
		}
	}
	if s.overloads.Load() == 0 || s.dropped.Load() == 0 {
		t.Errorf("%d overloads, %d dropped chunks: want more than that", s.overloads.Load(), s.dropped.Load())
	}
}

// runRequest sends one request, and checks it at its end.
func (s *soak) runRequest(e *soakRequest) {
	ctx, cancel := s.context(e)
	defer cancel(nil)
	r, err := s.submit(ctx, cancel, e)
	if err != nil {
		s.checkRefused(e, err)
		return
	}
	chunks, err := s.receive(r, e)
	<-r.Done()
	if err := s.checkEnd(r, e, chunks, err); err != nil {
		s.broken(e, "the end", err)
	}
	s.outcomes[r.Outcome()].Add(1)
	s.plans[e.end].Add(1)
}

func (s *soak) context(e *soakRequest) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(context.WithValue(s.ctx, soakKey{}, e))
	if e.end != pastDeadline || !e.byCtx {
		return ctx, cancel
	}
	ctx, stop := context.WithTimeout(ctx, e.patience)
	return ctx, func(cause error) { cancel(cause); stop() }
}

// submit submits the request in one of three ways.
func (s *soak) submit(ctx context.Context, cancel context.CancelCauseFunc, e *soakRequest) (*bus.Request, error) {
	var opts []bus.SubmitOption
	if e.end == pastDeadline && !e.byCtx {
		opts = append(opts, bus.WithDeadline(time.Now().Add(e.patience)))
	}
	if e.end == canceledEnd {
		e.strikeBy(func() { cancel(errSoakStrike) }, ctx.Done())
	}
	if len(e.inputs) == 1 && e.end != abortedEnd {
		return s.submitWhole(ctx, e, opts)
	}
	r, err := s.bus.Stream(ctx, opts...)
	if err != nil {
		return nil, err
	}
	if e.end == abortedEnd {
		e.strikeBy(func() { r.Abort(errSoakStrike) }, r.Done())
	}
	s.late.Go(func() {
		if err := s.sendInputs(ctx, r, e); err != nil {
			<-r.Done() // the only allowed reason is the end of the request
		}
	})
	return r, nil
}

func (s *soak) submitWhole(ctx context.Context, e *soakRequest, opts []bus.SubmitOption) (*bus.Request, error) {
	input := make([]byte, e.inputSize())
	e.seal(input, 0, 0, soakCaller)
	s.stored(len(input))
	if e.try {
		r, err := s.bus.TrySubmit(ctx, input, opts...)
		if !errors.Is(err, bus.ErrOverloaded) {
			return r, err
		}
		s.overloads.Add(1)
	}
	return s.bus.Submit(ctx, input, opts...)
}

func (s *soak) sendInputs(ctx context.Context, r *bus.Request, e *soakRequest) error {
	for i := range e.inputs {
		var opts []bus.EmitOption
		last := i == len(e.inputs)-1
		if last && e.marked {
			opts = append(opts, bus.Last())
		}
		if err := s.emit(r.Input(ctx), e, e.inputSize(), uint32(i), 0, soakCaller, opts...); err != nil {
			return err
		}
	}
	if e.marked {
		return nil
	}
	return r.CloseSend(ctx)
}

// checkRefused checks a request that did not begin, or whose context ended while
// it was being sent.
func (s *soak) checkRefused(e *soakRequest, err error) {
	switch {
	case e.end == pastDeadline && errors.Is(err, bus.ErrDeadline):
		s.outcomes[bus.PastDeadline].Add(1)
		s.plans[e.end].Add(1)
		return
	case e.end != pastDeadline || !e.byCtx || !errors.Is(err, context.DeadlineExceeded):
		s.broken(e, "submit", err)
	}
	s.refused.Add(1)
}

// receive receives the results that the plan says, and returns the set of their
// chunks.
func (s *soak) receive(r *bus.Request, e *soakRequest) (chunks uint64, err error) {
	if e.unread {
		<-r.Done()
	}
	var last *bus.Delivery // finished when the next one has come
	for n := 0; ; n++ {
		if e.end == walksAway && n == e.at.chunk {
			r.Close()
			return chunks, s.finish(e, last)
		}
		d, err := r.Recv(s.ctx)
		if err := s.finish(e, last); err != nil {
			return chunks, err
		}
		if err != nil {
			return chunks, err
		}
		chunk, _, err := e.unseal(d.Bytes(), stageJoin)
		if err == nil && chunks&(1<<chunk) != 0 {
			err = fmt.Errorf("chunk %d came twice", chunk)
		}
		if err != nil {
			s.broken(e, "a result", err)
		}
		chunks |= 1 << chunk
		last = d
	}
}

// finish checks and finishes a result that was held for a while; d may be nil.
func (s *soak) finish(e *soakRequest, d *bus.Delivery) error {
	if d == nil {
		return nil
	}
	if _, _, err := e.unseal(d.Bytes(), stageJoin); err != nil {
		s.broken(e, "a result that was held", err)
	}
	return d.Finish(nil)
}

// checkEnd compares the end of a request with its plan.
func (s *soak) checkEnd(r *bus.Request, e *soakRequest, chunks uint64, err error) error {
	outcome := r.Outcome()
	r.Abort(errSoakLate)
	switch {
	case !slices.Contains(e.end.outcomes(), outcome):
		return fmt.Errorf("%v: %w", outcome, r.Err())
	case r.Outcome() != outcome || errors.Is(r.Err(), errSoakLate):
		return fmt.Errorf("it ended twice: %v, then %v", outcome, r.Outcome())
	case (r.Err() == nil) != (outcome == bus.Completed):
		return fmt.Errorf("%v with the error %w", outcome, r.Err())
	case e.end == walksAway:
		return err
	case outcome != bus.Completed:
		return e.wantError(r.Err(), err)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("the results ended with %w", err)
	case chunks != 1<<len(e.sizes)-1:
		return fmt.Errorf("%d chunks were sent, the results are %b", len(e.sizes), chunks)
	case e.metered != uint64(len(e.sizes)):
		return fmt.Errorf("%d chunks were sent, meter has counted %d", len(e.sizes), e.metered)
	}
	return nil
}
