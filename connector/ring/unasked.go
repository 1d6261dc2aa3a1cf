package ring

import (
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

const (
	unaskedAfter = 10 * time.Second // a stage asks for what it waits for again and again
	maxWatched   = 1024             // edges: their names come from other processes
)

// An edgeWatch finds that values lie on an edge for which no process asks: its two stages do not use the
// same kind of connector. The table's lock guards it.
type edgeWatch struct {
	lying int  // entries
	asked bool // or the log has it
}

// placed counts an entry.
func (t *Table) placed(edge connector.Edge) {
	w := t.watched[edge]
	if w == nil && len(t.watched) < maxWatched {
		w = &edgeWatch{}
		t.watched[edge] = w
		time.AfterFunc(unaskedAfter, func() { t.sayUnasked(edge) })
	}
	if w != nil {
		w.lying++
	}
}

// removed ends the count of an entry.
func (t *Table) removed(edge connector.Edge) {
	if w := t.watched[edge]; w != nil && w.lying > 0 {
		w.lying--
	}
}

// asked remembers that a process has asked for a value.
func (t *Table) asked(edge connector.Edge) {
	if w := t.watched[edge]; w != nil {
		w.asked = true
	}
}

// sayUnasked says, once for an edge, that no process has asked for its values. Where none lies any more, the
// watch begins anew with the next value.
func (t *Table) sayUnasked(edge connector.Edge) {
	t.mu.Lock()
	w := t.watched[edge]
	lying, say := w.lying, !w.asked && w.lying > 0 && !t.stopped
	w.asked = w.asked || say
	if !w.asked {
		delete(t.watched, edge)
	}
	t.mu.Unlock()
	if say {
		t.log.Warn("values lie on an edge, and no process has asked for one: where the stage that gets them has another connector, "+
			"as a stage of vLLM-Omni has whose edge is not switched, it does not find them: switch its edge, too, or take mode segment for both",
			slog.String("edge", edge.String()), slog.Int("values", lying), slog.Duration("after", unaskedAfter))
	}
}
