package lane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// mapDirectory is a directory within one process.
type mapDirectory struct {
	mu    sync.Mutex
	names map[Name]Found
	done  chan struct{} // closed when the owner of all of it is to be dead
}

func newMapDirectory() *mapDirectory {
	return &mapDirectory{names: make(map[Name]Found), done: make(chan struct{})}
}

// Done implements Owner.
func (d *mapDirectory) Done() <-chan struct{} { return d.done }

func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

func (d *mapDirectory) Publish(name Name, fd int, sizeBytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, taken := d.names[name]; taken {
		return fmt.Errorf("%w: %v", ErrPublished, name)
	}
	own, err := duplicate(fd)
	if err == nil {
		d.names[name] = Found{FD: own, SizeBytes: sizeBytes, Owner: d}
	}
	return err
}

func (d *mapDirectory) Withdraw(name Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found, ok := d.names[name]; ok {
		_ = unix.Close(found.FD)
		delete(d.names, name)
	}
}

func (d *mapDirectory) Find(_ context.Context, name Name) (Found, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	found, ok := d.names[name]
	if !ok {
		return Found{}, fmt.Errorf("%w: %v", ErrNotPublished, name)
	}
	var err error
	found.FD, err = duplicate(found.FD)
	return found, err
}

// TestMapDirectory holds the directory of these tests to the promises of all.
func TestMapDirectory(t *testing.T) {
	var d Directory = newMapDirectory()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	name := Name{Pool: [16]byte{1}, Number: 2}
	if err := d.Publish(name, int(f.Fd()), 5); err != nil {
		t.Fatal(err)
	}
	_ = f.Close() // it may be
	if err := d.Publish(name, 0, 5); !errors.Is(err, ErrPublished) {
		t.Errorf("publish a name again: %v", err)
	}
	found, err := d.Find(t.Context(), name)
	if err != nil || found.SizeBytes != 5 {
		t.Fatalf("found %+v, %v", found, err)
	}
	d.Withdraw(name)
	var st unix.Stat_t
	if err := errors.Join(unix.Fstat(found.FD, &st), unix.Close(found.FD)); err != nil {
		t.Errorf("what was found before it was withdrawn: %v", err)
	}
	for _, other := range []Name{name, {Pool: name.Pool, Number: 3}, {Number: 2}} {
		if _, err := d.Find(t.Context(), other); !errors.Is(err, ErrNotPublished) {
			t.Errorf("find %v: %v", other, err)
		}
	}
}
