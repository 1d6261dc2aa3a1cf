package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// watch tells those who wait that something happened under their names.
type watch struct {
	file  *os.File
	ended chan struct{}

	mu      sync.Mutex
	waiting map[string][]chan struct{}
}

// changes are what a writer does: it makes files, and closes what it wrote to.
const changes = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE

// watching returns the watch of the transport, and begins it for the first who waits.
func (t *Transport) watching() (*watch, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watch != nil {
		return t.watch, nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%w: watch %s: %w", connector.ErrUnavailable, t.opts.Dir, err)
	}
	if _, err := unix.InotifyAddWatch(fd, t.opts.Dir, changes); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("%w: watch %s: %w", connector.ErrUnavailable, t.opts.Dir, err)
	}
	w := &watch{file: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{}), waiting: make(map[string][]chan struct{})}
	go w.run()
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

// run reads events until the watch is closed.
func (w *watch) run() {
	defer close(w.ended)
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		w.tell(buffer[:n])
	}
}

// tell wakes whoever waits for what the events name.
func (w *watch) tell(events []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const maskAt, lenAt = 4, 12 // in struct inotify_event
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[maskAt:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[lenAt:]))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		events = events[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 { // some were lost
			for _, all := range w.waiting {
				wake(all)
			}
			continue
		}
		wake(w.waiting[string(name)])
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

func (w *watch) close() {
	_ = w.file.Close()
	<-w.ended
}
