package bus

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// receive makes a delivery of a message from the host.
func (l *link) receive(m *wire.Deliver) (*Delivery, error) {
	return newFed(m, l, l.account.Memory)
}

// put sends the payload of d for a source of the host's. When it is returned,
// nobody needs it any more.
func (l *link) put(source uint32, d *Delivery, edge int, returned func()) error {
	cause, soon := d.emittedFor()
	m := &wire.Put{
		Source: source, Delivery: cause, Edge: uint16(edge), Codec: uint32(d.PayloadCodec()),
		Attempt: d.Attempt, Size: uint64(len(d.Bytes())), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	at, err := l.locate(m, d)
	if err != nil {
		return err
	}
	defer at.Release() // the host has it mapped, or will not
	h := handOver(d, returned)
	err = l.account.Hold(h, at, func(number, segment uint32) (err error) {
		m.Put, m.Segment = number, segment
		m.Flags |= aloneFlag(h)
		faultpoint.Hit("node-before-put")
		if soon { // then its finish follows
			err = l.later(m)
		} else {
			err = l.send(m)
		}
		return given(h, err)
	})
	if errors.Is(err, ledger.ErrOver) {
		if err = l.parting.lost(); err == nil {
			go returned() // not under the locks of the sender of the delivery
		}
		return err
	}
	if err == nil {
		faultpoint.Hit("node-put")
	}
	return err
}

// aloneFlag says of memory that is for this payload alone.
func aloneFlag(h *ledger.Hold) uint8 {
	if h.Alone() {
		return wire.FlagOwn
	}
	return 0
}

// given is for a put that was sent, or not: memory for it alone is forgotten by the host, which
// is not told to.
func given(h *ledger.Hold, err error) error {
	if err == nil {
		h.ForgetAlone()
	}
	return err
}

// locate says in m where the payload of d lies: with the host, whose delivery it came in,
// in the message, or in a segment.
func (l *link) locate(m *wire.Put, d *Delivery) (at ledger.Location, err error) {
	inlineBytes := int(l.welcome.InlineBytes)
	if id, lent := d.lentBy(l); lent && len(d.Bytes()) > inlineBytes {
		m.Flags |= wire.FlagForward
		m.Delivery = id
		return ledger.Location{}, nil
	}
	if at, err = d.locate(inlineBytes); err != nil {
		return ledger.Location{}, err
	}
	if at.Seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset, at.Most = at.Offset, maxNodeOffered
	return at, nil
}

// ShowMemory implements ledger.Teller.
func (l *link) ShowMemory(number uint32, mem *shmstore.Segment) error {
	return l.send(&wire.Offer{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
}

// HideMemory implements ledger.Teller.
func (l *link) HideMemory(number uint32) { l.queue(&wire.Forget{Segment: number}) }

func (l *link) returned(id uint32) {
	l.account.GiveBack(id, func() { faultpoint.Hit("node-returned") })
}

// spent gives credit back for a payload that the host still needs.
func (l *link) spent(m *wire.Spent) {
	spend(&l.account, m.Put, m.Flags&wire.SpentBytes != 0)
}
