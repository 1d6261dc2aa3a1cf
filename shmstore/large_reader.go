package shmstore

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// The verbs of a reader come here when locate has refused a handle, which it
// does with those of large objects: the others pay nothing for them.

// locateLarge is locate for the handle of a large object. For others it returns
// the reason they were refused for.
func (r *Reader) locateLarge(h *Handle, reason error) (*line, error) {
	switch {
	case errors.Is(reason, errForeign), !errors.Is(reason, ErrCorrupt), !IsLarge(*h):
		return nil, reason
	case h.Slot >= uint32(len(r.lines)), h.Gen == 0, h.Gen > maxGeneration:
		return nil, ErrCorrupt
	}
	return &r.lines[h.Slot], nil
}

// viewLarge finds the memory of a large object. What it finds counts only if
// the object is held afterwards.
func (r *Reader) viewLarge(h *Handle, reason error) (*leaseView, *line, error) {
	ln, err := r.locateLarge(h, reason)
	if err != nil {
		return nil, nil, err
	}
	o, ok := r.large.get(h.Gen)
	switch {
	case ok && h.Size > uint64(len(o.segment.data)):
		return nil, nil, ErrCorrupt
	case !ok:
		return nil, nil, r.missingReason(ln, h)
	}
	view := r.leaseView
	view.data, view.segment = o.segment.data, o.segment
	return &view, ln, nil
}

// missingReason says why there is no segment for a large object. In the owner's
// process every present object has one.
func (r *Reader) missingReason(ln *line, h *Handle) error {
	present := isPresent(ln.word.load(), h.Gen)
	matches := ln.matches(h)
	switch {
	case !present || !isPresent(ln.word.load(), h.Gen):
		return ErrStale
	case !matches:
		return ErrCorrupt
	case !r.remote:
		return ErrStale // it was added after the look into the table
	default:
		return ErrSegment
	}
}

// takeLarge goes on for Take after locate or collect have failed.
func (r *Reader) takeLarge(op string, h *Handle, reason error) (Lease, error) {
	view, ln, err := r.viewLarge(h, reason)
	if err == nil {
		err = r.collect(ln, h)
	}
	if err != nil {
		return Lease{}, r.fail(op, *h, err)
	}
	faultpoint.Hit("lease-taken")
	return newLease(view, h, heldByDebt), nil
}

// pinLarge goes on for Pin.
func (r *Reader) pinLarge(h *Handle, reason error) (Lease, error) {
	view, ln, err := r.viewLarge(h, reason)
	if err == nil {
		err = r.pin(ln, h)
	}
	if err != nil {
		return Lease{}, r.fail("pin", *h, err)
	}
	faultpoint.Hit("lease-taken")
	return newLease(view, h, heldByPin), nil
}

// AddSegment gives a reader in another process the segment of a large object,
// as [Store.LargeSegment] returned it there: from here on this reader can take
// and pin the object. The descriptor is checked like those of [Attach] before
// it is mapped read-only, and is AddSegment's from here on, also if it fails. A
// segment that was added before is not needed again, which is no error. The
// errors are those of [Reader.Pin], [ErrProtocol], and [ErrUnsupported] for a
// reader of the owner's process, which needs no segments.
//
// The segment stays mapped until AddSegment or [Reader.DropSegments] finds that
// the object is gone, or the reader is closed.
func (r *Reader) AddSegment(h Handle, fd int) error {
	if err := r.addSegment(&h, fd); err != nil {
		return r.fail("add the segment of", h, err)
	}
	return nil
}

func (r *Reader) addSegment(h *Handle, fd int) error {
	seg := &segment{fd: fd}
	err := r.checkAdd(h)
	if err != nil {
		seg.release()
		return err
	}
	if seg, err = openLargeSegment(fd, h.Size); err != nil {
		return err
	}
	r.DropSegments()
	return r.large.add(h.Gen, largeObject{segment: seg, size: h.Size, slot: h.Slot})
}

// checkAdd checks the handle before its descriptor is looked at.
func (r *Reader) checkAdd(h *Handle) error {
	if !r.remote {
		return fmt.Errorf("%w: reader %d is in the owner's process", ErrUnsupported, r.id)
	}
	if _, err := r.locate(h); err == nil {
		return fmt.Errorf("%w: the object is in the arena", ErrUnsupported)
	} else if ln, err := r.locateLarge(h, err); err != nil {
		return err
	} else if err := r.missingReason(ln, h); !errors.Is(err, ErrSegment) {
		return err
	}
	return nil
}

// DropSegments unmaps the segments of large objects that are gone. AddSegment
// does that too; a reader that is given no more of them should, now and then,
// because memory is free only when everybody has let it go. In the owner's
// process it does nothing.
func (r *Reader) DropSegments() {
	if !r.remote {
		return
	}
	r.large.releaseIf(func(gen uint64, o largeObject) bool {
		return !isPresent(r.lines[o.slot].word.load(), gen)
	})
}
