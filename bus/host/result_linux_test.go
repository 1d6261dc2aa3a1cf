package host

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestResultForDepartedClient: a result for a departed client does not fail its request, which is about
// to be aborted with the client.
func TestResultForDepartedClient(t *testing.T) {
	forward := bus.StageSpec{Name: "m", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
	b := testbus.Open(t, testbus.Linear(forward), bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
	srv, err := Listen(b, t.TempDir()+"/bus.sock", ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Close(testbus.Soon(t)); err != nil {
			t.Error(err)
		}
	}()
	r := testbus.StreamOf(t, b)
	defer r.Close()
	if err := r.Send(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	d, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := newTestSession(t, srv, 9)
	src := &source{sess: s.session}
	s.account.Close(true)
	if err := src.Put(d, 0); !errors.Is(err, bus.ErrNotTaken) {
		t.Errorf("a put to a departed client: %v, want ErrNotTaken", err)
	}
	if err := d.Finish(nil); err != nil {
		t.Error(err)
	}
}
