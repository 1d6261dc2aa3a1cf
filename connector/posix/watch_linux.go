package posix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// watch calls a function when files change.
type watch struct {
	file  *os.File
	ended chan struct{}
}

// newWatch begins a watch of nothing yet. The function gets the name of what was made
// in a directory, or "" when a file changed.
func newWatch(tell func(name string)) (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("%w: watch files: %w", connector.ErrUnavailable, err)
	}
	w := &watch{file: os.NewFile(uintptr(fd), "inotify"), ended: make(chan struct{})}
	go w.run(tell)
	return w, nil
}

// add watches a file too, or a directory.
func (w *watch) add(path string, changes uint32) error {
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
func (w *watch) run(tell func(name string)) {
	defer close(w.ended)
	buffer := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			return
		}
		const lenAt = 12 // in struct inotify_event
		for events := buffer[:n]; len(events) >= unix.SizeofInotifyEvent; {
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[lenAt:]))
			name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
			tell(string(name)) // also where some were lost
			events = events[end:]
		}
	}
}

func (w *watch) close() {
	_ = w.file.Close()
	<-w.ended
}
