package host

import (
	"log/slog"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// lastingProcess returns a watch of this process.
func lastingProcess(t testing.TB) *process.Process {
	t.Helper()
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	proc, err := process.Adopt(fd, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proc.Close() })
	return proc
}

// testSession is a session, with the node's end of its connection.
type testSession struct {
	*session
	t      *testing.T
	client *peer.Conn
	in     *peer.Receiver
}

// newTestSession makes both ends of a connection, and the session.
func newTestSession(t *testing.T, srv *Server, node uint32) *testSession {
	t.Helper()
	host, client, err := peer.Pair()
	if err != nil {
		t.Fatal(err)
	}
	sender, err := peer.NewSender(host, peer.SenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(srv, host, sender, lastingProcess(t), &wire.Hello{Name: strconv.Itoa(int(node))}, node)
	a := &testSession{session: s, t: t, client: client, in: peer.NewReceiver(client)}
	t.Cleanup(func() {
		_ = sender.Close()
		_ = host.Close()
		a.in.Close()
		_ = client.Close()
	})
	return a
}

// echoBus opens a bus whose stage forwards its inputs.
func echoBus(t *testing.T) *bus.Bus {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "echo", State: bus.StateNone, Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}},
		Edges:  []bus.Edge{{To: "echo"}, {From: "echo"}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestIntroducedOnce: each node is told of the other once, with its own side.
func TestIntroducedOnce(t *testing.T) {
	srv := &Server{log: slog.New(slog.DiscardHandler)}
	owner, middle, reader := newTestSession(t, srv, 1), newTestSession(t, srv, 2), newTestSession(t, srv, 3)
	for _, two := range [][2]*testSession{{owner, middle}, {middle, reader}, {owner, middle}} {
		if !srv.introductions.introduce(two[0].session, two[1].session) {
			t.Fatal("no introduction")
		}
	}
	want := map[*testSession][]wire.Introduce{
		owner:  {{Peer: 2, Side: 0}},
		middle: {{Peer: 1, Side: 1}, {Peer: 3, Side: 0}},
	}
	for a, introductions := range want {
		for _, w := range introductions {
			h, body, fds, err := a.in.Next()
			process.CloseAll(fds)
			var m wire.Introduce
			if err == nil {
				err = wire.Decode(body, &m)
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.Kind != wire.KindIntroduce || m.Peer != w.Peer || m.Side != w.Side || int(m.PID) != os.Getpid() || len(fds) != 2 {
				t.Errorf("node %d was told %v %+v with %d descriptors, want %+v", a.node, h.Kind, m, len(fds), w)
			}
		}
		a.queue(&wire.Drain{})
		if h, _, fds, err := a.in.Next(); err != nil || h.Kind != wire.KindDrain {
			process.CloseAll(fds)
			t.Errorf("node %d was told %v, too: %v", a.node, h.Kind, err)
		}
	}
}

// TestDepartedNodeIsNotIntroduced: a node whose session has ended is not introduced, and its
// introductions are forgotten.
func TestDepartedNodeIsNotIntroduced(t *testing.T) {
	srv := &Server{log: slog.New(slog.DiscardHandler)}
	a, b, c := newTestSession(t, srv, 1), newTestSession(t, srv, 2), newTestSession(t, srv, 3)
	in := &srv.introductions
	if !in.introduce(a.session, b.session) || !in.introduce(b.session, c.session) {
		t.Fatal("no introduction")
	}
	b.cancel(errBye)
	in.forget(b.session)
	if in.introduce(a.session, b.session) || in.introduce(b.session, c.session) {
		t.Error("a departed node is introduced")
	}
	for _, s := range []*testSession{a, b, c} {
		if n := len(in.peers[s.session]); n != 0 {
			t.Errorf("node %d is known to %d others, want 0", s.node, n)
		}
	}
}
