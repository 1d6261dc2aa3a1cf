package node

import (
	"errors"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// routingFixture are the routes of a task, with the other ends of the connections to its host and
// to a peer.
type routingFixture struct {
	*routes
	t        *testing.T
	peer     *peerLink
	host     *peer.Receiver
	testPeer *testPeer
}

func newRoutingFixture(t *testing.T, edges int) *routingFixture {
	t.Helper()
	node, host, err := peer.Pair()
	if err != nil {
		t.Fatal(err)
	}
	l := &link{welcome: wire.Welcome{Version: wire.Version, InlineBytes: 64}}
	l.account.Open(l)
	if l.sender, err = peer.NewSender(node, peer.SenderOptions{}); err != nil {
		t.Fatal(err)
	}
	in := peer.NewReceiver(host)
	t.Cleanup(func() {
		_ = l.sender.Close()
		_ = node.Close()
		in.Close()
		_ = host.Close()
	})
	p := &peerLink{link: l, node: 7}
	p.account.Open(p)
	a, b, err := peer.Pair()
	if err != nil {
		t.Fatal(err)
	}
	if p.sender, err = peer.NewSender(a, peer.SenderOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.sender.Close()
		_ = a.Close()
	})
	h := newTestPeer(t, b)
	h.peerLink = p
	h.listen()
	return &routingFixture{routes: new(routes).init(l, 5, edges), t: t, peer: p, host: in, testPeer: h}
}

// emitted puts a delivery on an edge.
func (r *routingFixture) emitted(edge int, seq uint64, last bool) {
	r.t.Helper()
	d := new(bus.Delivery)
	d.Seq, d.EOS, d.Inline = seq, last, []byte{byte(seq), 0}
	if err := r.put(d, edge, func() {}); err != nil {
		r.t.Fatal(err)
	}
}

// toHost are the messages to the host so far: their kinds, and the lengths of streams.
func (r *routingFixture) toHost() (kinds []wire.Kind, ends []wire.Streamed) {
	r.t.Helper()
	r.link.Queue(&wire.Leave{}) // marks the end
	for {
		h, body, fds, err := r.host.Next()
		process.CloseAll(fds)
		if err != nil {
			r.t.Fatal(err)
		}
		if h.Kind == wire.KindLeave {
			return kinds, ends
		}
		if h.Kind == wire.KindStreamed {
			var m wire.Streamed
			if err := wire.Decode(body, &m); err != nil {
				r.t.Fatal(err)
			}
			ends = append(ends, m)
		}
		kinds = append(kinds, h.Kind)
	}
}

// toPeer are the messages to the peer so far.
func (r *routingFixture) toPeer() (kinds []wire.Kind, ends []wire.Streamed) {
	r.t.Helper()
	r.peer.Queue(&wire.Release{}) // marks the end
	for {
		switch m := r.testPeer.nextMessage().(type) {
		case *wire.Release:
			return kinds, ends
		case *wire.Streamed:
			kinds, ends = append(kinds, m.Kind()), append(ends, *m)
		default:
			kinds = append(kinds, m.Kind())
		}
	}
}

// TestStreamLengthIsSent: host and peer receive the length of a stream that was direct in part. The
// length includes the relayed deliveries.
func TestStreamLengthIsSent(t *testing.T) {
	for name, last := range map[string]bool{"ended behind its last delivery": false, "ended with it": true} {
		t.Run(name, func(t *testing.T) {
			r := newRoutingFixture(t, 1)
			r.emitted(0, 0, false)
			r.emitted(0, 1, false)
			r.openDirect(0, &route{peer: r.peer, source: 77, edge: 3})
			r.emitted(0, 2, false)
			r.emitted(0, 3, last)
			r.endStreams()
			r.endStreams() // has no effect

			kinds, ends := r.toPeer()
			want := wire.Streamed{Source: 77, Edge: 3, Deliveries: 4, Bytes: 4}
			if !slices.Equal(kinds, []wire.Kind{wire.KindDeliver, wire.KindDeliver, wire.KindStreamed}) || ends[0] != want {
				t.Errorf("the peer was told %v, %+v", kinds, ends)
			}
			kinds, ends = r.toHost()
			want = wire.Streamed{Source: 5, Edge: 0, Deliveries: 4, Bytes: 4}
			if !slices.Equal(kinds, []wire.Kind{wire.KindPut, wire.KindPut, wire.KindStreamed}) || ends[0] != want {
				t.Errorf("the host was told %v, %+v", kinds, ends)
			}
		})
	}
}

// TestRelayedStreamNeedsNoLength: no length is sent for a stream without direct deliveries, and
// after its end no direct path can be opened.
func TestRelayedStreamNeedsNoLength(t *testing.T) {
	r := newRoutingFixture(t, 2)
	r.emitted(0, 0, true)
	r.endStreams()
	for edge := range uint16(2) {
		r.openDirect(edge, &route{peer: r.peer, source: 77, edge: edge})
	}
	r.emitted(0, 1, false) // the host judges an emission after the end
	r.endStreams()
	if kinds, _ := r.toPeer(); len(kinds) != 0 {
		t.Errorf("the peer was told %v", kinds)
	}
	if kinds, _ := r.toHost(); !slices.Equal(kinds, []wire.Kind{wire.KindPut, wire.KindPut}) {
		t.Errorf("the host was told %v", kinds)
	}
}

// TestPutAfterCloseIsNotTaken: a put that comes after all holds were given back is not taken, even
// if its emitter checked the request before it ended.
func TestPutAfterCloseIsNotTaken(t *testing.T) {
	for name, past := range map[string]bool{"through the host": false, "past it": true} {
		t.Run(name, func(t *testing.T) {
			r := newRoutingFixture(t, 1)
			r.link.peers.senders = map[uint32]*peerLink{7: r.peer}
			if past {
				r.openDirect(0, &route{peer: r.peer, source: 77})
			}
			put := func(returned func()) error {
				d := new(bus.Delivery)
				d.Inline = make([]byte, 2)
				return r.put(d, 0, returned)
			}
			before := make(chan struct{})
			if err := put(func() { close(before) }); err != nil {
				t.Fatal(err)
			}
			r.link.giveBackAll()
			<-before
			behind := func() { t.Error("a put that was not taken is returned") }
			if err := put(behind); !errors.Is(err, bus.ErrNotTaken) {
				t.Errorf("a put after giveBackAll: %v, want ErrNotTaken", err)
			}
			toHost, _ := r.toHost()
			toPeer, _ := r.toPeer()
			if sent := len(toHost) + len(toPeer); sent != 1 {
				t.Errorf("%d deliveries went out, want the first alone", sent)
			}
		})
	}
}
