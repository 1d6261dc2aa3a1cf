package lane

import (
	"errors"
	"fmt"
)

// The errors of this package. Test with errors.Is.
var (
	// ErrFull reports that there is no space for the frame now. It is normal flow: send the
	// frame by other means, or later.
	ErrFull = errors.New("lane is full")
	// ErrTooLarge reports a frame above [Geometry.MaxFrameBytes].
	ErrTooLarge = errors.New("frame is too large")
	// ErrPeer reports that the peer wrote an invalid value. The lane is
	// of no more use. The text names the value and its position.
	ErrPeer = errors.New("the peer broke the rules of the lane")
)

// peerError is the [ErrPeer] for an invalid value of a head, frame, skip or header. The
// position is that of the frame, or of the last valid head.
func peerError(what string, position, value, least, most uint64) error {
	return fmt.Errorf("%w: %s %d at position %d is not a valid one in [%d, %d]: end the peer, and make a new lane",
		ErrPeer, what, value, position, least, most)
}
