package lane

import "fmt"

// Waiting is for how long [Receiver.Look] looks. It never yields the processor. But for
// Polling it does not look while more threads want to run than there are processors: for
// a second or more after a look that was suspended for half a millisecond.
type Waiting int

const (
	// Ladder looks for up to 100 µs, as long as has paid lately. After a while without
	// traffic it does not look.
	Ladder Waiting = iota
	// Parked does not look.
	Parked
	// Polling looks for 5 ms, whatever else wants to run. It is for a goroutine that looks
	// again and again in place of sleeping, and takes a processor.
	Polling
)

// Options configure a [Receiver]. The zero value works.
type Options struct {
	// Waiting is for how long Look looks. Default Ladder.
	Waiting Waiting
}

// Validate reports the first option that [NewReceiver] would refuse.
func (o Options) Validate() error {
	if o.Waiting < Ladder || o.Waiting > Polling {
		return fmt.Errorf("lane: unknown waiting %d: use Ladder, Parked or Polling", o.Waiting)
	}
	return nil
}
