package segment

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/inotify"
)

// watch notifies waiting calls of changes to files with their names.
type watch struct {
	files *inotify.Watch

	mu      sync.Mutex
	waiting map[string][]chan struct{}
}

// changes are the events of a writer, which creates files and closes files that it wrote.
const changes = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE

// startWatch returns the watch of the transport, and creates it for the first waiting call.
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

// subscribe returns a channel that receives a value after changes of a segment or its lock.
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

// notify wakes the calls that wait for a name; an empty name, after lost events, wakes all of them.
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
		default: // it has a notification that it did not read yet
		}
	}
}
