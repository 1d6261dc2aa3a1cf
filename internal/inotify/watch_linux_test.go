package inotify

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestWatch: each change is reported, in a directory with the name of the file, and none after
// Close.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	notified := make(chan string, 100)
	w := New(func(name []byte) { notified <- string(name) })
	if err := w.Add(dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "made"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if name := <-notified; name != "made" {
		t.Errorf("notify got %q for a file that was made", name)
	}
	if err := w.Add(f.Name(), unix.IN_MODIFY); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if name := <-notified; name != "" {
		t.Errorf("notify got %q for a file that was written to", name)
	}
	if err := w.Add(filepath.Join(dir, "missing"), unix.IN_MODIFY); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("watch of a missing file: %v", err)
	}
	w.Close()
	if err := os.WriteFile(filepath.Join(dir, "later"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if len(notified) > 0 {
		t.Errorf("notify got %q after Close", <-notified)
	}
}

// TestNoWatch: if the system has no watch left, notify is called without a name periodically until
// Close.
func TestNoWatch(t *testing.T) {
	r, out, err := os.Pipe() // so that the runtime has opened its poller
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer out.Close()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	notified := make(chan string)
	w := New(func(name []byte) {
		select {
		case notified <- string(name):
		case <-t.Context().Done():
		}
	})
	added := w.Add(t.Name(), unix.IN_CREATE)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if added != nil {
		t.Error(added)
	}
	for range 3 {
		if name := <-notified; name != "" {
			t.Errorf("notify got %q", name)
		}
	}
	closed := make(chan struct{})
	go func() {
		w.Close()
		close(closed)
	}()
	for {
		select {
		case <-notified:
			continue
		case <-closed:
		}
		break
	}
	select {
	case name := <-notified:
		t.Errorf("notify got %q after Close", name)
	default:
	}
}

// TestEach: names are cut at the kernel's padding, and events about lost events have none.
func TestEach(t *testing.T) {
	event := func(mask uint32, name string, filled int) []byte {
		b := binary.NativeEndian.AppendUint32(nil, 1)
		b = binary.NativeEndian.AppendUint32(b, mask)
		b = binary.NativeEndian.AppendUint32(b, 0)
		b = binary.NativeEndian.AppendUint32(b, uint32(filled))
		return append(append(b, name...), make([]byte, filled-len(name))...)
	}
	var events []byte
	events = append(events, event(unix.IN_CREATE, "key", 16)...)
	events = append(events, event(unix.IN_Q_OVERFLOW, "", 0)...)
	events = append(events, event(unix.IN_CREATE, "key2", 32)...)
	var names []string
	each(events, func(name []byte) { names = append(names, string(name)) })
	if diff := cmp.Diff([]string{"key", "", "key2"}, names); diff != "" {
		t.Error(diff)
	}
}
