package bus

import (
	"testing"
	"time"
)

// TestAbortedRequestLeavesItsBatch: an aborted request does not wait until its batch is due, and
// neither does Close. Deliveries of other requests stay in the batch.
func TestAbortedRequestLeavesItsBatch(t *testing.T) {
	b, err := Open(t.Context(), Pipeline{Stages: []StageSpec{{
		Name: "a", BatchSize: 3, BatchWait: time.Hour, Batch: func([]*Delivery) error { return nil },
	}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	submit := func() *Request {
		r, err := b.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	gathered := func() *Request {
		r := submit()
		Await(t, func() bool { return r.tasks[0].held.Load() > 0 })
		return r
	}
	first, second := gathered(), gathered()
	first.Close()
	Await(t, func() bool { return len(b.requests()) == 1 })
	gathered()
	submit() // the third of the batch
	if err := second.Wait(t.Context()); err != nil {
		t.Errorf("the other request of the batch: %v", err)
	}
	gathered()
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
