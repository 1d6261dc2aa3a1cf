package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// A submitter is a bus, or a node of one.
type submitter interface {
	Submit(ctx context.Context, v any, opts ...bus.SubmitOption) (*bus.Request, error)
	Stream(ctx context.Context, opts ...bus.SubmitOption) (*bus.Request, error)
}

// concurrencyEnv is how many requests a caller has open at a time.
const concurrencyEnv = "OMNIBUS_LOAD_CONCURRENCY"

// call is the process of a caller in a Go node.
func call(*cell) error {
	concurrency, err := strconv.Atoi(os.Getenv(concurrencyEnv))
	if err != nil {
		return err
	}
	n, err := node.Join(context.Background(), "caller", node.JoinOptions{MaxRequests: concurrency})
	if err != nil {
		return err
	}
	submitPlans(n, concurrency)
	return n.Close(context.Background())
}

// submitPlans submits the plans of standard input until it ends, concurrency at a time, and prints
// a line when each request begins, and one with its outcome when it ends.
func submitPlans(s submitter, concurrency int) {
	plans := make(chan plan)
	var group sync.WaitGroup
	for range concurrency {
		group.Go(func() {
			for p := range plans {
				fmt.Printf("open %d\n", p.Number)
				outcome, sums := submitOne(s, &p)
				fmt.Println(endLine(p.Number, outcome, sums))
			}
		})
	}
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var p plan
		if in.Decode(&p) != nil { // the end: this test sends only valid plans
			break
		}
		plans <- p
	}
	close(plans)
	group.Wait()
}

// An ending closes or aborts a request after a time, also while the request begins.
type ending struct {
	plan   *plan
	fired  atomic.Bool
	req    atomic.Pointer[bus.Request]
	cancel context.CancelFunc
}

func (e *ending) fire() {
	e.fired.Store(true)
	switch r := e.req.Load(); {
	case r == nil:
		e.cancel() // the context is that of the request
	case e.plan.End == endClose:
		r.Close()
	default:
		r.Abort(errors.New("as planned"))
	}
}

// submitOne runs a plan, and returns its outcome and the checksums of the results.
func submitOne(s submitter, p *plan) (string, []uint32) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var opts []bus.SubmitOption
	e := &ending{plan: p, cancel: cancel}
	switch p.End {
	case endDeadline:
		opts = append(opts, bus.WithDeadline(time.Now().Add(p.After)))
	case endClose, endAbort:
		defer time.AfterFunc(p.After, e.fire).Stop()
	}
	sums, err := exchange(ctx, s, p, e, opts)
	return e.outcome(err), sums
}

// exchange sends the inputs of a request and receives its results.
func exchange(ctx context.Context, s submitter, p *plan, e *ending, opts []bus.SubmitOption) ([]uint32, error) {
	if p.Inputs == 1 && p.Tag%2 == 0 && p.To == "" {
		r, err := s.Submit(ctx, inputOf(p.Tag, 0, p.Total).payload(), opts...)
		if err != nil {
			return nil, err
		}
		defer closeUnless(p, r)
		e.req.Store(r)
		return receive(ctx, r, p)
	}
	r, err := s.Stream(ctx, opts...)
	if err != nil {
		return nil, err
	}
	defer closeUnless(p, r)
	e.req.Store(r)
	if callerHasFault(faultOpen, p) {
		select {}
	}
	sent := make(chan error, 1)
	go func() {
		err := sendInputs(ctx, r, p)
		if err != nil {
			r.Abort(err) // a failed input does not always end the request
		}
		sent <- err
	}()
	sums, err := receive(ctx, r, p)
	r.Close()
	if sendErr := <-sent; err != nil && full(sendErr) {
		err = sendErr
	}
	return sums, err
}

func closeUnless(p *plan, r *bus.Request) {
	if !callerHasFault(faultLeakResult, p) {
		r.Close()
	}
}

func sendInputs(ctx context.Context, r *bus.Request, p *plan) error {
	for seq := range uint32(p.Inputs) {
		var opts []bus.EmitOption
		if p.To != "" {
			opts = append(opts, bus.To(p.To))
		}
		last := seq+1 == uint32(p.Inputs) && p.Tag%4 == 1
		if last {
			opts = append(opts, bus.Last())
		}
		if err := r.Input(ctx).EmitBytes(inputOf(p.Tag, seq, p.Total).payload(), opts...); err != nil {
			return err
		}
		if last && p.To == "" { // with To, the streams to other stages are still open
			return nil
		}
	}
	return r.CloseSend(ctx)
}

func receive(ctx context.Context, r *bus.Request, p *plan) (sums []uint32, err error) {
	for {
		d, err := r.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return sums, nil
		case err != nil:
			return sums, err
		}
		if !d.Bare() {
			got, err := plain(d)
			if err != nil {
				return sums, err
			}
			sums = append(sums, crc32.ChecksumIEEE(got))
		}
		if callerHasFault(faultLeakResult, p) {
			continue
		}
		if err := d.Finish(nil); err != nil {
			return sums, err
		}
	}
}

// full reports the error of a full edge with the policy fail. Of an error of another process only the
// text is known.
func full(err error) bool { return err != nil && saysFull(err.Error()) }

// saysFull reports whether a text is that of ErrWindowFull, or of WindowFull in Python.
func saysFull(text string) bool {
	return strings.Contains(text, "window full") ||
		strings.Contains(text, "the window of ") && strings.Contains(text, " is full")
}

// outcome is the outcome of the request, for the checker.
func (e *ending) outcome(err error) string {
	canceled := slices.ContainsFunc([]error{bus.ErrAborted, bus.ErrEnded, bus.ErrCanceled, context.Canceled},
		func(end error) bool { return errors.Is(err, end) })
	switch {
	case err == nil && e.fired.Load() && e.plan.End == endClose:
		return outcomeClosed // closing a completed request discards the results that are left
	case err == nil:
		return outcomeCompleted
	case full(err):
		return outcomeWindow
	case errors.Is(err, bus.ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		return outcomeDeadline
	case canceled && e.fired.Load() && e.plan.End == endClose:
		return outcomeClosed
	case canceled && e.fired.Load():
		return outcomeAborted
	}
	return err.Error()
}
