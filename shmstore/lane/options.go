package lane

import "fmt"

// Waiting is what a side does before it parks.
type Waiting int

const (
	// Ladder looks a few times, then yields the processor between looks, as
	// often as has paid lately, then parks. After a while without traffic it
	// parks almost at once.
	Ladder Waiting = iota
	// Parked parks at once.
	Parked
	// Spinning looks without a pause for up to some milliseconds before it
	// parks. It takes a processor for each side that waits, and is worth it
	// where both have one to spare and latency matters most.
	Spinning
	// Sharing is Ladder for a side whose process has other goroutines to run,
	// most likely those that the last frames were for: they go first. A side
	// that has its process to itself is slower by it.
	Sharing
)

func (w Waiting) String() string {
	switch w {
	case Ladder:
		return "ladder"
	case Parked:
		return "parked"
	case Spinning:
		return "spinning"
	case Sharing:
		return "sharing"
	default:
		return fmt.Sprintf("Waiting(%d)", int(w))
	}
}

// Options configure one side of a lane. The zero value works, and the two
// sides need not agree.
type Options struct {
	// Waiting is what this side does before it parks. Default Ladder.
	Waiting Waiting
}

// Validate reports the first option that [NewSender] and [NewReceiver] would
// refuse.
func (o Options) Validate() error {
	if o.Waiting < Ladder || o.Waiting > Sharing {
		return fmt.Errorf("%w: unknown waiting %v", ErrOptions, o.Waiting)
	}
	return nil
}
