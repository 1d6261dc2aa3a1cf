package child

import (
	"fmt"
	"strings"
	"time"
)

// A Kind is the kind of an event.
type Kind int

// The kinds of events.
const (
	EventStarted    Kind = iota + 1 // a process runs
	EventReady                      // its owner called Ready
	EventExited                     // it is dead; see Death
	EventRestarting                 // its successor starts after Pause; see Death for the cause
	EventDone                       // it succeeded, and the policy is not to restart it
	EventStopped                    // Stop or Close ended it
	EventGaveUp                     // it is not started again; see Err for why
)

var kindNames = [...]string{"", "started", "ready", "exited", "restarting", "done", "stopped", "gave up"}

// String returns the kind as text.
func (k Kind) String() string {
	if k < EventStarted || k > EventGaveUp {
		return fmt.Sprintf("event %d", int(k))
	}
	return kindNames[k]
}

// An Event is one step in the life of a child. After EventDone and EventGaveUp nothing happens unless
// Restart is called; after EventStopped nothing at all.
type Event struct {
	Kind     Kind
	Name     string
	PID      int           // of the event's process; 0: none
	Restarts int           // so far
	Pause    time.Duration // of EventRestarting
	Death    *Death        // of EventExited and later events, the last death; else nil
	Err      error         // of EventGaveUp: a *StartError, or an error that names the limit
}

// Last reports whether the child does nothing more by itself.
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
		if e.Death.PID == 0 { // Err says it
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

// A Death describes a process that has ended, or that could not be started.
type Death struct {
	Name string
	PID  int // 0: it never ran
	// Status is "exit status 1", "signal: killed" or "signal: aborted (core dumped)". For a process
	// that never ran it gives the reason. It is [Unknown] if the exit status cannot be read.
	Status string
	// Code is the exit status; -1: a signal ended the process, or the status is unknown.
	Code int
	// Reason says why this package ended the process; empty: it did not.
	Reason string
	Ready  bool          // whether it had become ready
	Ran    time.Duration // how long it ran
	Lines  []string      // the last lines that it printed, at most 20
}

// Unknown is the Status of a process whose exit status cannot be read.
const Unknown = "exit status unknown"

// deathLines bounds Death.Lines: enough lines for the end of a stack trace, and few enough to quote in
// the errors of many requests.
const deathLines = 20

// Cause returns the cause of the end, without the name.
func (d Death) Cause() string {
	switch {
	case d.Reason != "":
		return fmt.Sprintf("%s (%s)", d.Reason, d.Status)
	case d.Status == "signal: killed":
		return d.Status + ", and not by this host; the kernel does that when memory runs out (see dmesg)"
	}
	return d.Status
}

// String returns the death in one line.
func (d Death) String() string {
	if d.PID == 0 {
		return fmt.Sprintf("%s: %s", d.Name, d.Cause())
	}
	return fmt.Sprintf("%s (pid %d) ended after %v: %s", d.Name, d.PID, d.Ran.Round(time.Millisecond), d.Cause())
}

// Report returns String and the last lines of output.
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
	Waiting                   // no process runs; the next starts after a pause
	Stopping                  // it has been told to end
	Done                      // it ended well and is not started again
	Stopped                   // Stop or Close ended it
	Failed                    // the child was given up
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
