package lane

import (
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// The watcher spins for spinFor, and then sleeps between checks, with growing pauses. It reads host
// memory; whether a device has failed, which is a call of its driver, it polls every pollEvery.
const (
	spinFor   = 50 * time.Microsecond
	minPause  = 20 * time.Microsecond
	maxPause  = time.Millisecond
	pollEvery = time.Millisecond
)

// watch is a condition that the watcher checks until it is true.
type watch struct {
	happened func() bool // must not block
	dev      *device     // a failure of the device ends the watch, too
	then     func()      // called once, on the watcher's goroutine; must not block
}

// watcher is one goroutine that waits for words. It runs only while there are watches.
type watcher struct {
	mu      sync.Mutex
	added   []watch
	running bool
	idle    *sync.Cond // signalled when the goroutine ends
}

func newWatcher() *watcher {
	w := &watcher{}
	w.idle = sync.NewCond(&w.mu)
	return w
}

// add makes the watcher call then as soon as happened returns true, or the device has failed.
func (w *watcher) add(dev *device, happened func() bool, then func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.added = append(w.added, watch{happened, dev, then})
	if !w.running {
		w.running = true
		go w.run()
	}
}

// wait returns when there are no watches.
func (w *watcher) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running {
		w.idle.Wait()
	}
}

func (w *watcher) run() {
	var open []watch
	nap, lastSeen, lastAsked := minPause, time.Now(), time.Now()
	for {
		came, more := w.takeAdded(&open)
		if !more {
			return
		}
		now := time.Now()
		ask := now.Sub(lastAsked) >= pollEvery
		if ask {
			lastAsked = now
		}
		left := open[:0]
		for _, o := range open {
			if ask {
				o.dev.pollFailure()
			}
			if o.happened() || o.dev.failed.Load() {
				o.then()
				came = true
			} else {
				left = append(left, o)
			}
		}
		clear(open[len(left):])
		open = left
		switch {
		case came:
			nap, lastSeen = minPause, now
		case now.Sub(lastSeen) > spinFor:
			time.Sleep(nap) //nolint:forbidigo // a stream's write of a word wakes no goroutine
			nap = min(2*nap, maxPause)
		}
	}
}

// takeAdded appends the added watches to open. It returns false, and the watcher ends, when there
// are none.
func (w *watcher) takeAdded(open *[]watch) (came, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	came = len(w.added) > 0
	*open = append(*open, w.added...)
	clear(w.added)
	w.added = w.added[:0]
	if len(*open) == 0 {
		w.running = false
		w.idle.Broadcast()
		return came, false
	}
	return came, true
}

// reached returns the condition of a watch for a word.
func reached(word cudaipc.Word, v uint32) func() bool { return func() bool { return word.Reached(v) } }
