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

// pollInterval is the period of notify(nil) if the system has no watch left.
const pollInterval = 5 * time.Millisecond

// A Watch calls a function when files change.
type Watch struct {
	notify   func(name []byte)
	file     *os.File // nil: the system has no watch left
	pollOnce sync.Once
	closed   chan struct{}
	ended    sync.WaitGroup
}

// New returns a watch without files. Its goroutines call notify with the name of the file that
// changed in a watched directory. The name is empty if a watched file itself changed, or if events
// were lost: then any file may have changed. The name is valid during the call.
//
// All processes of a user share 128 watches, unless fs.inotify.max_user_instances was raised.
// If none is left, notify is called without a name every few milliseconds.
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

// Add adds a file or a directory to the watch, for changes such as unix.IN_MODIFY.
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

// startPolling calls notify periodically, since the system reports no changes.
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

// each calls notify for each of the kernel's events. Events about lost events have no name.
func each(events []byte, notify func(name []byte)) {
	const lenAt = 12 // in struct inotify_event
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[lenAt:]))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		notify(name)
		events = events[end:]
	}
}

// Close ends the watch: notify is not called any more. Close is called once, as the last
// method.
func (w *Watch) Close() {
	close(w.closed)
	if w.file != nil {
		_ = w.file.Close()
	}
	w.ended.Wait()
}
