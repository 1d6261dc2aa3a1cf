package lane

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Receiver is the receiving side of a lane. It is for one goroutine at a time,
// but for Fail and Close.
type Receiver struct {
	sleeper  sleeper
	bell     bell
	page     *receiverPage
	peer     *senderPage
	frames   []byte // the peer's
	capacity uint64
	maxSpan  uint64 // of a frame
	err      error  // what the peer did, for good

	// Positions, private: head <= next < head + capacity, always.
	head uint64 // as stored
	next uint64 // the end of the frames returned
}

// NewReceiver begins to receive. Own is this process's segment, formatted;
// theirs is the sender's, which is checked and then only read. Both stay in use
// until the last call of a method, and the last use of a frame.
func NewReceiver(geo Geometry, own, theirs []byte, waker Waker, opts Options) (*Receiver, error) {
	geo.mustFit(own, geo.ReceiverBytes())
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("new receiver: %w", err)
	}
	if err := geo.verify(theirs, kindSender, geo.SenderBytes()); err != nil {
		return nil, fmt.Errorf("new receiver: %w", err)
	}
	r := &Receiver{
		page:     receiverPageOf(own),
		peer:     senderPageOf(theirs),
		frames:   theirs[pageBytes:],
		capacity: geo.capacity,
		maxSpan:  spanOf(uint64(geo.MaxFrameBytes())),
	}
	r.bell.asleep = &r.peer.asleep
	r.sleeper = sleeper{
		asleep: &r.page.asleep,
		ready:  r.hasFrame,
		waker:  waker,
		ladder: newLadder(opts.Waiting),
	}
	return r, nil
}

// Next returns the next frame, and false when there is none now, or none any
// more: then Wait says which. The frame lies in the sender's memory, is
// read-only, and is valid until Advance. Frames published before the sender was
// gone are still returned.
func (r *Receiver) Next() (frame []byte, kind Kind, ok bool) {
	if r.err != nil {
		return nil, 0, false
	}
	header := r.header().Load() // once: the peer may be writing to it
	if header == 0 {
		return nil, 0, false
	}
	if header&present == 0 { // no sender stores one
		return nil, 0, r.poison("header", header, present, math.MaxUint64)
	}
	kind, length := splitHeader(header)
	if kind == skipKind {
		if header, ok = r.skip(length); !ok {
			return nil, 0, false
		}
		kind, length = splitHeader(header)
	}
	span := spanOf(length)
	// A second skip would have to cover the whole lane, and is no frame.
	if kind == skipKind || span > r.most() {
		return nil, 0, r.poison("frame", span, headerBytes, r.most())
	}
	begin := r.offset() + headerBytes
	end := begin + length
	r.next += span
	return r.frames[begin:end:end], kind, true
}

func (r *Receiver) offset() uint64 { return r.next & (r.capacity - 1) }

// header is that of the next frame.
func (r *Receiver) header() *atomic.Uint64 { return headerAt(r.frames, r.offset()) }

// room is how many bytes there can be in frames that were not returned yet. The
// header behind them is in the lane too.
func (r *Receiver) room() uint64 { return r.head + r.capacity - headerBytes - r.next }

// most is how many bytes the next frame can take: not beyond the end of the
// frames either.
func (r *Receiver) most() uint64 { return min(r.room(), r.capacity-r.offset(), r.maxSpan) }

// hasFrame is what a wait is for.
func (r *Receiver) hasFrame() (bool, error) {
	return r.err == nil && r.header().Load() != 0, r.err
}

// isBelieved reports whether the sender can mean what it says. It waits for room
// that frames take up which it has published: where it waits for more than this
// side has seen, and no frame is there, it has taken a frame back, or lies. It
// writes wantRoom after the header of the last frame, so that is read first here.
func (r *Receiver) isBelieved() bool {
	want := r.peer.wantRoom.Load()
	if want <= r.next || r.header().Load() != 0 {
		return true
	}
	return r.poison("wanted room", want, 0, r.next)
}

// skip passes over the rest of the frames, and returns the header behind it, of
// the frame that was published together with the skip.
func (r *Receiver) skip(length uint64) (header uint64, ok bool) {
	rest := r.capacity - r.offset()
	if headerBytes+length != rest || rest >= r.room() {
		return 0, r.poison("skip", headerBytes+length, rest, rest)
	}
	r.next += rest
	if header = r.header().Load(); header&present == 0 {
		return 0, r.poison("frame", 0, headerBytes, r.most())
	}
	return header, true
}

// poison ends the lane for good. It is false, for its caller to return.
func (r *Receiver) poison(what string, value, least, most uint64) bool {
	r.err = &PeerError{What: what, Position: r.next, Value: value, Min: least, Max: most}
	return false
}

// Advance lets go of all frames that Next has returned, and wakes the sender if
// it waits for their room.
func (r *Receiver) Advance() {
	if r.next == r.head {
		return
	}
	faultpoint.Hit("lane-before-advance")
	sleep, wanted := r.bell.move(&r.page.head, r.next)
	r.head = r.next
	faultpoint.Hit("lane-advanced")
	// The sender wrote wantRoom before it raised its counter.
	if wanted && r.head >= r.peer.wantRoom.Load() {
		r.bell.answered = sleep
		r.sleeper.waker.Wake()
	}
}

// Wait returns nil when Next will find something. Otherwise the error is the
// context's, [ErrPeer], [ErrPeerGone] or [ErrClosed]. Advance comes first: with
// frames held, a full lane would wait for this side, and this side for the
// lane.
func (r *Receiver) Wait(ctx context.Context) error {
	if err := r.watch(); err != nil {
		return err
	}
	return waited(r.sleeper.wait(ctx))
}

// watch has the sleeper wait for the next frame.
func (r *Receiver) watch() error {
	if r.next != r.head && r.err == nil {
		panic("lane: wait with frames that were not let go of")
	}
	if r.err == nil && !r.isBelieved() {
		return waited(r.err)
	}
	r.sleeper.watched = r.header()
	return nil
}

func waited(err error) error {
	if err != nil {
		return fmt.Errorf("wait for a frame in the lane: %w", err)
	}
	return nil
}

// Doze is the first part of a Wait whose goroutine lets others receive while it is
// parked: from here on the sender wakes this side. It returns true if there is nothing to
// receive: then Park comes next, on one goroutine, and Rouse after that or before
// another goroutine receives. False with no error says that Next will find something;
// the errors are those of Wait.
func (r *Receiver) Doze() (dozes bool, err error) {
	if err := r.watch(); err != nil {
		return false, err
	}
	done, err := r.sleeper.doze()
	return !done, waited(err)
}

// Park sleeps until the sender, Fail or Close wakes this side. It uses nothing
// that Next does. An error says that this side can sleep no more.
func (r *Receiver) Park() error { return waited(r.sleeper.waker.Park()) }

// Rouse ends a Doze: the sender need not wake this side.
func (r *Receiver) Rouse() { r.sleeper.rouse() }

// Look looks for a frame as long as a Wait would before it parks, or until stop reports
// true, which it is asked about every microsecond. It reports whether Next finds something
// or Doze has an error. It comes after Rouse, and before Doze or Next.
func (r *Receiver) Look(stop func() bool) bool { return r.watch() != nil || r.sleeper.climb(stop) }

// Slept is told how long this side was parked, for the next Look to be longer or shorter.
func (r *Receiver) Slept(d time.Duration) { r.sleeper.ladder.learn(d) }

// Err returns what ended the lane, or nil. Frames that were published before
// can be left even so, unless it is [ErrPeer].
func (r *Receiver) Err() error {
	if r.err != nil {
		return r.err
	}
	if end := r.sleeper.ended.Load(); end != nil {
		return end.err
	}
	return nil
}

// Fail says that the sender is gone: when all frames that it published have
// been received, a wait ends, now and later, with [ErrPeerGone] and the cause,
// which may be nil. Any goroutine may call it.
func (r *Receiver) Fail(cause error) { r.sleeper.end(&ending{err: gone(cause)}) }

// Close ends a wait, now and later, with [ErrClosed]. Any goroutine may call
// it. The segments are the caller's to unmap, when no method is running.
func (r *Receiver) Close() { r.sleeper.end(closed) }
