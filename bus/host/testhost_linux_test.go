package host

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// testHost is a host with one stage, "m", and a node that serves it.
type testHost struct {
	bus    *bus.Bus
	server *Server
	node   *node.Node
}

// testHostRequests is how many requests may be alive there.
const testHostRequests = 4

// openTestHost opens a host, and a node of this process that serves its stage.
func openTestHost(t *testing.T, window int, handle func(*bus.Task, *bus.Delivery) error) *testHost {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", Remote: &bus.Remote{}, State: bus.StateRequest}},
		Edges:  []bus.Edge{{To: "m", Window: window}, {From: "m", Window: window}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}, MaxRequests: testHostRequests})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	path := filepath.Join(t.TempDir(), "bus.sock")
	server, err := Listen(b, path, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	a := &testHost{bus: b, server: server, node: joinNode(t, path)}
	go func() {
		_ = a.node.Serve(context.Background(), bus.StageSpec{Name: "m", State: bus.StateRequest, Handle: handle}) // ends with the node
	}()
	return a
}

// joinNode joins the bus as a node.
func joinNode(t *testing.T, path string) *node.Node {
	t.Helper()
	n, err := node.Join(t.Context(), "node", node.JoinOptions{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	return n
}

// openDirect returns a request whose task, at the node, emits directly to another process.
func (a *testHost) openDirect(t *testing.T) (*bus.Request, *directFlow) {
	t.Helper()
	other := joinNode(t, a.server.Addr())
	r := testbus.StreamOf(t, a.bus)
	if err := r.Input(t.Context()).EmitBytes([]byte{0}); err != nil {
		t.Fatal(err)
	}
	d, err := r.Recv(t.Context())
	if err == nil {
		err = d.Finish(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Call(t.Context(), "stats", nil); err != nil { // after this the node is attached
		t.Fatal(err)
	}
	sessions := a.server.live()
	tasks := sessions[0].sources.list()
	if len(tasks) != 1 {
		t.Fatalf("the host knows %d tasks, want 1", len(tasks))
	}
	src := tasks[0]
	df := &directFlow{
		stream: src.request().Control().Stream(src.ports[0]), producer: src,
		consumer: &source{sess: sessions[1], id: wire.OwnSource}, announced: true,
	}
	if !df.stream.OpenDirect(df) {
		t.Fatal("the stream cannot use a direct path")
	}
	return r, df
}

// TestSubmitDuringCloseReportsClosing: a submit that comes while the host closes is answered with
// CodeClosing, and not as an internal error.
func TestSubmitDuringCloseReportsClosing(t *testing.T) {
	a := openTestHost(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
	s := newTestSession(t, a.server, 9)
	s.cancel(errHostClosing)
	if err := s.mayBegin(bus.RequestOptions{}); hostnode.Failed(0, err).Code != wire.CodeClosing {
		t.Errorf("%v is sent with the code %v", err, hostnode.Failed(0, err).Code)
	}
}

// TestWorkForDeadProcessIsReturned: work for a process that was just found dead is given back with its
// request, also when the request ends before the stage is told.
func TestWorkForDeadProcessIsReturned(t *testing.T) {
	a := openTestHost(t, 8, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	testbus.Await(t, func() bool { return a.server.Serving("m") == 1 })
	sess := a.server.live()[0]
	sess.account.Close(false) // as teardown does
	r, err := a.bus.Submit(t.Context(), []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(sess.sources.list()) == 1 }) // the stage delivers the work in the same step that opens the task
	r.Abort(nil)
	r.Close()
	testbus.Await(t, func() bool { return a.bus.Stats().Live == 0 })
}
