package bus

import (
	"cmp"
	"log/slog"
	"slices"
	"time"
)

// permitWatch finds that requests wait for places and none gets one. It belongs to one goroutine.
type permitWatch struct {
	granted uint64    // places that were granted when it looked last
	since   time.Time // when one was granted last, or the wait began; zero: no request waits
}

// waited is for how long none of the requests that wait has got its place.
func (w *permitWatch) waited(waiting int, granted uint64, now time.Time) time.Duration {
	switch {
	case waiting == 0:
		w.since = time.Time{}
	case w.since.IsZero() || granted != w.granted:
		w.since = now
	}
	w.granted = granted
	if w.since.IsZero() {
		return 0
	}
	return now.Sub(w.since)
}

// findStalls finds stalls, and has the log name the requests that keep their places while others wait for one:
// each request once, such as one whose results are not received, or of which a stage never finishes what
// it has kept.
func (b *Bus) findStalls(w *permitWatch, atLeast time.Duration) []Stall {
	waiting, granted := b.permits.Waiting()
	now := time.Now()
	if w.waited(waiting, granted, now) >= atLeast {
		for _, r := range b.oldestRequests(maxListed) {
			if !r.logged.Swap(true) {
				age := now.Sub(r.began).Round(time.Millisecond)
				b.opts.Logger.Warn("requests wait for a place that this request keeps",
					slog.String("bus", b.opts.Name), slog.Int("waiting", waiting),
					slog.Any("request", r.id), slog.Duration("age", age), slog.String("has", r.describe()))
			}
		}
	}
	return b.Stalls(atLeast)
}

// oldestRequests are the requests that have been alive for longest.
func (b *Bus) oldestRequests(most int) []*Request {
	all := b.requests()
	slices.SortStableFunc(all, func(x, y *Request) int { return cmp.Compare(x.began.UnixNano(), y.began.UnixNano()) })
	return all[:min(len(all), most)]
}
