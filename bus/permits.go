package bus

import (
	"cmp"
	"log/slog"
	"slices"
	"time"
)

// permitWatch detects that requests wait for permits and none is granted. It belongs to one goroutine.
type permitWatch struct {
	granted uint64    // permits granted before the last check
	since   time.Time // when a permit was granted last, or the wait began; zero: no request waits
}

// waited is for how long no waiting request has got a permit.
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

// findStalls finds stalls. While requests wait for permits, it logs the oldest requests that hold one, each
// request once: for example a request whose results are not received, or of which a stage has kept deliveries.
func (b *Bus) findStalls(w *permitWatch, atLeast time.Duration) []Stall {
	waiting, granted := b.permits.Waiting()
	now := time.Now()
	if w.waited(waiting, granted, now) >= atLeast {
		for _, r := range b.oldestRequests(maxListed) {
			if !r.logged.Swap(true) {
				age := now.Sub(r.began).Round(time.Millisecond)
				b.opts.Logger.Warn("requests wait for a permit that this request holds",
					slog.String("bus", b.opts.Name), slog.Int("waiting", waiting),
					slog.Any("request", r.id), slog.Duration("age", age), slog.String("has", r.describe()))
			}
		}
	}
	return b.Stalls(atLeast)
}

// oldestRequests are the live requests that began first, most of them at most.
func (b *Bus) oldestRequests(most int) []*Request {
	all := b.requests()
	slices.SortStableFunc(all, func(x, y *Request) int { return cmp.Compare(x.began.UnixNano(), y.began.UnixNano()) })
	return all[:min(len(all), most)]
}
