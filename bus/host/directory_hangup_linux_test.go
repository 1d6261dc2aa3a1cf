package host

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/directory"
	"github.com/omnibus-runtime/omnibus/internal/process"
)

// TestPublishAfterHangUp: the names of a session become free as soon as its process has hung up, even
// before the session ends: the process may have joined again.
func TestPublishAfterHangUp(t *testing.T) {
	srv := new(Server)
	old, other := newTestSession(t, srv, 1), newTestSession(t, srv, 2)
	d := directory.New(bus.ErrClosed)
	defer d.Close()
	names := []lane.Name{{Number: 1}, {Number: 2}}
	publish := func(a *testSession, name lane.Name) error {
		fd, err := process.Self() // any descriptor
		if err != nil {
			t.Fatal(err)
		}
		return d.PublishBy(a.session, name, fd, 1)
	}
	for _, name := range names {
		if err := publish(old, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(other, names[0]); !errors.Is(err, lane.ErrPublished) {
		t.Errorf("publish a name of a process that is there: %v, want ErrPublished", err)
	}
	if err := old.client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := publish(other, names[0]); err != nil {
		t.Errorf("publish a name of a process that has hung up: %v", err)
	}
	use := func(directory.Entry) error { return nil }
	if err := d.Lookup(names[1], use); !errors.Is(err, lane.ErrNotPublished) {
		t.Errorf("find what a process has published that has hung up: %v, want ErrNotPublished", err)
	}
	d.WithdrawAll(old.session)
	if err := d.Lookup(names[0], use); err != nil {
		t.Errorf("find a name that is another's by now: %v", err)
	}
}
