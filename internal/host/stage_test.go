package host_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// TestBoundOfRestarts: file and child package have the same bound of restarts.
func TestBoundOfRestarts(t *testing.T) {
	if config.MaxRestarts != child.MaxLimit {
		t.Errorf("a file may say %d restarts, and a process has %d at most", config.MaxRestarts, child.MaxLimit)
	}
}
