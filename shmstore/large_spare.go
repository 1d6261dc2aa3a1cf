package shmstore

import (
	"math/bits"
	"slices"
)

// largeLooks is how many large objects a store that reuses looks at, for each that it
// makes. Held ones do not keep the others from it: it goes on where it stopped.
const largeCandidates = 8

const (
	// sizesPerDoubling is how many sizes the segments of large objects have from each
	// power of two to the next, in a store that reuses.
	sizesPerDoubling = 8
	// spareExcess is the part of what an object needs that its segment may have more.
	spareExcess = 4
)

// spares are the segments of large objects that are gone, in a store that reuses: the
// next object of that size gets one in place of new memory, whose pages the system would
// have to find and to clear. They are the first to go when there is no room for others.
type spares struct {
	segments  []largeObject // without an object, the oldest first
	sizeBytes uint64
}

// keep takes a segment over.
func (p *spares) keep(o largeObject) {
	p.segments = append(p.segments, largeObject{segment: o.segment, forget: o.forget})
	p.sizeBytes += uint64(len(o.segment.data))
}

// take gives out the smallest of the segments with so many bytes, and of those the one that
// was kept last, unless it has many more.
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

// segmentBytes is the size of the segment that a large object of so many bytes gets: in a
// store that reuses one of few sizes, so that payloads of ever new lengths find the segments of
// those before them.
func (s *Store) segmentBytes(size int) uint64 {
	needed := wholePages(uint64(size))
	if !s.reuse {
		return needed
	}
	step := max(uint64(1)<<bits.Len64(needed-1)/sizesPerDoubling/2, pageBytes)
	return (needed + step - 1) &^ (step - 1)
}

// takeSpare finds a segment for a large object among those that nobody needs any more.
func (s *Store) takeSpare(neededBytes uint64) (o largeObject, ok bool) {
	if !s.reuse {
		return largeObject{}, false
	}
	for range min(largeCandidates, len(s.largeSlots)) {
		if s.nextLargeReclaim >= len(s.largeSlots) {
			s.nextLargeReclaim = 0
		}
		if !s.evictSlot(s.largeSlots[s.nextLargeReclaim]) {
			s.nextLargeReclaim++ // otherwise the next one has moved up
		}
	}
	return s.spares.take(neededBytes)
}

// dropSpare gives the oldest segment that is kept back.
func (s *Store) dropSpare() bool {
	if len(s.spares.segments) == 0 {
		return false
	}
	s.discard(s.spares.remove(0))
	return true
}

// TrimLarge gives the memory of large objects back that no reader holds, the oldest first, until
// what is left is no more than Options.KeepLargeBytes. Writer only.
func (s *Store) TrimLarge() {
	for s.largeBytes+s.spares.sizeBytes > s.keepLarge && (s.dropSpare() || s.evictLarge()) {
		continue
	}
}

// dropSpares gives all of them back.
func (s *Store) dropSpares() {
	for s.dropSpare() {
	}
}

// discard gives the segment of a large object back that is gone.
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
