package lastactive

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/actors"
)

// Tracker knows by which connection another process has sent something last. A goroutine that
// waits for other processes looks there before it parks.
type Tracker struct {
	spinner *actors.Spinner // nil: none looks
	last    atomic.Pointer[Connection]
}

// Connection is one that can be looked at.
type Connection struct{ Poll actors.PollFunc }

// New makes the lookout of a process; lookout makes it of what looks, and gives nil where none
// is to look.
func New(spinner func(actors.PollFunc) *actors.Spinner) *Tracker {
	t := new(Tracker)
	t.spinner = spinner(t.poll)
	return t
}

// Spinner is what goroutines look by; nil: none looks.
func (t *Tracker) Spinner() *actors.Spinner { return t.spinner }

// Active says that something has come by a connection.
func (t *Tracker) Active(c *Connection) {
	if t.last.Load() != c && t.last.Swap(c) == nil {
		t.spinner.Enable(true)
	}
}

// Gone says that nothing more comes by a connection.
func (t *Tracker) Gone(c *Connection) {
	if t.last.CompareAndSwap(c, nil) {
		t.spinner.Enable(false)
	}
}

// poll is an actors.PollFunc.
func (t *Tracker) poll(enough, begin func() bool) (handled bool) {
	c := t.last.Load()
	return c != nil && c.Poll(enough, begin)
}
