package shmstore

import "fmt"

// segment is one piece of memory, of a store or of a [Segment].
type segment struct {
	data []byte
	fd   int // -1: no other process can be given this memory
	// released is set when data was unmapped; its addresses read as zero then.
	released bool
}

// newSegment makes the arena or the directory.
func (s *Store) newSegment(kind segmentKind, sizeBytes int) (*segment, error) {
	if s.file == nil {
		return newSegment(s.memory, kind, sizeBytes)
	}
	seg, err := newFileSegment(s.file, kind.String(), sizeBytes, (*segment).mapWritable)
	if err != nil {
		return nil, fmt.Errorf("%v segment of %d bytes: %w", kind, sizeBytes, err)
	}
	return seg, nil
}

// newSegment makes a zeroed segment this process may write to.
func newSegment(m Memory, kind segmentKind, sizeBytes int) (*segment, error) {
	if m == Heap {
		return &segment{data: alignedBytes(sizeBytes), fd: -1}, nil
	}
	seg, err := newSharedSegment(kind.String(), sizeBytes)
	if err != nil {
		return nil, fmt.Errorf("%v segment of %d bytes: %w", kind, sizeBytes, err)
	}
	return seg, nil
}
