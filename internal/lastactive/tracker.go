package lastactive

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/actors"
)

// Tracker is the last active connection of a process.
type Tracker struct {
	spinner *actors.Spinner // nil: no goroutine polls
	last    atomic.Pointer[Connection]
}

// Connection is a connection that can be polled.
type Connection struct{ Poll actors.PollFunc }

// New makes a tracker. spinner makes the Spinner that polls the tracker, or returns nil if no
// goroutine is to poll.
func New(spinner func(actors.PollFunc) *actors.Spinner) *Tracker {
	t := new(Tracker)
	t.spinner = spinner(t.poll)
	return t
}

// Spinner is the Spinner of the waiting goroutines; nil: no goroutine polls.
func (t *Tracker) Spinner() *actors.Spinner { return t.spinner }

// Active makes c the connection to poll: a message has come on it.
func (t *Tracker) Active(c *Connection) {
	if t.last.Load() != c && t.last.Swap(c) == nil {
		t.spinner.Enable(true)
	}
}

// Gone ends the polling of c, on which no more messages come.
func (t *Tracker) Gone(c *Connection) {
	if t.last.CompareAndSwap(c, nil) {
		t.spinner.Enable(false)
	}
}

// poll implements actors.PollFunc.
func (t *Tracker) poll(enough, begin func() bool) (handled bool) {
	c := t.last.Load()
	return c != nil && c.Poll(enough, begin)
}
