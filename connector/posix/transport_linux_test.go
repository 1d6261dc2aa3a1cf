package posix_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
)

// suiteBytes are enough for the suite's largest values.
const suiteBytes = 8 << 20

// runSuite runs the conformance suite between two ends of a fresh store.
func runSuite(t *testing.T, ends func(t *testing.T, opts childOptions) (put, get connector.Transport)) {
	var opts childOptions
	connectortest.Run(t, connectortest.Ends{
		Told: true,
		Open: func(t *testing.T) (put, get connector.Transport) {
			opts = fresh(t)
			opts.Bytes = suiteBytes
			return ends(t, opts)
		},
		Next: func(t *testing.T) connector.Transport { return open(t, opts.options()) },
	})
}

func TestTransport(t *testing.T) {
	for name, c := range map[string]func(*testing.T, childOptions) (put, get connector.Transport){
		"one end": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			end := open(t, opts.options())
			return end, end
		},
		"two ends": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return open(t, opts.options()), open(t, opts.options())
		},
		"two processes": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return spawn(t, opts, ""), spawn(t, opts, "")
		},
		"another process puts": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return spawn(t, opts, ""), open(t, opts.options())
		},
	} {
		t.Run(name, func(t *testing.T) {
			runSuite(t, c)
		})
	}
}

// TestSeveralReaders: of several readers, in several processes, that come for a value at
// once, one gets it.
func TestSeveralReaders(t *testing.T) {
	opts := fresh(t)
	opts.Readers = 3
	creator := open(t, opts.options())
	put(t, creator, "first", old)
	readers := []connector.Transport{open(t, opts.options()), open(t, opts.options()), spawn(t, opts, ""), creator}
	for _, r := range readers {
		wantNone(t, r, "nothing", nil) // so that all have it open
	}
	for i := range 500 {
		key := strconv.Itoa(i)
		put(t, creator, key, content(byte(i), 1000))
		var got atomic.Int32
		var wait sync.WaitGroup
		for _, r := range readers[:2+i%3] { // the creator is the fastest of them
			wait.Go(func() {
				payload, err := r.Get(t.Context(), edge, key, nil)
				if errors.Is(err, connector.ErrNotFound) {
					return
				}
				if err != nil {
					t.Errorf("get %d: %v", i, err)
					return
				}
				wantBytes(t, payload, content(byte(i), 1000))
				payload.Release()
				got.Add(1)
			})
		}
		wait.Wait()
		if n := got.Load(); n != 1 {
			t.Fatalf("value %d was got %d times", i, n)
		}
	}
	wantValue(t, creator, "first", nil, old)
}

// TestSlotIsLocked: nobody gets a value while another has it under lock, on whichever
// side, and what is not got then stays.
func TestSlotIsLocked(t *testing.T) {
	opts := fresh(t)
	creator, getter := open(t, opts.options()), open(t, opts.options())
	put(t, creator, "key", old)
	f, err := os.OpenFile(opts.head(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	slots := unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_SET, Start: 4096}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &slots); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]connector.Transport{"reader": getter, "creator": creator} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := end.Get(ctx, edge, "key", nil)
		wantErr(t, name, err, context.DeadlineExceeded)
		cancel()
	}
	_, err = getter.Get(t.Context(), edge, "key", nil)
	wantErr(t, "for longer than anybody takes", err, connector.ErrBusy)
	f.Close()
	wantValue(t, getter, "key", nil, old)
}

// TestAwaitIsTold: who waits in another process than the creator is told of a value.
func TestAwaitIsTold(t *testing.T) {
	opts := fresh(t)
	creator, getter := open(t, opts.options()), open(t, opts.options())
	put(t, creator, "another", old)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 20 {
		got := make(chan error, 1)
		go func() {
			payload, err := getter.Await(ctx, edge, "key", nil)
			if err == nil {
				payload.Release()
			}
			got <- err
		}()
		for !has(list(t, opts.Dir), ".marks-1") || opts.number(t, ".marks-1", 0) == 0 {
			runtime.Gosched() // until it waits
		}
		put(t, creator, "key", old)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
	}
}

// TestReplacedWhileRead: who gets a key that is put again and again gets one of its
// values, whole; who looks at it finds one each time.
func TestReplacedWhileRead(t *testing.T) {
	opts := fresh(t)
	creator := open(t, opts.options())
	peeker := open(t, opts.options()).(connector.Peeker)
	put(t, creator, "key", content(0, 1000))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range 2000 {
			if _, err := tryPut(t.Context(), creator, "key", content(byte(i%100), 1000)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		default:
		}
		payload, err := peeker.Peek(t.Context(), edge, "key", nil)
		if err != nil {
			t.Fatal(err)
		}
		wantBytes(t, payload, content(payload.Bytes()[0], 1000))
		payload.Release()
	}
}

// TestPlaces: there are as many readers as there are places, and one that leaves makes
// room for the next.
func TestPlaces(t *testing.T) {
	opts := fresh(t)
	creator := open(t, opts.options())
	put(t, creator, "key", old)
	first, second := spawn(t, opts, ""), open(t, opts.options())
	wantNone(t, first, "another key", nil)
	_, err := second.Get(t.Context(), edge, "key", nil)
	wantErr(t, "a reader too many", err, connector.ErrBusy)
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(first.PID())) || !strings.Contains(err.Error(), "raise readers") {
		t.Errorf("it does not say who has the place, and what to do: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wantValue(t, second, "key", nil, old)
}

// TestOneCreator: one process puts into a store.
func TestOneCreator(t *testing.T) {
	opts := fresh(t)
	creator := spawn(t, opts, "")
	put(t, creator, "key", old)
	second := open(t, opts.options())
	_, err := tryPut(t.Context(), second, "key", old)
	wantErr(t, "a second creator", err, connector.ErrBusy)
	if err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(creator.PID())) {
		t.Errorf("it does not say who has the store: %v", err)
	}
	wantValue(t, second, "key", nil, old)
	_, err = tryPut(t.Context(), second, "key", old)
	wantErr(t, "put of an end that gets", err, connector.ErrUnavailable)
	if err := creator.Close(); err != nil {
		t.Fatal(err)
	}
	put(t, second, "key", old) // now the name is free
}

// TestLasting: what would end with its process is not put by one that ends at once.
func TestLasting(t *testing.T) {
	opts := fresh(t)
	lasting := opts.options()
	lasting.Lasting = true
	end := open(t, lasting)
	_, err := tryPut(t.Context(), end, "key", old)
	wantErr(t, "put", err, connector.ErrUnavailable)
	put(t, open(t, opts.options()), "key", old)
	wantValue(t, end, "key", nil, old)
}

// TestMetadata: metadata say which store, and which value of it.
func TestMetadata(t *testing.T) {
	opts := fresh(t)
	creator := open(t, opts.options())
	meta := put(t, creator, "key", old)
	if meta["store"] != "speech" || meta["entry"] == nil {
		t.Errorf("metadata %v", meta)
	}
	for what, m := range map[string]connector.Metadata{
		"another store": {"store": "vision", "entry": meta["entry"]},
		"no text":       {"store": 5, "entry": meta["entry"]},
		"no number":     {"store": "speech", "entry": "x"},
	} {
		_, err := creator.Get(t.Context(), edge, "key", m)
		wantErr(t, what, err, connector.ErrMetadata)
	}
	wantValue(t, creator, "key", connector.Metadata{"entry": "1"}, old) // those of an exchange
}

// TestNothingStays: a store that is closed leaves no file, also where readers hold
// some of it.
func TestNothingStays(t *testing.T) {
	opts := fresh(t)
	creator, getter := open(t, opts.options()), open(t, opts.options())
	held := hold(t, getter, "key", put(t, creator, "key", old), old)
	own := hold(t, creator, "own", put(t, creator, "own", old), old)
	put(t, creator, "left", old)
	if err := creator.Close(); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, opts)
	wantBytes(t, held, old)
	wantBytes(t, own, old)
	next := open(t, opts.options())
	wantValue(t, getter, "key", put(t, next, "key", next20k), next20k)
	held.Release()
	own.Release()
	if err := fmt.Sprint(list(t, opts.Dir)); !strings.Contains(err, ".arena") {
		t.Error("what was released took the next store along")
	}
}
