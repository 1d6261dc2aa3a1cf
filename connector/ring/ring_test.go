package ring_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var edge = connector.Edge{From: "a", To: "b"}

func open(t *testing.T, opts ring.Options) *ring.Ring {
	t.Helper()
	if opts.Store.ArenaBytes == 0 {
		opts.Store.ArenaBytes = 16 << 20
	}
	opts.Store.Memory = shmstore.Heap
	r, err := ring.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if broken := r.Check(); len(broken) > 0 {
			t.Errorf("the store: %v", broken)
		}
		if err := r.Close(); err != nil { // ErrBusy while an object is held
			t.Error(err)
		}
	})
	return r
}

func TestTransport(t *testing.T) {
	for name, apart := range map[string]bool{"one end": false, "two ends": true} {
		t.Run(name, func(t *testing.T) {
			connectortest.Run(t, connectortest.Ends{MetadataUnique: true, Open: func(t *testing.T) (put, get connector.Transport) {
				r := open(t, ring.Options{})
				if end := r.End(); !apart {
					return end, end
				}
				return r.End(), r.End()
			}})
		})
	}
}

func put(end *ring.End, key string, size int) error {
	_, err := end.Put(context.Background(), edge, key, size, func([]byte) error { return nil })
	return err
}

// TestPutWaitsForSpace: a put without space waits until an object is released, at most until its
// deadline.
func TestPutWaitsForSpace(t *testing.T) {
	const size = 6 << 10
	r := open(t, ring.Options{Store: shmstore.Options{ArenaBytes: 8 << 10, MaxObjectBytes: 7 << 10}, Timeout: time.Hour})
	end := r.End()
	defer end.Close()
	if err := put(end, "first", size); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := end.Put(ctx, edge, "second", size, nil); !errors.Is(err, context.Canceled) || !errors.Is(err, shmstore.ErrFull) {
		t.Errorf("a put without space and time: %v", err)
	}
	done := make(chan error)
	go func() { done <- put(end, "second", size) }()
	first, err := end.Get(t.Context(), edge, "first", nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("a put without space returned %v", err)
	default:
	}
	first.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := put(end, "large", 9<<10); !errors.Is(err, connector.ErrTooLarge) {
		t.Errorf("a put larger than the store: %v", err)
	}
}

func TestPutTimesOut(t *testing.T) {
	r := open(t, ring.Options{Store: shmstore.Options{ArenaBytes: 8 << 10, MaxObjectBytes: 7 << 10}, Timeout: time.Nanosecond})
	end := r.End()
	defer end.Close()
	if err := put(end, "first", 6<<10); err != nil {
		t.Fatal(err)
	}
	err := put(end, "second", 6<<10)
	if !errors.Is(err, connector.ErrFull) || !strings.Contains(err.Error(), "1 objects") {
		t.Errorf("no space in time: %v, want ErrFull and the holders", err)
	}
}

func TestFillPanics(t *testing.T) {
	r := open(t, ring.Options{})
	end := r.End()
	defer end.Close()
	defer func() {
		if recover() == nil {
			t.Error("the panic was swallowed")
		}
	}()
	_, _ = end.Put(t.Context(), edge, "panics", 100, func([]byte) error { panic("fill") })
}

// TestSweep: the table releases and logs a value after the TTL, and no later one.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		const ttl = time.Minute
		r := open(t, ring.Options{TTL: ttl, Log: slog.New(slog.NewTextHandler(&log, nil))})
		end := r.End()
		defer end.Close()
		if err := put(end, "early", 100); err != nil {
			t.Fatal(err)
		}
		<-time.After(ttl / 2)
		if err := put(end, "late", 100); err != nil {
			t.Fatal(err)
		}
		<-time.After(ttl/2 + time.Second)
		synctest.Wait()
		if _, err := end.Get(t.Context(), edge, "early", nil); !errors.Is(err, connector.ErrNotFound) {
			t.Errorf("after the TTL: %v, want ErrNotFound", err)
		}
		if !strings.Contains(log.String(), "early") || strings.Contains(log.String(), "late") {
			t.Errorf("the log says %q", log.String())
		}
		late, err := end.Get(t.Context(), edge, "late", nil)
		if err != nil {
			t.Fatal(err)
		}
		late.Release()
	})
}

// TestCloseAndSweepWorkInBatches: Close of an owner with many values removes them in batches, with
// the table's lock free between two batches, and so does a sweep.
func TestCloseAndSweepWorkInBatches(t *testing.T) {
	for name, end := range map[string]func(*ring.Table, *ring.Owner){
		"close": func(_ *ring.Table, o *ring.Owner) { o.Close() },
		"sweep": func(*ring.Table, *ring.Owner) { <-time.After(2 * time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := ring.NewTable(time.Minute, slog.New(slog.DiscardHandler))
				owner := table.Owner("one process")
				const values = 1000
				var left []int // number of entries at each release
				for i := range values {
					if _, err := owner.Put(edge, fmt.Sprint(i), released(func() { left = append(left, table.Stats().Entries) })); err != nil {
						t.Fatal(err)
					}
				}
				end(table, owner)
				synctest.Wait()
				if len(left) != values || left[0] == 0 || left[values-1] != 0 {
					t.Errorf("%d of %d were released; %d entries were left at the first, %d at the last", len(left), values, left[0], left[values-1])
				}
			})
		})
	}
}

// released is a payload whose Release calls the function.
type released func()

func (released) Bytes() []byte { return nil }
func (r released) Release()    { r() }

// TestCleanupOnEachEdge: a key has a value on each edge, and Cleanup releases all of one owner's.
func TestCleanupOnEachEdge(t *testing.T) {
	table := ring.NewTable(0, slog.New(slog.DiscardHandler))
	owner, other := table.Owner("one process"), table.Owner("another")
	back := connector.Edge{From: edge.To, To: edge.From}
	on := map[connector.Edge]*freed{edge: {}, back: {}, {From: "x", To: "y"}: {}}
	for e, p := range on {
		if _, err := owner.Put(e, "k", p); err != nil {
			t.Fatal(err)
		}
	}
	theirs := &freed{}
	if _, err := other.Put(back, "k", theirs); err != nil { // in place of the first owner's
		t.Fatal(err)
	}
	if n := owner.Cleanup("k"); n != len(on)-1 {
		t.Errorf("%d were released, want %d", n, len(on)-1)
	}
	for e, p := range on {
		if p.times != 1 {
			t.Errorf("the value on %s was released %d times", e, p.times)
		}
	}
	if theirs.times != 0 || owner.Len() != 0 || other.Len() != 1 {
		t.Errorf("the other owner's was released %d times; the owners have %d and %d", theirs.times, owner.Len(), other.Len())
	}
}

// TestUnaskedEdge: the log names an edge once, if its values stay for a while without a process
// asking for one.
func TestUnaskedEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		table := ring.NewTable(0, slog.New(slog.NewTextHandler(&log, nil)))
		owner := table.Owner("one process")
		place := func(from, to string) {
			t.Helper()
			if _, err := owner.Put(connector.Edge{From: from, To: to}, "k", &freed{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := table.Get(connector.Edge{From: "early", To: "1"}, "k", 0); !errors.Is(err, connector.ErrNotFound) {
			t.Fatal(err)
		}
		place("early", "1") // after a Get on the edge
		place("0", "1")
		place("1", "2")
		place("2", "3")
		if _, err := table.Get(connector.Edge{From: "0", To: "1"}, "other", 0); !errors.Is(err, connector.ErrNotFound) {
			t.Fatal(err)
		}
		if _, err := table.Peek(connector.Edge{From: "2", To: "3"}, "other", 0); !errors.Is(err, connector.ErrNotFound) {
			t.Fatal(err)
		}
		place("gone", "1")
		owner.Cleanup("k")
		place("0", "1")
		place("1", "2")
		place("young", "1")
		<-time.After(9 * time.Second)
		owner.Cleanup("k")
		place("1", "2")
		place("young", "1")
		<-time.After(9 * time.Second) // none has lain for long
		synctest.Wait()
		if said := log.String(); said != "" {
			t.Errorf("the log says %s", said)
		}
		<-time.After(time.Minute)
		place("1", "2")
		place("gone", "1") // again, without a cleanup
		<-time.After(time.Minute)
		synctest.Wait()
		said := log.String()
		for edge, want := range map[string]int{"0 -> 1": 0, "1 -> 2": 1, "2 -> 3": 0, "gone -> 1": 1, "young -> 1": 1, "early -> 1": 0} {
			if n := strings.Count(said, `edge="`+edge+`"`); n != want {
				t.Errorf("the log has %s %d times, want %d:\n%s", edge, n, want, said)
			}
		}
	})
}

// logBuffer is the output of a log, for the goroutines of timers and of the test.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// freed is a payload that counts its releases.
type freed struct{ times int }

func (f *freed) Bytes() []byte { return make([]byte, 10) }
func (f *freed) Release()      { f.times++ }

// TestPutBack: a payload that is put back is at its address again, unless there is another payload
// or its owner is closed; then it is released, once.
func TestPutBack(t *testing.T) {
	table := ring.NewTable(0, slog.New(slog.DiscardHandler))
	owner := table.Owner("owner")
	place := func() *freed {
		t.Helper()
		p := &freed{}
		if _, err := owner.Put(edge, "k", p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	get := func() ring.Taken {
		t.Helper()
		got, err := table.Get(edge, "k", 0)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := place()
	get().PutBack()
	if st := table.Stats(); first.times != 0 || st.Entries != 1 || st.Bytes != 10 {
		t.Errorf("a payload that was put back was released %d times: %+v", first.times, st)
	}
	if all := owner.Entries(); len(all) != 1 || all[0].Key != "k" || all[0].Edge != edge || all[0].Bytes != 10 {
		t.Errorf("the owner has %+v", all)
	}
	got := get()
	second := place()
	got.PutBack()
	if first.times != 1 || second.times != 0 {
		t.Errorf("with another payload at the address: released %d and %d times, want the first alone", first.times, second.times)
	}
	got = get()
	waiter := make(chan error)
	go func() {
		again, err := table.Await(t.Context(), nil, edge, "k", 0)
		if err == nil {
			got = again
		}
		waiter <- err
	}()
	got.PutBack()
	if err := <-waiter; err != nil {
		t.Fatal(err)
	}
	owner.Close()
	got.PutBack()
	if second.times != 1 || table.Stats().Entries != 0 {
		t.Errorf("after the owner was closed: released %d times, %+v", second.times, table.Stats())
	}
}

// TestReuse: a value takes the space of a released one, although others are held: a large one that
// of the last, a small one that of one of the last.
func TestReuse(t *testing.T) {
	for _, tc := range []struct {
		name   string
		size   int
		places int // distinct addresses at most
	}{
		{name: "small", size: 1000, places: 128},
		{name: "large", size: 100_000, places: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := open(t, ring.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}})
			end := r.End()
			defer end.Close()
			put := func(key string) connector.Payload {
				t.Helper()
				meta, err := end.Put(t.Context(), edge, key, tc.size, func([]byte) error { return nil })
				if err != nil {
					t.Fatal(err)
				}
				got, err := end.Get(t.Context(), edge, key, meta)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			first, held := put("first"), put("held")
			first.Release()
			places := make(map[*byte]bool)
			for range 2000 {
				again := put("again")
				places[&again.Bytes()[0]] = true
				again.Release()
			}
			held.Release()
			if len(places) > tc.places {
				t.Errorf("2000 values, one after another, had %d addresses, want at most %d", len(places), tc.places)
			}
		})
	}
}

// TestPutsWaitInOrder: a small put does not overtake a large one that waits for space.
func TestPutsWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, ring.Options{Store: shmstore.Options{ArenaBytes: 16 << 10, MaxObjectBytes: 12 << 10}, Timeout: time.Hour})
		end := r.End()
		defer end.Close()
		if err := put(end, "first", 10<<10); err != nil {
			t.Fatal(err)
		}
		large, small := make(chan error, 1), make(chan error, 1)
		go func() { large <- put(end, "large", 10<<10) }()
		synctest.Wait()
		go func() { small <- put(end, "small", 1000) }()
		synctest.Wait()
		if len(large) > 0 || len(small) > 0 {
			t.Errorf("without space for the large put, %d large and %d small puts have returned, want none", len(large), len(small))
		}
		first, err := end.Get(t.Context(), edge, "first", nil)
		if err != nil {
			t.Fatal(err)
		}
		first.Release()
		if err := errors.Join(<-large, <-small); err != nil {
			t.Error(err)
		}
	})
}

// TestStoppedStore: a put that waits for space fails with ErrClosed when the store is stopped, and
// the store leaves no goroutine: the bubble ends without any.
func TestStoppedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		room, err := ring.NewStore(shmstore.Options{ArenaBytes: 8 << 10, MaxObjectBytes: 7 << 10, Memory: shmstore.Heap}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		fill := func([]byte) error { return nil }
		held, err := room.Write(t.Context(), 6<<10, fill)
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error)
		go func() {
			_, err := room.Write(context.Background(), 6<<10, fill)
			waits <- err
		}()
		synctest.Wait()
		room.Stop()
		if err := <-waits; !errors.Is(err, connector.ErrClosed) {
			t.Errorf("a put that waited in a store that was stopped: %v, want ErrClosed", err)
		}
		if _, err := room.Write(t.Context(), 10, fill); !errors.Is(err, connector.ErrClosed) {
			t.Errorf("a put into a stopped store: %v, want ErrClosed", err)
		}
		if err := room.Close(); !errors.Is(err, shmstore.ErrBusy) {
			t.Errorf("Close of a store with a held value returned %v, want ErrBusy", err)
		}
		held.Release()
		if wrong := room.Check(); len(wrong) > 0 {
			t.Errorf("the store: %v", wrong)
		}
		if err := room.Close(); err != nil {
			t.Error(err)
		}
	})
}
