package shmstore

import "fmt"

// segment is one piece of memory, of a store or of a [Segment].
type segment struct {
	data []byte
	fd   int // -1: no other process can be given this memory
	// filled is how many bytes have memory, from the first on; see fill.
	filled int
	// released is set when data was unmapped; its addresses read as zero then.
	released bool
}

// fillBytes is the least memory that fill gives a segment at a time: clearing it takes much
// longer than the two system calls.
const fillBytes = 256 << 10

// fill gives a segment of this process its memory up to endBytes, if it has less: from then
// on no access before endBytes fails for want of memory. The error is a
// [*MemoryError], or one of the system's; then nothing has changed.
func (seg *segment) fill(endBytes int) error {
	if endBytes <= seg.filled {
		return nil
	}
	end := min((endBytes+fillBytes-1)/fillBytes*fillBytes, len(seg.data))
	if err := seg.populate(end); err != nil {
		return err
	}
	seg.filled = end
	return nil
}

// fillsLater reports whether the store takes its memory as it fills it. A store without
// Options.Reuse goes round the arena and would soon have taken all of it.
func (s *Store) fillsLater() bool { return s.memory == Shared && s.reuse }

// newStoreSegment makes the arena or the directory.
func (s *Store) newStoreSegment(kind segmentKind, sizeBytes int) (*segment, error) {
	if !s.fillsLater() {
		return newSegment(s.memory, kind, sizeBytes)
	}
	seg, err := newEmptySegment(kind.String(), sizeBytes)
	if err != nil {
		return nil, fmt.Errorf("%v segment of %d bytes: %w", kind, sizeBytes, err)
	}
	return seg, nil
}

// newSegment makes a zeroed segment this process may write to.
func newSegment(m Memory, kind segmentKind, sizeBytes int) (*segment, error) {
	if m == Heap {
		return &segment{data: alignedBytes(sizeBytes), fd: -1, filled: sizeBytes}, nil
	}
	seg, err := newSharedSegment(kind.String(), sizeBytes)
	if err != nil {
		return nil, fmt.Errorf("%v segment of %d bytes: %w", kind, sizeBytes, err)
	}
	return seg, nil
}
