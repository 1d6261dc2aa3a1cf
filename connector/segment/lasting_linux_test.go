package segment_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

// TestLasting: what is put to last stays when its transport is closed, through
// the next start, until somebody gets it, or cleans it up by its key.
func TestLasting(t *testing.T) {
	dir := shm(t)
	opts := segment.Options{Dir: dir, Lasting: true}
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		opts.Generation = generation
		end, err := segment.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		meta := put(t, end, "stays", old)
		cleaned, err := put(t, end, "cleaned", old).Map("shm").Text("name")
		if err = errors.Join(err, end.Close()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := open(t, opts).Cleanup(t.Context(), cleaned); err != nil {
				t.Fatal(err)
			}
		}
		if left := values(t, dir); len(left) != generation { // the segment, and its lock if it has one
			t.Errorf("the directory has %v", left)
		}
		next := open(t, segment.Options{Dir: dir})
		got, err := next.Get(t.Context(), edge, "stays", meta)
		if err != nil || !bytes.Equal(got.Bytes(), old) {
			t.Fatalf("generation %d: %v", generation, err)
		}
		got.Release()
	}
}

// TestLastingKilled: it stays when its process is killed, too.
func TestLastingKilled(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		opts := childOptions{Generation: generation, Dir: shm(t), Lasting: true}
		victim := spawn(t, opts, "")
		meta := put(t, victim, "key", old)
		victim.Kill()
		wantValue(t, open(t, segment.Options{Dir: opts.Dir}), "key", meta, old)
	}
}

// TestLastingCleanupOfOthers: a cleanup by key takes no file that is no segment.
func TestLastingCleanupOfOthers(t *testing.T) {
	dir := shm(t)
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	end := open(t, segment.Options{Dir: dir, Lasting: true})
	if err := end.Cleanup(t.Context(), "link"); !errors.Is(err, connector.ErrKey) {
		t.Errorf("cleanup of a link: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "link")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "link")); err != nil {
		t.Error(err)
	}
}
