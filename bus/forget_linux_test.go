package bus

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestForgottenByTheHostAndByPeers: memory that a node has from the host and has passed
// on to a peer, such as that of another process that is gone, is forgotten there too: the
// peer would keep it mapped for as long as it knows this node.
func TestForgottenByTheHostAndByPeers(t *testing.T) {
	a := attach(t, 4, func(*Task, *Delivery) error { return nil })
	h := a.meetHand(t)
	Await(t, func() bool { return h.connection() != nil })
	mem, err := shmstore.NewSegment("others", 4096)
	if err != nil {
		t.Fatal(err)
	}
	seg := newLasting(mem)
	a.link.account.show(1<<20, seg, 1<<20)
	if err := h.account.telling(location{seg: seg}, func(uint32) {}); err != nil {
		t.Fatal(err)
	}
	a.link.forget(1 << 20)
	if h.account.knows(seg) != 0 {
		t.Error("the peer was not told")
	}
	if refs := seg.refs.Load(); refs != 0 {
		t.Errorf("%d references are left", refs)
	}
}
