package bus

import (
	"fmt"
	"os"
	"slices"

	"github.com/omnibus-runtime/omnibus/actors"
)

// EnvWait is the environment variable for the [Wait] of a process whose options do not set it.
const EnvWait = "OMNIBUS_WAIT"

// Wait is how a process waits for messages of other processes. It is one setting for the whole
// process: polling saves a wake-up and costs processor time. A host applies it to its own requests
// only, and passes it to the processes that it starts.
type Wait string

// The ways to wait.
const (
	// WaitBalanced makes an idle goroutine poll for up to 100 µs before it parks, as long as polling
	// has paid off lately and no other thread wants to run. It is the default.
	WaitBalanced Wait = "balanced"
	// WaitPark makes it park at once, without polling.
	WaitPark Wait = "park"
	// WaitPoll makes one of the goroutines that wait for work, or for a result, poll all the
	// time instead of parking, from the first message of another process until that process
	// is gone. It takes a processor, even if other threads want to run.
	WaitPoll Wait = "poll"
)

// Waits lists the ways to wait.
func Waits() []Wait { return []Wait{WaitPark, WaitBalanced, WaitPoll} }

// WithDefault returns w, or if w is empty the value of $OMNIBUS_WAIT, or WaitBalanced.
func (w Wait) WithDefault() Wait {
	if w == "" {
		w = Wait(os.Getenv(EnvWait))
	}
	if w == "" {
		w = WaitBalanced
	}
	return w
}

// Validate refuses an unknown way to wait, with ErrConfig.
func (w Wait) Validate() error {
	if !slices.Contains(Waits(), w) {
		return fmt.Errorf("%w: Wait is %q: use one of %v, or leave it and $%s empty", ErrConfig, w, Waits(), EnvWait)
	}
	return nil
}

// Spinner makes the spinner for the goroutines of a process; nil: they do not poll.
func (w Wait) Spinner(poll actors.PollFunc) *actors.Spinner {
	if w == WaitPark {
		return nil
	}
	return actors.NewSpinner(poll, w == WaitPoll)
}
