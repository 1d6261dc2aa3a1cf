package node

import (
	"cmp"
	"errors"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// receive makes a delivery from a message of the host.
func (l *link) receive(m *wire.Deliver) (*bus.Delivery, error) {
	return bus.DeliveryOf(m, l, l.account.PeerSegment)
}

// put sends the payload of d for a source of the host; returned is called when no other process
// needs the payload.
func (l *link) put(source uint32, d *bus.Delivery, edge int, returned func()) error {
	cause, soon := d.Control().EmittedFor()
	m := &wire.Put{
		Source: source, Delivery: cause, Edge: uint16(edge), Codec: uint32(d.PayloadCodec()),
		Attempt: d.Attempt, Size: uint64(d.Size()), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	at, err := l.locate(m, d)
	if err != nil {
		return err
	}
	h := newHold(d, returned)
	err = l.account.AddAndSend(h, at, func(number, segment uint32) (err error) {
		m.Put, m.Segment = number, segment
		m.Flags |= aloneFlag(h)
		faultpoint.Hit("node-before-put")
		if soon { // the Finish of the input follows
			err = l.sendLater(m)
		} else {
			err = l.send(m)
		}
		return forgetAlone(h, err)
	})
	if errors.Is(err, accounts.ErrClosed) {
		return cmp.Or(l.state.hostErr(), bus.ErrNotTaken)
	}
	if err == nil {
		faultpoint.Hit("node-put")
	}
	return err
}

// aloneFlag is the flag for a segment that holds only this payload.
func aloneFlag(h *accounts.Hold) uint8 {
	if h.Alone() {
		return wire.FlagOwn
	}
	return 0
}

// forgetAlone has the account forget, after a successful put, a segment that holds only this
// payload: the host drops such a segment without a message Forget.
func forgetAlone(h *accounts.Hold, err error) error {
	if err == nil {
		h.ForgetAlone()
	}
	return err
}

// locate sets in m where the payload of d lies: in a delivery of the host, in the message, or in a
// segment.
func (l *link) locate(m *wire.Put, d *bus.Delivery) (at accounts.Location, err error) {
	inlineBytes := int(l.welcome.InlineBytes)
	if id, given := d.Control().GivenBy(l); given && d.Size() > inlineBytes {
		m.Flags |= wire.FlagForward
		m.Delivery = id
		return accounts.Location{}, nil
	}
	if at, err = d.Control().Locate(bus.Reader{InlineBytes: inlineBytes}); err != nil {
		return accounts.Location{}, err
	}
	if at.Seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset, at.MaxKnown = at.Offset, hostnode.MaxNodeOffered
	return at, nil
}

// ShowMemory implements accounts.Announcer.
func (l *link) ShowMemory(number uint32, mem *shmstore.Segment) error {
	return l.send(&wire.Offer{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
}

// HideMemory implements accounts.Announcer.
func (l *link) HideMemory(number uint32) { l.Queue(&wire.Forget{Segment: number}) }

func (l *link) returned(id uint32) {
	l.account.GiveBack(id, func() { faultpoint.Hit("node-returned") })
}

// spent handles the message Spent: it returns credit for a payload that the host still reads.
func (l *link) spent(m *wire.Spent) {
	returnCredit(&l.account, m.Put, m.Flags&wire.SpentBytes != 0)
}

// sentDelivery is a delivery that the host or a peer holds.
type sentDelivery struct {
	hold accounts.Hold
	d    *bus.Delivery
}

// Hold implements accounts.Delivery.
func (g *sentDelivery) Hold() accounts.Held { return g.d.Control().Hold() }

// newHold makes the hold of a delivery that another process reads until it is returned.
func newHold(d *bus.Delivery, returned func()) *accounts.Hold {
	g := &sentDelivery{d: d}
	g.hold = accounts.Hold{Delivery: g, Returned: returned, Bytes: d.Size(), At: time.Now()}
	return &g.hold
}

// returnCredit returns the credit of a delivery whose payload another process still reads: its slot
// in the window, and with bytesToo its bytes.
func returnCredit(of *accounts.Account, number uint32, bytesToo bool) {
	var give func()
	of.Inspect(number, func(hold *accounts.Hold) {
		if hold != nil && hold.Delivery != nil { // not finished: no other code uses its credit
			give = hold.Delivery.(*sentDelivery).d.Control().Spend(bytesToo) //nolint:forcetypeassert // an account has no others
		}
	})
	if give != nil {
		give()
	}
}
