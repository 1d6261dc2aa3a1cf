package segment_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

var edge = connector.Edge{From: "thinker", To: "talker"}

// shm makes a directory of segments that is empty again when the test ends.
func shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "omnibus-test-") //nolint:usetesting // memory, as it is for others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := list(t, dir); len(left) > 0 {
			t.Errorf("left in the directory: %q", left)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// list returns what lies in a directory and below, sorted.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func open(t *testing.T, opts segment.Options) *segment.Transport {
	t.Helper()
	end, err := segment.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end.Close(); err != nil {
			t.Error(err)
		}
	})
	return end.(*segment.Transport)
}

func TestTransport(t *testing.T) {
	for name, generation := range map[string]int{"by metadata": segment.ByMetadata, "by key": segment.ByKey} {
		for ends, apart := range map[string]bool{"one end": false, "two ends": true} {
			t.Run(name+", "+ends, func(t *testing.T) {
				connectortest.Run(t, connectortest.Ends{
					ByMetadata: generation == segment.ByMetadata,
					Open: func(t *testing.T) (put, get connector.Transport) {
						opts := segment.Options{Generation: generation, Dir: shm(t)}
						if end := open(t, opts); !apart {
							return end, end
						}
						return open(t, opts), open(t, opts)
					},
				})
			})
		}
	}
}
