package posix_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/posix"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// childVariable has the options of the end that a child serves.
const childVariable = "POSIX_TEST_CHILD"

func TestMain(m *testing.M) {
	if opts := os.Getenv(childVariable); opts != "" {
		if err := serve(opts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// childOptions are options as a child is told them.
type childOptions struct {
	Name, Dir string
	Readers   int
	Bytes     int64
}

func (o childOptions) options() posix.Options {
	return posix.Options{Name: o.Name, Dir: o.Dir, Readers: o.Readers, Bytes: o.Bytes, Timeout: 10 * time.Second}
}

func serve(text string) error {
	var opts childOptions
	if err := json.Unmarshal([]byte(text), &opts); err != nil {
		return err
	}
	end, err := posix.New(opts.options())
	if err != nil {
		return err
	}
	return errors.Join(connectortest.Serve(os.Stdin, os.Stdout, end), end.Close())
}

// spawn starts a child, which a fault point may end.
func spawn(t *testing.T, opts childOptions, point string) *connectortest.Child {
	t.Helper()
	text, err := json.Marshal(opts)
	if err != nil {
		t.Fatal(err)
	}
	return connectortest.Spawn(t, point != "", childVariable+"="+string(text), faultpoint.Variable+"="+point)
}

// fresh are the options of a store that there is not yet, in a directory of its own.
func fresh(t *testing.T) childOptions {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "omnibus-test-") //nolint:usetesting // memory, not a disk
	if err != nil {
		t.Skip("/dev/shm:", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return childOptions{Name: "speech", Dir: dir, Readers: 1, Bytes: 1 << 20}
}

// wantEmpty fails the test if a store has left files.
func wantEmpty(t *testing.T, opts childOptions) {
	t.Helper()
	if left := list(t, opts.Dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func has(names []string, suffix string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, suffix) })
}

// open opens an end in this process.
func open(t *testing.T, opts posix.Options) connector.Transport {
	t.Helper()
	end, err := posix.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end.Close(); err != nil {
			t.Error(err)
		}
	})
	return end
}

// suiteBytes are enough for the suite's largest values.
const suiteBytes = 8 << 20

// runSuite runs the conformance suite between two ends of a fresh store.
func runSuite(t *testing.T, ends func(t *testing.T, opts childOptions) (put, get connector.Transport)) {
	var opts childOptions
	connectortest.Run(t, connectortest.Ends{
		Told: true,
		Open: func(t *testing.T) (put, get connector.Transport) {
			opts = fresh(t)
			opts.Bytes = suiteBytes
			return ends(t, opts)
		},
		Next: func(t *testing.T) connector.Transport { return open(t, opts.options()) },
	})
}

func TestTransport(t *testing.T) {
	for name, c := range map[string]func(*testing.T, childOptions) (put, get connector.Transport){
		"one end": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			end := open(t, opts.options())
			return end, end
		},
		"two ends": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return open(t, opts.options()), open(t, opts.options())
		},
		"two processes": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return spawn(t, opts, ""), spawn(t, opts, "")
		},
		"another process puts": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return spawn(t, opts, ""), open(t, opts.options())
		},
	} {
		t.Run(name, func(t *testing.T) {
			runSuite(t, c)
		})
	}
}

// newEnd opens an end that the test closes itself.
func newEnd(opts childOptions) (connector.Transport, error) { return posix.New(opts.options()) }
