//go:build linux

package host_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// TestStoreCleanThoughSocketIsGone: an error while a run closes that has nothing to do with payloads is
// reported, and the store is reported as clean.
func TestStoreCleanThoughSocketIsGone(t *testing.T) {
	r := start(t, twoStages)
	r.await("ready: ")
	if err := os.Remove(strings.TrimSuffix(r.socket, ".sock") + ".http.sock"); err != nil {
		t.Fatal(err)
	}
	r.stop(nil)
	text, err := r.wait()
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(text, "; store clean; ran ") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}
