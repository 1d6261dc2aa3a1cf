package heard

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/actors"
)

// Heard knows by which connection another process has sent something last. A goroutine that
// waits for other processes looks there before it parks.
type Heard struct {
	lookout *actors.Lookout // nil: none looks
	last    atomic.Pointer[Connection]
}

// Connection is one that can be looked at.
type Connection struct{ Look actors.LookFunc }

// New makes the lookout of a process; lookout makes it of what looks, and gives nil where none
// is to look.
func New(lookout func(actors.LookFunc) *actors.Lookout) *Heard {
	h := new(Heard)
	h.lookout = lookout(h.look)
	return h
}

// Lookout is what goroutines look by; nil: none looks.
func (h *Heard) Lookout() *actors.Lookout { return h.lookout }

// From says that something has come by a connection.
func (h *Heard) From(c *Connection) {
	if h.last.Load() != c && h.last.Swap(c) == nil {
		h.lookout.Watch(true)
	}
}

// Gone says that nothing more comes by a connection.
func (h *Heard) Gone(c *Connection) {
	if h.last.CompareAndSwap(c, nil) {
		h.lookout.Watch(false)
	}
}

// look is an actors.LookFunc.
func (h *Heard) look(enough, begin func() bool) (handled bool) {
	c := h.last.Load()
	return c != nil && c.Look(enough, begin)
}
