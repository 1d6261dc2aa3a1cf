package host

import (
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestCanceledSubmitIsForgotten: the host forgets a submit whose client stops waiting for a permit,
// without a deadline. The client may submit again any number of times.
func TestCanceledSubmitIsForgotten(t *testing.T) {
	a := openTestHost(t, 4, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	for range testHostRequests {
		r, err := a.bus.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
	}
	sess := a.server.live()[0]
	waiting := func() (requests, questions int) {
		sess.questions.mu.Lock()
		questions = sess.questions.open
		sess.questions.mu.Unlock()
		sess.sources.mu.Lock()
		defer sess.sources.mu.Unlock()
		return sess.sources.opening, questions
	}
	const atOnce = 50 // as many as a node may have
	for range maxQuestions/atOnce + 1 {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		var asked []*bus.Request
		for range atOnce {
			r, err := a.node.Submit(ctx, "x")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(r.Close)
			asked = append(asked, r)
		}
		testbus.Await(t, func() bool { requests, _ := waiting(); return requests == atOnce }) // at the host
		cancel()
		for _, r := range asked {
			if err := r.Wait(testbus.Soon(t)); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			r.Close()
		}
		testbus.Await(t, func() bool { requests, questions := waiting(); return requests == 0 && questions == 0 })
	}
	if n := a.bus.Stats().Live; n != testHostRequests {
		t.Errorf("%d requests are alive", n)
	}
}
