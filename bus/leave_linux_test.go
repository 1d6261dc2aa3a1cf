package bus

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestTaskForNodeThatCloses: a host that has not heard the goodbye opens a task, and
// gives it a delivery. Neither ends the connection, by which the goodbye goes.
func TestTaskForNodeThatCloses(t *testing.T) {
	a := attach(t, 4, func(t *Task, d *Delivery) error { return t.Forward(d) })
	r, err := a.bus.Submit(t.Context(), "so that the stage is served")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.node.Close(soon(t)); err != nil {
		t.Fatal(err)
	}
	for _, m := range []wire.Message{
		&wire.Open{Task: 1 << 20},
		&wire.Deliver{Source: 1 << 20, Delivery: 1 << 20, Flags: wire.FlagInline, Payload: []byte("late")},
	} {
		if err := a.link.handle(m, nil); err != nil {
			t.Errorf("%v ends the connection: %v", m.Kind(), err)
		}
	}
}
