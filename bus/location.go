package bus

import (
	"cmp"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// prepare does the steps that may wait, before a delivery is put in order: the connector of its edge
// takes the payload, or a payload for another process is exposed.
func (d *Delivery) prepare() error {
	f := d.flow
	away := f.consumer == nil && (f.edge.toOwner || f.req.sink != nil)
	if f.edge.path != nil {
		if err := f.carry(d); err != nil || !away {
			return err
		}
		return d.receiveCarried()
	}
	if away {
		return d.expose()
	}
	return nil
}

// expose opens the segment of a large payload for other processes, until the payload is released.
// It calls the writer, and so may wait.
func (d *Delivery) expose() (err error) {
	if d.ownSegment == nil && shmstore.IsLarge(d.Handle) {
		d.ownSegment, err = d.flow.req.bus.largeSegment(d.Handle)
	}
	return err
}

// inStore is the location of d's payload in the store. arena is the segment of the store's arena.
func (d *Delivery) inStore(arena *accounts.Segment) (accounts.Location, error) {
	if !shmstore.IsLarge(d.Handle) {
		return accounts.Location{Seg: arena, Offset: d.Handle.Offset}, nil
	}
	if err := d.expose(); err != nil {
		return accounts.Location{}, err
	}
	return accounts.Location{Seg: d.ownSegment, Alone: true}, nil
}

// Reader describes a process that reads a payload.
type Reader struct {
	InlineBytes int               // the size of the largest payload that goes to it inside the message
	Arena       *accounts.Segment // the store's arena, of a client of this host; nil: the reader is the host of this node, or a peer
	Thin        bool              // a client in another language: it copies small payloads anyway, and a message costs it less than a view
}

// Locate returns the location of the payload for the reader; zero: it travels inside the message. A payload
// on the heap that is too large for the message is copied to memory that the reader can map.
func (c DeliveryControl) Locate(r Reader) (at accounts.Location, err error) {
	d := c.d
	switch {
	case d.Size() <= d.mostInline(r):
		return at, nil
	case d.foreign.InMemory():
		return accounts.Location{Seg: d.foreign.Segment(), Offset: d.foreign.Offset()}, nil
	case !d.Handle.IsZero():
		at, err = d.inStore(cmp.Or(r.Arena, d.flow.req.bus.shared))
	default:
		at, err = d.moveToMemory()
	}
	if err != nil {
		return at, fmt.Errorf("payload of %d bytes: %w", d.Size(), err)
	}
	return at, nil
}

// mostInline is the size up to which a payload like that of d travels inside the message.
func (d *Delivery) mostInline(r Reader) int {
	switch {
	case r.Thin && d.PayloadCodec() != codec.IDBundle: // a bundle may refer to tensors of a GPU, which a view keeps alive
		return wire.MaxInline
	case r.Arena == nil, d.Handle.IsZero() && !d.foreign.InMemory(): // a payload that came in a message goes on in one
		return r.InlineBytes
	}
	return min(d.flow.req.bus.inlineBytes(d.flow.edge), wire.MaxInline)
}

// moveToMemory copies the payload of d from the heap to memory that other processes can map.
func (d *Delivery) moveToMemory() (accounts.Location, error) {
	p, err := accounts.Copied(d.Inline)
	if err != nil {
		return accounts.Location{}, err
	}
	d.foreign.Release()
	d.Inline, d.foreign = p.Bytes(), p
	return accounts.Location{Seg: p.Segment(), Alone: true}, nil
}
