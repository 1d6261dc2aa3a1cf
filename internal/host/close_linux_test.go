//go:build linux

package host_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// TestStoreCleanThoughSocketIsGone: what has nothing to do with payloads goes wrong while a run is
// closed. It is said, and not that the store is not clean.
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
