package lane

import (
	"errors"
	"fmt"
)

// What a caller may be told. Test with errors.Is.
var (
	// ErrFull reports that the frame finds no room now. It is normal flow: send the frame
	// by other means, or later.
	ErrFull = errors.New("lane is full")
	// ErrTooLarge reports a frame above [Geometry.MaxFrameBytes].
	ErrTooLarge = errors.New("frame is too large")
	// ErrPeer reports that the peer wrote what no peer may write. The lane is
	// of no more use. See [PeerError].
	ErrPeer = errors.New("the peer broke the rules of the lane")
	// ErrGeometry reports a capacity that no lane can have.
	ErrGeometry = errors.New("invalid lane geometry")
	// ErrOptions reports options that make no sense.
	ErrOptions = errors.New("invalid lane options")
)

// PeerError says what a peer wrote and what it might have written. It matches
// [ErrPeer].
type PeerError struct {
	What     string // head, frame, skip or header
	Position uint64 // of the frame, or the last good head
	Value    uint64 // what the peer wrote: a position, a header, or how many bytes of the lane a frame takes
	Min, Max uint64 // what Value should have been within
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("%v: %s %d at position %d is not a valid one in [%d, %d]: end the peer, and make a new lane",
		ErrPeer, e.What, e.Value, e.Position, e.Min, e.Max)
}

// Is makes errors.Is(err, ErrPeer) true.
func (e *PeerError) Is(target error) bool { return target == ErrPeer }
