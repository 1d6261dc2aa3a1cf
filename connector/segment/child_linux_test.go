package segment_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/segment"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// childVariable contains the options of the transport that a child serves.
const childVariable = "SEGMENT_TEST_CHILD"

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

type childOptions struct {
	Generation int
	Dir        string
	Lasting    bool
}

func serve(text string) error {
	var opts childOptions
	if err := json.Unmarshal([]byte(text), &opts); err != nil {
		return err
	}
	end, err := segment.New(segment.Options{Generation: opts.Generation, Dir: opts.Dir, Lasting: opts.Lasting})
	if err != nil {
		return err
	}
	return errors.Join(connectortest.Serve(os.Stdin, os.Stdout, end), end.Close())
}

// spawn starts a child, which dies at the fault point, if there is one.
func spawn(t *testing.T, opts childOptions, point string) *connectortest.Child {
	t.Helper()
	text, err := json.Marshal(opts)
	if err != nil {
		t.Fatal(err)
	}
	return connectortest.Spawn(t, point != "", childVariable+"="+string(text), faultpoint.Variable+"="+point)
}

func TestProcesses(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		t.Run(strconv.Itoa(generation), func(t *testing.T) {
			opts := childOptions{Generation: generation}
			connectortest.Run(t, connectortest.Ends{
				ByMetadata: generation == segment.ByMetadata,
				Open: func(t *testing.T) (put, get connector.Transport) {
					opts.Dir = segment.Shm(t)
					return spawn(t, opts, ""), spawn(t, opts, "")
				},
				Next: func(t *testing.T) connector.Transport { return spawn(t, opts, "") },
			})
		})
	}
}
