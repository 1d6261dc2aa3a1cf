package child

import (
	"slices"
	"time"
)

// A history decides when a process is started again. It has no clock and starts nothing.
type history struct {
	Backoff
	restarts []time.Time   // within the window, oldest first; at most Limit
	last     time.Duration // the last pause; zero: the next pause is the first
	unready  int           // processes in a row that never became ready
}

// next returns the pause before the successor of a process that has just died. The error says which
// limit is reached. A process that was ready and ended with status 0 does not count towards the limit:
// the pauses alone slow down its successors.
func (h *history) next(now time.Time, d *Death) (time.Duration, error) {
	h.unready++
	if d.Ready {
		h.unready = 0
	}
	if d.Ready && d.Ran >= h.Reset {
		h.last = 0
	}
	if d.Ready && d.succeeded() {
		h.last = h.pause()
		return h.last, nil
	}
	if err := h.exhausted(now); err != nil {
		return 0, err
	}
	h.last = h.pause()
	if h.Limit >= 0 {
		// A restart counts from the time at which it happens.
		h.restarts = append(h.restarts, now.Add(h.last))
	}
	return h.last, nil
}

func (h *history) exhausted(now time.Time) error {
	h.restarts = slices.DeleteFunc(h.restarts, func(t time.Time) bool { return now.Sub(t) >= h.Window })
	switch {
	case h.Limit < 0:
		return nil
	case len(h.restarts) >= h.Limit:
		return &limitError{Restarts: h.Limit, Window: h.Window}
	case h.unready > h.Limit:
		return &limitError{Restarts: h.Limit}
	}
	return nil
}

// pause returns the next pause; the pauses grow up to Max.
func (h *history) pause() time.Duration {
	if h.last == 0 {
		return h.First
	}
	// Compared as floats: the product may exceed a Duration.
	if longer := float64(h.last) * h.Factor; longer < float64(h.Max) {
		return time.Duration(longer)
	}
	return h.Max
}
