package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// recordingFeeder is a bus.Feeder that records its messages.
type recordingFeeder struct {
	mu  sync.Mutex
	all []wire.Message
}

func (a *recordingFeeder) Queue(m wire.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, m)
}

func (a *recordingFeeder) QueueLater(m wire.Message) { a.Queue(m) }
func (a *recordingFeeder) Leaving() bool             { return false }
func (a *recordingFeeder) Relays() bool              { return false }

// finished are the deliveries that were given back, in order.
func (a *recordingFeeder) finished() (ids []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.all {
		if f, ok := m.(*wire.Finish); ok {
			ids = append(ids, f.Delivery)
		}
	}
	slices.Sort(ids)
	return ids
}

// resequencerFixture is the resequencer of a stage that emits a copy of each input.
type resequencerFixture struct {
	*resequencer
	t        *testing.T
	r        *bus.Request
	peer     *peerLink
	host     *recordingFeeder
	node     *recordingFeeder
	complete chan struct{}
}

// streamed is the length of a stream, from the peer.
func (a *resequencerFixture) streamed(edge uint16, total uint64) error {
	return a.resequencer.streamed(a.peer, edge, total)
}

const testWindow = 4

func newResequencerFixture(t *testing.T) *resequencerFixture {
	t.Helper()
	spec, err := bus.StageSpec{Name: "m", Handle: func(t *bus.Task, d *bus.Delivery) error {
		return t.EmitBytes(bytes.Clone(d.Bytes()))
	}}.Checked()
	if err != nil {
		t.Fatal(err)
	}
	l, err := lane.Open(t.Context(), lane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	at, err := bus.Part{
		Stage:    &spec,
		Arriving: []bus.Port{{Name: "->m", Window: testWindow, WindowBytes: 1 << 20}},
		Leaving:  []bus.Port{{Name: "m->", Window: 1 << 10, WindowBytes: 1 << 20}},
		Requests: 1, Opts: bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20}, StallTimeout: -1}, Lane: l,
	}.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := at.Bus
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
		at.Arena.Release()
	})
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &resequencerFixture{
		resequencer: new(resequencer).init(r, at.Inputs, true), t: t, r: r, peer: &peerLink{node: 7, name: "peer"},
		host: new(recordingFeeder), node: new(recordingFeeder), complete: make(chan struct{}),
	}
}

// delivery makes a delivery whose payload is its number.
func (a *resequencerFixture) delivery(from bus.Feeder, seq uint64) *bus.Delivery {
	d, err := bus.DeliveryOf(&wire.Deliver{Delivery: uint32(seq), Seq: seq, Flags: wire.FlagInline, Payload: []byte{byte(seq)}, Size: 1, Codec: 1}, from, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	return d
}

func (a *resequencerFixture) fromHost(seq uint64) error { return a.relayed(0, a.delivery(a.host, seq)) }

func (a *resequencerFixture) fromPeer(seq uint64) error {
	return a.direct(a.peer, 0, a.delivery(a.node, seq))
}

func (a *resequencerFixture) hostEnded() { a.resequencer.whenComplete(func() { close(a.complete) }) }

// must fails the test at the first error.
func (a *resequencerFixture) must(errs ...error) {
	a.t.Helper()
	if err := errors.Join(errs...); err != nil {
		a.t.Fatal(err)
	}
}

// wantRefused requires an error about a broken protocol.
func (a *resequencerFixture) wantRefused(err error, what string) {
	a.t.Helper()
	if !errors.Is(err, wire.ErrProtocol) {
		a.t.Errorf("%s: %v, want %v", what, err, wire.ErrProtocol)
	}
}

// isComplete reports whether the resequencer has called done.
func (a *resequencerFixture) isComplete() bool {
	select {
	case <-a.complete:
		return true
	default:
		return false
	}
}

// ended reports whether the request has ended.
func (a *resequencerFixture) ended() bool {
	select {
	case <-a.r.Done():
		return true
	default:
		return false
	}
}

// results requires n results in order, and then the end.
func (a *resequencerFixture) results(n int) {
	a.t.Helper()
	for i := range n {
		a.result(byte(i))
	}
	if _, err := a.r.Recv(a.t.Context()); !errors.Is(err, io.EOF) {
		a.t.Fatalf("behind %d results: %v", n, err)
	}
}

// result requires a certain next result.
func (a *resequencerFixture) result(want byte) {
	a.t.Helper()
	d, err := a.r.Recv(a.t.Context())
	if err != nil {
		a.t.Fatalf("result %d: %v", want, err)
	}
	if d.Bytes()[0] != want {
		a.t.Errorf("result %d is made of input %d", want, d.Bytes()[0])
	}
	a.must(d.Finish(nil))
}

// TestRelayedAndDirectStreamInOrder: relayed and direct deliveries form one stream in order, which
// ends when all of them have come.
func TestRelayedAndDirectStreamInOrder(t *testing.T) {
	a := newResequencerFixture(t)
	a.must(a.fromHost(0), a.expect(0, a.peer))
	a.must(a.fromPeer(3), a.fromPeer(2), a.streamed(0, 4))
	a.hostEnded()
	if a.isComplete() {
		t.Fatal("the stream ended before its second delivery came")
	}
	a.must(a.fromHost(1))
	if !a.isComplete() {
		t.Fatal("the stream did not end with its last delivery")
	}
	a.results(4)
}

// TestStreamEndsWhenKnown: a stream of known length ends when its last delivery has come, and not
// before.
func TestStreamEndsWhenKnown(t *testing.T) {
	a := newResequencerFixture(t)
	a.must(a.fromHost(0), a.expect(0, a.peer), a.streamed(0, 2))
	a.result(0)
	a.must(a.fromPeer(1))
	a.hostEnded()
	a.result(1)
	if _, err := a.r.Recv(t.Context()); !errors.Is(err, io.EOF) || !a.isComplete() {
		t.Fatalf("the stream is complete, and ended with %v", err)
	}
}

// TestEndOfExpectedStream: an expected stream without direct deliveries ends when the host ends it.
func TestEndOfExpectedStream(t *testing.T) {
	a := newResequencerFixture(t)
	a.must(a.fromHost(0), a.expect(0, a.peer), a.fromHost(1))
	a.hostEnded()
	a.results(2)
}

// TestResequencerRefuses: a breach of the protocol by a peer is an error.
func TestResequencerRefuses(t *testing.T) {
	for name, try := range map[string]func(a *resequencerFixture) error{
		"unexpected": func(a *resequencerFixture) error {
			return a.direct(&peerLink{node: 8}, 0, a.delivery(a.node, 1))
		},
		"an edge that is not there":    func(a *resequencerFixture) error { return a.direct(a.peer, 1, a.delivery(a.node, 1)) },
		"a length of another edge":     func(a *resequencerFixture) error { return a.streamed(1, 1) },
		"expected on another edge":     func(a *resequencerFixture) error { return a.expect(1, a.peer) },
		"expected twice":               func(a *resequencerFixture) error { return a.expect(0, a.peer) },
		"a delivery that came through": func(a *resequencerFixture) error { return a.fromPeer(0) },
		"a delivery that is early twice": func(a *resequencerFixture) error {
			a.must(a.fromPeer(2))
			return a.fromPeer(2)
		},
		"shorter than what came": func(a *resequencerFixture) error { return a.streamed(0, 0) },
		"two lengths": func(a *resequencerFixture) error {
			a.must(a.streamed(0, 3))
			return a.streamed(0, 4)
		},
		"behind the end": func(a *resequencerFixture) error {
			a.must(a.streamed(0, 1))
			return a.fromPeer(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newResequencerFixture(t)
			a.must(a.fromHost(0), a.expect(0, a.peer))
			a.wantRefused(try(a), name)
			a.drop()
			a.r.Abort(nil)
		})
	}
}

// TestDirectWindow: a peer that exceeds the window is refused, in any order of its deliveries.
func TestDirectWindow(t *testing.T) {
	a := newResequencerFixture(t)
	a.must(a.expect(0, a.peer))
	for seq := range uint64(testWindow) {
		a.must(a.fromPeer(seq + 1)) // none is handed on: the first is missing
	}
	a.wantRefused(a.fromPeer(testWindow+1), "one more than the window")
	if got := a.node.finished(); !slices.Equal(got, []uint32{testWindow + 1}) {
		t.Errorf("%v were given back, want the one that was refused", got)
	}
	a.drop()
}

// TestDropFinishesEarlyDeliveries: drop gives back the early deliveries, and later ones when they
// come.
func TestDropFinishesEarlyDeliveries(t *testing.T) {
	a := newResequencerFixture(t)
	a.must(a.expect(0, a.peer), a.fromPeer(2), a.fromPeer(1))
	if got := a.node.finished(); len(got) != 0 {
		t.Fatalf("%v were given back unread", got)
	}
	a.drop()
	a.must(a.fromPeer(3))
	if got := a.node.finished(); !slices.Equal(got, []uint32{1, 2, 3}) {
		t.Errorf("%v were given back, want all three", got)
	}
}

// TestPeerGoneOrComplete: the loss of a peer fails only the streams that can never be complete.
func TestPeerGoneOrComplete(t *testing.T) {
	cause := errors.New("the cause")
	for name, tc := range map[string]struct {
		do   func(a *resequencerFixture)
		fail string // text of the error; empty: the request continues
	}{
		"it died, and more was to come": {
			do:   func(a *resequencerFixture) { a.must(a.streamed(0, 3)); a.peerGone(a.peer, true, cause) },
			fail: "2 more deliveries",
		},
		"it died before the host says that more was to come": {
			do:   func(a *resequencerFixture) { a.peerGone(a.peer, true, cause); a.must(a.streamed(0, 3)) },
			fail: "2 more deliveries",
		},
		"it lives": {
			do:   func(a *resequencerFixture) { a.peerGone(a.peer, false, cause) },
			fail: "the cause",
		},
		"it died, and the host has more to say": {do: func(a *resequencerFixture) { a.peerGone(a.peer, true, cause) }},
		"it died, and all has come": {do: func(a *resequencerFixture) {
			a.must(a.fromPeer(1), a.streamed(0, 2))
			a.peerGone(a.peer, true, cause)
		}},
		"it is another": {do: func(a *resequencerFixture) { a.peerGone(&peerLink{node: 8}, false, cause) }},
	} {
		t.Run(name, func(t *testing.T) {
			a := newResequencerFixture(t)
			a.peer.proc = thisProcess(t)
			a.must(a.fromHost(0), a.expect(0, a.peer))
			tc.do(a)
			if tc.fail == "" {
				a.hostEnded()
				a.result(0)
				if a.r.Outcome() == bus.Failed {
					t.Errorf("the request failed: %v", a.r.Err())
				}
				return
			}
			testbus.Await(t, a.ended)
			var at *bus.StageError
			if err := a.r.Err(); !errors.As(err, &at) || at.Edge != "->m" || !strings.Contains(err.Error(), tc.fail) {
				t.Errorf("the request ended with %v", err)
			}
		})
	}
}

// thisProcess is a watch of this process.
func thisProcess(t testing.TB) *process.Process {
	t.Helper()
	fd, err := process.Self()
	if err != nil {
		t.Fatal(err)
	}
	p, err := process.Adopt(fd, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}
