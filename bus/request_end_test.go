package bus

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestAbortReasonIsNoErrorOfTheCall: a request is aborted with ErrCanceled or io.EOF as the reason.
// The calls that follow return ErrAborted, which is neither: a canceled wait of the call, or the
// end of the results.
func TestAbortReasonIsNoErrorOfTheCall(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "m", Handle: func(t *Task, d *Delivery) error { return t.Forward(d) }}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(soon(t)); err != nil {
			t.Error(err)
		}
	}()
	for _, reason := range []error{ErrCanceled, io.EOF} {
		r, err := b.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Abort(fmt.Errorf("elsewhere: %w", reason))
		for what, err := range map[string]error{
			"Send": r.Send(t.Context(), []byte("hello")), "CloseSend": r.CloseSend(t.Context()), "Err": r.Err(),
			"emit": r.Input(t.Context()).EmitBytes([]byte("hello")),
		} {
			if !errors.Is(err, ErrAborted) || errors.Is(err, reason) {
				t.Errorf("%s of a request aborted by %v: %v, want ErrAborted and no %v", what, reason, err, reason)
			}
		}
		r.Close()
	}
}

// TestCloseNotifiesSink: the sink of a completed request that is closed before all results
// have come is told of the end, and the request is forgotten.
func TestCloseNotifiesSink(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "m", Handle: func(t *Task, d *Delivery) error { return t.Forward(d) }}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	sink := finishingSink{make(chan struct{})}
	r := beginWithSink(t, b, sink)
	for range r.tasks {
		r.taskDone() // as stages whose ends of streams are queued
	}
	if got := r.Outcome(); got != Completed {
		t.Fatalf("the request is %v", got)
	}
	r.Close()
	select {
	case <-sink.ended:
	case <-soon(t).Done():
		t.Error("the sink was not told of the end")
	}
	if err := b.Close(soon(t)); err != nil {
		t.Error(err)
	}
}

// blockingSink is a sink whose Put blocks.
type blockingSink struct {
	entered, leave chan struct{}
	put            atomic.Bool
	behind         atomic.Bool // the end came after the result
	ended          chan struct{}
}

func (s *blockingSink) Put(d *Delivery, _ int) error {
	close(s.entered)
	<-s.leave
	s.put.Store(true)
	return ErrNotTaken
}

func (s *blockingSink) Returns(int, uint64) bool { return true }

func (s *blockingSink) Ended() {
	s.behind.Store(s.put.Load())
	close(s.ended)
}
func (*blockingSink) Describe() string { return "another process" }

// TestSinkEndedFollowsPut: a sink is told of the end of an aborted request after a Put that is
// running. Otherwise the other process would get a result of an unknown request.
func TestSinkEndedFollowsPut(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "m", Handle: func(t *Task, d *Delivery) error { return t.Forward(d) }}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		sink := &blockingSink{entered: make(chan struct{}), leave: make(chan struct{}), ended: make(chan struct{})}
		r := beginWithSink(t, b, sink)
		if err := r.Send(t.Context(), []byte("hello")); err != nil {
			t.Fatal(err)
		}
		<-sink.entered
		go r.Abort(nil)
		<-r.Done()
		for range 100 { // an end that does not wait for Put comes now
			runtime.Gosched()
		}
		close(sink.leave)
		<-sink.ended
		if !sink.behind.Load() {
			t.Fatal("the sink was told of the end first")
		}
	}
	if err := b.Close(soon(t)); err != nil {
		t.Error(err)
	}
}
