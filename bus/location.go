package bus

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// location is where a payload lies that other processes are to read.
type location struct {
	seg    *segment // nil: in the message
	offset uint64
	own    bool // the segment is for this payload alone
	most   int  // ... as well, where the other process knows that many; 0: however many
	made   bool // a reference to it is the caller's
}

func (at location) release() {
	if at.made {
		at.seg.release()
	}
}

// inStore is where the payload of d lies in its bus's store, whose arena other processes
// have as a segment.
func (d *Delivery) inStore(arena *segment) (location, error) {
	if !shmstore.IsLarge(d.Handle) {
		return location{seg: arena, offset: d.Handle.Offset}, nil
	}
	large, err := d.flow.req.bus.largeSegment(d.Handle)
	if err != nil {
		return location{}, err
	}
	return location{seg: large, own: true, made: true}, nil
}

// locate finds where the payload of d lies, for the host or a peer of this node, and
// takes it to where they can read it if that is nowhere.
func (d *Delivery) locate(inlineBytes int) (at location, err error) {
	p := d.Bytes()
	switch {
	case len(p) <= inlineBytes:
		return location{}, nil
	case !d.Handle.IsZero():
		at, err = d.inStore(d.flow.req.bus.shared)
	case d.foreign.lend():
		// In a store's arena nothing begins at 0: there is a header before it.
		at = location{seg: d.foreign.seg, offset: uint64(d.foreign.offset), own: d.foreign.offset == 0}
	default: // the store had no room in one piece
		var own *foreign
		if own, err = ownSegment(p); err == nil {
			at = location{seg: own.seg, own: true, made: true}
		}
	}
	if err != nil {
		return location{}, fmt.Errorf("payload of %d bytes: %w", len(p), err)
	}
	return at, nil
}

// locateAll says where the client finds payloads.
func (s *session) locateAll(ds []*Delivery) ([]location, error) {
	all := make([]location, 0, len(ds))
	for _, d := range ds {
		at, err := s.locate(d)
		if err != nil {
			for _, l := range all {
				l.release()
			}
			return nil, err
		}
		all = append(all, at)
	}
	return all, nil
}

// locate says where the client finds a payload. One that it cannot be given, for want
// of memory or descriptors, fails its request.
func (s *session) locate(d *Delivery) (at location, err error) {
	p := d.Bytes()
	most := min(d.flow.req.bus.inlineBytes(d.flow.edge), wire.MaxInline)
	if d.Handle.IsZero() && (d.foreign == nil || d.foreign.seg == nil) {
		most = s.srv.on.inlineBytes // what came in a message goes on in one
	}
	if d.PayloadCodec() != codec.IDBundle && s.thin() { // whose bundles may say where tensors of a GPU are: views keep them
		most = wire.MaxInline
	}
	if len(p) <= most {
		return location{}, nil
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
func (s *Server) locate(d *Delivery) (location, error) {
	if d.foreign != nil && d.foreign.seg != nil {
		return location{seg: d.foreign.seg, offset: uint64(d.foreign.offset)}, nil
	}
	if !d.Handle.IsZero() {
		return d.inStore(s.arena)
	}
	p, err := ownSegment(d.Inline)
	if err != nil {
		return location{}, err
	}
	if d.foreign != nil {
		d.foreign.release()
	}
	d.Inline, d.foreign = p.data, p
	return location{seg: p.seg}, nil
}
