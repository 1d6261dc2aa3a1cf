package inotify

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often anything may have changed where the system has no watch left.
const pollInterval = 5 * time.Millisecond

// A Watch calls a function when files change.
type Watch struct {
	notify   func(name []byte)
	file     *os.File // nil: there is none left
	pollOnce sync.Once
	closed   chan struct{}
	ended    sync.WaitGroup
}

// New begins a watch of nothing yet. Goroutines of its own call tell, with the name of
// what changed in a directory. There is none where a file changed that is itself watched, and
// where changes were lost: then anything may have. The name is valid for that call.
//
// All processes of a user have 128 watches, unless somebody has raised
// fs.inotify.max_user_instances. Where none is left, tell is called every few milliseconds.
func New(notify func(name []byte)) *Watch {
	w := &Watch{notify: notify, closed: make(chan struct{})}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.startPolling()
		return w
	}
	w.file = os.NewFile(uintptr(fd), "inotify")
	w.ended.Go(w.run)
	return w
}

// Add watches a file too, or a directory, for changes such as unix.IN_MODIFY.
func (w *Watch) Add(path string, changes uint32) error {
	if w.file == nil {
		return nil
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	var added error
	if err := conn.Control(func(fd uintptr) { _, added = unix.InotifyAddWatch(int(fd), path, changes) }); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	if errors.Is(added, unix.ENOSPC) || errors.Is(added, unix.ENOMEM) {
		w.startPolling() // fs.inotify.max_user_watches
		return nil
	}
	if added != nil {
		return fmt.Errorf("watch %s: %w", path, added)
	}
	return nil
}

// startPolling has tell called from time to time, for who cannot be told what changes.
func (w *Watch) startPolling() {
	w.pollOnce.Do(func() {
		w.ended.Go(func() {
			t := time.NewTicker(pollInterval)
			defer t.Stop()
			for {
				select {
				case <-t.C:
					w.notify(nil)
				case <-w.closed:
					return
				}
			}
		})
	})
}

// run reads events until the watch is closed.
func (w *Watch) run() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		each(buffer[:n], w.notify)
	}
}

// each calls tell for each of the kernel's events. Those that say that some were lost have
// no name, either.
func each(events []byte, notify func(name []byte)) {
	const lenAt = 12 // in struct inotify_event
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[lenAt:]))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		notify(name)
		events = events[end:]
	}
}

// Close ends the watch: tell is not called any more. It is called once, and nothing
// else after it.
func (w *Watch) Close() {
	close(w.closed)
	if w.file != nil {
		_ = w.file.Close()
	}
	w.ended.Wait()
}
