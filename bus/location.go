package bus

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// inStore is where the payload of d lies in its bus's store, whose arena other processes
// have as a segment.
func (d *Delivery) inStore(arena *ledger.Segment) (ledger.Location, error) {
	if !shmstore.IsLarge(d.Handle) {
		return ledger.Location{Seg: arena, Offset: d.Handle.Offset}, nil
	}
	large, err := d.flow.req.bus.largeSegment(d.Handle)
	if err != nil {
		return ledger.Location{}, err
	}
	return ledger.Location{Seg: large, Own: true, Made: true}, nil
}

// Locate finds where the payload of d lies, for the host or a peer of this node, and
// takes it to where they can read it if that is nowhere.
func (c DeliveryControl) Locate(inlineBytes int) (at ledger.Location, err error) {
	d := c.d
	p := d.Bytes()
	switch {
	case len(p) <= inlineBytes:
		return ledger.Location{}, nil
	case !d.Handle.IsZero():
		at, err = d.inStore(d.flow.req.bus.shared)
	case d.foreign.Lend():
		// In a store's arena nothing begins at 0: there is a header before it.
		at = ledger.Location{Seg: d.foreign.Segment(), Offset: d.foreign.Offset(), Own: d.foreign.Offset() == 0}
	default: // the store had no room in one piece
		var own *ledger.Payload
		if own, err = ledger.Copied(p); err == nil {
			at = ledger.Location{Seg: own.Segment(), Own: true, Made: true}
		}
	}
	if err != nil {
		return ledger.Location{}, fmt.Errorf("payload of %d bytes: %w", len(p), err)
	}
	return at, nil
}

// LocateIn finds where the payload of d lies, for a client of this host, which has the arena, and
// to which payloads of up to inlineBytes go in the message. To a thin client more do: one in another
// language than Go copies small payloads anyway, and a message costs it less than a view. Where
// memory or descriptors are wanting, the request fails.
func (c DeliveryControl) LocateIn(arena *ledger.Segment, inlineBytes int, thin bool, client func() string) (at ledger.Location, err error) {
	d := c.d
	p := d.Bytes()
	most := min(d.flow.req.bus.inlineBytes(d.flow.edge), wire.MaxInline)
	if d.Handle.IsZero() && !d.foreign.InMemory() {
		most = inlineBytes // what came in a message goes on in one
	}
	if d.PayloadCodec() != codec.IDBundle && thin { // whose bundles may say where tensors of a GPU are: views keep them
		most = wire.MaxInline
	}
	switch {
	case len(p) <= most:
		return ledger.Location{}, nil
	case d.foreign.InMemory():
		return ledger.Location{Seg: d.foreign.Segment(), Offset: d.foreign.Offset()}, nil
	case !d.Handle.IsZero():
		at, err = d.inStore(arena)
	default:
		at, err = d.moveToMemory()
	}
	if err != nil {
		err = d.errorAt(d.flow.edge.spec.To, fmt.Errorf("payload of %d bytes for %s: %w", len(p), client(), err))
		d.flow.req.end(Failed, err)
	}
	return at, err
}

// moveToMemory copies the payload of d from the heap to where other processes can read it.
func (d *Delivery) moveToMemory() (ledger.Location, error) {
	p, err := ledger.Copied(d.Inline)
	if err != nil {
		return ledger.Location{}, err
	}
	d.foreign.Release()
	d.Inline, d.foreign = p.Bytes(), p
	return ledger.Location{Seg: p.Segment()}, nil
}
