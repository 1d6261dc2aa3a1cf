package lane

import (
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// How the watcher waits: it looks again and again for as long as an answer
// usually takes, and then with pauses that grow. It looks at host memory; whether
// a device has failed, which is a call of its driver, it asks once in a while.
const (
	spinFor   = 50 * time.Microsecond
	minPause  = 20 * time.Microsecond
	maxPause  = time.Millisecond
	pollEvery = time.Millisecond
)

// watch is something that the watcher looks at until it has happened.
type watch struct {
	happened func() bool // must not block
	dev      *device     // that ends it, too, when it has failed
	then     func()      // called once, on the watcher's goroutine; must not block
}

// watcher is one goroutine that waits for words, and is there only while there
// is something to wait for.
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

// add has the watcher call then as soon as happened reports true, or the device
// has failed.
func (w *watcher) add(dev *device, happened func() bool, then func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.added = append(w.added, watch{happened, dev, then})
	if !w.running {
		w.running = true
		go w.run()
	}
}

// wait returns when there is nothing left to wait for.
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
			time.Sleep(nap) //nolint:forbidigo // streams write words, and wake nobody
			nap = min(2*nap, maxPause)
		}
	}
}

// takeAdded adds what has come to open. It reports false, and the watcher is no more,
// when there is nothing to wait for.
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

// reached is a watch's condition for a word.
func reached(word cudaipc.Word, v uint32) func() bool { return func() bool { return word.Reached(v) } }
