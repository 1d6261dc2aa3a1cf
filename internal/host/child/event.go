package child

import (
	"fmt"
	"strings"
	"time"
)

// A Kind says what happened to a child.
type Kind int

// The kinds of events.
const (
	EventStarted    Kind = iota + 1 // a process runs
	EventReady                      // its owner called Ready
	EventExited                     // it is dead; see Death
	EventRestarting                 // the next one starts after Pause; see Death for why
	EventDone                       // it ended well, and the policy is not to start it again
	EventStopped                    // Stop or Close ended it
	EventGaveUp                     // it is not started again; see Err for why
)

var kindNames = [...]string{"", "started", "ready", "exited", "restarting", "done", "stopped", "gave up"}

// String returns the kind as a word or two.
func (k Kind) String() string {
	if k < EventStarted || k > EventGaveUp {
		return fmt.Sprintf("event %d", int(k))
	}
	return kindNames[k]
}

// An Event is one step in the life of a child. Behind EventDone and EventGaveUp
// nothing happens unless Restart is called, and behind EventStopped nothing at all.
type Event struct {
	Kind     Kind
	Name     string
	PID      int           // of the process that this is about; 0: there is none
	Restarts int           // so far
	Pause    time.Duration // of EventRestarting
	Death    *Death        // of EventExited, and the last one for those behind it; else nil
	Err      error         // of EventGaveUp: a *StartError, or one that says what the limit was
}

// Last reports whether nothing happens behind the event by itself.
func (e Event) Last() bool {
	return e.Kind == EventDone || e.Kind == EventStopped || e.Kind == EventGaveUp
}

// String returns one line.
func (e Event) String() string {
	switch e.Kind {
	case EventExited:
		return e.Death.String()
	case EventRestarting:
		return fmt.Sprintf("%s: restart %d in %v: %s", e.Name, e.Restarts+1, e.Pause, e.Death.Cause())
	case EventGaveUp:
		if e.Death.PID == 0 { // Err says it already
			return fmt.Sprintf("%s: given up: %v", e.Name, e.Err)
		}
		return fmt.Sprintf("%s: given up: %v; last: %s", e.Name, e.Err, e.Death.Cause())
	default:
		if e.PID == 0 {
			return fmt.Sprintf("%s: %s", e.Name, e.Kind)
		}
		return fmt.Sprintf("%s: %s (pid %d)", e.Name, e.Kind, e.PID)
	}
}

// A Death is what is known of a process that has ended, or of one that could
// not be started.
type Death struct {
	Name string
	PID  int // 0: it never ran
	// Status is "exit status 1", "signal: killed" or "signal: aborted (core
	// dumped)". For a process that never ran it says why; it is [Unknown] where
	// nobody can tell.
	Status string
	// Code is the exit status; -1 if a signal ended the process, or it is unknown.
	Code int
	// Reason says why this package ended the process; empty if it did not.
	Reason string
	Ready  bool          // whether it had become ready
	Ran    time.Duration // how long it ran
	Lines  []string      // the last ones that it printed, at most 20
}

// Unknown is the Status of a process whose exit status nobody can tell.
const Unknown = "exit status unknown"

// deathLines bounds Death.Lines: enough for the end of a stack trace, and few
// enough to keep in the errors of many requests.
const deathLines = 20

// Cause returns why the process ended, without its name.
func (d Death) Cause() string {
	switch {
	case d.Reason != "":
		return fmt.Sprintf("%s (%s)", d.Reason, d.Status)
	case d.Status == "signal: killed":
		return d.Status + ", and not by this host; the kernel does that when memory runs out (see dmesg)"
	}
	return d.Status
}

// String returns one line.
func (d Death) String() string {
	if d.PID == 0 {
		return fmt.Sprintf("%s: %s", d.Name, d.Cause())
	}
	return fmt.Sprintf("%s (pid %d) ended after %v: %s", d.Name, d.PID, d.Ran.Round(time.Millisecond), d.Cause())
}

// Report returns String, and the last lines of output below it.
func (d Death) Report() string {
	if len(d.Lines) == 0 {
		return d.String() + "; it printed nothing"
	}
	return d.String() + "; its last lines:\n  " + strings.Join(d.Lines, "\n  ")
}

// A State is what a child is doing.
type State int

// The states.
const (
	Starting State = iota + 1 // a process runs and is not ready yet
	Running                   // it is ready
	Waiting                   // none runs; the next is started after a pause
	Stopping                  // it has been told to end
	Done                      // it ended well and is not started again
	Stopped                   // Stop or Close ended it
	Failed                    // it was given up
)

var stateNames = [...]string{"", "starting", "running", "backoff", "stopping", "done", "stopped", "failed"}

// String returns the state as one word.
func (s State) String() string {
	if s < Starting || s > Failed {
		return fmt.Sprintf("state %d", int(s))
	}
	return stateNames[s]
}

// Status is a child at one moment.
type Status struct {
	Name     string
	PID      int // 0: no process runs
	State    State
	Since    time.Time // when the state began
	Restarts int
	LastExit *Death   // nil: none has ended yet
	Err      error    // why it was given up; else nil
	Lines    []string // the last lines of the present process, or the last one
}
