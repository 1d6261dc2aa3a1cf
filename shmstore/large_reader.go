package shmstore

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// The methods of a reader call the functions below when locate has refused a handle. It
// refuses those of large objects, so that the path of other objects has no check for them.

// locateLarge is locate for the handle of a large object. For other handles it returns
// the reason for which they were refused.
func (r *Reader) locateLarge(h *Handle, reason error) (*line, error) {
	switch {
	case errors.Is(reason, errForeign), !errors.Is(reason, ErrCorrupt), !IsLarge(*h):
		return nil, reason
	case h.Slot >= uint32(len(r.lines)), h.Gen == 0, h.Gen > maxGeneration:
		return nil, ErrCorrupt
	}
	return &r.lines[h.Slot], nil
}

// viewLarge returns the memory of a large object. The result is valid only if
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

// missingReason returns the error for a large object without a segment. In the owner's
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
		return ErrStale // it was added after the table was read
	default:
		return ErrSegment
	}
}

// takeLarge continues Take after locate or collect have failed.
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

// pinLarge continues Pin after locate or pin have failed.
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
// it is mapped read-only. AddSegment owns it from here on, also if it fails. Adding a
// segment a second time is no error. The
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

// checkAdd checks the handle before its descriptor is used.
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
// does that too; a reader that gets no more segments should call DropSegments now and then,
// because the memory is free only when every process has unmapped it. In the owner's
// process it does nothing.
func (r *Reader) DropSegments() {
	if !r.remote {
		return
	}
	r.large.releaseIf(func(gen uint64, o largeObject) bool {
		return !isPresent(r.lines[o.slot].word.load(), gen)
	})
}
