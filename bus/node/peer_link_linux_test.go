package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

func echo(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(bytes.Clone(d.Bytes())) }

// submitExpecting is a request of the node. One result has come through the host, and the others
// are to come from the test peer.
func (a *attached) submitExpecting(t *testing.T, h *testPeer) (*bus.Request, *remoteRequest) {
	t.Helper()
	r, err := a.node.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := emit(t, r, []byte{0}).Finish(nil); err != nil {
		t.Fatal(err)
	}
	rr := a.requestOf(t, r)
	if err := a.link.handle(&wire.Expect{Source: rr.source, Peer: h.node}, nil); err != nil {
		t.Fatal(err)
	}
	return r, rr
}

// TestDeadPeersMessagesAreHandled: the messages that a peer had sent before its death are handled,
// even those that this side had not read when it noticed the death. A child of the peer may keep
// the peer's end of the connection open, as the test does.
func TestDeadPeersMessagesAreHandled(t *testing.T) {
	a := attach(t, 8, echo)
	h := a.meetTestPeer(t)
	h.listen()
	r, rr := a.submitExpecting(t, h)
	if err := a.link.handle(&wire.Streamed{Source: rr.source, Deliveries: 4}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, rr.isCompleted)
	large := small(rr.source, 2, 2) // too large for the lane: sent by the socket
	large.Payload = append(large.Payload, make([]byte, wire.MaxInline-1)...)
	large.Size = wire.MaxInline
	h.account.Inspect(unknownSource, func(*accounts.Hold) { // the lock blocks the node at the first message
		h.sendMessages(&wire.Forget{Segment: unknownSource}, small(rr.source, 1, 1), large, small(rr.source, 3, 3))
		h.die()
		testbus.Await(t, h.conn.HungUp)
	})
	mustEndAfter(t, r, 3)
}

// mustEndAfter requires so many results in order, starting with 1, and then the end.
func mustEndAfter(t *testing.T, r *bus.Request, results byte) {
	t.Helper()
	for seq := range results {
		d, err := r.Recv(testbus.Soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if d.Bytes()[0] != seq+1 {
			t.Errorf("result %d is %d", seq+1, d.Bytes()[0])
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	mustEnd(t, r)
}

// TestPeerThatDoesNotRead: the link to a peer that does not read fails with the first message that
// exceeds the backlog.
func TestPeerThatDoesNotRead(t *testing.T) {
	for name, send := range map[string]func(h *testPeer, s *peer.Sender, m *wire.Deliver) error{
		"a delivery": func(h *testPeer, _ *peer.Sender, m *wire.Deliver) error { return h.send(m) },
		"an answer":  func(h *testPeer, s *peer.Sender, m *wire.Deliver) error { h.Queue(m); return s.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, echo)
			h := a.meetTestPeer(t)
			testbus.Await(t, func() bool { return h.connection() != nil })
			sender := h.connection() // the peer link drops it at its end
			var err error
			for err == nil {
				err = send(h, sender, &wire.Deliver{Payload: make([]byte, wire.MaxInline), Size: wire.MaxInline, Flags: wire.FlagInline})
			}
			if !errors.Is(err, peer.ErrBacklog) {
				t.Errorf("send: %v, want %v", err, peer.ErrBacklog)
			}
			<-h.peerLink.ended
			h.peerLink.mu.Lock()
			defer h.peerLink.mu.Unlock()
			if !errors.Is(h.peerLink.err, peer.ErrBacklog) {
				t.Errorf("the link ended with %v, want %v", h.peerLink.err, peer.ErrBacklog)
			}
		})
	}
}

// isCompleted reports whether the host has completed the request.
func (rr *remoteRequest) isCompleted() bool {
	rr.mu.Lock()
	defer rr.mu.Unlock()
	return rr.completedByHost
}

// TestResultsAfterOver: direct results that come after the message Over are received, even after
// the host is gone.
func TestResultsAfterOver(t *testing.T) {
	for name, gone := range map[string]bool{"the host lives": false, "the host is gone": true} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, echo)
			h := a.meetTestPeer(t)
			h.listen()
			r, rr := a.submitExpecting(t, h)
			if err := a.link.handle(&wire.Streamed{Source: rr.source, Deliveries: 4}, nil); err != nil {
				t.Fatal(err)
			}
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			testbus.Await(t, rr.isCompleted)
			if gone {
				if err := a.server.Close(testbus.Soon(t)); err != nil {
					t.Fatal(err)
				}
				<-a.link.done
			}
			h.sendMessages(small(rr.source, 3, 3), small(rr.source, 1, 1), small(rr.source, 2, 2))
			mustEndAfter(t, r, 3)
		})
	}
}

// serveExpecting is a request of the host. Its task has had one input and one output, and further
// inputs come from the test peer.
func (a *attached) serveExpecting(t *testing.T, h *testPeer) (*bus.Request, *nodeTask) {
	t.Helper()
	r, err := a.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if err := emit(t, r, []byte{0}).Finish(nil); err != nil {
		t.Fatal(err)
	}
	task := a.task(t)
	if err := a.link.handle(&wire.Expect{Source: task.id, Peer: h.node}, nil); err != nil {
		t.Fatal(err)
	}
	return r, task
}

// inFlight counts the task's emissions that are not finished, as the node sees it.
func (t *nodeTask) inFlight() bus.Stream { return t.req.Control().Stream(t.stage.Results[0]) }

// betweenPeers is a task whose inputs come from the test peer, and which emits 4 KiB to it for
// each.
func betweenPeers(t *testing.T, window int) (*attached, *testPeer, *bus.Request, *nodeTask) {
	t.Helper()
	a := attach(t, window, func(t *bus.Task, _ *bus.Delivery) error { return t.EmitBytes(make([]byte, 4096)) })
	h := a.meetTestPeer(t)
	h.listen()
	r, task := a.serveExpecting(t, h)
	testbus.Await(t, func() bool { return task.inFlight().Deliveries == 0 })
	a.openSilentDirect(t, h.node, task)
	return a, h, r, task
}

// TestCreditOfAKeptPayload: Finish with FinishKeep returns the slot in the window, and Release
// returns the payload.
func TestCreditOfAKeptPayload(t *testing.T) {
	_, h, _, task := betweenPeers(t, 2)
	h.sendMessages(small(task.id, 1, 1))
	var d *wire.Deliver
	for d == nil {
		d, _ = h.nextMessage().(*wire.Deliver)
	}
	if d.Source != 77 || d.Flags&wire.FlagInline != 0 || d.Size != 4096 {
		t.Fatalf("the node emitted %+v", d)
	}
	if st := task.inFlight(); st.Deliveries != 1 {
		t.Fatalf("%d deliveries are in flight, want 1", st.Deliveries)
	}
	h.sendMessages(&wire.Finish{Delivery: d.Delivery, Flags: wire.FinishKeep})
	h.handled()
	if st := task.inFlight(); st.Deliveries != 0 || st.Bytes != 0 {
		t.Errorf("%d deliveries and %d bytes are in flight after all were handled", st.Deliveries, st.Bytes)
	}
	kept, held := h.heldDelivery(d.Delivery)
	if len(h.holds()) != 1 || held != 4096 {
		t.Fatalf("%d bytes are held, and the peer has %v, want the payload that it keeps", held, h.holds())
	}
	h.sendMessages(&wire.Release{Delivery: d.Delivery})
	h.handled()
	if err := kept.Finish(nil); err == nil || len(h.holds()) != 0 { // it was not finished before
		t.Errorf("the payload is not given back after its release, or the peer holds %v", h.holds())
	}
}

// TestDeadPeerReturnsHolds: the deliveries that a dead peer has not given back, finished or not,
// come back.
func TestDeadPeerReturnsHolds(t *testing.T) {
	_, h, r, task := betweenPeers(t, 8)
	for seq := range uint32(4) {
		h.sendMessages(small(task.id, seq+1, uint64(seq+1)))
	}
	var ids []uint32
	for len(ids) < 4 {
		if d, ok := h.nextMessage().(*wire.Deliver); ok {
			ids = append(ids, d.Delivery)
		}
	}
	h.sendMessages(&wire.Finish{Delivery: ids[0], Flags: wire.FinishKeep}, &wire.Finish{Delivery: ids[2], Flags: wire.FinishKeep})
	h.handled()
	if len(h.holds()) != 4 {
		t.Fatalf("the peer has %v, want all four", h.holds())
	}
	h.die()
	testbus.Await(t, func() bool { return len(h.holds()) == 0 && task.inFlight().Deliveries == 0 })
	r.Close()
	testbus.Await(t, func() bool { return task.stage.Bus.Stats().Live == 0 }) // the other deliveries are finished, too
}

// TestDisconnectedPeerKeepsHolds: a peer that has hung up may still read its deliveries until it is
// dead.
func TestDisconnectedPeerKeepsHolds(t *testing.T) {
	_, h, r, task := betweenPeers(t, 8)
	h.sendMessages(small(task.id, 1, 1))
	for h.nextMessage().Kind() != wire.KindDeliver {
	}
	h.hangUp()
	testbus.Await(t, func() bool {
		h.peerLink.mu.Lock()
		defer h.peerLink.mu.Unlock()
		return h.peerLink.gone
	})
	if len(h.holds()) != 1 {
		t.Errorf("the peer holds %v, want the delivery that it may be reading", h.holds())
	}
	h.die()
	testbus.Await(t, func() bool { return len(h.holds()) == 0 })
	r.Close()
}

// TestExpectFromGonePeerIsRelayed: a stream from a peer whose link has ended continues through the
// host, even if the node notices later that the peer process lives.
func TestExpectFromGonePeerIsRelayed(t *testing.T) {
	a := attach(t, 8, func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) })
	h := a.meetTestPeer(t)
	h.hangUp()
	<-h.peerLink.ended
	r, task := a.serveExpecting(t, h)
	a.link.peerGone(h.peerLink, false, errors.New("it closed the connection"))
	in := a.link.resequencerOf(task.id)
	in.mu.Lock()
	lost := in.streams[0].peerGone
	in.mu.Unlock()
	if lost {
		t.Error("the stream counts as lost, although no delivery is missing")
	}
	if err := emit(t, r, []byte{1}).Finish(nil); err != nil {
		t.Fatal(err)
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestForwardedFromAPeer: a payload from a peer is copied when it is forwarded to the host. The
// peer gets its memory back when the handler returns, and later changes of that memory do not
// affect the copy.
func TestForwardedFromAPeer(t *testing.T) {
	a := attach(t, 8, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	h := a.meetTestPeer(t)
	h.listen()
	r, task := a.serveExpecting(t, h)
	copy(h.mem.Bytes()[4096:], "of the peer's")
	h.sendMessages(h.large(task.id, 5, 1))
	d, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Finish(nil) }()
	if f, ok := h.nextMessage().(*wire.Finish); !ok || f.Delivery != 5 || f.Flags&wire.FinishKeep != 0 {
		t.Errorf("the peer was told %+v, and has not got its payload back", f)
	}
	if at := LocationOf(t, d); at.File == fileOf(t, accounts.Mapped(h.mem)) {
		t.Errorf("the host reads the peer's memory, at %+v", at)
	}
	clear(h.mem.Bytes())
	h.die()
	<-h.peerLink.ended
	if got := d.Bytes(); len(got) != 4096 || !bytes.HasPrefix(got, []byte("of the peer's")) {
		t.Errorf("%d bytes came, which begin with %q", len(got), got[:16])
	}
	if st := task.stage.Bus.Stats().Edges[1]; st.Copies != 2 { // the first was small
		t.Errorf("the stage has copied %d payloads, want 2", st.Copies)
	}
}

// TestForwardWaitsForItsWindow: a forward on a full window waits for a slot while another request
// continues at the same replica. The payload arrives complete, and the peer gets its memory back
// then.
func TestForwardWaitsForItsWindow(t *testing.T) {
	a := attach(t, 1, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	h := a.meetTestPeer(t)
	h.listen()
	r, task := a.serveExpecting(t, h)
	copy(h.mem.Bytes()[4096:], "of the peer's")
	h.sendMessages(h.large(task.id, 5, 1))
	first, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for h.nextMessage().Kind() != wire.KindFinish {
	}
	h.sendMessages(h.large(task.id, 6, 2)) // first fills the window
	testbus.Await(t, func() bool {
		waits := false
		for _, s := range task.stage.Bus.Stalls(0) {
			waits = waits || s.Edge == task.stage.Results[0].Name
		}
		return waits
	})
	other, err := a.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for range 3 {
		if err := emit(t, other, make([]byte, 4096)).Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case m := <-h.received:
		t.Fatalf("the peer was told %+v of a payload that is not copied", m)
	default:
	}
	if err := first.Finish(nil); err != nil {
		t.Fatal(err)
	}
	second, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f, ok := h.nextMessage().(*wire.Finish); !ok || f.Delivery != 6 || f.Flags&wire.FinishKeep != 0 {
		t.Errorf("the peer was told %+v, and has not got its payload back", f)
	}
	if !bytes.HasPrefix(second.Bytes(), []byte("of the peer's")) {
		t.Errorf("the payload begins with %q", second.Bytes()[:16])
	}
	if err := second.Finish(nil); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return task.inFlight().Deliveries == 0 })
}

// TestForwardedThroughTheHost: a payload that comes through the host and leaves through it is
// forwarded by reference, without a copy.
func TestForwardedThroughTheHost(t *testing.T) {
	a := attach(t, 8, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	r, err := a.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		if err := emit(t, r, make([]byte, 100<<10)).Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	if st := a.task(t).stage.Bus.Stats().Edges[1]; st.Deliveries != 3 || st.Copies != 0 {
		t.Errorf("the stage has forwarded %d payloads, and copied %d", st.Deliveries, st.Copies)
	}
}

// TestForwardedFromTheHost: a payload that comes through the host is copied where it leaves on a
// direct path, and the host gets its payload back when the handler returns. An emission that was
// admitted by reference before the path was opened goes to the host, and so does each earlier one.
func TestForwardedFromTheHost(t *testing.T) {
	kept := make(chan *bus.Kept, 1)
	a := attach(t, 8, func(t *bus.Task, d *bus.Delivery) error {
		if d.Seq == 1 {
			kept <- d.Keep()
			return nil
		}
		return t.Forward(d)
	})
	h := a.meetTestPeer(t)
	h.listen()
	r, task := a.serveExpecting(t, h)
	if err := r.Input(t.Context()).EmitBytes(make([]byte, 100<<10)); err != nil {
		t.Fatal(err)
	}
	k := <-kept
	defer func() { _ = k.Finish(nil) }() // for a test that fails before the Finish below
	if !task.Returns(0, 1) {
		t.Error("a payload of the host may not return to the host")
	}
	a.openDirect(t, h.node, task)
	if task.Returns(0, 2) {
		t.Error("a payload of the host may return to the host on an edge with a direct path")
	}
	if err := k.Forward(k.Delivery()); err != nil {
		t.Fatal(err)
	}
	d, err := r.Recv(testbus.Soon(t))
	if err != nil {
		t.Fatal(err)
	}
	task.silence(t)
	if err := errors.Join(d.Finish(nil), k.Forward(k.Delivery()), k.Finish(nil)); err != nil {
		t.Fatal(err)
	}
	m, ok := h.nextMessage().(*wire.Deliver)
	if !ok || m.Seq != 2 || m.Size != 100<<10 {
		t.Fatalf("the peer was given %+v", m)
	}
	testbus.Await(t, func() bool {
		holds := 0
		for _, held := range a.server.Holdings() {
			if held.Seq == 1 {
				holds++
			}
		}
		return holds == 0
	})
	h.sendMessages(&wire.Finish{Delivery: m.Delivery})
	testbus.Await(t, func() bool { return task.inFlight().Deliveries == 0 })
}

// TestCloseFinishesEarlyDeliveries: the deliveries that wait for an earlier one are given back when
// the node closes.
func TestCloseFinishesEarlyDeliveries(t *testing.T) {
	a := attach(t, 8, echo)
	h := a.meetTestPeer(t)
	h.listen()
	_, rr := a.submitExpecting(t, h)
	h.sendMessages(h.large(rr.source, 9, 3))
	h.handled()
	rr.in.mu.Lock()
	early := len(rr.in.streams[0].early)
	rr.in.mu.Unlock()
	if early != 1 {
		t.Fatalf("%d deliveries wait for an earlier one, want 1", early)
	}
	if err := a.node.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-h.ended; !errors.Is(err, io.EOF) {
		t.Errorf("the connection ended with %v", err)
	}
	for {
		select {
		case m := <-h.received:
			if f, ok := m.(*wire.Finish); ok && f.Delivery == 9 {
				return
			}
		default:
			t.Fatal("the node has closed without giving back the delivery")
		}
	}
}

// TestPeerBreaksTheProtocol: a message that breaks the protocol ends the link to the peer, and
// nothing else.
func TestPeerBreaksTheProtocol(t *testing.T) {
	for name, m := range map[string]wire.Message{
		"finish of nothing":      &wire.Finish{Delivery: 1},
		"release of nothing":     &wire.Release{Delivery: 1},
		"payload out of bounds":  &wire.Deliver{Source: unknownSource, Segment: 1, Offset: 1 << 16, Size: 1},
		"payload beyond the end": &wire.Deliver{Source: unknownSource, Segment: 1, Offset: 4096, Size: 1<<64 - 1},
		"a message for the host": &wire.Ended{Task: 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 8, echo)
			h := a.meetTestPeer(t)
			h.listen()
			h.sendMessages(m)
			<-h.peerLink.ended
			h.mu.Lock()
			err := h.peerLink.err
			h.mu.Unlock()
			if !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("the connection ended with %v", err)
			}
			r, err := a.node.Stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := emit(t, r, []byte("hello")).Finish(nil); err != nil {
				t.Fatal(err)
			}
			r.Close()
			h.die()
		})
	}
}
