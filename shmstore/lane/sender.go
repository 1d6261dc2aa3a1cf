package lane

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Sender is the sending side of a lane. It is for one goroutine at a time, but
// for Err, Fail and Close.
type Sender struct {
	sleeper  sleeper
	bell     bell
	page     *senderPage
	peer     *receiverPage
	frames   []byte
	capacity uint64
	maxFrame int
	broken   atomic.Pointer[PeerError] // what the peer did, for good

	// Positions, private: what this side wrote is never read back from
	// memory, and head is the last one that was found to be good.
	published uint64 // the end of the published frames
	first     uint64 // the header to be stored there
	next      uint64 // the end of the committed frames
	head      uint64
	want      uint64 // the head that a wait is for

	reserved bool
	at       uint64 // the position of the reserved frame
	room     int    // and its payload
}

// NewSender begins to send. Own is this process's segment, formatted; theirs is
// the receiver's, which is checked and then only read. Both stay in use until
// the last call of a method.
func NewSender(geo Geometry, own, theirs []byte, waker Waker, opts Options) (*Sender, error) {
	geo.mustFit(own, geo.SenderBytes())
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("new sender: %w", err)
	}
	if err := geo.verify(theirs, kindReceiver, geo.ReceiverBytes()); err != nil {
		return nil, fmt.Errorf("new sender: %w", err)
	}
	s := &Sender{
		page:     senderPageOf(own),
		peer:     receiverPageOf(theirs),
		frames:   own[pageBytes:],
		capacity: geo.capacity,
		maxFrame: geo.MaxFrameBytes(),
	}
	s.bell.asleep = &s.peer.asleep
	s.sleeper = sleeper{
		asleep:  &s.page.asleep,
		watched: &s.peer.head,
		ready:   s.isWanted,
		waker:   waker,
		ladder:  newLadder(opts.Waiting),
	}
	return s, nil
}

// Reserve finds room for a frame of n payload bytes and returns it, to be
// filled and committed. A second Reserve before Commit takes the place of the
// first. The error is [ErrFull] when there is no room now, [ErrTooLarge] when
// there never is, or what ended the lane.
func (s *Sender) Reserve(n int) ([]byte, error) {
	s.reserved = false
	if err := s.Err(); err != nil {
		return nil, err
	}
	if err := s.checkSize(n); err != nil {
		return nil, err
	}
	at := s.place(n)
	end := s.endOf(at, n)
	if end-s.head > s.capacity {
		if err := s.readHead(); err != nil {
			return nil, err
		}
		if end-s.head > s.capacity {
			return nil, ErrFull
		}
	}
	s.reserved, s.at, s.room = true, at, n
	payload := s.frames[s.offset(at)+headerBytes:]
	return payload[:n:n], nil
}

func (s *Sender) checkSize(n int) error {
	if n < 0 {
		panic("lane: a frame of negative size")
	}
	if n > s.maxFrame {
		return fmt.Errorf("%w: %d bytes of at most %d: send a handle, or use a larger lane", ErrTooLarge, n, s.maxFrame)
	}
	return nil
}

func (s *Sender) offset(position uint64) uint64 { return position & (s.capacity - 1) }

// place is where the next frame begins: at the end of the committed ones, or
// behind a skip.
func (s *Sender) place(n int) uint64 {
	left := s.capacity - s.offset(s.next)
	if spanOf(uint64(n)) > left {
		return s.next + left
	}
	return s.next
}

// endOf is the end of a frame with the header behind it.
func (s *Sender) endOf(at uint64, n int) uint64 { return at + spanOf(uint64(n)) + headerBytes }

// readHead reads how far the receiver has come.
func (s *Sender) readHead() error {
	head := s.peer.head.Load()
	// Unsigned: a head before the last one is very far ahead of it.
	if head-s.head > s.published-s.head || head%frameAlign != 0 {
		broken := &PeerError{What: "head", Position: s.head, Value: head, Min: s.head, Max: s.published}
		s.broken.Store(broken)
		return broken
	}
	s.head = head
	return nil
}

// Commit ends the reserved frame with the first n bytes of its payload. The
// receiver does not see it before Publish.
func (s *Sender) Commit(kind Kind, n int) {
	if !s.reserved || n < 0 || n > s.room {
		panic(fmt.Sprintf("lane: commit of %d bytes without a reservation for them", n))
	}
	if kind > MaxKind {
		panic("lane: the kind of a frame is above MaxKind")
	}
	s.reserved = false
	if s.at != s.next {
		s.putHeader(s.next, headerOf(skipKind, s.at-s.next-headerBytes))
	}
	s.putHeader(s.at, headerOf(kind, uint64(n)))
	s.next = s.at + spanOf(uint64(n))
}

// putHeader writes a header that the receiver does not look at yet. It looks
// at the one behind the published frames, which is therefore kept back.
func (s *Sender) putHeader(position, header uint64) {
	if position == s.published {
		s.first = header
		return
	}
	binary.NativeEndian.PutUint64(s.frames[s.offset(position):], header)
}

// Publish lets the receiver see all committed frames, and wakes it if it is
// asleep.
func (s *Sender) Publish() {
	if s.next == s.published {
		return
	}
	s.putHeader(s.next, 0)
	faultpoint.Hit("lane-before-publish")
	sleep, wanted := s.bell.move(headerAt(s.frames, s.offset(s.published)), s.first)
	s.published = s.next
	faultpoint.Hit("lane-published")
	if wanted {
		s.bell.answered = sleep
		s.sleeper.waker.Wake()
	}
}

// Sleeps reports whether the receiver sleeps and was not woken yet, and the number of the
// sleep.
func (s *Sender) Sleeps() (sleep uint32, sleeps bool) {
	sleep = s.bell.asleep.Load()
	return sleep, sleep%2 == 1 && sleep != s.bell.answered
}

// Woken says that the receiver was woken from a sleep by other means than the waker.
func (s *Sender) Woken(sleep uint32) { s.bell.answered = sleep }

// Append commits a frame made of the given parts. Errors are those of
// [Sender.Reserve].
func (s *Sender) Append(kind Kind, parts ...[]byte) error {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	payload, err := s.Reserve(n)
	if err != nil {
		return err
	}
	for _, part := range parts {
		payload = payload[copy(payload, part):]
	}
	s.Commit(kind, n)
	return nil
}

// TrySend sends a frame made of the given parts, and what was committed before
// it. It does not block. Errors are those of [Sender.Reserve].
func (s *Sender) TrySend(kind Kind, parts ...[]byte) error {
	if err := s.Append(kind, parts...); err != nil {
		return err
	}
	s.Publish()
	return nil
}

// Send is TrySend, but waits for room. The error is never [ErrFull]; it may be
// the context's.
func (s *Sender) Send(ctx context.Context, kind Kind, parts ...[]byte) error {
	err := s.TrySend(kind, parts...)
	if err != ErrFull { //nolint:errorlint // it comes as it is, on the hot path
		return err
	}
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	if err := s.Wait(ctx, n); err != nil {
		return err
	}
	return s.TrySend(kind, parts...)
}

// Wait publishes what is committed and waits until Reserve will find room for a
// frame of n payload bytes. A lane that was full is let run empty by a quarter
// first, so that the two sides do not wake each other for every frame. A
// reservation that was not committed is gone.
func (s *Sender) Wait(ctx context.Context, n int) error {
	s.reserved = false
	if err := s.checkSize(n); err != nil {
		return err
	}
	s.Publish()
	if err := s.Err(); err != nil {
		return err
	}
	if err := s.readHead(); err != nil {
		return err
	}
	end := s.endOf(s.place(n), n)
	if end-s.head <= s.capacity {
		return nil
	}
	// The receiver can come as far as next, and so to either position: a
	// frame and its skip take less than the lane, and the lane is more than a
	// quarter full if they find no room.
	s.want = max(end-s.capacity, s.head+s.capacity/framesPerLane)
	s.page.wantRoom.Store(s.want)
	if err := s.sleeper.wait(ctx); err != nil {
		return fmt.Errorf("wait for room in the lane: %w", err)
	}
	return nil
}

// isWanted reports whether the receiver has come as far as a wait is for.
func (s *Sender) isWanted() (bool, error) {
	err := s.readHead()
	return s.head >= s.want, err
}

// Err returns what ended the lane, or nil. Any goroutine may call it.
func (s *Sender) Err() error {
	if broken := s.broken.Load(); broken != nil {
		return broken
	}
	if end := s.sleeper.ended.Load(); end != nil {
		return end.err
	}
	return nil
}

// Fail says that the receiver is gone: it ends a wait, now and later, with
// [ErrPeerGone] and the cause, which may be nil. Any goroutine may call it.
func (s *Sender) Fail(cause error) { s.sleeper.end(&ending{err: gone(cause), final: true}) }

// Close ends a wait, now and later, with [ErrClosed]. Any goroutine may call
// it. The segments are the caller's to unmap, when no method is running.
func (s *Sender) Close() { s.sleeper.end(closed) }

func gone(cause error) error {
	if cause == nil {
		return ErrPeerGone
	}
	return fmt.Errorf("%w: %w", ErrPeerGone, cause)
}
