package lane

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Receiver is the receiving side of a lane. It is for one goroutine at a time.
type Receiver struct {
	page     *receiverPage
	frames   []byte // the sender's
	capacity uint64
	maxSpan  uint64 // of a frame
	ladder   ladder
	err      error // the ErrPeer that ended the lane

	headerRead func() // for tests: between the read of a header and its use; nil: nothing

	// Private positions: head <= next < head + capacity, always.
	head uint64 // as stored
	next uint64 // the end of the frames returned
}

// NewReceiver makes the receiving side. Own is this process's segment, formatted;
// theirs is the sender's, which is checked and then only read. Both stay in use
// until the last call of a method, and the last use of a frame.
func NewReceiver(geo Geometry, own, theirs []byte, opts Options) (*Receiver, error) {
	geo.mustFit(own, geo.ReceiverBytes())
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("new receiver: %w", err)
	}
	if err := geo.verify(theirs, kindSender, geo.SenderBytes()); err != nil {
		return nil, fmt.Errorf("new receiver: %w", err)
	}
	return &Receiver{
		page:     receiverPageOf(own),
		frames:   theirs[pageBytes:],
		capacity: geo.capacity,
		maxSpan:  spanOf(uint64(geo.MaxFrameBytes())),
		ladder:   newLadder(opts.Waiting),
	}, nil
}

// Next returns the next frame, and false when there is none now, or when the lane has
// ended: then Err is not nil. The frame lies in the sender's memory, is
// read-only, and is valid until Advance.
func (r *Receiver) Next() (frame []byte, kind Kind, ok bool) {
	if r.err != nil {
		return nil, 0, false
	}
	header := r.loadHeader()
	if header == 0 {
		return nil, 0, false
	}
	if header&present == 0 { // no sender stores one
		return nil, 0, r.fail("header", header, present, math.MaxUint64)
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
	if kind == skipKind || span > r.maxNext() {
		return nil, 0, r.fail("frame", span, headerBytes, r.maxNext())
	}
	begin := r.offset() + headerBytes
	end := begin + length
	r.next += span
	return r.frames[begin:end:end], kind, true
}

func (r *Receiver) offset() uint64 { return r.next & (r.capacity - 1) }

// header is the header of the next frame.
func (r *Receiver) header() *atomic.Uint64 { return headerAt(r.frames, r.offset()) }

// loadHeader reads the header of the next frame. It is read once, because the peer may be writing to it.
func (r *Receiver) loadHeader() uint64 {
	header := r.header().Load()
	if r.headerRead != nil {
		r.headerRead()
	}
	return header
}

// maxUnread is the most bytes that frames that were not returned yet can have. The header
// of zero behind them is in the lane too.
func (r *Receiver) maxUnread() uint64 { return r.head + r.capacity - headerBytes - r.next }

// maxNext is the most bytes that the next frame can have. It does not reach beyond the end
// of the frames.
func (r *Receiver) maxNext() uint64 { return min(r.maxUnread(), r.capacity-r.offset(), r.maxSpan) }

// skip continues at the start of the frames, and returns the header there, of
// the frame that was published together with the skip.
func (r *Receiver) skip(length uint64) (header uint64, ok bool) {
	rest := r.capacity - r.offset()
	if headerBytes+length != rest || rest >= r.maxUnread() {
		return 0, r.fail("skip", headerBytes+length, rest, rest)
	}
	r.next += rest
	if header = r.loadHeader(); header&present == 0 {
		return 0, r.fail("frame", 0, headerBytes, r.maxNext())
	}
	return header, true
}

// fail ends the lane for good. It returns false, for its caller to return.
func (r *Receiver) fail(what string, value, least, most uint64) bool {
	r.err = peerError(what, r.next, value, least, most)
	return false
}

// Advance frees all frames that Next has returned: the sender uses their space again.
func (r *Receiver) Advance() {
	if r.next == r.head {
		return
	}
	faultpoint.Hit("lane-before-advance")
	r.page.head.Store(r.next)
	r.head = r.next
	faultpoint.Hit("lane-advanced")
}

// PrepareSleep announces that this side sleeps: from then on the sender wakes it. Then it
// checks a last time for a frame. If there is one, or the lane has ended, it withdraws the
// announcement and reports false; Next tells which. Each sleep has its own number, because
// the sender wakes this side once for a number. Call Advance before it.
func (r *Receiver) PrepareSleep() bool {
	r.mustHoldNone()
	r.page.asleep.Add(1)
	if r.err != nil || r.header().Load() != 0 {
		r.page.asleep.Add(1)
		return false
	}
	return true
}

// EndSleep ends a sleep that PrepareSleep announced, if there is one: the sender need not
// wake this side any more.
func (r *Receiver) EndSleep() {
	if r.page.asleep.Load()%2 == 1 {
		r.page.asleep.Add(1)
	}
}

// Poll polls for a frame for as long as [Options] allow, or until stop reports true, which
// is called about every microsecond. It reports whether there is a frame, or the lane has
// ended. Call it after EndSleep and Advance, and before PrepareSleep or Next.
func (r *Receiver) Poll(stop func() bool) bool {
	r.mustHoldNone()
	return r.err != nil || r.ladder.poll(r.header(), stop)
}

// mustHoldNone panics if a receiver that waits for a frame has not freed earlier ones: in
// a full lane the sender has no space for a frame.
func (r *Receiver) mustHoldNone() {
	if r.next != r.head && r.err == nil {
		panic("lane: a wait with frames that were not freed: call Advance first")
	}
}

// RecordSleep adapts the length of the next Poll to how long this side slept.
func (r *Receiver) RecordSleep(d time.Duration) { r.ladder.learn(d) }

// Err returns the error that ended the lane, which matches [ErrPeer], or nil.
func (r *Receiver) Err() error { return r.err }
