package segment_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// manager starts a process with the SharedMemoryManager of the Python client.
func manager(t *testing.T) *pythontest.Process {
	t.Helper()
	return pythontest.Start(t, pythontest.Command(t, "testdata/manager.py"))
}

func metadataConnector(t *testing.T) *connector.Connector {
	t.Helper()
	transport, err := segment.New(segment.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := connector.New("segment", transport, omni.Serializer{})
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// thereIs reports whether a segment or its lock exists.
func thereIs(t *testing.T, name string) bool {
	t.Helper()
	for _, path := range []string{name, "shm_" + name + "_lockfile.lock"} {
		if _, err := os.Lstat("/dev/shm/" + path); err == nil {
			return true
		}
	}
	return false
}

// TestMetadataOfRequests: Go and Python read the metadata of the Python client's
// SharedMemoryManager by name, once, and in the other direction; errors describe impossible calls.
func TestMetadataOfRequests(t *testing.T) {
	edge := connector.Edge{From: "tokenizer", To: "scheduler"}
	c, p, other := metadataConnector(t), manager(t), manager(t)
	rid := fmt.Sprintf("test-%d", os.Getpid())
	name := "metadata_" + rid
	value := map[string]any{"input_ids": []any{int64(1), int64(2)}, "text": strings.Repeat("x", 1<<20), "none": nil}

	p.Tell([]any{"write", rid, value})
	p.Want(name)
	other.Tell([]any{"read", name, false}) // without consuming
	other.Want(value)
	v, err := c.Get(t.Context(), edge, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got any
	if err := v.Decode(&got); err != nil {
		t.Fatal(err)
	}
	v.Release()
	if d := cmp.Diff(any(value), got); d != "" {
		t.Errorf("Go reads something else (-want +got):\n%s", d)
	}
	other.Tell([]any{"read", name})
	wantError(t, other, "Missing: ")

	if _, _, err := c.Put(t.Context(), edge, name, value); err != nil {
		t.Fatal(err)
	}
	other.Tell([]any{"read", name})
	other.Want(value)
	if thereIs(t, name) {
		t.Error("the segment still exists after it was read")
	}

	p.Tell([]any{"write_object", rid})
	wantError(t, p, "PayloadError: there is no encoding for a value of type object, at ['a'][1]['b']")
	p.Tell([]any{"write", "a/b", nil})
	wantError(t, p, "BadKey: ")
	p.Tell([]any{"read", "../passwd"})
	wantError(t, p, "BadKey: ")
	p.Tell([]any{"write", 7, nil})
	wantError(t, p, "TypeError: rid must be text")

	p.Tell([]any{"write", rid, 1})
	p.Want(name)
	other.Tell([]any{"cleanup", name}) // of another process
	other.Want(nil)
	if thereIs(t, name) {
		t.Error("the segment still exists after its cleanup")
	}
	other.Tell([]any{"cleanup", name})
	other.Want(nil)
	p.Tell([]any{"write", rid, "again"})
	p.Want(name)
	if err := p.End(); err != nil {
		t.Error(err)
	}
	if thereIs(t, name) {
		t.Error("metadata stay when their writer has ended")
	}
}

func wantError(t *testing.T, p *pythontest.Process, want string) {
	t.Helper()
	var got string
	if err := p.Answer(&got); err != nil || !strings.HasPrefix(got, want) {
		t.Errorf("Python says %q, %v; want %q", got, err, want)
	}
}

// TestMetadataOfDeadWriter: metadata whose writer was killed before they were read are removed when
// any process opens segments, in Go or in Python; a damaged segment is refused, and can be cleaned
// up.
func TestMetadataOfDeadWriter(t *testing.T) {
	for _, by := range []string{"Go", "Python"} {
		t.Run(by, func(t *testing.T) {
			rid := fmt.Sprintf("dead-%s-%d", by, os.Getpid())
			name := "metadata_" + rid
			p := manager(t)
			p.Tell([]any{"write", rid, map[string]any{"a": 1}})
			p.Want(name)
			p.Kill()
			if !thereIs(t, name) {
				t.Fatal("the segment was removed before the next process opened segments")
			}
			if by == "Go" {
				metadataConnector(t)
			} else {
				other := manager(t)
				other.Tell([]any{"read", name + "-none"})
				wantError(t, other, "Missing: ")
			}
			if thereIs(t, name) {
				t.Error("the segment of a dead writer still exists")
			}
		})
	}
	t.Run("damaged", func(t *testing.T) {
		rid := fmt.Sprintf("damaged-%d", os.Getpid())
		path := "/dev/shm/metadata_" + rid
		p, other := manager(t), manager(t)
		p.Tell([]any{"write", rid, strings.Repeat("x", 1000)})
		p.Want("metadata_" + rid)
		for _, size := range []int64{0, 8192} { // 8,192 bytes that were never written
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
		}
		other.Tell([]any{"read", "metadata_" + rid})
		wantError(t, other, "Damaged: ")
		other.Tell([]any{"cleanup", "metadata_" + rid})
		other.Want(nil)
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the damaged segment: %v", err)
		}
	})
}
