package node_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// withoutFiles runs f while this process can open no descriptor.
func withoutFiles(t *testing.T, f func()) {
	t.Helper()
	withLimit(t, os.Getpid(), unix.RLIMIT_NOFILE, 3, func() {
		if file, err := os.Open(os.DevNull); err == nil {
			_ = file.Close()
			t.Fatal("files can still be opened")
		}
		f()
	})
}

// TestJoinWithoutFiles: Join without a free descriptor fails with an error that says which limit to
// raise.
func TestJoinWithoutFiles(t *testing.T) {
	h := listen(t, testbus.Linear(bus.Stage("upper", testbus.Upper)), bus.Options{Store: shmstore.Options{Memory: shmstore.Shared}})
	withoutFiles(t, func() {
		n, err := node.Join(t.Context(), "late", node.JoinOptions{Socket: h.path})
		want := fmt.Sprintf("bus: join: connect to %s: socket: too many open files: process %d may have 3 descriptors open: "+
			"raise the limit of this process (ulimit -n, or LimitNOFILE= in a systemd unit)", h.path, os.Getpid())
		if !errors.Is(err, unix.EMFILE) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
		if err == nil {
			_ = n.Close(t.Context())
		}
	})
	_ = h.join(t, node.JoinOptions{})
}

// TestPayloadCopyWithoutDescriptors: a payload on the heap is copied to shared memory for another
// process. Without a descriptor for that memory its request fails, and the process and its other
// requests do not.
func TestPayloadCopyWithoutDescriptors(t *testing.T) {
	own := bus.StageSpec{Name: "own", State: bus.StateNone, Handle: func(t *bus.Task, d *bus.Delivery) error {
		return t.EmitBytes(d.Bytes())
	}}
	remote := bus.StageSpec{Name: "m", State: bus.StateNone, Remote: &bus.Remote{}}
	large := []byte(strings.Repeat("x", 40<<10)) // more than a message takes
	for _, spec := range []bus.StageSpec{own, remote} {
		t.Run(spec.Name, func(t *testing.T) {
			h := listen(t, testbus.Linear(spec), bus.Options{Store: shmstore.Options{ArenaBytes: 8 << 20}, InlineBytes: 64 << 10})
			n := h.join(t, node.JoinOptions{})
			submit := n.Stream // its results go to another process
			if spec.Remote != nil {
				submit = h.bus.Stream // its inputs go to another process
				h.serve(t, bus.StageSpec{Name: "m", State: bus.StateNone, Handle: own.Handle})
				testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
			}
			trip := func(payload []byte) error {
				r, err := submit(t.Context())
				if err != nil {
					return err
				}
				defer r.Close()
				if err := r.Input(t.Context()).EmitBytes(payload, bus.Last()); err != nil {
					return err
				}
				for d, err := range r.Results(t.Context()) {
					if err != nil {
						return err
					}
					if len(d.Bytes()) != len(payload) {
						return fmt.Errorf("%d bytes came back", len(d.Bytes()))
					}
				}
				return r.Wait(t.Context())
			}
			if err := trip(large); err != nil {
				t.Fatal(err)
			}
			withoutFiles(t, func() {
				err := trip(large)
				if err == nil || errors.Is(err, bus.ErrHostGone) || !strings.Contains(err.Error(), "too many open files") {
					t.Errorf("the request ended with %v", err)
				}
				if err := trip(large[:100]); err != nil {
					t.Error("a small one:", err)
				}
			})
			if err := trip(large); err != nil {
				t.Error("afterwards:", err)
			}
		})
	}
}

// TestValueCopyWithoutDescriptors: a value on the heap is copied to shared memory for another
// process. Without a descriptor for that memory the get fails, and the value stays under its key.
func TestValueCopyWithoutDescriptors(t *testing.T) {
	large := []byte(strings.Repeat("x", 40<<10)) // more than a message takes
	h := exchangeHost(t, bus.Options{InlineBytes: 64 << 10})
	put(t, h.bus.Exchange(), "k", large)
	n := h.exchange(t)
	_, _ = n.Get(t.Context(), exchangeEdge, "another", nil) // finds nothing; by then the node has mapped all memory of the host
	withoutFiles(t, func() {
		if err := errOf(n.Get(t.Context(), exchangeEdge, "k", nil)); !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("%v, want ErrUnavailable, which says that too many files are open", err)
		}
	})
	p := get(t, n, "k")
	if len(p.Bytes()) != len(large) {
		t.Errorf("%d bytes, want %d", len(p.Bytes()), len(large))
	}
	p.Release()
	h.wantEmpty(t)
}
