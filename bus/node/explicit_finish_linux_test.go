package node_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestEmissionAfterExplicitFinish: an emission after the handler has finished its delivery is not
// lost at a node: the task ends when the handler has returned.
func TestEmissionAfterExplicitFinish(t *testing.T) {
	emits := make(chan struct{})
	h := serveAll(t, testbus.Linear(bus.StageSpec{Name: "m", Handle: func(task *bus.Task, d *bus.Delivery) error {
		if err := d.Keep().Finish(nil); err != nil {
			return err
		}
		<-emits
		return task.EmitBytes([]byte("late"))
	}}), bus.Options{})
	r, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	testbus.Await(t, func() bool { // the delivery is finished
		all := h.bus.Backend().Statuses()
		return r.Outcome() != bus.Running || h.bus.Stats().Edges[0].Deliveries == 1 && len(all) == 1 && len(all[0].Edges) == 0
	})
	close(emits)
	d, err := r.Recv(testbus.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if string(d.Bytes()) != "late" {
		t.Errorf("received %q", d.Bytes())
	}
	if err := d.Finish(nil); err != nil {
		t.Error(err)
	}
}
