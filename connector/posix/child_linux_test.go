package posix_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

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
