package shmstore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// folder is where a test's store has its files.
type folder string

func (f folder) make(name string) (int, error) {
	return unix.Open(filepath.Join(string(f), name), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
}

func (f folder) open(t *testing.T, name string, how int) int {
	t.Helper()
	fd, err := unix.Open(filepath.Join(string(f), name), how|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func (f folder) reader(t *testing.T, ledger string) (*Reader, error) {
	t.Helper()
	return OpenReader(f.open(t, "arena", unix.O_RDONLY), f.open(t, "directory", unix.O_RDONLY), f.open(t, ledger, unix.O_RDWR))
}

func (f folder) mustRead(t *testing.T, ledger string) *Reader {
	t.Helper()
	r, err := f.reader(t, ledger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// byName is a store with names, and one place for a reader.
func byName(t *testing.T) (*Store, folder, ReaderID) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "omnibus-test-") //nolint:usetesting // memory, not a disk
	if err != nil {
		t.Skip("/dev/shm:", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	opts := small(Shared)
	opts.MaxLargeBytes, opts.File = -1, folder(dir).make
	s := create(t, opts)
	id, err := s.OfferReader()
	if err != nil {
		t.Fatal(err)
	}
	return s, folder(dir), id
}

// TestOpenedByName: a reader that has names alone finds what lies in a slot, and its
// pins hold that; what it holds when it dies goes with the next reader, or when the
// owner says so.
func TestOpenedByName(t *testing.T) {
	s, dir, id := byName(t)
	r := dir.mustRead(t, "ledger-1")
	if r.ID() != id || r.StoreID() != s.ID() {
		t.Errorf("reader %d of store %x, want %d of %x", r.ID(), r.StoreID(), id, s.ID())
	}
	h := putSealed(t, s, 1, 0)
	found, ok := r.Find(h.Slot)
	if !ok || found != h {
		t.Fatalf("found %v, %t, want %v", found, ok, h)
	}
	if _, ok := r.Find(h.Slot + 1); ok {
		t.Error("found an object where none is")
	}
	l := mustLease(t, r.Pin, h)
	if left := s.Clear(); left != 1 || !isSealed(l.Bytes()) {
		t.Errorf("%d objects are left, one is held", left)
	}
	l.Release()
	if left := s.Clear(); left != 0 {
		t.Errorf("%d objects are left that nobody holds", left)
	}
	if _, ok := r.Find(h.Slot); ok {
		t.Error("found an object that is gone")
	}
}

// TestPlaceIsFreed: nothing that a dead reader held is believed of its successor, or
// after a reset.
func TestPlaceIsFreed(t *testing.T) {
	s, dir, id := byName(t)
	for name, free := range map[string]func() error{
		"reset": func() error { return s.ResetReader(id) },
		"next":  func() error { r, err := dir.reader(t, "ledger-1"); return errors.Join(err, r.Close()) },
	} {
		dead, err := dir.reader(t, "ledger-1")
		if err != nil {
			t.Fatal(err)
		}
		h := putSealed(t, s, 1, 0)
		mustLease(t, dead.Pin, h)
		dead.ledger[h.Slot].done.Add(7) // and it lied
		if left := s.Clear(); left != 1 {
			t.Errorf("%s: %d objects are left, one is held", name, left)
		}
		if err := free(); err != nil {
			t.Fatal(err)
		}
		if left := s.Clear(); left != 0 {
			t.Errorf("%s: %d objects are left of a dead reader", name, left)
		}
	}
	if err := s.ResetReader(LocalReader); !errors.Is(err, ErrUnknownReader) {
		t.Errorf("reset of the local reader: %v", err)
	}
}

// TestOfferedArePinned: who opens by name is charged for nothing, and gets no
// descriptors.
func TestOfferedArePinned(t *testing.T) {
	s, _, id := byName(t)
	_, err := s.Put("", []byte("x"), Readers(id))
	if reader := (*ReaderError)(nil); !errors.As(err, &reader) || !errors.Is(err, ErrUnsupported) {
		t.Errorf("charged: %v", err)
	}
	if _, err := s.Admit(nil); !errors.Is(err, ErrUnsupported) {
		t.Errorf("admitted: %v", err)
	}
	if _, err := create(t, small(Shared)).OfferReader(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a store without names offers: %v", err)
	}
	bad := small(Shared)
	bad.File = folder(t.TempDir()).make
	if _, err := Create(bad); !errors.Is(err, ErrOptions) {
		t.Errorf("with large objects: %v", err)
	}
	if err := s.RemoveReader(id); err != nil {
		t.Error(err)
	}
}

// TestBadFiles: what is no store, or not all of one, is not mapped.
func TestBadFiles(t *testing.T) {
	store, dir, _ := byName(t)
	for name, spoil := range map[string]func(){
		"short arena":     func() { _ = os.Truncate(filepath.Join(string(dir), "arena"), pageBytes/2) },
		"other version":   func() { dir.write(t, "directory", 8, layoutVersion+1) },
		"other store":     func() { dir.write(t, "ledger-1", 16, byte(store.ID())+1) },
		"no reader":       func() { dir.write(t, "ledger-1", 44, 0) },
		"endless slots":   func() { dir.write(t, "directory", 12, 0xff) },
		"a hole":          func() { dir.punch(t, "directory") },
		"an empty ledger": func() { _ = os.Truncate(filepath.Join(string(dir), "ledger-1"), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			var undo []func()
			for _, file := range []string{"arena", "directory", "ledger-1"} {
				path := filepath.Join(string(dir), file)
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				undo = append(undo, func() { _ = os.WriteFile(path, b, 0o600) })
			}
			spoil()
			if r, err := dir.reader(t, "ledger-1"); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v, %v, want ErrProtocol", r, err)
			}
			for _, u := range undo {
				u()
			}
		})
	}
	dir.mustRead(t, "ledger-1")
}

func (f folder) write(t *testing.T, name string, at int64, b byte) {
	t.Helper()
	fd := f.open(t, name, unix.O_RDWR)
	defer unix.Close(fd)
	if err := writeAll(fd, []byte{b}, at); err != nil {
		t.Fatal(err)
	}
}

func (f folder) punch(t *testing.T, name string) {
	t.Helper()
	fd := f.open(t, name, unix.O_RDWR)
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, pageBytes, pageBytes); err != nil {
		t.Fatal(err)
	}
}
