package shmstore

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Lease is the right to read one object. It is released exactly once; until
// then the bytes stay what they are. It is a plain value so that taking one
// allocates nothing: pass it on by moving it, and release only one of its
// copies. With the race detector, or the build tag invariants, a copy that is
// released too is caught.
//
// It has as many fields as fit in registers together with an error: a larger
// one would double the time of taking it.
type Lease struct {
	reader *Reader
	serial leaseSerial
	gen    uint64
	offset uint64
	size   uint64
	slot   uint32
	codec  uint32
	held   holding
}

// holding is what keeps a leased object in place.
type holding uint8

const (
	heldByDebt holding = iota + 1
	heldByPin
)

// open makes a zero lease into one on an object that is held by now. It fills
// in its receiver field by field, for the reason given at locate.
func (l *Lease) open(r *Reader, h *Handle, held holding) {
	faultpoint.Hit("lease-taken")
	l.reader = r
	l.serial = r.leases.open()
	l.gen, l.offset, l.size = h.Gen, h.Offset, h.Size
	l.slot, l.codec, l.held = h.Slot, h.Codec, held
}

// Bytes is the object: a view that must not be written to, valid until
// Release. In another process than the owner's, writing to it is fatal.
// After Release it is nil.
func (l *Lease) Bytes() []byte {
	if l.reader == nil {
		return nil
	}
	// The handle was checked against the size of the mapping.
	end := l.offset + l.size
	return l.reader.arena[l.offset:end:end]
}

// Handle names the object. After Release it is zero.
func (l *Lease) Handle() Handle {
	if l.reader == nil {
		return Handle{}
	}
	return Handle{
		Store:  l.reader.geo.store,
		Gen:    l.gen,
		Offset: l.offset,
		Size:   l.size,
		Slot:   l.slot,
		Codec:  l.codec,
	}
}

// defaultCodecs decode the payloads of the built-in serializers.
var defaultCodecs = codec.Default()

// Value decodes the object into v, a non-nil pointer, by the serializer that
// its handle names, one of those built in; see [Lease.ValueBy] for others. The
// result may be a view of the object: see package codec.
func (l *Lease) Value(v any) error { return l.ValueBy(defaultCodecs, v) }

// ValueBy is Value with the serializers of a registry.
func (l *Lease) ValueBy(codecs *codec.Registry, v any) error {
	if l.reader == nil {
		return fmt.Errorf("value of a released lease: %w", ErrClosed)
	}
	s, err := codecs.ByID(codec.ID(l.codec))
	if err != nil {
		return fmt.Errorf("value of %v: %w", l.Handle(), err)
	}
	if err := s.Decode(l.Bytes(), v); err != nil {
		return fmt.Errorf("value of %v: %w", l.Handle(), err)
	}
	return nil
}

// Release gives the object back. Releasing a lease twice is a bug that could
// free bytes somebody else reads; it panics.
func (l *Lease) Release() {
	r := l.reader
	if r == nil {
		panic("shmstore: Release of a lease that was released before, or never taken")
	}
	r.leases.close(l.serial, l)
	faultpoint.Hit("before-release")
	e := &r.ledger[l.slot]
	if l.held == heldByPin {
		l.mustHold(e.pin.Load() != 0)
		e.pin.Add(^uint32(0))
	} else {
		l.mustHold(e.done.Load() != r.taken[l.slot].Load())
		e.done.Add(1)
	}
	l.reader = nil
	r.pressDoorbell()
}

// mustHold catches most copies of a lease that are released twice, in every
// build, before they do harm: the reader holds nothing of this slot any more.
func (l *Lease) mustHold(holds bool) {
	if !holds {
		panic(fmt.Sprintf("shmstore: Release of a copy of a lease on %v that was released before", l.Handle()))
	}
}
