package lastactive

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/actors"
)

// TestPollsLastActiveConnection: the tracker polls the connection that was active last, and none
// after that connection is gone.
func TestPollsLastActiveConnection(t *testing.T) {
	var look actors.PollFunc
	h := New(func(f actors.PollFunc) *actors.Spinner {
		look = f
		return actors.NewSpinner(f, false)
	})
	looked := 0
	connection := func(n int) *Connection {
		return &Connection{Poll: func(_, _ func() bool) bool { looked = n; return true }}
	}
	no := func() bool { return false }
	if look(no, no) {
		t.Error("something was handled before anything came")
	}
	a, b := connection(1), connection(2)
	h.Active(a)
	h.Active(b)
	if !look(no, no) || looked != 2 {
		t.Errorf("it looked at %d, want 2", looked)
	}
	h.Gone(a) // not the last
	if !look(no, no) || looked != 2 {
		t.Errorf("it looked at %d, want 2 still", looked)
	}
	h.Gone(b)
	if look(no, no) {
		t.Error("something was handled when the last connection is gone")
	}
}
