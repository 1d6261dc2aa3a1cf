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

// locate finds where the payload of d lies, for the host or a peer of this node, and
// takes it to where they can read it if that is nowhere.
func (d *Delivery) locate(inlineBytes int) (at ledger.Location, err error) {
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

// locateAll says where the client finds payloads.
func (s *session) locateAll(ds []*Delivery) ([]ledger.Location, error) {
	all := make([]ledger.Location, 0, len(ds))
	for _, d := range ds {
		at, err := s.locate(d)
		if err != nil {
			for _, l := range all {
				l.Release()
			}
			return nil, err
		}
		all = append(all, at)
	}
	return all, nil
}

// locate says where the client finds a payload. One that it cannot be given, for want
// of memory or descriptors, fails its request.
func (s *session) locate(d *Delivery) (at ledger.Location, err error) {
	p := d.Bytes()
	most := min(d.flow.req.bus.inlineBytes(d.flow.edge), wire.MaxInline)
	if d.Handle.IsZero() && (d.foreign == nil || d.foreign.Segment() == nil) {
		most = s.srv.on.inlineBytes // what came in a message goes on in one
	}
	if d.PayloadCodec() != codec.IDBundle && s.thin() { // whose bundles may say where tensors of a GPU are: views keep them
		most = wire.MaxInline
	}
	if len(p) <= most {
		return ledger.Location{}, nil
	}
	if at, err = s.srv.locate(d); err != nil {
		err = d.errorAt(d.flow.edge.spec.To, fmt.Errorf("payload of %d bytes for %s: %w", len(p), s.describe(), err))
		d.flow.req.end(Failed, err)
	}
	return at, err
}

// thin reports whether the client copies small payloads anyway, as one in another language
// than Go does: a message costs it less than a view.
func (s *session) thin() bool {
	lanes, _ := s.past.can()
	return !lanes
}

// locate says where a payload lies that is too large for a message. One on the
// heap is copied to where others can read it.
func (s *Server) locate(d *Delivery) (ledger.Location, error) {
	if d.foreign != nil && d.foreign.Segment() != nil {
		return ledger.Location{Seg: d.foreign.Segment(), Offset: d.foreign.Offset()}, nil
	}
	if !d.Handle.IsZero() {
		return d.inStore(s.arena)
	}
	p, err := ledger.Copied(d.Inline)
	if err != nil {
		return ledger.Location{}, err
	}
	if d.foreign != nil {
		d.foreign.Release()
	}
	d.Inline, d.foreign = p.Bytes(), p
	return ledger.Location{Seg: p.Segment()}, nil
}
