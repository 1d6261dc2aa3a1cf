package bus

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/actors"
)

// heard knows by which connection another process has sent something last. A goroutine that
// waits for other processes looks there before it parks.
type heard struct {
	lookout *actors.Lookout // nil: none looks
	last    atomic.Pointer[looking]
}

// looking is a connection that can be looked at.
type looking struct{ look actors.LookFunc }

func newHeard(w Wait) *heard {
	h := new(heard)
	h.lookout = w.lookout(h.look)
	return h
}

// from says that something has come by a connection.
func (h *heard) from(c *looking) {
	if h.last.Load() != c && h.last.Swap(c) == nil {
		h.lookout.Watch(true)
	}
}

// gone says that nothing more comes by a connection.
func (h *heard) gone(c *looking) {
	if h.last.CompareAndSwap(c, nil) {
		h.lookout.Watch(false)
	}
}

// look is an actors.LookFunc.
func (h *heard) look(enough, begin func() bool) (handled bool) {
	c := h.last.Load()
	return c != nil && c.look(enough, begin)
}
