package lane

import "fmt"

// Waiting bounds how long [Receiver.Poll] polls. A poll never yields the processor. Except
// with Polling, a receiver does not poll while more threads want to run than there are
// processors: for a second or more after a poll that was suspended for half a millisecond.
type Waiting int

const (
	// Ladder polls for up to 100 µs. The time adapts to the success of recent polls. After a
	// while without traffic it does not poll.
	Ladder Waiting = iota
	// Parked does not poll.
	Parked
	// Polling polls for 5 ms, even if more threads want to run than there are processors. It
	// is for a goroutine that polls again and again in place of sleeping, and takes a
	// processor.
	Polling
)

// Options configure a [Receiver]. The zero value works.
type Options struct {
	// Waiting bounds how long Poll polls. Default Ladder.
	Waiting Waiting
}

// Validate reports the first option that [NewReceiver] would refuse.
func (o Options) Validate() error {
	if o.Waiting < Ladder || o.Waiting > Polling {
		return fmt.Errorf("lane: unknown waiting %d: use Ladder, Parked or Polling", o.Waiting)
	}
	return nil
}
