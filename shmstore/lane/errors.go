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
	// of no more use. The text says what it wrote, and where.
	ErrPeer = errors.New("the peer broke the rules of the lane")
)

// peerError is the [ErrPeer] of a peer that wrote a value of something (a head, frame, skip or
// header) at a position, which is that of the frame, or of the last good head.
func peerError(what string, position, value, least, most uint64) error {
	return fmt.Errorf("%w: %s %d at position %d is not a valid one in [%d, %d]: end the peer, and make a new lane",
		ErrPeer, what, value, position, least, most)
}
