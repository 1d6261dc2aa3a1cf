package posix_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
)

// scene is a directory with a store in it that a killing must not harm.
type scene struct {
	opts    childOptions
	aside   connector.Transport
	meta    connector.Metadata
	without []string
}

func newScene(t *testing.T) *scene {
	s := &scene{opts: fresh(t)}
	aside := s.opts
	aside.Name = s.opts.Name + "-2"
	s.aside = open(t, aside.options())
	s.meta = put(t, s.aside, "aside", old)
	s.without = list(t, s.opts.Dir)
	return s
}

// after sees that the other store is what it was, and that nothing else is left.
func (s *scene) after(t *testing.T) {
	t.Helper()
	if now := list(t, s.opts.Dir); fmt.Sprint(now) != fmt.Sprint(s.without) {
		t.Errorf("there is %q, want %q", now, s.without)
	}
	wantValue(t, s.aside, "aside", s.meta, old)
}

// creatorPoints are between any two steps of a creator: of one that makes its files,
// puts and closes.
func creatorPoints() (points []string) {
	points = []string{"head-linked", "created", "written", "published"}
	for i := range 6 { // arena, directory, ledger, index, room, marks
		points = append(points, fmt.Sprintf("file-made:%d", i+1))
	}
	for i := range 6 {
		points = append(points, fmt.Sprintf("file-removed:%d", i+1))
	}
	return points
}

// TestCreatorKilled: of a creator that is killed between any two steps, the next one
// leaves nothing.
func TestCreatorKilled(t *testing.T) {
	for _, point := range creatorPoints() {
		t.Run(point, func(t *testing.T) {
			s := newScene(t)
			victim := spawn(t, s.opts, "posix-"+point)
			meta, err := tryPut(t.Context(), victim, "key", old)
			if err == nil {
				err = victim.Close()
			}
			wantErr(t, "a process that is killed", err, connectortest.ErrGone)
			_ = victim.End()
			getter := open(t, s.opts.options())
			wantNone(t, getter, "key", meta)
			wantNone(t, getter, "key", nil)
			next, err := newEnd(s.opts)
			if err != nil {
				t.Fatal(err)
			}
			wantValue(t, getter, "key", put(t, next, "key", next20k), next20k)
			wantAllRoom(t, next)
			if err := errors.Join(getter.Close(), next.Close()); err != nil {
				t.Error(err)
			}
			s.after(t)
		})
	}
}

// TestSuccessorKilled: so it is where whoever removes what a dead creator left is
// killed at that.
func TestSuccessorKilled(t *testing.T) {
	points := []string{"dead-locked", "buried", "head-linked", "created"}
	for i := range 6 {
		points = append(points, fmt.Sprintf("file-removed:%d", i+1))
	}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			s := newScene(t)
			dead := spawn(t, s.opts, "")
			put(t, dead, "key", old)
			dead.Kill()
			victim := spawn(t, s.opts, "posix-"+point)
			_, err := tryPut(t.Context(), victim, "key", next20k)
			wantErr(t, "put of a process that is killed", err, connectortest.ErrGone)
			_ = victim.End()
			next, err := newEnd(s.opts)
			if err != nil {
				t.Fatal(err)
			}
			wantValue(t, next, "key", put(t, next, "key", next20k), next20k)
			if err := next.Close(); err != nil {
				t.Error(err)
			}
			s.after(t)
		})
	}
}

// TestReaderKilled: a reader that is killed has got the value or has not, and keeps
// neither its place nor any room.
func TestReaderKilled(t *testing.T) {
	for point, got := range map[string]bool{
		"place-locked": false, "attached": false, "pinned": false, "slot-locked": false, "marked": true, "got": true,
	} {
		for _, after := range []string{"another comes", "nobody comes"} {
			t.Run(point+", "+after, func(t *testing.T) {
				s := newScene(t)
				creator := open(t, s.opts.options())
				meta := put(t, creator, "key", old)
				victim := spawn(t, s.opts, "posix-"+point)
				_, err := victim.Get(t.Context(), edge, "key", meta)
				wantErr(t, "get of a process that is killed", err, connectortest.ErrGone)
				_ = victim.End()
				getter := creator
				if after == "another comes" {
					getter = open(t, s.opts.options())
				}
				if got {
					wantNone(t, getter, "key", meta)
					wantNone(t, getter, "key", nil)
				} else {
					wantValue(t, getter, "key", meta, old)
				}
				wantAllRoom(t, creator)
				if err := errors.Join(getter.Close(), creator.Close()); err != nil {
					t.Error(err)
				}
				s.after(t)
			})
		}
	}
}

// TestKilledWhileHolding: the room that a killed reader held comes back to a put that
// waits for it.
func TestKilledWhileHolding(t *testing.T) {
	opts := fresh(t)
	creator := open(t, opts.options())
	for i := range 2 {
		put(t, creator, fmt.Sprint(i), content(byte(i), 500_000))
	}
	// The first is released once it was relayed; the second is pinned, and goes nowhere.
	victim := spawn(t, opts, "posix-got:2")
	for i := range 2 {
		_, err := victim.Get(t.Context(), edge, fmt.Sprint(i), nil)
		if i == 1 {
			wantErr(t, "get of a process that is killed", err, connectortest.ErrGone)
		}
	}
	_ = victim.End()
	wantAllRoom(t, creator)
}

// TestReadersOutliveCreator: what a reader has got stays as it is when the creator is
// killed, and when the next one of that name comes, which the reader finds by itself.
func TestReadersOutliveCreator(t *testing.T) {
	opts := fresh(t)
	first := spawn(t, opts, "")
	put(t, first, "key", old)
	left := put(t, first, "left", old)
	getter := open(t, opts.options())
	held := hold(t, getter, "key", nil, old)
	first.Kill()
	wantNone(t, getter, "left", left)
	second := spawn(t, opts, "")
	for i := range 20 {
		key := fmt.Sprint(i)
		wantValue(t, getter, key, put(t, second, key, content(byte(i), 100_000)), content(byte(i), 100_000))
	}
	wantNone(t, getter, "left", left)
	wantBytes(t, held, old)
	held.Release()
	if err := errors.Join(second.Close(), getter.Close()); err != nil {
		t.Error(err)
	}
	wantEmpty(t, opts)
}

// TestAwaitThroughDeath: who waits for a value gets it from the creator that puts it,
// and not from the one that was there before.
func TestAwaitThroughDeath(t *testing.T) {
	opts := fresh(t)
	getter := spawn(t, opts, "")
	got := make(chan error, 1)
	go func() {
		payload, err := getter.Await(t.Context(), edge, "key", nil)
		if err == nil {
			wantBytes(t, payload, next20k)
		}
		got <- err
	}()
	for range 3 {
		dead := spawn(t, opts, "")
		put(t, dead, "another key", old)
		dead.Kill()
	}
	put(t, spawn(t, opts, ""), "key", next20k)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestRampage kills one process after the other, each at a random point of its work
// on few keys, and sees that values are whole and nothing stays.
func TestRampage(t *testing.T) {
	points := []string{
		"head-linked", "created", "file-made", "written", "published", "place-locked", "attached", "pinned",
		"slot-locked", "marked", "got", "dead-locked", "buried", "file-removed", "evacuated",
	}
	opts := fresh(t)
	opts.Readers = 2
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	getter := open(t, opts.options())
	rounds, least := 100, 20
	if testing.Short() {
		rounds, least = 30, 1
	}
	killed := 0
	for range rounds {
		point := fmt.Sprintf("posix-%s:%d", points[random.IntN(len(points))], 1+random.IntN(4))
		victim := spawn(t, opts, point)
		creates := random.IntN(2) == 0
		other, err := newEnd(opts)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 40 && !errors.Is(err, connectortest.ErrGone); i++ {
			err = rampage(t, random, victim, getter, other, creates)
			expected := err == nil
			for _, e := range []error{connectortest.ErrGone, connector.ErrNotFound, connector.ErrBusy, connector.ErrUnavailable} {
				expected = expected || errors.Is(err, e)
			}
			if !expected {
				t.Errorf("%s: %v", point, err)
			}
		}
		if errors.Is(err, connectortest.ErrGone) {
			killed++
		}
		_ = victim.End()
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
	if killed < least {
		t.Errorf("%d processes were killed: this tests nothing", killed)
	}
	next, err := newEnd(opts)
	if err != nil {
		t.Fatal(err)
	}
	wantAllRoom(t, next)
	if err := errors.Join(getter.Close(), next.Close()); err != nil {
		t.Error(err)
	}
	wantEmpty(t, opts)
}

// rampage does one thing: the victim puts and another end gets, or the other way round.
func rampage(t *testing.T, random *rand.Rand, victim, getter, other connector.Transport, creates bool) error {
	t.Helper()
	creator, reader := victim, getter
	if !creates {
		creator, reader = other, victim
	}
	key, seed := fmt.Sprintf("key_%d", random.IntN(3)), byte(random.IntN(200))
	switch random.IntN(4) {
	case 0, 1:
		_, err := tryPut(t.Context(), creator, key, content(seed, 1000+int(seed)*100))
		return err
	case 2:
		payload, err := reader.Get(t.Context(), edge, key, nil)
		if err != nil {
			return err
		}
		if b := payload.Bytes(); !bytes.Equal(b, content(b[0], 1000+int(b[0])*100)) {
			t.Errorf("%d bytes that were never put", len(b))
		}
		payload.Release()
		return nil
	default:
		return creator.Cleanup(t.Context(), key)
	}
}

// TestDeadIsFound: that a reader has died is found with the next look, and with a
// cleanup, whether there is room or not.
func TestDeadIsFound(t *testing.T) {
	const pidAt = 8
	for name, every := range map[string]time.Duration{"a look": time.Millisecond, "a cleanup": time.Hour} {
		t.Run(name, func(t *testing.T) {
			opts := fresh(t)
			looking := opts.options()
			looking.LookEvery = every
			creator := open(t, looking)
			put(t, creator, "key", old)
			put(t, creator, "stays", old)
			victim := spawn(t, opts, "posix-got")
			_, err := victim.Get(t.Context(), edge, "key", nil)
			wantErr(t, "get of a process that is killed", err, connectortest.ErrGone)
			_ = victim.End()
			if every == time.Hour {
				if err := creator.Cleanup(t.Context(), "nothing"); err != nil {
					t.Fatal(err)
				}
				if pid := opts.number(t, ".marks-1", pidAt); pid != 0 {
					t.Errorf("process %d has its place", pid)
				}
			}
			for opts.number(t, ".marks-1", pidAt) != 0 {
				runtime.Gosched()
			}
			wantNone(t, creator, "key", nil)
			wantValue(t, creator, "stays", nil, old)
		})
	}
}

// TestCreatorsRace: of several that create a store at once, over what a dead one left,
// one does.
func TestCreatorsRace(t *testing.T) {
	opts := fresh(t)
	for range 10 {
		dead := spawn(t, opts, "")
		put(t, dead, "key", old)
		dead.Kill()
		var ends []connector.Transport
		var created atomic.Int32
		var wait sync.WaitGroup
		for range 4 {
			end, err := newEnd(opts)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
			wait.Go(func() {
				_, err := tryPut(t.Context(), end, "key", next20k)
				if err == nil {
					created.Add(1)
				} else {
					wantErr(t, "put of one that comes later", err, connector.ErrBusy)
				}
			})
		}
		wait.Wait()
		if n := created.Load(); n != 1 {
			t.Errorf("%d created the store", n)
		}
		getter := open(t, opts.options())
		wantValue(t, getter, "key", nil, next20k)
		for _, end := range append(ends, getter) {
			if err := end.Close(); err != nil {
				t.Error(err)
			}
		}
		wantEmpty(t, opts)
	}
}

// TestNextComesEarly: a creator that ends takes nothing of the next one along, however
// early that comes.
func TestNextComesEarly(t *testing.T) {
	opts := fresh(t)
	opts.Bytes, opts.Readers = 64<<10, 63 // many files, and not much in them
	last, err := newEnd(opts)
	if err != nil {
		t.Fatal(err)
	}
	put(t, last, "key", old)
	want := list(t, opts.Dir)
	for range 50 {
		next, err := newEnd(opts)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- last.Close() }()
		for {
			if _, err = tryPut(t.Context(), next, "key", old); err == nil {
				break
			}
			if !errors.Is(err, connector.ErrBusy) {
				t.Fatal(err)
			}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if now := list(t, opts.Dir); fmt.Sprint(now) != fmt.Sprint(want) {
			t.Fatalf("there is %q, want %q", now, want)
		}
		last = next
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	wantEmpty(t, opts)
}
