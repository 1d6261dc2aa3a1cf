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
// [OpenFillingSegment]), and that no process but its writer can map writable. A [Store]
// is made of segments; a Segment on its own serves a peer that keeps no accounts.
//
// [NewSegment] makes a segment that this process writes, and [OpenSegment] opens a
// segment that a peer made, for reading. Forked children inherit no mapping.
//
// A Segment is safe for concurrent use. It counts no references: the caller knows when
// to call Close.
type Segment struct {
	data []byte

	filled atomic.Int64 // bytes from the start that are known to have memory

	mu      lockorder.Mutex[lockorder.Segment] // guards the descriptor
	segment *segment
}

// NewSegment makes a zeroed segment for this process to write to, and seals it: any
// process may be given the descriptor, and none can write through it. The name shows in
// /proc and serves diagnosis only. The errors are [ErrSize], a [*MemoryError],
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

// OpenFillingSegment is OpenSegment for memory to which its writer adds pages from the
// front as it fills it, as the arena of a [Store] with Options.Reuse. Call [Segment.Filled]
// before reading.
func OpenFillingSegment(name string, fd int, sizeBytes int64) (*Segment, error) {
	return adoptSegment(cleanName(name), fd, sizeBytes, func(fd, sizeBytes int) (*segment, error) {
		return openFillingSegment("segment", fd, sizeBytes)
	})
}

// Filled reports whether the segment has memory for all bytes before endBytes. Only a
// segment of [OpenFillingSegment] may lack some. The writer cannot take memory away. Do not
// read bytes without memory: the read would take memory on this process's account, and kill
// the process if the machine has none.
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

// cleanName turns a name, which may come from outside, into one that the system accepts.
func cleanName(name string) string {
	name = strings.ReplaceAll(name, "\x00", "?")
	return name[:min(len(name), maxSegmentNameBytes)]
}

// Size is the segment's length in bytes.
func (s *Segment) Size() int64 { return int64(len(s.data)) }

// Bytes is the segment's memory. Writing to it is fatal unless this process is
// the segment's writer. After Close it reads as zero, and bytes written to it
// are lost, but no access faults as long as the Segment itself is referred to.
func (s *Segment) Bytes() []byte { return s.data }

// FD is the descriptor, for passing on, or -1 after Close. The Segment keeps
// ownership of it.
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
