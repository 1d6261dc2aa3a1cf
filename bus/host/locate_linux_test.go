package host

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestLocateOpensSegmentOnce: the segment of a large payload is opened once for all processes that get
// the payload, and closed when the payload is given back.
func TestLocateOpensSegmentOnce(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, LargeObjectBytes: 64 << 10, Memory: shmstore.Shared}, MaxRequests: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(testbus.Soon(t)); err != nil {
			t.Error(err)
		}
	}()
	srv, err := Listen(b, t.TempDir()+"/bus.sock", ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Close(testbus.Soon(t)); err != nil {
			t.Error(err)
		}
	}()
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	parts := make([]*bus.Delivery, 2)
	for i := range parts {
		if err := r.Input(t.Context()).EmitBytes(make([]byte, 100<<10)); err != nil { // a segment each
			t.Fatal(err)
		}
		if parts[i], err = r.Recv(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s := newTestSession(t, srv, 9)
	files := testbus.OpenFiles(t)
	slot := parts[1].Handle.Slot
	parts[1].Handle.Slot = 1 << 20 // a slot without a payload
	if _, err := s.locateAll(parts); err == nil {
		t.Error("a payload was located in an empty slot")
	}
	parts[1].Handle.Slot = slot
	for range 2 {
		if _, err := s.locateAll(parts); err != nil || testbus.OpenFiles(t) != files+len(parts) {
			t.Fatalf("%d descriptors are open for %d parts: %v", testbus.OpenFiles(t)-files, len(parts), err)
		}
	}
	for _, d := range parts {
		if err := d.Finish(nil); err != nil {
			t.Error(err)
		}
	}
	testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files })
}
