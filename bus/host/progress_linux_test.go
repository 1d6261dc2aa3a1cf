package host

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestProgressWhileProcessComputes: nothing waits for the host while a process has a delivery or a
// result, and each action of a process counts as progress.
func TestProgressWhileProcessComputes(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	a := openTestHost(t, 4, func(task *bus.Task, d *bus.Delivery) error {
		entered <- struct{}{}
		<-leave
		return task.Forward(d)
	})
	var last uint64
	moved := func(when string) {
		t.Helper()
		now, waits := a.server.Progress()
		if now == last || waits != "" {
			t.Errorf("%s: moved from %d to %d, and %q waits", when, last, now, waits)
		}
		last = now
	}
	still := func(when string) {
		t.Helper()
		if now, waits := a.server.Progress(); now != last || waits != "" {
			t.Errorf("%s: moved from %d to %d, and %q waits", when, last, now, waits)
		}
	}
	r, err := a.node.Stream(t.Context())
	if err == nil {
		err = r.Send(t.Context(), "x")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	<-entered
	moved("it computes")
	still("it goes on")
	leave <- struct{}{}
	d, err := r.Recv(testbus.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return !a.bus.Backend().Progress().Working }) // the delivery is finished
	testbus.Await(t, func() bool { _, waits := a.server.Progress(); return waits == "" })
	moved("a process has a result")
	if p := a.bus.Backend().Progress(); p.Waiting != 1 {
		t.Errorf("the result is no progress of the bus itself: %+v", p)
	}
	still("it keeps it")
	if err := d.Finish(nil); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { now, waits := a.server.Progress(); return now != last && waits == "" })
}

// TestProgressWhileMessageIsHandled: a message waits for the host until it has been handled.
func TestProgressWhileMessageIsHandled(t *testing.T) {
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", Remote: &bus.Remote{}, State: bus.StateRequest}},
		Edges:  []bus.Edge{{To: "m"}, {From: "m"}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
	path := filepath.Join(t.TempDir(), "bus.sock")
	served, handled := make(chan struct{}), make(chan struct{})
	server, err := Listen(b, path, ListenOptions{OnServe: func(string, int, int) {
		close(served)
		<-handled
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	n := joinNode(t, path)
	forward := func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }
	go func() { // ends with the node
		_ = n.Serve(context.Background(), bus.StageSpec{Name: "m", State: bus.StateRequest, Handle: forward})
	}()
	<-served
	before, waits := server.Progress()
	if duplicate, _ := server.Progress(); duplicate != before || !strings.HasPrefix(waits, "a message of process ") {
		t.Errorf("moved from %d to %d, and %q waits", before, duplicate, waits)
	}
	close(handled)
	testbus.Await(t, func() bool { now, waits := server.Progress(); return now != before && waits == "" })
}

// TestQuestionsAreNoProgress: a client that asks for a status again and again does not hide a hang.
func TestQuestionsAreNoProgress(t *testing.T) {
	for _, m := range []wire.Message{&wire.Call{}, &wire.Bye{}, &wire.Reported{}, &wire.Lanes{}, &wire.Expecting{}} {
		if progress := 1 + progressWhenHandled(m); progress != 0 {
			t.Errorf("%v counts as movement", m.Kind())
		}
	}
	for _, m := range []wire.Message{&wire.Put{}, &wire.Finish{}, &wire.Submit{}} {
		if progress := 1 + progressWhenHandled(m); progress != 2 {
			t.Errorf("%v does not count as movement", m.Kind())
		}
	}
}
