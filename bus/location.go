package bus

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// prepare does, before a delivery is put in order, what may wait: the connector of its edge
// takes the payload, and what goes to another process is made to lie where that can read it.
func (d *Delivery) prepare() error {
	f := d.flow
	away := f.consumer == nil && (f.edge.leaves || f.req.sink != nil)
	if f.edge.path != nil {
		if err := f.carry(d); err != nil || !away {
			return err
		}
		return d.unpack()
	}
	if away {
		return d.expose()
	}
	return nil
}

// expose opens the segment of a large payload for other processes, until the payload is given
// back. It asks the writer, and so may wait.
func (d *Delivery) expose() (err error) {
	if d.large == nil && shmstore.IsLarge(d.Handle) {
		d.large, err = d.flow.req.bus.largeSegment(d.Handle)
	}
	return err
}

// inStore is where the payload of d, which is exposed, lies in its bus's store, whose arena
// other processes have as a segment.
func (d *Delivery) inStore(arena *ledger.Segment) (ledger.Location, error) {
	if !shmstore.IsLarge(d.Handle) {
		return ledger.Location{Seg: arena, Offset: d.Handle.Offset}, nil
	}
	if err := d.expose(); err != nil {
		return ledger.Location{}, err
	}
	return ledger.Location{Seg: d.large, Own: true}, nil
}

// Locate finds where the payload of d lies, for the host or a peer of this node, and
// takes it to where they can read it if that is nowhere.
func (c DeliveryControl) Locate(inlineBytes int) (at ledger.Location, err error) {
	d := c.d
	switch {
	case d.Size() <= inlineBytes:
		return ledger.Location{}, nil
	case !d.Handle.IsZero():
		at, err = d.inStore(d.flow.req.bus.shared)
	default: // the store had no room in one piece
		var own *ledger.Payload
		if own, err = ledger.Copied(d.Bytes()); err == nil {
			at = ledger.Location{Seg: own.Segment(), Own: true, Made: true}
		}
	}
	if err != nil {
		return ledger.Location{}, fmt.Errorf("payload of %d bytes: %w", d.Size(), err)
	}
	return at, nil
}

// LocateIn finds where the payload of d lies, for a client of this host, which has the arena, and
// to which payloads of up to inlineBytes go in the message. To a thin client more do: one in another
// language than Go copies small payloads anyway, and a message costs it less than a view. Where
// memory or descriptors are wanting, the error says what for: the request is to fail with it.
func (c DeliveryControl) LocateIn(arena *ledger.Segment, inlineBytes int, thin bool, client func() string) (at ledger.Location, err error) {
	d := c.d
	most := min(d.flow.req.bus.inlineBytes(d.flow.edge), wire.MaxInline)
	if d.Handle.IsZero() && !d.foreign.InMemory() {
		most = inlineBytes // what came in a message goes on in one
	}
	if d.PayloadCodec() != codec.IDBundle && thin { // whose bundles may say where tensors of a GPU are: views keep them
		most = wire.MaxInline
	}
	switch {
	case d.Size() <= most:
		return ledger.Location{}, nil
	case d.foreign.InMemory():
		return ledger.Location{Seg: d.foreign.Segment(), Offset: d.foreign.Offset()}, nil
	case !d.Handle.IsZero():
		at, err = d.inStore(arena)
	default:
		at, err = d.moveToMemory()
	}
	if err != nil {
		err = d.errorAt(d.flow.edge.spec.To, fmt.Errorf("payload of %d bytes for %s: %w", d.Size(), client(), err))
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
