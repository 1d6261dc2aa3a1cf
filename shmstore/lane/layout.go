package lane

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
)

// A lane is made of two segments, each with exactly one writing process. All
// fields are in the byte order of the machine: a segment never leaves it.
//
//	segment     written by    mapped read-only by  size in bytes
//	sender's    the sender    the receiver         4096 + capacity
//	receiver's  the receiver  the sender           4096
//
// Sender's segment:
//
//	offset  size      field      access
//	     0    64      superblock written once, before the segment is handed over
//	  4096  capacity  frames     plain, but for headers, which order the rest
//
// Receiver's segment:
//
//	offset  size  field       access
//	     0    64  superblock  written once, before the segment is handed over
//	    64     8  head        atomic; end of the freed frames
//	   128     4  asleep      atomic; odd while the receiver sleeps
//
// The bytes between the fields are zero. Fields that change at different times
// are on cache lines of their own, and on pairs of lines of their own, because
// processors fetch lines in pairs.
//
// Superblock:
//
//	offset  size  field
//	     0     8  magic: "OMNIBUS" and the kind of the segment
//	     8     4  layout version
//	    12     4  zero
//	    16     8  identity of the lane
//	    24     8  capacity in bytes, a power of two
//	    32    32  zero
//
// Positions, of which head is one, count bytes since the lane began. They only
// grow, and 64 bits last for decades at any speed of memory. The byte at a position is at
// position modulo capacity in the frames.
//
// Frame, at a position that is a multiple of 8:
//
//	offset  size  field
//	     0     8  header: kind << 32 | 1 << 31 | length; or 0, and no frame yet
//	     8     n  payload, n = length
//	 8 + n   0-7  padding
//
// A frame never wraps. If there is too little space before the end of the
// frames, a skip precedes it: a header of kind 0xffffffff whose length
// reaches exactly to the end. A skip and the frame behind it are published
// together.
//
// Behind the last published frame there is a header of zero, which the
// receiver reads until the next frame replaces it. The bytes behind that header may be
// left from an earlier round.
//
//	head            stored last           stored before
//	|               |                     |
//	| frame | frame | skip  | frame       | 0 |
//	|<- published ->|<-- published now -->|
//	|<---------- at most the capacity ------->|
//
// The header of a frame, or that of its skip, is stored last, after all its other bytes
// and the zero behind it. So frames take at most the capacity less 8.
const (
	layoutVersion = 2

	pageBytes       = 4096
	superblockBytes = 64
	headerBytes     = 8
	frameAlign      = 8

	headOffset   = 64
	asleepOffset = 128

	minCapacityBytes = 1 << 10
	maxCapacityBytes = 1 << 30
	maxFrameBytes    = 64 << 10
	// framesPerLane is how many frames of the largest size a lane holds at
	// least. With two or more, a frame and the skip before it fit together.
	framesPerLane = 4
)

// receiverPage is the receiver's whole segment.
type receiverPage struct {
	superblock [superblockBytes]byte
	head       atomic.Uint64
	_          [asleepOffset - headOffset - 8]byte
	asleep     atomic.Uint32
	_          [pageBytes - asleepOffset - 4]byte
}

// Kind is the kind of a frame. The two sides agree on its meaning.
type Kind uint32

// MaxKind is the largest kind. The one above it marks a skip.
const MaxKind Kind = math.MaxUint32 - 1

const skipKind Kind = math.MaxUint32

// present is in every header of a frame or a skip, so that none is zero.
const present = 1 << 31

func headerOf(kind Kind, length uint64) uint64 { return uint64(kind)<<32 | present | length }

// splitHeader undoes headerOf. Any 64 bits have a kind and a length.
func splitHeader(header uint64) (Kind, uint64) {
	return Kind(header >> 32), header & (present - 1)
}

// spanOf is how many bytes of the lane a frame takes. A length from a header
// has 31 bits, so the sum cannot overflow.
func spanOf(length uint64) uint64 {
	return headerBytes + (length+frameAlign-1)&^(frameAlign-1)
}

// Geometry is the identity and the capacity of a lane. Both sides use the same. [Layout]
// makes one; the zero value is invalid.
type Geometry struct {
	id       uint64
	capacity uint64
}

// Layout describes a lane. By the id the two sides notice that they hold
// segments of different lanes. The capacity bounds all frames together: each takes
// 8 to 15 bytes beside its payload, and 8 bytes stay free. It is a power of two from 1 KiB
// to 1 GiB.
func Layout(id uint64, capacityBytes int) (Geometry, error) {
	if capacityBytes < minCapacityBytes || capacityBytes > maxCapacityBytes || capacityBytes&(capacityBytes-1) != 0 {
		return Geometry{}, fmt.Errorf("lane: a capacity of %d bytes is not a power of two in [%d, %d]",
			capacityBytes, minCapacityBytes, maxCapacityBytes)
	}
	return Geometry{id: id, capacity: uint64(capacityBytes)}, nil
}

// SenderBytes is the size of the sender's segment.
func (g Geometry) SenderBytes() int { return pageBytes + int(g.capacity) }

// ReceiverBytes is the size of the receiver's segment.
func (g Geometry) ReceiverBytes() int { return pageBytes }

// MaxFrameBytes is the size of the largest payload of one frame: 64 KiB, or
// less, so that four frames fit into the lane. It is a multiple of 8.
func (g Geometry) MaxFrameBytes() int {
	return int(min(maxFrameBytes, g.capacity/framesPerLane-2*headerBytes))
}

// FormatSender prepares the sender's segment. Call it once, before the segment
// is handed to the receiver.
func (g Geometry) FormatSender(own []byte) {
	g.mustFit(own, g.SenderBytes())
	clear(own[:pageBytes+headerBytes]) // a header of zero: no frame yet
	g.putSuperblock(own, kindSender)
}

// FormatReceiver prepares the receiver's segment. Call it once, before the
// segment is handed to the sender.
func (g Geometry) FormatReceiver(own []byte) {
	g.mustFit(own, g.ReceiverBytes())
	clear(own)
	g.putSuperblock(own, kindReceiver)
}

func (g Geometry) mustFit(own []byte, sizeBytes int) {
	if g.capacity == 0 {
		panic("lane: the geometry does not come from Layout")
	}
	if len(own) != sizeBytes || !isAligned(own) {
		panic(fmt.Sprintf("lane: this side's segment has %d bytes instead of %d, or does not begin at a multiple of %d",
			len(own), sizeBytes, segmentAlign))
	}
}

// segmentKind is the last byte of a segment's magic.
type segmentKind byte

const (
	kindSender   segmentKind = 'T'
	kindReceiver segmentKind = 'H'
)

func (k segmentKind) String() string {
	if k == kindSender {
		return "sender's segment"
	}
	return "receiver's segment"
}

func (g Geometry) superblock(kind segmentKind) (b [superblockBytes]byte) {
	copy(b[:], "OMNIBUS")
	b[7] = byte(kind)
	binary.NativeEndian.PutUint32(b[8:], layoutVersion)
	binary.NativeEndian.PutUint64(b[16:], g.id)
	binary.NativeEndian.PutUint64(b[24:], g.capacity)
	return b
}

func (g Geometry) putSuperblock(own []byte, kind segmentKind) {
	b := g.superblock(kind)
	copy(own, b[:])
}

// verify checks the size, the alignment and the superblock of a peer's segment.
func (g Geometry) verify(theirs []byte, kind segmentKind, sizeBytes int) error {
	if len(theirs) != sizeBytes || !isAligned(theirs) {
		return fmt.Errorf("%w: its %v has %d bytes instead of %d, or does not begin at a multiple of %d",
			ErrPeer, kind, len(theirs), sizeBytes, segmentAlign)
	}
	if want := g.superblock(kind); [superblockBytes]byte(theirs[:superblockBytes]) != want {
		return fmt.Errorf("%w: its %v is not of lane %x with %d bytes in layout version %d: exchange the segments again",
			ErrPeer, kind, g.id, g.capacity, layoutVersion)
	}
	return nil
}
