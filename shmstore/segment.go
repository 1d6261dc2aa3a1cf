package shmstore

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

const (
	maxSegmentBytes     = min(maxArenaBytes, math.MaxInt)
	maxSegmentNameBytes = 200 // a memfd's name has at most 249
)

// Segment is one piece of shared memory that exactly one process writes to: a
// memfd whose size is fixed, whose pages are all allocated (but see
// [OpenFillingSegment]), and that nobody but its writer can map writable any more. It is
// what a [Store] is made of, by itself, for a peer that keeps no accounts.
//
// There are two ways to one. [NewSegment] is for the memory this process writes, and
// [OpenSegment] for reading what a peer made. All mappings are kept from forked children.
//
// A Segment is safe for concurrent use. Who still needs it is for the caller to
// know: Close does not count.
type Segment struct {
	data []byte

	filled atomic.Int64 // bytes from the first on that are known to have memory

	mu      lockorder.Mutex[lockorder.Segment] // guards the descriptor
	segment *segment
}

// NewSegment makes a zeroed segment for this process to write to, and seals it
// for everybody else: any process may be given the descriptor. The name is for
// people; it shows in /proc. The errors are [ErrSize], a [*MemoryError],
// [ErrUnsupported], and those of the system.
func NewSegment(name string, sizeBytes int64) (*Segment, error) {
	name = cleanName(name)
	err := checkSegmentSize(sizeBytes)
	if err == nil {
		err = checkSegmentHeadroom(uint64(sizeBytes))
	}
	var seg *segment
	if err == nil {
		seg, err = newSharedSegment(name, int(sizeBytes))
	}
	if err != nil {
		return nil, fmt.Errorf("new segment %q of %d bytes: %w", name, sizeBytes, err)
	}
	return wrapSegment(seg), nil
}

func wrapSegment(seg *segment) *Segment {
	s := &Segment{data: seg.data, segment: seg}
	s.filled.Store(int64(seg.filled))
	return s
}

// OpenSegment maps a segment that a peer made and writes to, read-only. The
// peer is not trusted: the descriptor must be a memfd of exactly this size, with
// all its pages, that can neither shrink, grow nor be mapped writable again.
// OpenSegment owns the descriptor from here on, also if it fails. The error is
// [ErrSize], [ErrProtocol], [ErrUnsupported] or one of the system's.
func OpenSegment(name string, fd int, sizeBytes int64) (*Segment, error) {
	return adoptSegment(cleanName(name), fd, sizeBytes, func(fd, sizeBytes int) (*segment, error) {
		return openSegment("segment", fd, sizeBytes)
	})
}

// OpenFillingSegment is OpenSegment for memory whose writer gives it pages as it fills it,
// from the front on, as that of a [Store] with Options.Reuse is. Ask [Segment.Filled]
// before reading.
func OpenFillingSegment(name string, fd int, sizeBytes int64) (*Segment, error) {
	return adoptSegment(cleanName(name), fd, sizeBytes, func(fd, sizeBytes int) (*segment, error) {
		return openFillingSegment("segment", fd, sizeBytes)
	})
}

// Filled reports whether the segment has memory for all bytes in front of an end, as every
// segment has but one of [OpenFillingSegment]. Its writer can take none of it away. Do not
// read where it has none: that would take memory, on this process's account, and kill the
// process where there is none.
func (s *Segment) Filled(endBytes int64) bool {
	if endBytes <= s.filled.Load() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filled.Store(max(s.filled.Load(), s.segment.filledFrom(s.filled.Load())))
	return endBytes <= s.filled.Load()
}

func adoptSegment(name string, fd int, sizeBytes int64, open func(fd, sizeBytes int) (*segment, error)) (*Segment, error) {
	err := checkSegmentSize(sizeBytes)
	if err != nil {
		(&segment{fd: fd}).release()
	}
	var seg *segment
	if err == nil {
		seg, err = open(fd, int(sizeBytes))
	}
	if err != nil {
		return nil, fmt.Errorf("open segment %q of %d bytes: %w", name, sizeBytes, err)
	}
	return wrapSegment(seg), nil
}

func checkSegmentSize(sizeBytes int64) error {
	if sizeBytes < 1 || sizeBytes > maxSegmentBytes {
		return fmt.Errorf("%w: %d bytes are not in [1, %d]", ErrSize, sizeBytes, int64(maxSegmentBytes))
	}
	return nil
}

// cleanName makes a name that the system takes of one that may come from
// outside.
func cleanName(name string) string {
	name = strings.ReplaceAll(name, "\x00", "?")
	return name[:min(len(name), maxSegmentNameBytes)]
}

// Size is the segment's length in bytes.
func (s *Segment) Size() int64 { return int64(len(s.data)) }

// Bytes is the segment's memory. Writing to it is fatal unless this process is
// the segment's writer. After Close it reads as zero, and what is written to it
// is lost, but nothing faults as long as the Segment itself is referred to.
func (s *Segment) Bytes() []byte { return s.data }

// FD is the descriptor, for passing on, or -1 after Close. It stays the
// segment's own.
func (s *Segment) FD() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segment.fd
}

// Close gives the memory and the descriptor back. Other processes keep what
// they have mapped. Closing again does nothing.
func (s *Segment) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segment.release()
}
