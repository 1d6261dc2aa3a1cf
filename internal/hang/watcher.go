package hang

import (
	"sync"
	"time"
)

// Probes is how many probes there are within the bound.
const Probes = 16

// Probe gives a figure that changes when anything moves, and what waits for the program; empty:
// nothing does.
type Probe func() (moved uint64, waits string)

// Hang is a state in which nothing moves.
type Hang struct {
	Lasted time.Duration
	Waits  string // empty: the probe has not returned
}

// Watcher probes a program. Its methods are safe for concurrent use, and do not wait for a probe.
type Watcher struct {
	bound   time.Duration
	probe   Probe
	changed func(h Hang, hangs bool)
	stop    chan struct{}
	once    sync.Once

	mu      sync.Mutex    // guards what follows
	still   time.Duration // how long nothing has moved while work waited, or the probe did not return
	pending bool          // a probe has not returned
	silent  bool          // ... which was to return before the next was due
	moved   uint64        // by the last probe
	waits   string        // by the last probe
}

// Watch probes until the watcher is closed. It calls changed, which may wait, when a hang has lasted
// for the bound, and when that is over.
func Watch(bound time.Duration, probe Probe, changed func(h Hang, hangs bool)) *Watcher {
	w := &Watcher{bound: bound, probe: probe, changed: changed, stop: make(chan struct{})}
	go w.watch()
	return w
}

// Close ends the probes. It does not wait for one that does not return.
func (w *Watcher) Close() { w.once.Do(func() { close(w.stop) }) }

// Hang reports whether the program hangs.
func (w *Watcher) Hang() (Hang, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := Hang{Lasted: w.still, Waits: w.waits}
	if w.silent {
		h.Waits = ""
	}
	return h, w.still >= w.bound
}

func (w *Watcher) watch() {
	tick := time.NewTicker(w.between())
	defer tick.Stop()
	last, hung := time.Now(), false
	w.begin()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		w.passed(now.Sub(last))
		last = now
		w.begin()
		if h, hangs := w.Hang(); hangs != hung {
			hung = hangs
			w.changed(h, hangs)
		}
	}
}

// between is the time from one probe to the next.
func (w *Watcher) between() time.Duration { return max(w.bound/Probes, time.Millisecond) }

// passed counts time in which nothing has moved. A program that was stopped (SIGSTOP) could not
// move: of that time no more than two probes' is counted.
func (w *Watcher) passed(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent = w.pending
	if w.silent || w.waits != "" {
		w.still += min(d, 2*w.between())
	}
}

// begin starts a probe, unless one has not returned.
func (w *Watcher) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending {
		return
	}
	w.pending = true
	go func() { w.take(w.probe()) }()
}

// take notes what a probe has found.
func (w *Watcher) take(moved uint64, waits string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waits == "" || moved != w.moved {
		w.still = 0
	}
	w.pending, w.silent = false, false
	w.moved, w.waits = moved, waits
}
