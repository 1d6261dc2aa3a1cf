package shmstore

import (
	"fmt"
	"math"
	"strings"
	"sync"
)

const (
	maxSegmentBytes     = min(maxArenaBytes, math.MaxInt)
	maxSegmentNameBytes = 200 // a memfd's name has at most 249
)

// Segment is one piece of shared memory that exactly one process writes to: a
// memfd whose size is fixed, whose pages are all allocated, and that nobody but
// its writer can map writable any more. It is what a [Store] is made of, by
// itself, for a peer that keeps no accounts.
//
// There are four ways to one. [NewSegment] is for the memory this process
// writes. [CreateSegment] makes it here for a peer to write, which opens it with
// [OpenSegmentForWriting]; when the peer says that it has, [Segment.Sealed] finds
// out whether that is so. [OpenSegment] is for reading what a peer made. All
// mappings are kept from forked children.
//
// A Segment is safe for concurrent use. Who still needs it is for the caller to
// know: Close does not count.
type Segment struct {
	name string
	data []byte

	mu      sync.Mutex // guards the descriptor
	segment *segment
}

// NewSegment makes a zeroed segment for this process to write to, and seals it
// for everybody else: any process may be given the descriptor. The name is for
// people; it shows in /proc. The errors are [ErrSize], a [*MemoryError],
// [ErrUnsupported], and those of the system.
func NewSegment(name string, sizeBytes int64) (*Segment, error) {
	return makeSegment("new", name, sizeBytes, newSharedSegment)
}

// CreateSegment makes a zeroed segment for a peer to write to. It is mapped
// read-only here. Until [Segment.Sealed] is nil the descriptor must be passed
// to nobody but that peer, for whoever has it can write. The errors are those
// of [NewSegment].
func CreateSegment(name string, sizeBytes int64) (*Segment, error) {
	return makeSegment("create", name, sizeBytes, newPeerSegment)
}

func makeSegment(op, name string, sizeBytes int64, allocate func(string, int) (*segment, error)) (*Segment, error) {
	name = cleanName(name)
	err := checkSegmentSize(sizeBytes)
	if err == nil {
		err = checkSegmentHeadroom(uint64(sizeBytes))
	}
	var seg *segment
	if err == nil {
		seg, err = allocate(name, int(sizeBytes))
	}
	if err != nil {
		return nil, fmt.Errorf("%s segment %q of %d bytes: %w", op, name, sizeBytes, err)
	}
	return &Segment{name: name, data: seg.data, segment: seg}, nil
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

// OpenSegmentForWriting maps a segment that a peer has made with
// [CreateSegment] for this process to write to, and then seals it, so that
// nobody else can. It owns the descriptor from here on, also if it fails. The
// errors are those of [OpenSegment].
func OpenSegmentForWriting(fd int, sizeBytes int64) (*Segment, error) {
	return adoptSegment("own", fd, sizeBytes, openWritableSegment)
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
	return &Segment{name: name, data: seg.data, segment: seg}, nil
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

// Name is what the segment was called when it was made or opened.
func (s *Segment) Name() string { return s.name }

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

// Sealed reports whether nobody but the segment's writer can write to it any
// more: nil, and it stays so, or an [ErrProtocol] that says which seals are
// missing, or what else the peer has done to the segment. Ask before the
// descriptor of a segment made by [CreateSegment] is passed to anybody else.
// After Close the error is [ErrClosed].
func (s *Segment) Sealed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := ErrClosed
	if !s.segment.released {
		err = s.segment.sealed()
	}
	if err != nil {
		return fmt.Errorf("segment %q: %w", s.name, err)
	}
	return nil
}

// Close gives the memory and the descriptor back. Other processes keep what
// they have mapped. Closing again does nothing.
func (s *Segment) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segment.release()
}
