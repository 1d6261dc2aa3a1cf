package node

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestTaskForNodeThatCloses: a task and a delivery that the host sends before it receives Bye do
// not end the connection, which still has to carry Bye.
func TestTaskForNodeThatCloses(t *testing.T) {
	a := attach(t, 4, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	r, err := a.bus.Submit(t.Context(), "so that the stage is served")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.node.Close(testbus.Soon(t)); err != nil {
		t.Fatal(err)
	}
	for _, m := range []wire.Message{
		&wire.Open{Task: 1 << 20},
		&wire.Deliver{Source: 1 << 20, Delivery: 1 << 20, Flags: wire.FlagInline, Payload: []byte("late")},
	} {
		if err := a.link.handle(m, nil); err != nil {
			t.Errorf("%v ends the connection: %v", m.Kind(), err)
		}
	}
}

// TestUnsendableInputFailsRequest: a request whose input the node cannot send fails with the
// reason, and other requests of the node continue.
func TestUnsendableInputFailsRequest(t *testing.T) {
	a := attach(t, 4, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	n := &Node{opts: JoinOptions{Socket: a.server.Addr()}.withDefaults(), done: make(chan struct{}), linked: make(chan struct{})}
	n.directory.node, n.report.node = n, n
	n.ctx, n.cancel = context.WithCancel(context.Background())
	var err error
	if n.lane, err = bus.OpenLane(t.Context(), nil, n.Directory(), n.opts.Logger); err != nil {
		t.Fatal(err)
	}
	l, err := n.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.welcome.InlineBytes = 4 * wire.MaxPacket // has the node send payloads inline that do not fit into a message
	go n.run(l)
	t.Cleanup(func() {
		if err := n.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	for range 20 {
		r, err := n.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Input(t.Context()).EmitBytes(make([]byte, 2*wire.MaxPacket)); err != nil {
			t.Fatal(err)
		}
		_ = r.CloseSend(t.Context())
		for _, err = range r.Results(t.Context()) {
			if err == nil {
				t.Error("a result came")
			}
		}
		if err == nil || r.Outcome() != bus.Failed || !strings.Contains(err.Error(), "put.payload: 131072 bytes") {
			t.Fatalf("the request ended with %v: %v", r.Outcome(), err)
		}
		r.Close()
	}
	r, err := n.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range r.Results(t.Context()) {
		if err != nil {
			t.Error(err)
		}
	}
}

// hastyHost accepts no input, and completes the request as soon as the inputs end.
type hastyHost struct{ req *bus.Request }

var errNoInput = errors.New("takes no input")

func (h *hastyHost) Put(*bus.Delivery, int) error { return errNoInput }
func (h *hastyHost) Returns(int, uint64) bool     { return true }
func (h *hastyHost) Ended()                       {}

func (h *hastyHost) InputEnded(bool) {
	go h.req.Control().End(bus.Completed, nil) // a goroutine, since End takes the lock that is held here
	<-h.req.Done()
}

// TestLostInputFailsTheRequest: a request fails if one of its inputs could not be put, even if the
// host, which does not know of that input, completes the request at the same moment.
func TestLostInputFailsTheRequest(t *testing.T) {
	a := attach(t, 4, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	if err := a.link.ensureCaller(); err != nil {
		t.Fatal(err)
	}
	b := a.link.work.callerPart().Bus
	for name, opts := range map[string][]bus.EmitOption{"the last input": {bus.Last()}, "one before the end": nil} {
		o := bus.RequestOptions{Owner: &hastyHost{}}
		if err := b.Backend().AcquirePermit(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		r, err := b.Backend().Admit(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		o.Owner.(*hastyHost).req = r
		_ = r.Send(t.Context(), "x", opts...) // the request may have ended by then
		_ = r.CloseSend(t.Context())
		<-r.Done()
		if r.Outcome() != bus.Failed || !errors.Is(r.Err(), errNoInput) {
			t.Errorf("%s: %v: %v", name, r.Outcome(), r.Err())
		}
		r.Close()
	}
}

// TestConnectAfterClose: a node that finds its host after Close has read its link does not keep the
// new connection.
func TestConnectAfterClose(t *testing.T) {
	a := attach(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
	n := &Node{opts: JoinOptions{Socket: a.server.Addr()}.withDefaults(), linked: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.cancel()
	if _, err := n.connect(t.Context()); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("a node that is closed connects: %v, want ErrClosed", err)
	}
	testbus.Await(t, func() bool { return len(a.server.Processes()) == 1 }) // the host has accepted both
}

// TestRefusedWithDescriptors: descriptors that come after a refusal, and are not handled, are
// closed.
func TestRefusedWithDescriptors(t *testing.T) {
	path := t.TempDir() + "/bus.sock"
	ln, err := peer.Listen(path, peer.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	host := make(chan error, 1)
	go func() {
		defer func() { _ = w.Close() }()
		conn, err := ln.Accept()
		if err != nil {
			host <- err
			return
		}
		packet, err := wire.Append(nil, &wire.Refuse{Text: "no"}, 0)
		if err == nil {
			packet, err = wire.Append(packet, &wire.Segment{Segment: 1, Bytes: 1}, 1)
		}
		host <- errors.Join(err, conn.Send(packet, []int{int(w.Fd())}))
	}()
	if _, err := dialLink(t.Context(), path, peer.DialOptions{}, "", "", bus.WaitBalanced); err == nil {
		t.Error("a link to a host that refuses")
	}
	if err := <-host; err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other end of a pipe is still open: %v", err)
	}
}

// TestServedOnceAtAHost: a stage is served once at a host, either by the call of Serve that waited
// for the host, or by the node that has found the host again. A call that has ended is not served
// at a later host.
func TestServedOnceAtAHost(t *testing.T) {
	a := attach(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
	testbus.Await(t, func() bool { return a.server.Serving("m") == 1 })
	a.node.serveAll(a.link)
	if n := a.server.Serving("m"); n != 1 {
		t.Errorf("one node serves the stage %d times", n)
	}
	n := joinTo(t, a.server.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() {
		served <- n.Serve(ctx, bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }})
	}()
	testbus.Await(t, func() bool { return a.server.Serving("m") == 2 })
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	again, err := n.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.serveAll(&link{node: n, sender: again.sender, questions: questions{pending: make(map[uint32]*question)}, done: make(chan struct{})})
	if calls := len(n.calls); calls != 0 {
		t.Errorf("%d calls of Serve are served at the next host after the only one has ended", calls)
	}
}

// TestServeThatEndsAtTheNextHost: a call of Serve that ends while its stages are being served at
// the next host leaves each stage when the host confirms it.
func TestServeThatEndsAtTheNextHost(t *testing.T) {
	a := attach(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
	testbus.Await(t, func() bool { return a.server.Serving("m") == 1 })
	n := joinTo(t, a.server.Addr())
	l, err := n.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec := bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }}
	checked, err := spec.Checked()
	if err != nil {
		t.Fatal(err)
	}
	n.serveAgain(l, &serveCall{specs: []bus.StageSpec{checked}, link: l})
	if _, err := n.Call(t.Context(), "stats", nil); err != nil { // the host has handled all earlier messages
		t.Fatal(err)
	}
	if serving := a.server.Serving("m"); serving != 1 {
		t.Errorf("%d processes serve the stage, want the one that has not left", serving)
	}
}

// TestServeThatIsCanceledLeaves: a canceled call of Serve leaves a stage that the host may have
// received by then, as soon as the host confirms it.
func TestServeThatIsCanceledLeaves(t *testing.T) {
	a := attach(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
	testbus.Await(t, func() bool { return a.server.Serving("m") == 1 })
	n := joinTo(t, a.server.Addr())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Serve(ctx, bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }}); err != nil {
		t.Error(err)
	}
	l, err := n.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A task that the host opened in between finds the stage.
	testbus.Await(t, func() bool { return len(l.work.servedStages()) == 1 && a.server.Serving("m") == 1 })
}
