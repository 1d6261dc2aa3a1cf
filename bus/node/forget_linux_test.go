package node

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/bustest"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestForgottenByTheHostAndByPeers: memory that a node has from the host and has passed
// on to a peer, such as that of another process that is gone, is forgotten there too: the
// peer would keep it mapped for as long as it knows this node.
func TestForgottenByTheHostAndByPeers(t *testing.T) {
	a := attach(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
	h := a.meetHand(t)
	bustest.Await(t, func() bool { return h.connection() != nil })
	mem, err := shmstore.NewSegment("others", 4096)
	if err != nil {
		t.Fatal(err)
	}
	gone := false
	seg := ledger.Lasting(mem, func() { gone = true })
	a.link.account.Show(1<<20, seg, 1<<20)
	number := uint32(0)
	err = h.account.Hold(&ledger.Hold{Returned: func() {}}, ledger.Location{Seg: seg}, func(n, _ uint32) error {
		number = n
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	h.account.GiveBack(number, func() {})
	a.link.forget(1 << 20)
	if _, told, _ := h.account.Sizes(); told != 0 {
		t.Error("the peer was not told")
	}
	if !gone {
		t.Error("references are left")
	}
}
