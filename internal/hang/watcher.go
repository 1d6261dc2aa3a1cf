package hang

import (
	"sync"
	"time"
)

// Probes is how many probes are made within the bound.
const Probes = 16

// Probe returns a figure that changes with any progress, and names the waiting work; empty: no work
// waits.
type Probe func() (moved uint64, waits string)

// Hang is a state without progress.
type Hang struct {
	Lasted time.Duration
	Waits  string // empty: the probe has not returned
}

// Watcher probes a program. Its methods are safe for concurrent use, and do not wait for a probe.
type Watcher struct {
	bound     time.Duration
	probe     Probe
	changed   func(h Hang, hangs bool)
	stop      chan struct{}
	closeOnce sync.Once

	mu      sync.Mutex    // guards the fields below
	still   time.Duration // how long there was no progress while work waited or the probe did not return
	pending bool          // a probe has not returned
	overdue bool          // ... and the next one was due
	moved   uint64        // by the last probe
	waits   string        // by the last probe
}

// Watch probes until the watcher is closed. It calls changed, which may block, when a hang has lasted
// for the bound, and when the hang has ended.
func Watch(bound time.Duration, probe Probe, changed func(h Hang, hangs bool)) *Watcher {
	w := &Watcher{bound: bound, probe: probe, changed: changed, stop: make(chan struct{})}
	go w.watch()
	return w
}

// Close ends the probes. It does not wait for a probe.
func (w *Watcher) Close() { w.closeOnce.Do(func() { close(w.stop) }) }

// Hang reports whether the program hangs.
func (w *Watcher) Hang() (Hang, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := Hang{Lasted: w.still, Waits: w.waits}
	if w.overdue {
		h.Waits = ""
	}
	return h, w.still >= w.bound
}

func (w *Watcher) watch() {
	tick := time.NewTicker(w.interval())
	defer tick.Stop()
	last, hung := time.Now(), false
	w.startProbe()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		w.addStill(now.Sub(last))
		last = now
		w.startProbe()
		if h, hangs := w.Hang(); hangs != hung {
			hung = hangs
			w.changed(h, hangs)
		}
	}
}

// interval is the time from one probe to the next.
func (w *Watcher) interval() time.Duration { return max(w.bound/Probes, time.Millisecond) }

// addStill counts time without progress. A program that was stopped (SIGSTOP) could make no
// progress: of that time at most two intervals are counted.
func (w *Watcher) addStill(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overdue = w.pending
	if w.overdue || w.waits != "" {
		w.still += min(d, 2*w.interval())
	}
}

// startProbe starts a probe, unless one is running.
func (w *Watcher) startProbe() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending {
		return
	}
	w.pending = true
	go func() { w.recordProbe(w.probe()) }()
}

// recordProbe records the result of a probe.
func (w *Watcher) recordProbe(moved uint64, waits string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waits == "" || moved != w.moved {
		w.still = 0
	}
	w.pending, w.overdue = false, false
	w.moved, w.waits = moved, waits
}
