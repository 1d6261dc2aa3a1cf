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
	h := new(Tracker)
	h.spinner = spinner(h.poll)
	return h
}

// Spinner is what goroutines look by; nil: none looks.
func (h *Tracker) Spinner() *actors.Spinner { return h.spinner }

// Active says that something has come by a connection.
func (h *Tracker) Active(c *Connection) {
	if h.last.Load() != c && h.last.Swap(c) == nil {
		h.spinner.Enable(true)
	}
}

// Gone says that nothing more comes by a connection.
func (h *Tracker) Gone(c *Connection) {
	if h.last.CompareAndSwap(c, nil) {
		h.spinner.Enable(false)
	}
}

// poll is an actors.PollFunc.
func (h *Tracker) poll(enough, begin func() bool) (handled bool) {
	c := h.last.Load()
	return c != nil && c.Poll(enough, begin)
}
