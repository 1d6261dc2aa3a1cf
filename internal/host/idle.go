package host

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// onGone learns that a process serves a stage no more. One of ours that lives has as
// long to serve one again as it had in the beginning, and is killed then: while it lives
// no other is started, and requests would wait for ever.
func (h *running) onGone(name string, _, pid int, _ error) {
	h.mu.Lock()
	if h.serves[pid]--; h.serves[pid] == 0 {
		delete(h.serves, pid)
	}
	h.mu.Unlock()
	c, ours := h.children.Find(pid)
	if !ours {
		return
	}
	wait := h.byName[name].startTimeout()
	time.AfterFunc(wait, func() {
		if now, lives := h.children.Find(pid); lives && now == c && h.idle(c) {
			c.Kill(fmt.Sprintf("closed its connection, and has served no stage for %v", wait))
		}
	})
}

// idle reports whether a child whose process was to serve a stage serves none: not when
// the run ends, of which processes are told.
func (h *running) idle(c *child.Child) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for pid := range h.serves {
		if other, ours := h.children.Find(pid); ours && other == c {
			return false
		}
	}
	return h.phase != PhaseDraining
}
