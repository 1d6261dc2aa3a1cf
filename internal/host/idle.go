package host

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// onGone is called when a process no longer serves a stage. A child of this host that lives gets the
// start timeout to serve a stage again, and is then killed: while it lives it has no successor, and
// requests would wait for ever.
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

// idle reports whether a child serves no stage. While the run drains it reports false, since processes
// were told to leave.
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
