package host

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestCloseNamesHolders: a Close that runs out of time speaks of processes that hold payloads only if
// there are any.
func TestCloseNamesHolders(t *testing.T) {
	spec := bus.Stage("a", func(_ *bus.Task, in string) (string, error) { return in, nil })
	b, err := bus.Open(t.Context(), bus.Pipeline{Stages: []bus.StageSpec{spec}}, bus.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := Listen(b, filepath.Join(t.TempDir(), "bus.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	srv.wg.Add(1) // memory that is still to be given back, without a process
	over, cancel := context.WithCancel(t.Context())
	cancel()
	err = srv.Close(over)
	if err == nil || strings.Contains(err.Error(), "hold payloads") || !strings.Contains(err.Error(), "no process") {
		t.Errorf("error %v, want one that says that no process holds any", err)
	}
	srv.wg.Done()
	if err := srv.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := b.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
