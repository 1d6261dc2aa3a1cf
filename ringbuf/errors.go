package ringbuf

import (
	"errors"
	"fmt"
)

var (
	// ErrNoRoom reports that no gap is large enough now. It is a normal
	// answer: release or reclaim chunks and try again. The error is a
	// *RoomError with the figures.
	ErrNoRoom = errors.New("no room in the ring")

	// ErrTooLarge reports a payload that would not fit even if the ring were
	// empty. Trying again cannot help.
	ErrTooLarge = errors.New("larger than the ring can ever hold")

	// ErrSize reports a payload size that is zero or negative.
	ErrSize = errors.New("payload size must be positive")

	// ErrUnknownAddress reports an address at which no live chunk's payload
	// begins.
	ErrUnknownAddress = errors.New("no chunk begins at this address")

	// ErrStale reports a chunk that was released, or an address at which
	// another chunk lives by now.
	ErrStale = errors.New("the chunk was released")

	// ErrHeader reports a header in the buffer that contradicts the buffer's
	// bounds: the bytes were damaged.
	ErrHeader = errors.New("the chunk header is damaged")

	// ErrAlign reports an Options.Align that is not a power of two from 1 to
	// MaxAlign.
	ErrAlign = errors.New("invalid alignment")

	// ErrFill reports an Options.Fill for a ring that goes round.
	ErrFill = errors.New("unusable option Fill")

	// ErrBuffer reports a buffer that New cannot use.
	ErrBuffer = errors.New("unusable buffer")
)

// RoomError is the [ErrNoRoom] of one attempt, with the figures of that
// moment, all in bytes.
type RoomError struct {
	Needed     uint64 // in one piece: header, if there are any, and payload
	LargestGap uint64 // largest piece Allocate could have used
	Free       uint64 // all free bytes, in however many pieces
	Capacity   uint64 // of the ring
	StrictFIFO bool   // free bytes behind an unfree chunk do not count as usable
}

func (e *RoomError) Error() string {
	hint := "release or reclaim chunks, or use a larger buffer"
	switch {
	case e.StrictFIFO && e.Free >= e.Needed:
		hint = "strict FIFO order: the oldest chunk must be released first"
	case e.Free >= e.Needed:
		hint = "enough is free, but not in one piece: release the chunks between the gaps"
	}
	return fmt.Sprintf("%v: needs %d bytes in one piece, the largest usable gap has %d, free in all %d of %d; %s",
		ErrNoRoom, e.Needed, e.LargestGap, e.Free, e.Capacity, hint)
}

// Unwrap makes errors.Is(err, ErrNoRoom) hold.
func (e *RoomError) Unwrap() error { return ErrNoRoom }

// explain says why there is no chunk of this size.
func (r *Ring) explain(size int) error {
	switch {
	case size <= 0:
		return fmt.Errorf("allocate %d bytes: %w", size, ErrSize)
	case uint64(size) > r.geo.maxPayload():
		return fmt.Errorf("allocate %d bytes: %w, which is %d", size, ErrTooLarge, r.geo.maxPayload())
	}
	return &RoomError{
		Needed:     r.geo.header + uint64(size),
		LargestGap: r.largestGap(),
		Free:       r.free,
		Capacity:   r.geo.capacity(),
		StrictFIFO: r.strict,
	}
}
