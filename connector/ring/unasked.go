package ring

import (
	"log/slog"
	"maps"
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
	lying int       // entries
	since time.Time // when the first of them came
	asked bool      // or the log has it
	timed bool      // sayUnasked follows
}

// watch returns the watch of an edge; nil: there are too many edges with values.
func (t *Table) watch(edge connector.Edge) *edgeWatch {
	w := t.watched[edge]
	if w == nil {
		if len(t.watched) >= maxWatched {
			maps.DeleteFunc(t.watched, func(_ connector.Edge, w *edgeWatch) bool { return w.lying == 0 && !w.timed })
		}
		if len(t.watched) >= maxWatched {
			return nil
		}
		w = &edgeWatch{}
		t.watched[edge] = w
	}
	return w
}

// placed counts an entry.
func (t *Table) placed(edge connector.Edge) {
	w := t.watch(edge)
	if w == nil {
		return
	}
	if w.lying++; w.lying == 1 {
		w.since = time.Now()
	}
	if !w.asked && !w.timed {
		w.timed = true
		time.AfterFunc(unaskedAfter, func() { t.sayUnasked(edge) })
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
	if w := t.watch(edge); w != nil {
		w.asked = true
	}
}

// sayUnasked says, once for an edge, that no process has asked for its values, when they have lain long enough.
func (t *Table) sayUnasked(edge connector.Edge) {
	t.mu.Lock()
	w := t.watched[edge]
	lying, say := w.lying, false
	switch left := unaskedAfter - time.Since(w.since); {
	case w.asked || lying == 0 || t.stopped:
		w.timed = false
	case left > 0:
		time.AfterFunc(left, func() { t.sayUnasked(edge) })
	default:
		w.timed, w.asked, say = false, true, true
	}
	t.mu.Unlock()
	if say {
		t.log.Warn("values lie on an edge, and no process has asked for one: where the stage that gets them has another connector, "+
			"as a stage of vLLM-Omni has whose edge is not switched, it does not find them: switch its edge, too, or take mode segment for both",
			slog.String("edge", edge.String()), slog.Int("values", lying), slog.Duration("after", unaskedAfter))
	}
}
