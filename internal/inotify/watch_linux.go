package inotify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Watch calls a function when files change.
type Watch struct {
	file  *os.File
	ended chan struct{}
}

// New begins a watch of nothing yet. One goroutine calls tell, with the name of what
// changed in a directory. There is none where a file changed that is itself watched, and
// where changes were lost: then anything may have. The name is valid for that call.
func New(tell func(name []byte)) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	w := &Watch{file: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{})}
	go w.run(tell)
	return w, nil
}

// Add watches a file too, or a directory, for changes such as unix.IN_MODIFY.
func (w *Watch) Add(path string, changes uint32) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	var added error
	if err := conn.Control(func(fd uintptr) { _, added = unix.InotifyAddWatch(int(fd), path, changes) }); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	if added != nil {
		return fmt.Errorf("watch %s: %w", path, added)
	}
	return nil
}

// run reads events until the watch is closed.
func (w *Watch) run(tell func(name []byte)) {
	defer close(w.ended)
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		each(buffer[:n], tell)
	}
}

// each calls tell for each of the kernel's events. Those that say that some were lost have
// no name, either.
func each(events []byte, tell func(name []byte)) {
	const lenAt = 12 // in struct inotify_event
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[lenAt:]))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		tell(name)
		events = events[end:]
	}
}

// Close ends the watch: tell is not called any more.
func (w *Watch) Close() {
	_ = w.file.Close()
	<-w.ended
}
