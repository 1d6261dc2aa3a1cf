package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// hosted is a bus whose stages are served by nodes, over a socket.
type hosted struct {
	bus    *bus.Bus
	server *host.Server
	path   string
}

// serveAll opens a bus with one node for each stage of p. At the end of the test it closes all, and
// checks that nothing is left over.
func serveAll(t testing.TB, p bus.Pipeline, opts bus.Options) *hosted {
	t.Helper()
	h := listen(t, testbus.Remotes(p), opts)
	for _, spec := range p.Stages {
		if spec.Remote == nil {
			h.serve(t, spec)
		}
	}
	return h
}

// listen opens a bus and its server.
func listen(t testing.TB, p bus.Pipeline, opts bus.Options) *hosted {
	t.Helper()
	if opts.Store.ArenaBytes == 0 {
		opts.Store.ArenaBytes = 4 << 20
	}
	opts.Store.Memory = shmstore.Shared
	b := testbus.Open(t, p, opts)
	h := &hosted{bus: b, path: filepath.Join(t.TempDir(), "bus.sock")}
	var err error
	if h.server, err = host.Listen(b, h.path, host.ListenOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if vs := h.server.Check(); len(vs) > 0 {
			t.Errorf("arenas: %v", vs)
		}
		if err := h.server.Close(context.Background()); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return h
}

// join joins another node in this process.
func (h *hosted) join(t testing.TB, opts node.JoinOptions) *node.Node {
	t.Helper()
	return h.joinAs(t, t.Name(), opts)
}

// joinAs is join with another name than the test's.
func (h *hosted) joinAs(t testing.TB, name string, opts node.JoinOptions) *node.Node {
	t.Helper()
	opts.Socket = h.path
	n, err := node.Join(t.Context(), name, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	return n
}

// serve serves a stage with a node of its own. ended receives the result of Serve.
func (h *hosted) serve(t testing.TB, spec bus.StageSpec) (n *node.Node, ended <-chan error) {
	t.Helper()
	n = h.join(t, node.JoinOptions{})
	result := make(chan error, 1)
	go func() { result <- n.Serve(context.Background(), spec) }()
	return n, result
}

// TestSocketPath has the cases of the Python client's SocketPathTest: both use the same path.
func TestSocketPath(t *testing.T) {
	own := fmt.Sprintf("omnibus-%d/speech.sock", os.Getuid())
	for _, c := range []struct{ runtime, temporary, want string }{
		{"/run/user/7", "/scratch", "/run/user/7/omnibus/speech.sock"},
		{"", "/scratch", "/scratch/" + own},
		{"", "/there/is/none", "/there/is/none/" + own},
		{"", "", "/tmp/" + own},
	} {
		t.Setenv("XDG_RUNTIME_DIR", c.runtime)
		t.Setenv("TMPDIR", c.temporary)
		if got, err := node.SocketPath("speech"); err != nil || got != c.want {
			t.Errorf("XDG_RUNTIME_DIR=%q TMPDIR=%q: %s, %v, want %s", c.runtime, c.temporary, got, err, c.want)
		}
	}
}

// TestBusNamedByPath: a bus name that leads out of the folder of sockets is refused, from the
// options and from the environment, even if a host listens at that path. JoinOptions.Socket may be
// any path.
func TestBusNamedByPath(t *testing.T) {
	h := serveAll(t, testbus.Linear(bus.Stage("upper", testbus.Upper)), bus.Options{})
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv(node.EnvSocket, "")
	path := strings.TrimSuffix(h.path, ".sock")
	for _, name := range []string{"../x", "/x", "x/", strings.Repeat("../", 20) + path[1:]} {
		t.Setenv(node.EnvBus, name)
		for how, opts := range map[string]node.JoinOptions{"JoinOptions.Bus": {Bus: name}, node.EnvBus: {}} {
			n, err := node.Join(t.Context(), "lost", opts)
			want := fmt.Sprintf("%q is no name of a bus, but a path: give the path of its socket", name)
			if !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: %v, want %s", how, name, err, want)
			}
			if err == nil {
				_ = n.Close(t.Context())
			}
		}
	}
	t.Setenv(node.EnvBus, "")
	_ = h.join(t, node.JoinOptions{Socket: h.path})
}

func TestNodeServesStage(t *testing.T) {
	h := serveAll(t, testbus.Linear(bus.Stage("upper", testbus.Upper)), bus.Options{})
	r, err := h.bus.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"HELLO"})
}

func TestNodesInALine(t *testing.T) {
	h := serveAll(t, testbus.Linear(bus.Stage("upper", testbus.Upper), testbus.Suffix("a"), testbus.Suffix("b")), bus.Options{})
	for i := range 20 {
		r, err := h.bus.Submit(t.Context(), fmt.Sprint("hello", i))
		if err != nil {
			t.Fatal(err)
		}
		got, err := testbus.Receive(t, r)
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0], fmt.Sprint("HELLO", i)) {
			t.Fatalf("got %q, %v", got, err)
		}
	}
}

func TestNodeSubmits(t *testing.T) {
	h := serveAll(t, testbus.Linear(bus.Stage("upper", testbus.Upper)), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	r, err := n.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"HELLO"})
	s := testbus.StreamOf(t, n)
	go func() {
		for i := range 300 {
			if err := s.Send(t.Context(), fmt.Sprint("n", i)); err != nil {
				t.Error(err)
			}
		}
		if err := s.CloseSend(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	var want []string
	for i := range 300 {
		want = append(want, fmt.Sprint("N", i))
	}
	testbus.MustReceive(t, s, want)
}

// TestNodePayloadsAreShared: the host copies no large payload on any edge.
func TestNodePayloadsAreShared(t *testing.T) {
	const size = 200 << 10
	inc := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(task *bus.Task, d *bus.Delivery) error {
			out, err := task.Reserve(len(d.Bytes()), codec.IDRaw)
			if err != nil {
				return err
			}
			for i, b := range d.Bytes() {
				out.Bytes()[i] = b + 1
			}
			return out.Send(len(d.Bytes()))
		}}
	}
	pass := bus.StageSpec{Name: "pass", Handle: func(task *bus.Task, d *bus.Delivery) error { return task.Forward(d) }}
	h := serveAll(t, testbus.Linear(inc("one"), pass, inc("two")), bus.Options{Store: shmstore.Options{ArenaBytes: 32 << 20}})
	n := h.join(t, node.JoinOptions{})
	for round := range 30 {
		r := testbus.StreamOf(t, n)
		in := bytes.Repeat([]byte{byte(round)}, size)
		if err := r.Input(t.Context()).EmitBytes(in, bus.Last()); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := bytes.Repeat([]byte{byte(round + 2)}, size); !bytes.Equal(d.Bytes(), want) {
			t.Fatalf("round %d: %d bytes, first %d", round, len(d.Bytes()), d.Bytes()[0])
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
		if err := r.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range h.bus.Stats().Edges {
		if e.Copies != 0 {
			t.Errorf("edge %s->%s: the host copied %d payloads", e.From, e.To, e.Copies)
		}
	}
}

func TestNodeHandlerFails(t *testing.T) {
	h := serveAll(t, testbus.Linear(bus.StageSpec{Name: "bad", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		return errors.New("no such voice")
	}}), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	r, err := n.Submit(t.Context(), "hello")
	if err != nil {
		t.Fatal(err)
	}
	_, err = testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.As(err, &at) || at.Stage != "bad" || !strings.Contains(err.Error(), "no such voice") {
		t.Fatalf("the request ended with %v", err)
	}
}

// TestNodeLargePayloads: a payload that is large for its store has its own segment, which every
// reader maps.
func TestNodeLargePayloads(t *testing.T) {
	pass := bus.StageSpec{Name: "pass", Handle: func(task *bus.Task, d *bus.Delivery) error { return task.Forward(d) }}
	double := bus.StageSpec{Name: "double", Handle: func(task *bus.Task, d *bus.Delivery) error {
		out, err := task.Reserve(2*len(d.Bytes()), codec.IDRaw)
		if err != nil {
			return err
		}
		copy(out.Bytes()[copy(out.Bytes(), d.Bytes()):], d.Bytes())
		return out.Send(2 * len(d.Bytes()))
	}}
	opts := bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20, LargeObjectBytes: 1 << 20}, MaxRequests: 1}
	p := testbus.Linear(pass, double)
	p.Stages[0].MaxInflight, p.Stages[1].MaxInflight = 1, 1
	h := listen(t, testbus.Remotes(p), opts)
	for _, spec := range p.Stages {
		n := h.join(t, node.JoinOptions{Store: shmstore.Options{LargeObjectBytes: 1 << 20}})
		go func() { _ = n.Serve(context.Background(), spec) }() // ends with the node
	}
	for range 3 {
		r := testbus.StreamOf(t, h.bus)
		in := bytes.Repeat([]byte("large"), 1<<20)
		if err := r.Input(t.Context()).EmitBytes(in, bus.Last()); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(d.Bytes(), append(in, in...)) {
			t.Fatal("wrong bytes")
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Recv(t.Context()); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}
