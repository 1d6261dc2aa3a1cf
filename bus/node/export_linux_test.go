package node

import (
	"errors"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Location is where a payload lies: the file of its memory, and the offset there.
type Location struct {
	File   uint64
	Offset int64
}

// LocationOf is where the payload of a delivery from another process lies.
func LocationOf(t testing.TB, d *bus.Delivery) Location {
	t.Helper()
	at, err := d.Control().Locate(bus.Reader{})
	if err != nil || at.Seg == nil {
		t.Errorf("the payload is not in shared memory: %v", err)
		return Location{}
	}
	return Location{File: fileOf(t, at.Seg), Offset: int64(at.Offset)}
}

func locationOf(t testing.TB, p *accounts.Payload) Location {
	t.Helper()
	if !p.InMemory() {
		t.Error("the payload is not in shared memory")
		return Location{}
	}
	return Location{File: fileOf(t, p.Segment()), Offset: int64(p.Offset())}
}

func fileOf(t testing.TB, seg *accounts.Segment) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Fstat(seg.Mem().FD(), &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

// FetchedFrom is where a payload lies that a node has fetched from an exchange.
func FetchedFrom(t testing.TB, p connector.Payload) Location {
	t.Helper()
	return locationOf(t, p.(*accounts.Payload))
}

// ExchangeFile is the file of a node's own memory for the exchange.
func ExchangeFile(t testing.TB, n *Node) uint64 {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	return fileOf(t, n.link.exchange.Memory())
}

// HasExchangeMemory reports whether a node has created memory for the exchange.
func HasExchangeMemory(n *Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link.exchange.Memory() != nil
}

// FetchWithoutWaiter has the host send a payload for a question that is not open at the node.
func FetchWithoutWaiter(t testing.TB, n *Node, edge connector.Edge, key string) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	l.Queue(&wire.Fetch{Token: 1 << 31, From: edge.From, To: edge.To, Key: key})
	if _, err := l.call(t.Context(), "stats", nil); err != nil { // the answer comes after the payload or descriptors
		t.Fatal(err)
	}
}

// FindWithoutWaiter has the host send descriptors for a question that is not open at the node.
func FindWithoutWaiter(t testing.TB, n *Node, name lane.Name, token uint32) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	l.Queue(&wire.Find{Token: token, Pool: name.Pool, Number: name.Number})
	if _, err := l.call(t.Context(), "stats", nil); err != nil { // the answer comes after the payload or descriptors
		t.Fatal(err)
	}
}

// FillBacklog queues more messages than a link keeps for a host that does not read.
func FillBacklog(n *Node) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	for said := 0; said <= peer.DefaultBacklogBytes+1<<20; said += wire.MaxPiece {
		l.Queue(&wire.Reported{Flags: wire.ReplyMore, Piece: make([]byte, wire.MaxPiece)})
	}
}

// OfferUnsendable has a node offer memory whose descriptor is closed, twice. It returns how many
// segments are taken for known to the host.
func OfferUnsendable(t testing.TB, n *Node) (known int) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	mem, err := shmstore.NewSegment("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	seg := accounts.Lasting(mem, nil)
	mem.Close()
	for range 2 {
		err := l.account.AddAndSend(&accounts.Hold{Returned: func() {}}, accounts.Location{Seg: seg}, func(_, _ uint32) error { return nil })
		if err == nil || errors.Is(err, bus.ErrHostGone) {
			t.Errorf("offer of memory that is gone: %v", err)
		}
	}
	_, known, _ = l.account.Sizes()
	return known
}

// Polls counts how often the goroutines of a node have polled the connections.
func Polls(n *Node) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link.lastActive.Spinner().Polls()
}

// PermitWaiters is how many requests of a node wait for a permit there.
func PermitWaiters(t *testing.T, n *Node) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting, _ := testbus.Services(t, n.link.work.callerPart().Bus).Permits.Waiting()
	return waiting
}

// BreakConnection ends a node's connection as the death of its host does.
func BreakConnection(n *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link != nil {
		_ = n.link.conn.Close()
	}
}

// DrainReceived reports whether a node has received the message Drain.
func DrainReceived(n *Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.link.drained:
		return true
	default:
		return false
	}
}

// PublishedCount is how many names a node publishes, or is about to publish.
func PublishedCount(n *Node) int {
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	return len(n.directory.names)
}

// OpenCounts counts the open questions of a node, and its requests and tasks.
func OpenCounts(n *Node) (questions, sources int) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	tasks, all := l.work.list()
	l.questions.mu.Lock()
	defer l.questions.mu.Unlock()
	return len(l.questions.pending), len(all) + len(tasks)
}

// RequestIDOf is the ID of the nth request that a node has submitted to its host.
func RequestIDOf(n *Node, nth uint32) messages.RequestID {
	return hostnode.RequestID(n.link.welcome.Node, nth)
}

// SubmitWaiters is PermitWaiters; 0 before the first request of the node.
func SubmitWaiters(n *Node) int {
	caller := n.link.work.callerPart()
	if caller == nil {
		return 0
	}
	on, err := caller.Bus.Backend().Services()
	if err != nil {
		return 0
	}
	on.Arena.Close()
	waiting, _ := on.Permits.Waiting()
	return waiting
}
