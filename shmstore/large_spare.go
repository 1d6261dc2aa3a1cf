package shmstore

import (
	"math/bits"
	"slices"
)

// largeCandidates is how many large objects a store with Reuse checks for each that it
// makes. Objects that are held do not hide the others: the next check continues where
// this one stopped.
const largeCandidates = 8

const (
	// sizesPerDoubling is how many sizes the segments of large objects have from each
	// power of two to the next, in a store with Reuse.
	sizesPerDoubling = 8
	// spareExcess bounds a spare segment: it may have 1/spareExcess more bytes than its
	// object needs.
	spareExcess = 4
)

// spares are the segments of large objects that are gone, in a store with Reuse: the
// next object of that size gets one in place of new memory, whose pages the system would
// have to find and to clear. They are dropped first when there is no space for others.
type spares struct {
	segments  []largeObject // without an object, the oldest first
	sizeBytes uint64
}

// keep adds the segment of an object that is gone.
func (p *spares) keep(o largeObject) {
	p.segments = append(p.segments, largeObject{segment: o.segment, forget: o.forget})
	p.sizeBytes += uint64(len(o.segment.data))
}

// take removes and returns the smallest segment with at least so many bytes, of equal ones
// the one kept last. It reports false if all of those exceed spareExcess.
func (p *spares) take(neededBytes uint64) (o largeObject, ok bool) {
	best, most := -1, neededBytes+neededBytes/spareExcess
	for index, o := range slices.Backward(p.segments) {
		if n := uint64(len(o.segment.data)); n >= neededBytes && n <= most {
			best, most = index, n-1
		}
	}
	if best < 0 {
		return largeObject{}, false
	}
	return p.remove(best), true
}

func (p *spares) remove(index int) largeObject {
	o := p.segments[index]
	p.segments = slices.Delete(p.segments, index, index+1)
	p.sizeBytes -= uint64(len(o.segment.data))
	return o
}

// segmentBytes is the size of the segment for a large object of so many bytes. In a
// store with Reuse it is one of few sizes, so that a payload of a new length finds the
// segments of earlier payloads.
func (s *Store) segmentBytes(size int) uint64 {
	needed := wholePages(uint64(size))
	if !s.reuse {
		return needed
	}
	step := max(uint64(1)<<bits.Len64(needed-1)/sizesPerDoubling/2, pageBytes)
	return (needed + step - 1) &^ (step - 1)
}

// takeSpare evicts some settled large objects, and takes a spare segment that fits.
func (s *Store) takeSpare(neededBytes uint64) (o largeObject, ok bool) {
	if !s.reuse {
		return largeObject{}, false
	}
	for range min(largeCandidates, len(s.largeSlots)) {
		if s.nextLargeReclaim >= len(s.largeSlots) {
			s.nextLargeReclaim = 0
		}
		if !s.evictSlot(s.largeSlots[s.nextLargeReclaim]) {
			s.nextLargeReclaim++ // an evicted one leaves the list, and the next moves up
		}
	}
	return s.spares.take(neededBytes)
}

// dropSpare discards the oldest spare segment.
func (s *Store) dropSpare() bool {
	if len(s.spares.segments) == 0 {
		return false
	}
	s.discard(s.spares.remove(0))
	return true
}

// TrimLarge drops spare segments, and then evicts settled large objects, the oldest first,
// until large objects and spare segments take no more than Options.KeepLargeBytes. Writer
// only.
func (s *Store) TrimLarge() {
	for s.largeBytes+s.spares.sizeBytes > s.keepLarge && (s.dropSpare() || s.evictLarge()) {
		continue
	}
}

// dropSpares discards all spare segments.
func (s *Store) dropSpares() {
	for s.dropSpare() {
	}
}

// discard unmaps a segment whose object is gone, after the devices have forgotten it.
func (s *Store) discard(o largeObject) {
	if o.forget == nil {
		o.segment.release()
		return
	}
	segmentBytes := uint64(len(o.segment.data))
	s.leavingBytes.Add(segmentBytes)
	left := func() {
		s.leavingBytes.Add(-segmentBytes)
		s.doorbell.press()
	}
	o.release(left, func() {
		s.stayingBytes.Add(segmentBytes)
		left()
	})
}
