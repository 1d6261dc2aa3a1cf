package segment

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/inotify"
)

// watch tells those who wait that something happened under their names.
type watch struct {
	files *inotify.Watch

	mu      sync.Mutex
	waiting map[string][]chan struct{}
}

// changes are what a writer does: it makes files, and closes what it wrote to.
const changes = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE

// startWatch returns the watch of the transport, and begins it for the first who waits.
func (t *Transport) startWatch() (*watch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watch != nil {
		return t.watch, nil
	}
	w := &watch{waiting: make(map[string][]chan struct{})}
	w.files = inotify.New(w.notify)
	if err := w.files.Add(t.opts.Dir, changes); err != nil {
		w.files.Close()
		return nil, fmt.Errorf("%w: %w", connector.ErrUnavailable, err)
	}
	t.watch = w
	return w, nil
}

// subscribe returns a channel on which something arrives after changes of a segment
// or its lock.
func (w *watch) subscribe(name string) chan struct{} {
	changed := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range []string{name, lockName(name)} {
		w.waiting[n] = append(w.waiting[n], changed)
	}
	return changed
}

func (w *watch) unsubscribe(name string, changed chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range []string{name, lockName(name)} {
		all := w.waiting[n]
		for i, c := range all {
			if c == changed {
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
				break
			}
		}
		if w.waiting[n] = all; len(all) == 0 {
			delete(w.waiting, n)
		}
	}
}

// notify wakes whoever waits for a name, or all of them: what was lost has none.
func (w *watch) notify(name []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(name) > 0 {
		wake(w.waiting[string(name)])
		return
	}
	for _, all := range w.waiting {
		wake(all)
	}
}

func wake(all []chan struct{}) {
	for _, c := range all {
		select {
		case c <- struct{}{}:
		default: // it has not looked since the last
		}
	}
}
