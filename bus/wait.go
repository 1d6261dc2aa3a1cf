package bus

import (
	"fmt"
	"os"
	"slices"

	"github.com/omnibus-runtime/omnibus/actors"
)

// EnvWait is the variable that sets how a process waits where its options do not: see [Wait].
const EnvWait = "OMNIBUS_WAIT"

// Wait is how a process waits for what other processes send to it. It is one setting for
// all of a process: what is saved by looking is a wake-up, and what it costs is processor
// time. A host waits so for its own requests alone, and hands it to the processes that it starts.
type Wait string

// The ways to wait.
const (
	// WaitBalanced has a goroutine that has nothing to do look for up to 100 µs, as long as
	// that has paid lately and no other thread wants to run, and then park. It is the default.
	WaitBalanced Wait = "balanced"
	// WaitPark has it park at once: nothing looks.
	WaitPark Wait = "park"
	// WaitPoll has one of the goroutines that wait for work, or for a result, look all the
	// time in place of parking, once another process has sent something and until that is
	// gone. It takes a processor, whatever else wants to run.
	WaitPoll Wait = "poll"
)

// Waits lists the ways to wait.
func Waits() []Wait { return []Wait{WaitPark, WaitBalanced, WaitPoll} }

// WithDefault is the way that is set, or what the environment says, or WaitBalanced.
func (w Wait) WithDefault() Wait {
	if w == "" {
		w = Wait(os.Getenv(EnvWait))
	}
	if w == "" {
		w = WaitBalanced
	}
	return w
}

// Validate reports a way that there is not.
func (w Wait) Validate() error {
	if !slices.Contains(Waits(), w) {
		return fmt.Errorf("%w: Wait is %q: use one of %v, or leave it and $%s empty", ErrConfig, w, Waits(), EnvWait)
	}
	return nil
}

// Spinner is for the goroutines of a process; nil: none looks.
func (w Wait) Spinner(poll actors.PollFunc) *actors.Spinner {
	if w == WaitPark {
		return nil
	}
	return actors.NewSpinner(poll, w == WaitPoll)
}
