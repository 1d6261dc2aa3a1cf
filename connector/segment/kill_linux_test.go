package segment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

// scene is a directory with a transport and a value that a killed process must not harm.
type scene struct {
	dir       string
	opts      childOptions
	bystander *segment.Transport
	aside     connector.Metadata
	before    []string
}

func newScene(t *testing.T, generation int) *scene {
	s := &scene{dir: segment.Shm(t)}
	s.opts = childOptions{Generation: generation, Dir: s.dir}
	s.bystander = open(t, segment.Options{Generation: generation, Dir: s.dir})
	s.aside = put(t, s.bystander, "aside", another)
	s.before = values(t, s.dir)
	return s
}

// after opens a transport, as a restarted process would, and checks that the directory has only the
// earlier files, of which mayBeGone may be missing.
func (s *scene) after(t *testing.T, mayBeGone ...string) *segment.Transport {
	t.Helper()
	next := open(t, segment.Options{Generation: s.opts.Generation, Dir: s.dir})
	now := values(t, s.dir)
	for _, name := range now {
		if !slices.Contains(s.before, name) {
			t.Errorf("%q is left", name)
		}
	}
	for _, name := range s.before {
		if !slices.Contains(now, name) && !slices.Contains(mayBeGone, name) {
			t.Errorf("%q is gone", name)
		}
	}
	if journals := journals(t, s.dir); len(journals) != 2 {
		t.Errorf("want two journals: %q", journals)
	}
	wantValue(t, next, "aside", s.aside, another)
	return next
}

var putPoints = []string{"spare-named", "allocated", "filled", "put-recorded", "put-linked", "put"}

// TestWriterKilled: a writer that is killed between any two steps leaves no file.
func TestWriterKilled(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		points := putPoints
		if generation == segment.ByKey {
			points = append(slices.Clone(putPoints), "put-locked")
		}
		for _, point := range points {
			t.Run(point+" "+string(rune('0'+generation)), func(t *testing.T) {
				s := newScene(t, generation)
				victim := spawn(t, s.opts, "segment-"+point)
				_, err := tryPut(t.Context(), victim, "key", fresh)
				wantErr(t, "put of a process that is killed", err, connectortest.ErrGone)
				_ = victim.Stop()
				next := s.after(t)
				wantNone(t, next, "key", nil)
				wantValue(t, s.bystander, "key", put(t, next, "key", old), old)
			})
		}
	}
}

// TestReplacerKilled: if the writer is killed while it replaces a value, the old value is whole or
// gone, together with its lock.
func TestReplacerKilled(t *testing.T) {
	for _, point := range []string{"spare-named", "filled", "put-recorded", "put-locked", "put-replacing", "put-linked", "put"} {
		for _, whose := range []string{"its own", "another's"} {
			t.Run(point+", "+whose, func(t *testing.T) {
				s := newScene(t, segment.ByKey)
				if whose == "another's" {
					put(t, s.bystander, "key", old)
					s.before = values(t, s.dir)
				}
				count := ""
				if whose == "its own" && point != "put-replacing" {
					count = ":2"
				}
				victim := spawn(t, s.opts, "segment-"+point+count)
				if whose == "its own" {
					put(t, victim, "key", old)
				}
				_, err := tryPut(t.Context(), victim, "key", fresh)
				wantErr(t, "put of a process that is killed", err, connectortest.ErrGone)
				_ = victim.Stop()
				next := s.after(t, "key", "shm_key_lockfile.lock")
				payload, err := next.Get(t.Context(), edge, "key", nil)
				switch {
				case err == nil && whose == "another's" && bytes.Equal(payload.Bytes(), old):
				case errors.Is(err, connector.ErrNotFound):
				default:
					t.Errorf("the value that was being replaced: %v", err)
				}
				wantValue(t, next, "key", put(t, s.bystander, "key", old), old)
				if err := s.bystander.Cleanup(t.Context(), "key"); err != nil {
					t.Error(err)
				}
				if left := values(t, s.dir); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
			})
		}
	}
}

// TestKilledWriterKeepsLaterValues: the sweep of a killed writer's journal removes no values that
// others have put under its keys.
func TestKilledWriterKeepsLaterValues(t *testing.T) {
	s := newScene(t, segment.ByKey)
	victim := spawn(t, s.opts, "")
	for i := range 3 {
		key := fmt.Sprintf("key_%d", i)
		wantValue(t, s.bystander, key, put(t, victim, key, old), old)
		put(t, s.bystander, key, fresh)
	}
	s.before = values(t, s.dir)
	victim.Kill()
	next := s.after(t)
	for i := range 3 {
		wantValue(t, next, fmt.Sprintf("key_%d", i), nil, fresh)
	}
}

// TestReaderKilled: a reader that is killed has consumed the value or not, and leaves no lock.
func TestReaderKilled(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		points := []string{"get-opened", "get-read", "get-unlinked", "get"}
		if generation == segment.ByKey {
			points = append(points, "get-recorded", "get-unlocked")
		}
		for i, point := range points {
			t.Run(point+" "+string(rune('0'+generation)), func(t *testing.T) {
				s := newScene(t, generation)
				victim := spawn(t, s.opts, "segment-"+point)
				meta := put(t, s.bystander, "key", old)
				gone := values(t, s.dir)
				s.before = gone
				_, err := victim.Get(t.Context(), edge, "key", meta)
				wantErr(t, "get of a process that is killed", err, connectortest.ErrGone)
				_ = victim.Stop()
				next := s.after(t, gone...)
				if i < 2 || point == "get-recorded" {
					wantValue(t, next, "key", meta, old)
				} else {
					wantNone(t, next, "key", meta)
				}
				if left := values(t, s.dir); len(left) > 0 {
					t.Errorf("left: %q", left)
				}
			})
		}
	}
}

// TestReclaimerKilled: if a process is killed while it reclaims, the next transport that is opened
// continues.
func TestReclaimerKilled(t *testing.T) {
	for _, point := range []string{"settle-unlinked", "settle-unlocked"} {
		for what, reclaim := range map[string]func(context.Context, *connectortest.Child) error{
			"cleanup": func(ctx context.Context, c *connectortest.Child) error { return c.Cleanup(ctx, "key") },
			"close":   func(_ context.Context, c *connectortest.Child) error { return c.Close() },
		} {
			t.Run(what+", "+point, func(t *testing.T) {
				s := newScene(t, segment.ByKey)
				victim := spawn(t, s.opts, "segment-"+point)
				put(t, victim, "key", old)
				wantErr(t, what, reclaim(t.Context(), victim), connectortest.ErrGone)
				_ = victim.Stop()
				s.after(t)
			})
		}
	}
}

// TestSweeperKilled: if a process is killed while it sweeps, the next transport that is opened
// continues.
func TestSweeperKilled(t *testing.T) {
	for _, point := range []string{"opened", "settle-unlinked", "settle-unlocked", "swept", "swept:2"} {
		t.Run(point, func(t *testing.T) {
			s := newScene(t, segment.ByKey)
			dead := spawn(t, s.opts, "")
			put(t, dead, "key", old)
			put(t, dead, "key 2", old)
			dead.Kill()
			victim := spawn(t, s.opts, "segment-"+point)
			wantErr(t, "a call", victim.Cleanup(t.Context(), "key"), connectortest.ErrGone)
			_ = victim.Stop()
			s.after(t)
		})
	}
}

// TestRandomKills kills processes at random points of their work on few shared keys, and checks
// that values are whole and no file stays.
func TestRandomKills(t *testing.T) {
	points := []string{
		"spare-named", "allocated", "filled", "put-recorded", "put-locked", "put-replacing", "put-linked", "put",
		"get-opened", "get-read", "get-recorded", "get-unlinked", "get-unlocked", "get", "settle-unlinked", "settle-unlocked",
	}
	dir := segment.Shm(t)
	bystander := open(t, segment.Options{Dir: dir})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // repeatable
	whole := func(payload connector.Payload, err error) error {
		if err == nil {
			if b := payload.Bytes(); !bytes.Equal(b, content(b[0], 1000+int(b[0])*100)) {
				t.Errorf("%d bytes that were never put", len(b))
			}
			payload.Release()
		}
		if errors.Is(err, connector.ErrNotFound) {
			return nil
		}
		return err
	}
	for range 60 {
		point := fmt.Sprintf("%s:%d", points[random.IntN(len(points))], 1+random.IntN(5))
		victim := spawn(t, childOptions{Generation: segment.ByKey, Dir: dir}, "segment-"+point)
		var err error
		for i := 0; err == nil; i++ {
			key, seed := fmt.Sprintf("key_%d", random.IntN(3)), byte(random.IntN(200))
			value := content(seed, 1000+int(seed)*100)
			side := connector.Transport(victim)
			if random.IntN(4) == 0 {
				side = bystander
			}
			switch random.IntN(3) {
			case 0:
				_, err = tryPut(t.Context(), side, key, value)
			case 1:
				err = whole(side.Get(t.Context(), edge, key, nil))
			case 2:
				err = side.Cleanup(t.Context(), key)
			}
		}
		wantErr(t, point, err, connectortest.ErrGone)
		_ = victim.Stop()
	}
	next := open(t, segment.Options{Dir: dir})
	for i := range 3 {
		if err := bystander.Cleanup(t.Context(), fmt.Sprintf("key_%d", i)); err != nil {
			t.Error(err)
		}
		wantNone(t, next, fmt.Sprintf("key_%d", i), nil)
	}
	if left := values(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
