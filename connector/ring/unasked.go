package ring

import (
	"log/slog"
	"maps"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

const (
	unaskedAfter = 10 * time.Second // a stage repeats its Get while it waits
	maxWatched   = 1024             // edges; their names come from other processes
)

// An edgeWatch finds an edge with values for which no process asks: its two stages use different
// kinds of connectors. The table's lock guards it.
type edgeWatch struct {
	entries   int       // entries
	since     time.Time // when the first of the present entries was put
	asked     bool      // a process has asked, or the log has the edge
	scheduled bool      // a timer of reportUnasked runs
}

// watch returns the watch of an edge, or nil if maxWatched edges have values.
func (t *Table) watch(edge connector.Edge) *edgeWatch {
	w := t.watched[edge]
	if w == nil {
		if len(t.watched) >= maxWatched {
			maps.DeleteFunc(t.watched, func(_ connector.Edge, w *edgeWatch) bool { return w.entries == 0 && !w.scheduled })
		}
		if len(t.watched) >= maxWatched {
			return nil
		}
		w = &edgeWatch{}
		t.watched[edge] = w
	}
	return w
}

// countEntry counts an entry.
func (t *Table) countEntry(edge connector.Edge) {
	w := t.watch(edge)
	if w == nil {
		return
	}
	if w.entries++; w.entries == 1 {
		w.since = time.Now()
	}
	if !w.asked && !w.scheduled {
		w.scheduled = true
		time.AfterFunc(unaskedAfter, func() { t.reportUnasked(edge) })
	}
}

// uncountEntry removes an entry from the count.
func (t *Table) uncountEntry(edge connector.Edge) {
	if w := t.watched[edge]; w != nil && w.entries > 0 {
		w.entries--
	}
}

// markAsked records that a process has asked for a value.
func (t *Table) markAsked(edge connector.Edge) {
	if w := t.watch(edge); w != nil {
		w.asked = true
	}
}

// reportUnasked logs, once for an edge, that no process has asked for its values for unaskedAfter.
func (t *Table) reportUnasked(edge connector.Edge) {
	t.mu.Lock()
	w := t.watched[edge]
	lying, say := w.entries, false
	switch left := unaskedAfter - time.Since(w.since); {
	case w.asked || lying == 0 || t.stopped:
		w.scheduled = false
	case left > 0:
		time.AfterFunc(left, func() { t.reportUnasked(edge) })
	default:
		w.scheduled, w.asked, say = false, true, true
	}
	t.mu.Unlock()
	if say {
		t.log.Warn("values lie on an edge, and no process has asked for one: where the stage that gets them has another connector, "+
			"as a stage of vLLM-Omni has whose edge is not switched, it does not find them: switch its edge, too, or take mode segment for both",
			slog.String("edge", edge.String()), slog.Int("values", lying), slog.Duration("after", unaskedAfter))
	}
}
