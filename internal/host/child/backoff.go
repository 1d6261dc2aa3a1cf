package child

import (
	"slices"
	"time"
)

// A history decides when a process is started again. It has no clock of its
// own and starts nothing.
type history struct {
	Backoff
	restarts []time.Time   // those within the window, oldest first; at most Limit
	last     time.Duration // the last pause; zero: the next is the first
	unready  int           // processes in a row that never became ready
}

// next returns the pause before the process after one that has just died. The
// error says which limit is reached. A process that was ready and ended with
// status 0 does not count: the pauses alone keep the next ones apart.
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
		// A restart counts from when it happens, not from when it is decided.
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

// pause returns the next pause of a series that grows up to Max.
func (h *history) pause() time.Duration {
	if h.last == 0 {
		return h.First
	}
	// Compared as a float, because it may be more than a Duration holds.
	if longer := float64(h.last) * h.Factor; longer < float64(h.Max) {
		return time.Duration(longer)
	}
	return h.Max
}
