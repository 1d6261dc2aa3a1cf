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

// answers is a bus.Feeder that keeps what it is told.
type answers struct {
	mu  sync.Mutex
	all []wire.Message
}

func (a *answers) Queue(m wire.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all = append(a.all, m)
}

func (a *answers) QueueLater(m wire.Message) { a.Queue(m) }
func (a *answers) Leaving() bool             { return false }
func (a *answers) Relays() bool              { return false }

// finished are the deliveries that were given back, in order.
func (a *answers) finished() (ids []uint32) {
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

// arrivalsAt are the streams that come to a stage of a node, which sends on what
// it gets.
type arrivalsAt struct {
	*resequencer
	t    *testing.T
	r    *bus.Request
	peer *peerLink
	host *answers
	node *answers
	over chan struct{}
}

// streamed is what the peer says of the length of a stream.
func (a *arrivalsAt) streamed(edge uint16, total uint64) error {
	return a.resequencer.streamed(a.peer, edge, total)
}

const arrivalsWindow = 4

func newArrivalsAt(t *testing.T) *arrivalsAt {
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
		Arriving: []bus.Port{{Name: "->m", Window: arrivalsWindow, WindowBytes: 1 << 20}},
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
	return &arrivalsAt{
		resequencer: new(resequencer).begin(r, at.Inputs, true), t: t, r: r, peer: &peerLink{node: 7, name: "peer"},
		host: new(answers), node: new(answers), over: make(chan struct{}),
	}
}

// fed makes a delivery whose payload is its number.
func (a *arrivalsAt) fed(from bus.Feeder, seq uint64) *bus.Delivery {
	d, err := bus.DeliveryOf(&wire.Deliver{Delivery: uint32(seq), Seq: seq, Flags: wire.FlagInline, Payload: []byte{byte(seq)}, Size: 1, Codec: 1}, from, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	return d
}

func (a *arrivalsAt) fromHost(seq uint64) error { return a.relayed(0, a.fed(a.host, seq)) }
func (a *arrivalsAt) fromPeer(seq uint64) error { return a.direct(a.peer, 0, a.fed(a.node, seq)) }
func (a *arrivalsAt) end()                      { a.resequencer.over(func() { close(a.over) }) }

// must fails the test at the first error.
func (a *arrivalsAt) must(errs ...error) {
	a.t.Helper()
	if err := errors.Join(errs...); err != nil {
		a.t.Fatal(err)
	}
}

// refused requires an error about a broken protocol.
func (a *arrivalsAt) refused(err error, what string) {
	a.t.Helper()
	if !errors.Is(err, wire.ErrProtocol) {
		a.t.Errorf("%s: %v, want %v", what, err, wire.ErrProtocol)
	}
}

// isOver reports whether all has come, as far as is known here.
func (a *arrivalsAt) isOver() bool {
	select {
	case <-a.over:
		return true
	default:
		return false
	}
}

// failed reports whether the request is over.
func (a *arrivalsAt) failed() bool {
	select {
	case <-a.r.Done():
		return true
	default:
		return false
	}
}

// results requires that the stage has seen n deliveries in order and the end
// of its input.
func (a *arrivalsAt) results(n int) {
	a.t.Helper()
	for i := range n {
		a.result(byte(i))
	}
	if _, err := a.r.Recv(a.t.Context()); !errors.Is(err, io.EOF) {
		a.t.Fatalf("behind %d results: %v", n, err)
	}
}

// result requires that the next result is a certain one.
func (a *arrivalsAt) result(want byte) {
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

// TestTwoWaysOneStream: what comes through the host and what comes from a node
// is one stream, in order, and ends when all of it is there.
func TestTwoWaysOneStream(t *testing.T) {
	a := newArrivalsAt(t)
	a.must(a.fromHost(0), a.expect(0, a.peer))
	a.must(a.fromPeer(3), a.fromPeer(2), a.streamed(0, 4))
	a.end()
	if a.isOver() {
		t.Fatal("the stream ended before its second delivery came")
	}
	a.must(a.fromHost(1))
	if !a.isOver() {
		t.Fatal("the stream did not end with its last delivery")
	}
	a.results(4)
}

// TestStreamEndsWhenKnown: that the length is known ends a stream whose last
// delivery is here, and not before.
func TestStreamEndsWhenKnown(t *testing.T) {
	a := newArrivalsAt(t)
	a.must(a.fromHost(0), a.expect(0, a.peer), a.streamed(0, 2))
	a.result(0)
	a.must(a.fromPeer(1))
	a.end()
	a.result(1)
	if _, err := a.r.Recv(t.Context()); !errors.Is(err, io.EOF) || !a.isOver() {
		t.Fatalf("the stream is complete, and ended with %v", err)
	}
}

// TestEndOfExpectedStream: a stream that nobody sent past the host ends when the
// host says so.
func TestEndOfExpectedStream(t *testing.T) {
	a := newArrivalsAt(t)
	a.must(a.fromHost(0), a.expect(0, a.peer), a.fromHost(1))
	a.end()
	a.results(2)
}

// TestArrivalsRefuse: a node that does not keep to the protocol is found out.
func TestArrivalsRefuse(t *testing.T) {
	for name, try := range map[string]func(a *arrivalsAt) error{
		"unexpected": func(a *arrivalsAt) error {
			return a.direct(&peerLink{node: 8}, 0, a.fed(a.node, 1))
		},
		"an edge that is not there":    func(a *arrivalsAt) error { return a.direct(a.peer, 1, a.fed(a.node, 1)) },
		"a length of another edge":     func(a *arrivalsAt) error { return a.streamed(1, 1) },
		"expected on another edge":     func(a *arrivalsAt) error { return a.expect(1, a.peer) },
		"expected twice":               func(a *arrivalsAt) error { return a.expect(0, a.peer) },
		"a delivery that came through": func(a *arrivalsAt) error { return a.fromPeer(0) },
		"a delivery that is early twice": func(a *arrivalsAt) error {
			a.must(a.fromPeer(2))
			return a.fromPeer(2)
		},
		"shorter than what came": func(a *arrivalsAt) error { return a.streamed(0, 0) },
		"two lengths": func(a *arrivalsAt) error {
			a.must(a.streamed(0, 3))
			return a.streamed(0, 4)
		},
		"behind the end": func(a *arrivalsAt) error {
			a.must(a.streamed(0, 1))
			return a.fromPeer(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArrivalsAt(t)
			a.must(a.fromHost(0), a.expect(0, a.peer))
			a.refused(try(a), name)
			a.drop()
			a.r.Abort(nil)
		})
	}
}

// TestDirectWindow: a node that sends more than the window is refused, however
// it orders what it sends.
func TestDirectWindow(t *testing.T) {
	a := newArrivalsAt(t)
	a.must(a.expect(0, a.peer))
	for seq := range uint64(arrivalsWindow) {
		a.must(a.fromPeer(seq + 1)) // none is handed on: the first is missing
	}
	a.refused(a.fromPeer(arrivalsWindow+1), "one more than the window")
	if got := a.node.finished(); !slices.Equal(got, []uint32{arrivalsWindow + 1}) {
		t.Errorf("%v were given back, want the one that was refused", got)
	}
	a.drop()
}

// TestEarlyIsGivenBack: what waits for its turn goes back at the end, and what
// comes after that, too.
func TestEarlyIsGivenBack(t *testing.T) {
	a := newArrivalsAt(t)
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

// TestPeerGoneOrComplete: the end of a node fails what can never be complete,
// and nothing else.
func TestPeerGoneOrComplete(t *testing.T) {
	cause := errors.New("the cause")
	for name, tc := range map[string]struct {
		do   func(a *arrivalsAt)
		fail string // what the error says; empty: the request goes on
	}{
		"it died, and more was to come": {
			do:   func(a *arrivalsAt) { a.must(a.streamed(0, 3)); a.peerGone(a.peer, true, cause) },
			fail: "2 more deliveries",
		},
		"it died before the host says that more was to come": {
			do:   func(a *arrivalsAt) { a.peerGone(a.peer, true, cause); a.must(a.streamed(0, 3)) },
			fail: "2 more deliveries",
		},
		"it lives": {
			do:   func(a *arrivalsAt) { a.peerGone(a.peer, false, cause) },
			fail: "the cause",
		},
		"it died, and the host has more to say": {do: func(a *arrivalsAt) { a.peerGone(a.peer, true, cause) }},
		"it died, and all has come": {do: func(a *arrivalsAt) {
			a.must(a.fromPeer(1), a.streamed(0, 2))
			a.peerGone(a.peer, true, cause)
		}},
		"it is another": {do: func(a *arrivalsAt) { a.peerGone(&peerLink{node: 8}, false, cause) }},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArrivalsAt(t)
			a.peer.proc = thisProcess(t)
			a.must(a.fromHost(0), a.expect(0, a.peer))
			tc.do(a)
			if tc.fail == "" {
				a.end()
				a.result(0)
				if a.r.Outcome() == bus.Failed {
					t.Errorf("the request failed: %v", a.r.Err())
				}
				return
			}
			testbus.Await(t, a.failed)
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
