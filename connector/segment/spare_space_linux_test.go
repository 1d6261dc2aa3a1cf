package segment

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// TestSparesFreeSpace: spares are dropped before an operation fails for want of space, with or
// without a check that they are free.
func TestSparesFreeSpace(t *testing.T) {
	dir := SmallShm(t, "1m")
	end := opened(t, Options{Dir: dir}, 0)
	if end.spares.limit != 1<<20/spareShare {
		t.Errorf("of a directory of 1 MiB %d bytes are spare", end.spares.limit)
	}
	for _, many := range []int{1, 10} {
		small, large := contents(1, 100<<10/many), contents(2, 1000<<10)
		for range 2 {
			for i := range many {
				mustPut(t, end, fmt.Sprint("small ", i), small)
			}
			for i := range many {
				mustGet(t, end, fmt.Sprint("small ", i), nil, small)
			}
			mustPut(t, end, "large", large)
			mustGet(t, end, "large", nil, large)
		}
	}
}

// TestSparesGiveDescriptors: spares are dropped before an operation fails for want of descriptors,
// free or not.
func TestSparesGiveDescriptors(t *testing.T) {
	r, w, err := os.Pipe() // the runtime opens its poll descriptors now
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	value := contents(1, 10_000)
	end := opened(t, Options{Dir: Shm(t)}, 0)
	fills := map[string]func(*testing.T){
		"with values": func(*testing.T) {},
		"without": func(t *testing.T) {
			for i := range 4 {
				mustGet(t, end, fmt.Sprint("key ", i), nil, value)
			}
		},
		"that are free": func(t *testing.T) {
			for i := range 4 {
				mustGet(t, end, fmt.Sprint("key ", i), nil, value)
			}
			for range 4 {
				end.spares.checkGiven()
			}
			if n := len(end.spares.free); n < 3 {
				t.Fatalf("%d are spare", n)
			}
		},
	}
	for what, do := range map[string]func(*testing.T){
		"put": func(t *testing.T) { mustPut(t, end, "another", value) },
		"get": func(t *testing.T) { mustGet(t, end, "there", nil, value) },
		"await": func(t *testing.T) {
			payload, err := end.Await(t.Context(), connector.Edge{}, "there", nil)
			if err != nil {
				t.Fatal(err)
			}
			payload.Release()
		},
		"clean up": func(t *testing.T) {
			if err := end.Cleanup(t.Context(), "there"); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for which, fill := range fills {
			t.Run(what+", "+which, func(t *testing.T) {
				for i := range 4 {
					mustPut(t, end, fmt.Sprint("key ", i), value)
				}
				mustPut(t, end, "there", value)
				fill(t)
				withoutDescriptors(t, do)
				if n := len(end.spares.free); n > 0 {
					t.Errorf("%d are spare", n)
				}
			})
		}
	}
}

// TestNoWatch: without inotify watches, a waiting call polls.
func TestNoWatch(t *testing.T) {
	dir := Shm(t)
	from, to := opened(t, Options{Dir: dir}, 0), opened(t, Options{Dir: dir}, 0)
	withoutDescriptors(t, func(t *testing.T) {
		w, err := to.startWatch()
		if err != nil {
			t.Fatal(err)
		}
		changed := w.subscribe("key")
		defer w.unsubscribe("key", changed)
		<-changed // without a change
	})
	value := contents(1, 100)
	for i := range 20 {
		key := fmt.Sprint("key ", i)
		failed := make(chan error, 1)
		go func() {
			payload, err := to.Await(t.Context(), connector.Edge{}, key, nil)
			if err == nil {
				payload.Release()
			}
			failed <- err
		}()
		_, err := from.Put(t.Context(), connector.Edge{}, key, len(value), func(dst []byte) error {
			copy(dst, value)
			return nil
		})
		if err := errors.Join(err, <-failed); err != nil {
			t.Fatal(err)
		}
	}
}

// withoutDescriptors calls do with a limit that leaves no free descriptor.
func withoutDescriptors(t *testing.T, do func(*testing.T)) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = uint64(next) //nolint:gosec // a descriptor
	if err := errors.Join(unix.Close(next), unix.Setrlimit(unix.RLIMIT_NOFILE, &few)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	do(t)
}
