package segment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/connector"
)

// opened opens a transport whose spares may have limit bytes; 0 keeps the default.
func opened(t *testing.T, opts Options, limit int64) *Transport {
	t.Helper()
	end, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	s := end.(*Transport)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if limit > 0 {
		s.spares.limit = limit
	}
	return s
}

func contents(seed byte, size int) []byte {
	return bytes.Repeat([]byte{seed, 7, seed + 1}, size/3+1)[:size]
}

// mustPut puts a value and returns the identity of its file.
func mustPut(t rapid.TB, end *Transport, key string, value []byte) (identity, connector.Metadata) {
	t.Helper()
	meta, err := end.Put(context.Background(), connector.Edge{From: "a", To: "b"}, key, len(value), func(dst []byte) error {
		copy(dst, value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := end.dir.lookup(meta.Map("shm")["name"].(string))
	if err != nil || f.size != int64(len(value)) {
		t.Fatalf("%d bytes were put, and %d lie there: %v", len(value), f.size, err)
	}
	return f.identity, meta
}

func mustGet(t rapid.TB, end *Transport, key string, meta connector.Metadata, want []byte) {
	t.Helper()
	payload, err := end.Get(context.Background(), connector.Edge{}, key, meta)
	if err != nil {
		t.Fatal(err)
	}
	defer payload.Release()
	if !bytes.Equal(payload.Bytes(), want) {
		t.Fatalf("%q: %d bytes that are not the %d that were put", key, len(payload.Bytes()), len(want))
	}
}

// spareNames lists the second names of files.
func spareNames(t rapid.TB, end *Transport) (names []string) {
	t.Helper()
	all, err := os.ReadDir(end.journal.dir.path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range all {
		if strings.HasPrefix(n.Name(), sparePrefix) {
			names = append(names, n.Name())
		}
	}
	return names
}

// TestFileReuse: the file of a value is reused once no process has it open or mapped, and never
// before.
func TestFileReuse(t *testing.T) {
	for _, generation := range []int{ByMetadata, ByKey} {
		hold := map[string]func(t *testing.T, path string) (release func() error){
			"was got": nil,
			"a reader has open": func(t *testing.T, path string) func() error {
				f, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				return f.Close
			},
			"a reader has open for writing": func(t *testing.T, path string) func() error {
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				return f.Close
			},
			"a reader has mapped": func(t *testing.T, path string) func() error {
				f, err := os.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				b, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED)
				if err != nil {
					t.Fatal(err)
				}
				return func() error { return unix.Munmap(b) }
			},
		}
		for what, hold := range hold {
			t.Run(fmt.Sprintf("a file that %s, %d", what, generation), func(t *testing.T) {
				dir := Shm(t)
				writer := opened(t, Options{Dir: dir, Generation: generation}, 0)
				reader := opened(t, Options{Dir: dir, Generation: generation}, 0)
				value := contents(1, 10_000)
				first, meta := mustPut(t, writer, "key", value)
				release := func() error { return nil }
				if hold != nil {
					release = hold(t, filepath.Join(dir, meta.Map("shm")["name"].(string)))
				}
				if second, _ := mustPut(t, writer, "other", value); second == first {
					t.Fatal("a value that was not got was overwritten")
				}
				mustGet(t, reader, "key", meta, value)
				again, meta := mustPut(t, writer, "again", contents(2, 9_000))
				if again == first != (hold == nil) {
					t.Errorf("the file was reused: %v", again == first)
				}
				if err := release(); err != nil {
					t.Error(err)
				}
				mustGet(t, reader, "again", meta, contents(2, 9_000))
				third, _ := mustPut(t, writer, "third", value)
				fourth, _ := mustPut(t, writer, "fourth", value)
				if third != first && fourth != first {
					t.Error("a free file was not reused")
				}
			})
		}
	}
}

// TestSparesAgainstModel: in any order of puts, gets, replacements, cleanups and opens by other
// readers, each value has the bytes that were put, and the spares keep to their bounds.
func TestSparesAgainstModel(t *testing.T) {
	const limit = 256 << 10
	dir := Shm(t)
	rapid.Check(t, func(t *rapid.T) {
		var ends [2]*Transport
		for i := range ends {
			end, err := New(Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			ends[i] = end.(*Transport)
			ends[i].spares.limit = limit
		}
		values := map[string][]byte{} // by their keys
		type view struct {
			file *os.File
			want []byte
		}
		var views []view // open files of other readers
		keys := func() []string { return slices.Sorted(maps.Keys(values)) }
		some := func(t *rapid.T) string {
			if len(values) == 0 {
				t.Skip("nothing lies there")
			}
			return rapid.SampledFrom(keys()).Draw(t, "key")
		}
		one := func(t *rapid.T) *Transport { return ends[rapid.IntRange(0, 1).Draw(t, "end")] }
		seed := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				seed++
				key := fmt.Sprint("key ", rapid.IntRange(0, 39).Draw(t, "key"))
				size := rapid.OneOf(rapid.IntRange(1, 10_000), rapid.IntRange(1, 100_000), rapid.Just(limit+1)).Draw(t, "size")
				values[key] = contents(seed, size)
				mustPut(t, one(t), key, values[key])
			},
			"get": func(t *rapid.T) {
				key := some(t)
				mustGet(t, one(t), key, nil, values[key])
				delete(values, key)
			},
			"take back": func(t *rapid.T) {
				key := some(t)
				for _, end := range ends {
					if err := end.Cleanup(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
				delete(values, key)
			},
			"look": func(t *rapid.T) {
				key := some(t)
				f, err := os.Open(filepath.Join(dir, key))
				if err != nil {
					t.Fatal(err)
				}
				views = append(views, view{f, values[key]})
			},
			"look away": func(t *rapid.T) {
				if len(views) == 0 {
					t.Skip("no file is open")
				}
				views[0].file.Close()
				views = views[1:]
			},
			"rest": func(t *rapid.T) {
				p := one(t).spares
				p.mu.Lock()
				for _, b := range slices.Concat(p.given, p.free) {
					if rapid.Bool().Draw(t, "old") {
						b.used = time.Time{}
					}
				}
				p.mu.Unlock()
				p.dropIdle()
			},
			"": func(t *rapid.T) {
				for _, v := range views {
					got := make([]byte, len(v.want)+1)
					if n, _ := v.file.ReadAt(got, 0); !bytes.Equal(got[:n], v.want) {
						t.Fatal("a value was overwritten while a reader had it open")
					}
				}
				names := 0
				for _, end := range ends {
					p := end.spares
					p.mu.Lock()
					all := slices.Concat(p.given, p.free)
					sum := int64(0)
					for _, b := range all {
						sum += roundUp(b.size)
					}
					if len(all) != p.count || sum != p.bytes || p.count > maxSpares || p.bytes > limit {
						t.Errorf("%d files of %d bytes, counted as %d and %d", len(all), sum, p.count, p.bytes)
					}
					names += p.count
					p.mu.Unlock()
				}
				if got := spareNames(t, ends[0]); len(got) != names {
					t.Errorf("%d files have second names: %q", names, got)
				}
			},
		})
		for _, v := range views {
			v.file.Close()
		}
		for _, end := range ends {
			if err := end.Close(); err != nil {
				t.Error(err)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// TestSparesConcurrently: goroutines that put and get at once never share a file.
func TestSparesConcurrently(t *testing.T) {
	dir := Shm(t)
	end := opened(t, Options{Dir: dir}, 100<<10)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 50 {
				value := contents(byte(g*50+i), 1+(g*977+i*1913)%20_000)
				_, meta := mustPut(t, end, fmt.Sprint("key ", g), value)
				mustGet(t, end, fmt.Sprint("key ", g), meta, value)
			}
		})
	}
	all.Wait()
}

// TestIdleSparesAreDropped: spares that are not used for spareIdle are dropped, and their values
// stay.
func TestIdleSparesAreDropped(t *testing.T) {
	dir := Shm(t)
	synctest.Test(t, func(t *testing.T) {
		end := opened(t, Options{Dir: dir}, 0)
		value := contents(1, 10_000)
		mustPut(t, end, "early", value)
		time.Sleep(spareIdle / 2) //nolint:forbidigo // of the bubble
		mustPut(t, end, "late", value)
		mustPut(t, end, "got", value)
		mustGet(t, end, "got", nil, value)
		for _, want := range []int{3, 2, 0} {
			synctest.Wait()
			if got := spareNames(t, end); len(got) != want {
				t.Errorf("%q, want %d", got, want)
			}
			time.Sleep(spareIdle * 3 / 4) //nolint:forbidigo // of the bubble
		}
		mustGet(t, end, "early", nil, value)
		mustGet(t, end, "late", nil, value)
		if end.spares.count != 0 || end.spares.bytes != 0 || end.spares.idleTimer != nil {
			t.Errorf("%d files of %d bytes are counted", end.spares.count, end.spares.bytes)
		}
	})
}

// TestSpareOfTheSameKey: the removal of an entry keeps a later value with the same key and the same
// file.
func TestSpareOfTheSameKey(t *testing.T) {
	end := opened(t, Options{Dir: Shm(t)}, 0)
	first, _ := mustPut(t, end, "key", contents(1, 10_000))
	e := end.entries["key"]
	mustGet(t, end, "key", nil, contents(1, 10_000))
	if second, _ := mustPut(t, end, "key", contents(2, 10_000)); second != first {
		t.Fatal("it has another file")
	}
	if err := end.removeEntry(e); err != nil {
		t.Error(err)
	}
	mustGet(t, end, "key", nil, contents(2, 10_000))
}

// TestSpareWasResized: a reader may have made the file longer or shorter.
func TestSpareWasResized(t *testing.T) {
	dir := Shm(t)
	end := opened(t, Options{Dir: dir}, 0)
	for _, size := range []int64{100_000, 10} {
		first, _ := mustPut(t, end, "key", contents(1, 10_000))
		path := filepath.Join(dir, "key")
		if err := errors.Join(os.Truncate(path, size), os.Remove(path), os.Remove(filepath.Join(dir, lockName("key")))); err != nil {
			t.Fatal(err)
		}
		if second, _ := mustPut(t, end, "key", contents(2, 11_000)); second != first {
			t.Fatal("it has another file")
		}
		mustGet(t, end, "key", nil, contents(2, 11_000))
	}
}

// TestLeasesNeverGiven: if the kernel grants no leases, as before Linux 5.3, no spare stays for
// long.
func TestLeasesNeverGiven(t *testing.T) {
	dir := Shm(t)
	end := opened(t, Options{Dir: dir}, 0)
	value := contents(1, 10_000)
	_, meta := mustPut(t, end, "key", value)
	f, err := os.Open(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mustGet(t, end, "key", meta, value)
	for range maxLeaseRefusals {
		end.spares.checkGiven()
	}
	mustPut(t, end, "key", value)
	mustGet(t, end, "key", nil, value)
	if got := spareNames(t, end); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// TestNoLeases: if the kernel cannot tell whether a file is open, files are not reused.
func TestNoLeases(t *testing.T) {
	end := opened(t, Options{Dir: Shm(t)}, 0)
	value := contents(1, 10_000)
	mustPut(t, end, "key", value)
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0) // a device has no leases
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Dup3(null, end.spares.given[0].fd, unix.O_CLOEXEC), unix.Close(null)); err != nil {
		t.Fatal(err)
	}
	mustGet(t, end, "key", nil, value)
	for range 2 {
		mustPut(t, end, "key", value)
		mustGet(t, end, "key", nil, value)
	}
	if got := spareNames(t, end); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// TestOpenDuringLease: a reader that opens a file whose name was just removed may meet its writer's
// lease. The reader looks up the name again.
func TestOpenDuringLease(t *testing.T) {
	dir := Shm(t)
	end, reader := opened(t, Options{Dir: dir}, 0), opened(t, Options{Dir: dir, Timeout: time.Millisecond}, 0)
	value := contents(1, 10_000)
	_, meta := mustPut(t, end, "key", value)
	fd := uintptr(end.spares.given[0].fd) //nolint:gosec // a descriptor
	if _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	for _, meta := range []connector.Metadata{meta, nil} {
		if _, err := reader.Get(t.Context(), connector.Edge{}, "key", meta); !errors.Is(err, connector.ErrBusy) {
			t.Error(err)
		}
	}
	got := make(chan error)
	go func() {
		payload, err := reader.Await(t.Context(), connector.Edge{}, "key", meta)
		if err == nil {
			payload.Release()
		}
		got <- err
	}()
	if _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestSpareNameRemoved: the removal of a second name does not mean that the value was got.
func TestSpareNameRemoved(t *testing.T) {
	end := opened(t, Options{Dir: Shm(t)}, 0)
	value := contents(1, 10_000)
	mustPut(t, end, "key", value)
	for _, name := range spareNames(t, end) {
		if err := end.journal.dir.unlink(name); err != nil {
			t.Fatal(err)
		}
	}
	mustPut(t, end, "other", contents(2, 10_000))
	mustPut(t, end, "third", contents(3, 10_000))
	mustGet(t, end, "key", nil, value)
}

// TestSparesSwept: spares of dead processes are removed, and those of living ones stay.
func TestSparesSwept(t *testing.T) {
	dir := Shm(t)
	living := opened(t, Options{Dir: dir}, 0)
	mustPut(t, living, "key", contents(1, 10_000))
	own := spareNames(t, living)
	for _, name := range []string{"spare-1-2-3", "spare-", "spare-1", "spare-" + living.journal.name} {
		if err := os.WriteFile(filepath.Join(living.journal.dir.path, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opened(t, Options{Dir: dir}, 0)
	if got := spareNames(t, living); !slices.Equal(got, own) {
		t.Errorf("left: %q, want %q", got, own)
	}
}
