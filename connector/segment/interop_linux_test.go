package segment_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

var (
	payloads = flag.Int("segment.payloads", 300, "payloads that TestManyWithPython hands over; 10000 take some seconds for each other end")
	serial   atomic.Int64
)

// openForPython opens this side's end of an edge to Python.
func openForPython(t *testing.T, p *python) *connector.Connector {
	t.Helper()
	opts := segment.Options{Generation: p.generation}
	if p.generation == segment.ByMetadata {
		opts.InlineBytes = 64 << 10 // the other end does not find such values by key
	}
	end := open(t, opts)
	return connector.New("test", end, nil)
}

func wantPattern(t *testing.T, c *connector.Connector, key string, meta connector.Metadata, seed, size int) {
	t.Helper()
	v, err := c.Get(t.Context(), edge, key, meta)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Release()
	var got []byte
	if err := v.Decode(&got); err != nil || !bytes.Equal(got, pattern(seed, size)) {
		t.Fatalf("get of %q: %d bytes that are not the %d that were put: %v", key, len(got), size, err)
	}
}

func putPattern(t *testing.T, c *connector.Connector, key string, seed, size int) connector.Metadata {
	t.Helper()
	_, meta, err := c.Put(t.Context(), edge, key, pattern(seed, size))
	if err != nil {
		t.Fatal(err)
	}
	return meta
}

// TestWithPython: each side gets the other's values of any size, by metadata and by key; then they
// are consumed for both.
func TestWithPython(t *testing.T) {
	peers(t, func(t *testing.T, which string) {
		prefix := uniquePrefix(t)
		p := startPython(t, which)
		c := openForPython(t, p)
		for seed, size := range []int{0, 1, 300, 4091, 4092, 4093, 4096, 65_533, 65_534, 1 << 20, 64 << 20} {
			for _, withMeta := range []bool{true, false} {
				if !withMeta && (p.generation == segment.ByMetadata || size > 1<<20) {
					continue
				}
				key := fmt.Sprintf("%s_thinker_%d", prefix, size)
				metaFor := func(meta connector.Metadata) connector.Metadata {
					if withMeta {
						return meta
					}
					return nil
				}
				meta := p.put(t, key, seed, size)
				wantPattern(t, c, key, metaFor(meta), seed, size)
				if seed == 0 { // 0.14 waits long for a missing value
					p.wantNone(t, key, nil)
				}

				meta = putPattern(t, c, key, seed, size)
				p.get(t, key, metaFor(meta), seed, size)
				if _, err := c.Get(t.Context(), edge, key, nil); !errors.Is(err, connector.ErrNotFound) {
					t.Errorf("a value that Python has got: %v, want ErrNotFound", err)
				}
			}
		}
	})
}

// TestReplacedWithPython: a put replaces the value of either side.
func TestReplacedWithPython(t *testing.T) {
	keyed(t, "no two values have one name", func(t *testing.T, p *python) {
		key := uniquePrefix(t)
		c := openForPython(t, p)
		p.put(t, key, 1, 100_000)
		putPattern(t, c, key, 2, 1000)
		p.get(t, key, nil, 2, 1000)
		putPattern(t, c, key, 3, 1000)
		p.put(t, key, 4, 100_000)
		wantPattern(t, c, key, nil, 4, 100_000)
		// Cleanup here does not remove the value that replaced ours.
		putPattern(t, c, key, 5, 1000)
		meta := p.put(t, key, 6, 2000)
		if err := c.Cleanup(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		wantPattern(t, c, key, meta, 6, 2000)
	})
}

// TestAwaitPython: Await returns the value that Python puts.
func TestAwaitPython(t *testing.T) {
	keyed(t, "there is nothing to wait for without metadata", func(t *testing.T, p *python) {
		key := uniquePrefix(t)
		c := openForPython(t, p)
		const size = 3 << 20
		done := make(chan error)
		go func() {
			v, err := c.Await(t.Context(), edge, key, nil)
			if err == nil {
				if v.Size() != size+5 {
					err = fmt.Errorf("%d bytes of %d", v.Size(), size+5)
				}
				v.Release()
			}
			done <- err
		}()
		p.put(t, key, 1, size)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// impatient is a context whose deadline passes at the first wait, so that a call tries once, on a
// machine of any speed.
type impatient struct {
	context.Context
	over atomic.Bool
}

func (c *impatient) Done() <-chan struct{} {
	c.over.Store(true)
	ended := make(chan struct{})
	close(ended)
	return ended
}

func (c *impatient) Err() error {
	if c.over.Load() {
		return context.DeadlineExceeded
	}
	return nil
}

// TestLockedByPython: a lock of a living process delays puts, gets and cleanups until their
// deadline, and is released with the process.
func TestLockedByPython(t *testing.T) {
	key := uniquePrefix(t)
	p := startPython(t, "by key")
	c := openForPython(t, p)
	meta := putPattern(t, c, key, 1, 1000)
	p.ask(t, order{Op: "lock", Key: key})
	for name, call := range map[string]func(ctx context.Context) error{
		"get":     func(ctx context.Context) error { _, err := c.Get(ctx, edge, key, meta); return err },
		"await":   func(ctx context.Context) error { _, err := c.Await(ctx, edge, key, nil); return err },
		"put":     func(ctx context.Context) error { _, _, err := c.Put(ctx, edge, key, "value"); return err },
		"cleanup": func(ctx context.Context) error { return c.Cleanup(ctx, key) },
	} {
		err := call(&impatient{Context: t.Context()})
		wantErr(t, name+" of a locked value", err, connector.ErrBusy)
		wantErr(t, name+" of a locked value", err, context.DeadlineExceeded)
	}
	waiting := make(chan error)
	go func() {
		v, err := c.Await(context.Background(), edge, key, nil)
		if err == nil {
			v.Release()
		}
		waiting <- err
	}()
	p.Kill()
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}

// TestPythonKilledHalfway: an incomplete segment is not taken for a value.
func TestPythonKilledHalfway(t *testing.T) {
	key := uniquePrefix(t)
	p := startPython(t, "by key")
	c := openForPython(t, p)
	p.ask(t, order{Op: "half", Key: key, Size: 1 << 20})
	_, err := c.Get(&impatient{Context: t.Context()}, edge, key, nil)
	wantErr(t, "get while it is written", err, connector.ErrBusy)
	p.Crash()
	// Python's resource tracker may remove the segment first.
	if _, err = c.Get(t.Context(), edge, key, nil); !errors.Is(err, connector.ErrCorrupt) && !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("get of half a value: %v", err)
	}
	_ = p.End()
	_, err = c.Get(t.Context(), edge, key, nil)
	wantErr(t, "get after the resource tracker", err, connector.ErrNotFound)
	// The next put uses the lock that was left.
	putPattern(t, c, key, 2, 100)
	wantPattern(t, c, key, nil, 2, 100)
}

// TestKilledBesidePython: a writer here that is killed leaves Python a whole value or none, and the
// next transport that is opened removes it.
func TestKilledBesidePython(t *testing.T) {
	keyed(t, "without the metadata of its put, there is no value", func(t *testing.T, p *python) {
		prefix := uniquePrefix(t)
		for i, point := range append(slices.Clone(putPoints), "put-locked", "put:2") {
			key := fmt.Sprintf("%s_%d", prefix, i)
			victim := spawn(t, childOptions{Generation: segment.ByKey}, "segment-"+point)
			c := connector.New("test", victim, nil)
			var err error
			for n := 0; err == nil && n < 2; n++ {
				_, _, err = c.Put(t.Context(), edge, key, pattern(i, 100_000))
			}
			wantErr(t, "put of a process that is killed", err, connectortest.ErrGone)
			_ = victim.Stop()
			if a := p.ask(t, order{Op: "get", Key: key, Seed: i, Size: 100_000}); a.Found && !a.Equal {
				t.Errorf("%s: Python got bytes that were never put", point)
			}
			openForPython(t, p)
			left, err := filepath.Glob("/dev/shm/*" + prefix + "*")
			if err != nil || len(left) > 0 {
				t.Errorf("%s: left: %q, %v", point, left, err)
			}
			p.wantNone(t, key, nil)
		}
	})
}

// TestPythonReaderKilled: a Python process that is killed during a get has consumed the value or
// not; Cleanup here removes the files that it leaves.
func TestPythonReaderKilled(t *testing.T) {
	peers(t, func(t *testing.T, which string) {
		prefix := uniquePrefix(t)
		for i := range 4 {
			p := startPython(t, which)
			c := openForPython(t, p)
			const size = 8 << 20
			key := fmt.Sprintf("%s_%d", prefix, i)
			meta := putPattern(t, c, key, i, size)
			p.get(t, key+"_before", putPattern(t, c, key+"_before", i, size), i, size)
			p.Tell(order{Op: "get", Key: key, Meta: meta, Seed: i, Size: size})
			for range i * 100 {
				runtime.Gosched()
			}
			p.Kill()
			v, err := c.Get(t.Context(), edge, key, meta)
			if err == nil {
				v.Release()
			} else if !errors.Is(err, connector.ErrNotFound) {
				t.Error(err)
			}
			if err := c.Cleanup(t.Context(), key); err != nil {
				t.Error(err)
			}
			left, err := filepath.Glob("/dev/shm/*" + prefix + "*")
			if err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
		}
	})
}

// TestResourceTracker: a Python process that has opened a segment, and not removed it, removes it
// when it ends, also one of another process. That is no error here, and no file stays.
func TestResourceTracker(t *testing.T) {
	key := uniquePrefix(t)
	p := startPython(t, "by key")
	c := openForPython(t, p)
	meta := putPattern(t, c, key, 1, 1000)
	p.ask(t, order{Op: "attach", Key: key})
	_ = p.End()
	_, err := c.Get(t.Context(), edge, key, meta)
	wantErr(t, "get after a Python process that opened the segment", err, connector.ErrNotFound)
	if err := c.Cleanup(t.Context(), key); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob("/dev/shm/*" + key + "*"); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestManyWithPython hands payloads over in both directions at once.
func TestManyWithPython(t *testing.T) {
	peers(t, func(t *testing.T, which string) {
		prefix := uniquePrefix(t)
		putter, getter := startPython(t, which), startPython(t, which)
		c := openForPython(t, putter)
		const workers = 4
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(w), 1)) //nolint:gosec // repeatable
				for i := range *payloads / (2 * workers) {
					key := fmt.Sprintf("%s_%d_%d", prefix, w, i)
					size := random.IntN(1 << (4 + random.IntN(15)))
					wantPattern(t, c, key, putter.put(t, key, i, size), i, size)
					getter.get(t, key, putPattern(t, c, key, i, size), i, size)
				}
			})
		}
		all.Wait()
	})
}
