package bus

import (
	"errors"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Place is where a payload lies: the file of its memory, and the offset there.
type Place struct {
	File   uint64
	Offset int64
}

// PlaceOf tells where the payload of a delivery from another process lies.
func PlaceOf(t testing.TB, d *Delivery) Place {
	t.Helper()
	return lies(t, d.foreign)
}

func lies(t testing.TB, p *ledger.Payload) Place {
	t.Helper()
	if !p.InMemory() {
		t.Error("the payload is not in shared memory")
		return Place{}
	}
	return Place{File: fileOf(t, p.Segment()), Offset: int64(p.Offset())}
}

func fileOf(t testing.TB, seg *ledger.Segment) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Fstat(seg.Mem().FD(), &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

// FetchedFrom tells where a payload lies that a node has from an exchange.
func FetchedFrom(t testing.TB, p connector.Payload) Place {
	t.Helper()
	return lies(t, p.(*ledger.Payload))
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

// FetchForNobody has a node's host hand out what lies under a key, to somebody who
// does not wait for it any more.
func FetchForNobody(t testing.TB, n *Node, edge connector.Edge, key string) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	l.queue(&wire.Fetch{Token: 1 << 31, From: edge.From, To: edge.To, Key: key})
	if _, err := l.call(t.Context(), "stats", nil); err != nil { // behind the answer
		t.Fatal(err)
	}
}

// FindForNobody has a node's host hand out what lies under a name, as the answer to
// a question that nobody has asked.
func FindForNobody(t testing.TB, n *Node, name lane.Name, token uint32) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	l.queue(&wire.Find{Token: token, Pool: name.Pool, Number: name.Number})
	if _, err := l.call(t.Context(), "stats", nil); err != nil { // behind the answer
		t.Fatal(err)
	}
}

// SayMuch has a node tell its host more than a link keeps for one that does not read.
func SayMuch(n *Node) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	for said := 0; said <= peer.DefaultBacklogBytes+1<<20; said += wire.MaxPiece {
		l.queue(&wire.Reported{Token: 1 << 31, Piece: make([]byte, wire.MaxPiece)})
	}
}

// OfferInVain has a node offer its host memory that it cannot send it, and then
// memory that it can; it returns how much the host was told of.
func OfferInVain(t testing.TB, n *Node) (known int) {
	t.Helper()
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	mem, err := shmstore.NewSegment("test", 4096)
	if err != nil {
		t.Fatal(err)
	}
	seg := ledger.Lasting(mem, nil)
	mem.Close()
	for range 2 {
		err := l.account.Hold(&ledger.Hold{Returned: func() {}}, ledger.Location{Seg: seg}, func(_, _ uint32) error { return nil })
		if err == nil || errors.Is(err, ErrHostGone) {
			t.Errorf("offer of memory that is gone: %v", err)
		}
	}
	_, known, _ = l.account.Sizes()
	return known
}

// OpenFiles counts what this process has open: connections, events and memory.
func OpenFiles(t testing.TB) int { return openFiles(t) }

// HostLooks counts how often goroutines that wait for results at a host looked for what other
// processes send.
func HostLooks(b *Bus) int64 { return b.heard.lookout.Looks() }

// Looks counts how often the goroutines of a node looked for what other processes send.
func Looks(n *Node) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link.heard.lookout.Looks()
}
