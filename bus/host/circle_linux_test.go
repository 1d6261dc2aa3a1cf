package host

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/bustest"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// lastingProcess is a watch of this process.
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

// acquainted is a node as the host knows it, with the other end of its
// connection.
type acquainted struct {
	*session
	t      *testing.T
	client *peer.Conn
	in     *peer.Receiver
}

// newAcquainted makes the host's end of a connection, and the node's.
func newAcquainted(t *testing.T, srv *Server, node uint32) *acquainted {
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
	a := &acquainted{session: s, t: t, client: client, in: peer.NewReceiver(client)}
	t.Cleanup(func() {
		_ = sender.Close()
		_ = host.Close()
		a.in.Close()
		_ = client.Close()
	})
	return a
}

// cleared are the nodes that this one was told are clear, so far.
func (a *acquainted) cleared() (nodes []uint32) {
	a.t.Helper()
	a.queue(&wire.Drain{}) // behind all of it
	for {
		h, body, fds, err := a.in.Next()
		process.CloseAll(fds)
		if err != nil {
			a.t.Fatal(err)
		}
		if h.Kind == wire.KindDrain {
			slices.Sort(nodes)
			return nodes
		}
		if h.Kind == wire.KindCleared {
			var m wire.Cleared
			if err := wire.Decode(body, &m); err != nil {
				a.t.Fatal(err)
			}
			nodes = append(nodes, m.Peer)
		}
	}
}

// wantCleared requires what a node has been told since it was asked last.
func (a *acquainted) wantCleared(when string, want ...uint32) {
	a.t.Helper()
	if got := a.cleared(); !slices.Equal(got, want) {
		a.t.Errorf("%s: node %d was told that %v are clear, want %v", when, a.node, got, want)
	}
}

// threeInALine are nodes of which the first lends to the second, and the second
// to the third.
func threeInALine(t *testing.T) (c *circle, owner, middle, reader *acquainted) {
	t.Helper()
	return lineAt(t, &Server{log: slog.New(slog.DiscardHandler)})
}

// lineAt is threeInALine at a server.
func lineAt(t *testing.T, srv *Server) (c *circle, owner, middle, reader *acquainted) {
	t.Helper()
	owner, middle, reader = newAcquainted(t, srv, 1), newAcquainted(t, srv, 2), newAcquainted(t, srv, 3)
	for _, two := range [][2]*acquainted{{owner, middle}, {middle, reader}, {owner, middle}} {
		if !srv.circle.introduce(two[0].session, two[1].session) {
			t.Fatal("no introduction")
		}
	}
	return &srv.circle, owner, middle, reader
}

// TestClearedByAll: memory that was lent to a node which is gone comes back when
// all that it knew have said that they read nothing from there.
func TestClearedByAll(t *testing.T) {
	c, owner, middle, reader := threeInALine(t)
	freed := false
	lent := &lentOut{released: func() { freed = true }}

	c.leave(middle.session, []ledger.Held{lent})
	c.clear(owner.node, middle.node)
	owner.wantCleared("one has not said so")
	if all := c.holdings(); len(all) != 1 || all[0].Name != "3" || all[0].Payloads != 1 {
		t.Errorf("one node has not said so, and the payloads are with %+v", all)
	}
	if freed {
		t.Fatal("the host reuses what a node still reads")
	}
	c.clear(reader.node, middle.node)
	owner.wantCleared("all have said so", middle.node)
	reader.wantCleared("all have said so", middle.node)
	if !freed {
		t.Error("the host keeps what it lent")
	}
	if len(c.nodes) != 2 {
		t.Errorf("%d nodes are known, want 2", len(c.nodes))
	}
	c.leave(owner.session, nil)
	c.leave(reader.session, nil)
	if len(c.nodes) != 0 {
		t.Errorf("%d nodes are known when all are gone", len(c.nodes))
	}
}

// TestClearedAcrossTheHost: a node has lent memory of another's to the host, which gave it to a third, and that lent it
// to a reader. The first and the third, who do not know each other, die in either order.
func TestClearedAcrossTheHost(t *testing.T) {
	for _, late := range []bool{false, true} {
		srv := &Server{log: slog.New(slog.DiscardHandler)}
		c := &srv.circle
		owner, middle := newAcquainted(t, srv, 1), newAcquainted(t, srv, 2)
		third, reader := newAcquainted(t, srv, 3), newAcquainted(t, srv, 4)
		if !c.introduce(owner.session, middle.session) || !c.introduce(third.session, reader.session) {
			t.Fatal("no introduction")
		}
		lent := &lentOut{released: func() { middle.uses.Remind(-1) }, by: &middle.uses}
		middle.uses.read.Add(1)
		c.clear(owner.node, middle.node)
		if !late {
			c.leave(middle.session, nil)
			owner.wantCleared("the host reads")
		}
		middle.uses.Remind(1) // the third is dead, and what it had is on its way into the circle
		middle.uses.Unread()
		if !late {
			c.settle()
			owner.wantCleared("the third has passed it on")
		}
		c.leave(third.session, []ledger.Held{lent})
		if late {
			c.leave(middle.session, nil)
		}
		for range 32 { // which begin with either
			c.settle()
		}
		owner.wantCleared("the reader reads")
		reader.wantCleared("it reads itself")
		c.clear(reader.node, third.node)
		owner.wantCleared("all have let go", middle.node)
		reader.wantCleared("all have let go", third.node)
		if kept := middle.uses.kept.Load(); kept != 0 || len(c.nodes) != 2 {
			t.Errorf("the host keeps %d payloads and knows %d nodes, want 0 and 2", kept, len(c.nodes))
		}
	}
}

// TestClearedWhileOthersAreReleased: a node leaves while the host gives back a payload of that node's, which a dead one
// had passed on. When that is back, it is known who else has passed on what came from the node.
func TestClearedWhileOthersAreReleased(t *testing.T) {
	srv := &Server{log: slog.New(slog.DiscardHandler)}
	c := &srv.circle
	owner, middle, third := newAcquainted(t, srv, 1), newAcquainted(t, srv, 2), newAcquainted(t, srv, 3)
	another, reader := newAcquainted(t, srv, 4), newAcquainted(t, srv, 5)
	for _, two := range [][2]*acquainted{{owner, middle}, {third, middle}, {another, reader}} {
		if !c.introduce(two[0].session, two[1].session) {
			t.Fatal("no introduction")
		}
	}
	middle.uses.Remind(2)
	c.leave(third.session, []ledger.Held{&lentOut{released: func() { middle.uses.Remind(-1) }, by: &middle.uses}})
	c.clear(owner.node, middle.node)
	c.leave(another.session, []ledger.Held{&lentOut{by: &middle.uses, released: func() {
		c.leave(middle.session, nil)
		middle.uses.Remind(-1)
	}}})
	c.clear(reader.node, another.node)
	owner.wantCleared("all have let go", middle.node)
	if kept := middle.uses.kept.Load(); kept != 0 {
		t.Errorf("the host keeps %d payloads, want 0", kept)
	}
}

// TestReaderLivesOn: a node whose session is over, and which lives, may be reading what a dead one has passed on to it
// past the host. It is gone when its process is.
func TestReaderLivesOn(t *testing.T) {
	b := echoBus(t)
	srv, err := Listen(b, filepath.Join(t.TempDir(), "host.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close(context.Background()) })
	c, owner, middle, reader := lineAt(t, srv)
	sleeper := exec.Command("sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	fd, err := unix.PidfdOpen(sleeper.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if reader.proc, err = process.Adopt(fd, sleeper.Process.Pid); err != nil {
		t.Fatal(err)
	}
	srv.wg.Add(1) // for the reader's session

	c.leave(middle.session, nil)
	c.clear(owner.node, middle.node)
	reader.end(errStuck, false)
	supervised := make(chan struct{})
	srv.on.Reclaim(func() bool { close(supervised); return false }) // behind all that the end has posted
	<-supervised
	owner.wantCleared("the reader lives")
	if err := sleeper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	bustest.Await(t, func() bool { return slices.Equal(owner.cleared(), []uint32{middle.node}) })
}

// TestClearedByTheHost: the host is one of those that read.
func TestClearedByTheHost(t *testing.T) {
	c, owner, middle, reader := threeInALine(t)
	middle.uses.read.Add(1)
	c.leave(middle.session, nil)
	c.clear(owner.node, middle.node)
	c.clear(reader.node, middle.node)
	owner.wantCleared("the host reads something")
	middle.uses.read.Add(-1)
	c.settle()
	owner.wantCleared("the host reads nothing", middle.node)
}

// TestClearedBeyondTheDead: a node that is gone says nothing, and what it knew of
// others it may have had from the one before.
func TestClearedBeyondTheDead(t *testing.T) {
	c, owner, middle, reader := threeInALine(t)
	last := newAcquainted(t, owner.srv, 4)
	if !c.introduce(reader.session, last.session) {
		t.Fatal("no introduction")
	}
	c.leave(reader.session, nil)
	c.leave(middle.session, nil)
	c.clear(owner.node, middle.node)
	owner.wantCleared("the reader's neighbour has not spoken")
	c.clear(last.node, reader.node)
	owner.wantCleared("all have spoken", middle.node)
	last.wantCleared("all have spoken", reader.node)
	if len(c.nodes) != 2 {
		t.Errorf("%d nodes are known, want 2", len(c.nodes))
	}
}

// TestClearedAlready: a node may see the death of another before the host does.
func TestClearedAlready(t *testing.T) {
	c, owner, middle, reader := threeInALine(t)
	c.clear(owner.node, middle.node)
	c.clear(reader.node, middle.node)
	owner.wantCleared("the host has not seen it")
	c.leave(middle.session, nil)
	owner.wantCleared("the host has seen it", middle.node)
}

// echoBus is a bus that gives back what comes, in its store.
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

// heldInStore holds a payload that lies in the store of a bus, of a request that is gone.
func heldInStore(t *testing.T, b *bus.Bus) ledger.Held {
	t.Helper()
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Input(t.Context()).EmitBytes(make([]byte, 2*bus.DefaultInlineBytes), bus.Last()); err != nil {
		t.Fatal(err)
	}
	d, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held := d.Control().Hold()
	if err := d.Finish(nil); err != nil {
		t.Fatal(err)
	}
	r.Close()
	return held
}

// TestLentIsBackWhenTheServerIsClosed: a node that is gone has passed on what lies in the
// host's store, and the host reads something of that node's. A server that is closed keeps
// nothing for others to read, or the bus's last check would find payloads that were not given
// back.
func TestLentIsBackWhenTheServerIsClosed(t *testing.T) {
	b := echoBus(t)
	srv, err := Listen(b, filepath.Join(t.TempDir(), "bus.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	back := false
	held := heldInStore(t, b)
	lent := &lentOut{released: func() { back = true; held.Release() }}

	middle, reader := newAcquainted(t, srv, 1), newAcquainted(t, srv, 2)
	if !srv.circle.introduce(middle.session, reader.session) {
		t.Fatal("no introduction")
	}
	middle.uses.read.Add(1)
	srv.circle.leave(middle.session, []ledger.Held{lent})
	srv.circle.leave(reader.session, nil)
	if back {
		t.Fatal("the host has given away what others may read")
	}
	if err := srv.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if !back {
		t.Error("the server is closed, and the payload is lent still")
	}
	middle.cancel(errBye)
	middle.uses.Unread() // the host reads nothing of the node's any more: there is nothing left to give back
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestIntroducedOnce: each learns of the other once, by its own side.
func TestIntroducedOnce(t *testing.T) {
	_, owner, middle, _ := threeInALine(t)
	want := map[*acquainted][]wire.Introduce{
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

// lentOut is a payload that the host has lent to a node, and that says when it is released.
type lentOut struct {
	released func()
	by       ledger.Counter
}

func (l *lentOut) Hold() ledger.Held       { panic("a payload that is lent is not held once more") }
func (l *lentOut) Lend() ledger.Held       { return l }
func (l *lentOut) Counter() ledger.Counter { return l.by }
func (l *lentOut) Release()                { l.released() }
