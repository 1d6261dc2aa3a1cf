package bus

import (
	"errors"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// receive makes a delivery of a message from the host.
func (l *link) receive(m *wire.Deliver) (*Delivery, error) {
	return newFed(m, l, l.account.memory)
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
	defer at.release() // the host has it mapped, or will not
	h := &hold{d: d, returned: returned, bytes: len(d.Bytes()), at: time.Now()}
	err = l.account.hold(h, at, func(number, segment uint32) (err error) {
		m.Put, m.Segment = number, segment
		m.Flags |= h.aloneFlag()
		faultpoint.Hit("node-before-put")
		if soon { // then its finish follows
			err = l.later(m)
		} else {
			err = l.send(m)
		}
		return h.given(err)
	})
	if errors.Is(err, errOver) {
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
func (h *hold) aloneFlag() uint8 {
	if h.told != nil && h.told.alone {
		return wire.FlagOwn
	}
	return 0
}

// given is for a put that was sent: memory for it alone is forgotten by the host, which is not
// told to.
func (h *hold) given(err error) error {
	if err == nil && h.told != nil && h.told.alone {
		h.told = nil
	}
	return err
}

// locate says in m where the payload of d lies: with the host, whose delivery it came in,
// in the message, or in a segment.
func (l *link) locate(m *wire.Put, d *Delivery) (at location, err error) {
	inlineBytes := int(l.welcome.InlineBytes)
	if id, lent := d.lentBy(l); lent && len(d.Bytes()) > inlineBytes {
		m.Flags |= wire.FlagForward
		m.Delivery = id
		return location{}, nil
	}
	if at, err = d.locate(inlineBytes); err != nil {
		return location{}, err
	}
	if at.seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	m.Offset, at.most = at.offset, maxNodeOffered
	return at, nil
}

// showMemory implements teller.
func (l *link) showMemory(number uint32, mem *shmstore.Segment) error {
	return l.send(&wire.Offer{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
}

// hideMemory implements teller.
func (l *link) hideMemory(number uint32) { l.queue(&wire.Forget{Segment: number}) }

func (l *link) returned(id uint32) {
	h := l.account.take(id)
	faultpoint.Hit("node-returned")
	if h != nil {
		l.account.back(h)
	}
}

// spent gives credit back for a payload that the host still needs.
func (l *link) spent(m *wire.Spent) {
	give(l.account.spend(m.Put, m.Flags&wire.SpentBytes != 0, false))
}
