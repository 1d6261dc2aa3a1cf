package actors_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// closer is closed with a context.
type closer interface{ Close(context.Context) error }

// closeNow closes c without a deadline.
func closeNow(t testing.TB, c closer) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// newSystem starts a system that the end of the test closes.
func newSystem(t testing.TB) *actors.System {
	t.Helper()
	s := actors.NewSystem(actors.Options{})
	t.Cleanup(func() { closeNow(t, s) })
	return s
}

// noLeaks fails the test if goroutines are left at its end. Call it first: the
// cleanup that is registered first runs last.
func noLeaks(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

// host is a store with its writer. At the end of the test the store must have no
// reservation, and its invariants must hold.
type host struct {
	*actors.Writer
	store  *shmstore.Store
	system *actors.System
}

func newHost(t testing.TB, opts shmstore.Options) *host {
	t.Helper()
	if opts.Memory == shmstore.Auto {
		opts.Memory = shmstore.Heap // visible to the race detector
	}
	store, err := shmstore.Create(opts)
	if err != nil {
		t.Fatal(err)
	}
	system := newSystem(t)
	h := &host{Writer: system.NewWriter(store), store: store, system: system}
	t.Cleanup(func() {
		closeNow(t, h)
		for _, v := range store.Check() {
			t.Errorf("Check: %v", v)
		}
		store.FreeUnused()
		if st := store.Stats(); st.Objects != 0 && !t.Failed() {
			t.Errorf("%d objects are left, %d of them reserved", st.Objects, st.Reserved)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// stats asks the writer for the store's figures.
func (h *host) stats(t testing.TB) (st shmstore.Stats) {
	t.Helper()
	if err := h.Do(func(s *shmstore.Store) { st = s.Stats() }); err != nil {
		t.Fatal(err)
	}
	return st
}

// one reserves space for size bytes, which must be free.
func (h *host) one(t testing.TB, size int) *shmstore.Reservation {
	t.Helper()
	got, err := h.Reserve(t.Context().Done(), nil, nil, 1, size, codec.IDRaw)
	if err != nil {
		t.Fatal(err)
	}
	return &got[0]
}

// occupy reserves all space in pieces of size bytes, and returns them, oldest first.
func (h *host) occupy(t testing.TB, size int) []shmstore.Reservation {
	t.Helper()
	got, err := h.Reserve(nil, nil, nil, h.stats(t).Slots, size, codec.IDRaw)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func abortAll(rs []shmstore.Reservation) {
	for i := range rs {
		rs[i].Abort()
	}
}

// TestSystemLogsTheLibraryAtDebugLevel: records of the library about itself appear in a
// program's log only at debug level.
func TestSystemLogsTheLibraryAtDebugLevel(t *testing.T) {
	for _, test := range []struct {
		level slog.Level
		want  bool
	}{{slog.LevelInfo, false}, {slog.LevelDebug, true}} {
		var log bytes.Buffer
		handler := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: test.level})
		s := actors.NewSystem(actors.Options{Logger: slog.New(handler)})
		closeNow(t, s)
		said := strings.Contains(log.String(), `level=DEBUG msg="actor system started" lib=protoactor`)
		if said != test.want || !test.want && log.Len() > 0 {
			t.Errorf("at level %v the log is %q", test.level, &log)
		}
	}
}

func TestSystemCloseAgainAndAtOnce(t *testing.T) {
	noLeaks(t)
	s := actors.NewSystem(actors.Options{})
	if _, err := s.Spawn("idle", &probe{}, actors.StageOptions{}); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { closeNow(t, s) })
	}
	group.Wait()
	closeNow(t, s)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 { // Close of a closed system returns nil, even if the context has ended
		if err := s.Close(ended); err != nil {
			t.Fatalf("Close of a closed system, with an ended context: %v", err)
		}
	}
}

// TestSystemCloseBeforeWriter closes a system before its writer: both must close.
func TestSystemCloseBeforeWriter(t *testing.T) {
	noLeaks(t)
	h := newHost(t, shmstore.Options{ArenaBytes: 1 << 16})
	closeNow(t, h.system)
	h.one(t, 100).Abort()
	closeNow(t, h)
}

// TestSystemCloseNamesRunningStages closes a system while handlers run, until the
// context ends, and closes it once more when the handlers have returned.
func TestSystemCloseNamesRunningStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := actors.NewSystem(actors.Options{})
		gate := make(chan struct{})
		var handled atomic.Int32
		stuck := &probe{onReceive: func(any) { <-gate; handled.Add(1) }}
		for name, r := range map[string]actors.Receiver{"vocoder": stuck, "talker": stuck, "idle": &probe{}} {
			st, err := s.Spawn(name, r, actors.StageOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if r == stuck {
				st.Post(1)
			}
		}
		synctest.Wait()
		cause := errors.New("patience is over")
		ctx, cancel := context.WithCancelCause(t.Context())
		closed := make(chan error, 1)
		go func() { closed <- s.Close(ctx) }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Fatalf("Close returned %v while handlers run", err)
		default:
		}
		cancel(cause)
		err := <-closed
		const want = "actors: close: still running: talker, vocoder: patience is over"
		if !errors.Is(err, cause) || err.Error() != want {
			t.Errorf("Close = %v, want %s", err, want)
		}
		go func() { gate <- struct{}{}; gate <- struct{}{} }()
		closeNow(t, s)
		if n := handled.Load(); n != 2 {
			t.Errorf("%d handlers have returned after Close, want 2", n)
		}
	})
}

// TestReclaimInParts: the supervisor runs part after part, with other work in between. When the
// system is closed, the caller runs all parts.
func TestReclaimInParts(t *testing.T) {
	s := actors.NewSystem(actors.Options{})
	order := make(chan string, 9)
	parts := func(name string, n int) func() bool {
		return func() bool {
			order <- name
			n--
			return n > 0
		}
	}
	gate := make(chan struct{})
	s.Reclaim(func() bool { // until both of the others wait
		<-gate
		return false
	})
	s.Reclaim(parts("a", 3))
	s.Reclaim(parts("b", 1))
	close(gate)
	for i, want := range []string{"a", "b", "a", "a"} {
		if got := <-order; got != want {
			t.Errorf("part %d is of %s, want %s", i, got, want)
		}
	}
	closeNow(t, s)
	s.Reclaim(parts("c", 2))
	if len(order) != 2 {
		t.Errorf("%d parts of 2 had run when Reclaim of a closed system returned", len(order))
	}
}
