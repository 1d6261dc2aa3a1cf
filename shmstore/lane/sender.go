package lane

import (
	"encoding/binary"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Sender is the sending side of a lane. It is for one goroutine at a time.
type Sender struct {
	wake       func()
	peer       *receiverPage
	frames     []byte
	capacity   uint64
	maxFrame   int
	broken     error  // the ErrPeer that ended the lane
	wokenSleep uint32 // the number of the receiver's last sleep that was ended by a wake-up

	// Private positions: this side never reads its own bytes back from
	// shared memory, and head is the last valid one of the receiver.
	next uint64 // the end of the frames
	head uint64
}

// NewSender makes the sending side. Own is this process's segment, formatted; theirs is
// the receiver's, which is checked and then only read. Both stay in use until
// the last call of a method. TrySend calls wake to wake a receiver that sleeps.
func NewSender(geo Geometry, own, theirs []byte, wake func()) (*Sender, error) {
	geo.mustFit(own, geo.SenderBytes())
	if err := geo.verify(theirs, kindReceiver, geo.ReceiverBytes()); err != nil {
		return nil, fmt.Errorf("new sender: %w", err)
	}
	return &Sender{
		wake:     wake,
		peer:     receiverPageOf(theirs),
		frames:   own[pageBytes:],
		capacity: geo.capacity,
		maxFrame: geo.MaxFrameBytes(),
	}, nil
}

// TrySend copies the payload into a frame and publishes it, and wakes the receiver if it
// sleeps. It does not block. The error is [ErrFull] when there is no space now,
// [ErrTooLarge] for a payload above [Geometry.MaxFrameBytes], or [ErrPeer].
func (s *Sender) TrySend(kind Kind, payload []byte) error {
	if kind > MaxKind {
		panic("lane: the kind of a frame is above MaxKind")
	}
	if s.broken != nil {
		return s.broken
	}
	n := uint64(len(payload))
	if len(payload) > s.maxFrame {
		return fmt.Errorf("%w: %d bytes of at most %d: send it by other means, or use a larger lane", ErrTooLarge, n, s.maxFrame)
	}
	at := s.frameStart(n)
	end := at + spanOf(n)
	if err := s.checkSpace(end + headerBytes); err != nil {
		return err
	}
	copy(s.frames[s.offset(at)+headerBytes:], payload)
	first := headerOf(kind, n)
	if at != s.next {
		s.putHeader(at, first)
		first = headerOf(skipKind, at-s.next-headerBytes)
	}
	s.putHeader(end, 0)
	faultpoint.Hit("lane-before-publish")
	headerAt(s.frames, s.offset(s.next)).Store(first)
	s.next = end
	// The store is a fence: either the receiver sees the header when it checks a last time
	// before it sleeps, or this side sees its counter.
	sleep, sleeps := s.ReceiverSleeps()
	faultpoint.Hit("lane-published")
	if sleeps {
		s.MarkWoken(sleep)
		s.wake()
	}
	return nil
}

func (s *Sender) offset(position uint64) uint64 { return position & (s.capacity - 1) }

// frameStart is the position of a frame of n payload bytes: behind the last frame, or
// behind a skip.
func (s *Sender) frameStart(n uint64) uint64 {
	left := s.capacity - s.offset(s.next)
	if spanOf(n) > left {
		return s.next + left
	}
	return s.next
}

// checkSpace returns [ErrFull] unless the lane has space up to a position. It reads the
// receiver's head only if the last one is not enough.
func (s *Sender) checkSpace(end uint64) error {
	if end-s.head <= s.capacity {
		return nil
	}
	if err := s.readHead(); err != nil {
		return err
	}
	if end-s.head > s.capacity {
		return ErrFull
	}
	return nil
}

// readHead reads and checks the receiver's head.
func (s *Sender) readHead() error {
	head := s.peer.head.Load()
	// Unsigned: a head before the last one is very far ahead of it.
	if head-s.head > s.next-s.head || head%frameAlign != 0 {
		s.broken = peerError("head", s.head, head, s.head, s.next)
		return s.broken
	}
	s.head = head
	return nil
}

// putHeader writes a header that the receiver does not read yet.
func (s *Sender) putHeader(position, header uint64) {
	binary.NativeEndian.PutUint64(s.frames[s.offset(position):], header)
}

// ReceiverSleeps reports whether the receiver sleeps and was not woken yet, and the number
// of the sleep.
func (s *Sender) ReceiverSleeps() (sleep uint32, sleeps bool) {
	sleep = s.peer.asleep.Load() // any value is harmless
	return sleep, sleep%2 == 1 && sleep != s.wokenSleep
}

// MarkWoken records that the receiver was woken from a sleep, and needs no further wake-up
// from it.
func (s *Sender) MarkWoken(sleep uint32) { s.wokenSleep = sleep }
