package host

import (
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/bustest"
)

// TestCanceledSubmitIsNoQuestion: who gives up waiting for a place at the host, without
// a deadline, is forgotten there, and may ask as often as it likes.
func TestCanceledSubmitIsNoQuestion(t *testing.T) {
	a := attach(t, 4, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	for range attachedRequests {
		r, err := a.bus.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range maxQuestions/100 + 1 {
		for range 100 {
			if _, err := a.node.Submit(ctx, "x"); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		a.hostKnows(t)
		bustest.Await(t, func() bool {
			s := a.server.live()[0]
			s.questions.mu.Lock()
			defer s.questions.mu.Unlock()
			s.sources.mu.Lock()
			defer s.sources.mu.Unlock()
			return s.questions.open == 0 && s.sources.opening == 0
		})
	}
	if n := a.bus.Stats().Live; n != attachedRequests {
		t.Errorf("%d requests are alive", n)
	}
}
