package named_test

import (
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

func TestSegments(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "omnibus-test-") //nolint:usetesting // memory, as it is for others
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(dir); err != nil { // refused while anything is in it
			t.Error(err)
		}
	}()
	run(t, func() connector.Transport {
		end, err := segment.New(segment.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return end
	})
}
