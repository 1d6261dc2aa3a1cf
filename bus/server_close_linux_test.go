package bus

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// TestCloseNamesHolders: a server whose time to close is over speaks of processes that hold
// payloads only when there are some.
func TestCloseNamesHolders(t *testing.T) {
	spec := Stage("a", func(_ *Task, in string) (string, error) { return in, nil })
	b, err := Open(t.Context(), Pipeline{Stages: []StageSpec{spec}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := b.Listen(filepath.Join(t.TempDir(), "bus.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	srv.wg.Add(1) // what is still to be given back, of no process
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
