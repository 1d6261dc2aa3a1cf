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

// LocationOf tells where the payload of a delivery from another process lies.
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

// FetchedFrom tells where a payload lies that a node has from an exchange.
func FetchedFrom(t testing.TB, p connector.Payload) Location {
	t.Helper()
	return locationOf(t, p.(*accounts.Payload))
}

// ExchangeFile is the memory of what a node puts into an exchange.
func ExchangeFile(t testing.TB, n *Node) uint64 {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	return fileOf(t, n.link.exchange.Memory())
}

// HasExchangeMemory reports whether a node has made memory for what it puts into an exchange.
func HasExchangeMemory(n *Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link.exchange.Memory() != nil
}

// FetchWithoutWaiter has a node's host hand out what lies under a key, to somebody who
// does not wait for it any more.
func FetchWithoutWaiter(t testing.TB, n *Node, edge connector.Edge, key string) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	l.Queue(&wire.Fetch{Token: 1 << 31, From: edge.From, To: edge.To, Key: key})
	if _, err := l.call(t.Context(), "stats", nil); err != nil { // behind the answer
		t.Fatal(err)
	}
}

// FindWithoutWaiter has a node's host hand out what lies under a name, as the answer to
// a question that nobody has asked.
func FindWithoutWaiter(t testing.TB, n *Node, name lane.Name, token uint32) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	l.Queue(&wire.Find{Token: token, Pool: name.Pool, Number: name.Number})
	if _, err := l.call(t.Context(), "stats", nil); err != nil { // behind the answer
		t.Fatal(err)
	}
}

// FillBacklog has a node tell its host more than a link keeps for one that does not read.
func FillBacklog(n *Node) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	for said := 0; said <= peer.DefaultBacklogBytes+1<<20; said += wire.MaxPiece {
		l.Queue(&wire.Reported{Flags: wire.ReplyMore, Piece: make([]byte, wire.MaxPiece)})
	}
}

// OfferUnsendable has a node offer its host memory that it cannot send it, and then
// memory that it can; it returns how much the host was told of.
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
		err := l.account.Hold(&accounts.Hold{Returned: func() {}}, accounts.Location{Seg: seg}, func(_, _ uint32) error { return nil })
		if err == nil || errors.Is(err, bus.ErrHostGone) {
			t.Errorf("offer of memory that is gone: %v", err)
		}
	}
	_, known, _ = l.account.Sizes()
	return known
}

// Polls counts how often the goroutines of a node looked for what other processes send.
func Polls(n *Node) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link.lastActive.Spinner().Polls()
}

// PermitWaiters is how many requests of a node wait for their places there.
func PermitWaiters(t *testing.T, n *Node) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	waiting, _ := testbus.Services(t, n.link.work.callerPart().Bus).Permits.Waiting()
	return waiting
}

// BreakConnection ends a node's connection as if its host had died.
func BreakConnection(n *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link != nil {
		_ = n.link.conn.Close()
	}
}

// DrainReceived reports whether the host has told a node that it is going to stop.
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

// PublishedCount is how many names a node publishes, or is about to.
func PublishedCount(n *Node) int {
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	return len(n.directory.names)
}

// OpenCounts counts the questions of a node's that are open at its host, and its requests and
// tasks.
func OpenCounts(n *Node) (questions, sources int) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	tasks, all := l.work.list()
	l.questions.mu.Lock()
	defer l.questions.mu.Unlock()
	return len(l.questions.pending), len(all) + len(tasks)
}

// RequestIDOf names the nth request that a node has submitted to its host.
func RequestIDOf(n *Node, nth uint32) messages.RequestID {
	return hostnode.RequestID(n.link.welcome.Node, nth)
}

// SubmitWaiters is how many requests wait for a place among those that a node has open.
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
