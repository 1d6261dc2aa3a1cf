package lane

import "fmt"

// Waiting is what a side does before it parks. No side yields the processor while it
// waits, and none but that of Polling looks while more threads want to run than there are
// processors: for a second or more after a look that was suspended for half a millisecond.
type Waiting int

const (
	// Ladder looks for up to 100 µs, as long as has paid lately, then parks. After a
	// while without traffic it parks at once.
	Ladder Waiting = iota
	// Parked parks at once.
	Parked
	// Spinning looks for up to 5 ms before it parks. It takes a processor for each
	// side that waits, and is worth it where both have one to spare and latency
	// matters most.
	Spinning
	// Polling is Spinning that looks whatever else wants to run, for a goroutine that looks
	// again and again in place of parking.
	Polling
)

func (w Waiting) String() string {
	switch w {
	case Ladder:
		return "ladder"
	case Parked:
		return "parked"
	case Spinning:
		return "spinning"
	case Polling:
		return "polling"
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
	if o.Waiting < Ladder || o.Waiting > Polling {
		return fmt.Errorf("%w: unknown waiting %v", ErrOptions, o.Waiting)
	}
	return nil
}
