package segment_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

// TestLasting: a lasting value stays after Close of its transport and the opening of the next one,
// until it is got or cleaned up by its key.
func TestLasting(t *testing.T) {
	dir := segment.Shm(t)
	opts := segment.Options{Dir: dir, Lasting: true}
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		opts.Generation = generation
		end, err := segment.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		meta := put(t, end, "stays", old)
		cleaned, err := put(t, end, "cleaned", old).Map("shm").Text("name")
		if err = errors.Join(err, end.Close()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := open(t, opts).Cleanup(t.Context(), cleaned); err != nil {
				t.Fatal(err)
			}
		}
		if left := values(t, dir); len(left) != generation { // the segment, and the lock of generation 2
			t.Errorf("the directory has %v", left)
		}
		next := open(t, segment.Options{Dir: dir})
		got, err := next.Get(t.Context(), edge, "stays", meta)
		if err != nil || !bytes.Equal(got.Bytes(), old) {
			t.Fatalf("generation %d: %v", generation, err)
		}
		got.Release()
	}
}

// TestLastingKilled: a lasting value stays when its process is killed.
func TestLastingKilled(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		opts := childOptions{Generation: generation, Dir: segment.Shm(t), Lasting: true}
		victim := spawn(t, opts, "")
		meta := put(t, victim, "key", old)
		victim.Kill()
		wantValue(t, open(t, segment.Options{Dir: opts.Dir}), "key", meta, old)
	}
}

// TestLastingCleanupOfOthers: a cleanup by key removes no file that is no segment.
func TestLastingCleanupOfOthers(t *testing.T) {
	dir := segment.Shm(t)
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	end := open(t, segment.Options{Dir: dir, Lasting: true})
	if err := end.Cleanup(t.Context(), "link"); !errors.Is(err, connector.ErrKey) {
		t.Errorf("cleanup of a link: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "link")); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "link")); err != nil {
		t.Error(err)
	}
}

// lasting puts values as a program does that ends at once, and returns their metadata.
func lasting(t *testing.T, opts segment.Options, keys ...string) map[string]connector.Metadata {
	t.Helper()
	opts.Lasting = true
	end, err := segment.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	metas := make(map[string]connector.Metadata)
	for _, key := range keys {
		metas[key] = put(t, end, key, old)
	}
	if err := end.Close(); err != nil {
		t.Fatal(err)
	}
	return metas
}

// TestLastingSwept: the next transport that is opened removes the expired values of ended
// processes, and no others.
func TestLastingSwept(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		synctest.Test(t, func(t *testing.T) {
			opts := segment.Options{Dir: segment.Shm(t), Generation: generation}
			kept := lasting(t, opts, "for ever")
			opts.TTL = time.Hour
			later := lasting(t, opts, "later")
			opts.TTL = time.Minute
			lasting(t, opts, "over", "over as well")
			<-time.After(2 * time.Minute)
			if left := values(t, opts.Dir); len(left) != 4*generation { // each with its lock in generation 2
				t.Errorf("generation %d: before a transport is opened there is %q", generation, left)
			}
			next := open(t, segment.Options{Dir: opts.Dir})
			if left := values(t, opts.Dir); len(left) != 2*generation {
				t.Errorf("generation %d: %q is left", generation, left)
			}
			wantValue(t, next, "for ever", kept["for ever"], old)
			wantValue(t, next, "later", later["later"], old)
		})
	}
}

// TestLastingSweptAlive: an open transport sweeps its lasting values, each after its TTL.
func TestLastingSweptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		end := open(t, segment.Options{Dir: segment.Shm(t), Lasting: true, TTL: ttl})
		put(t, end, "early", old)
		<-time.After(ttl / 2)
		put(t, end, "late", old)
		<-time.After(ttl/2 + time.Second)
		synctest.Wait()
		wantNone(t, end, "early", nil)
		if _, err := end.Peek(t.Context(), edge, "late", nil); err != nil {
			t.Error(err)
		}
		<-time.After(ttl / 2)
		synctest.Wait()
		wantNone(t, end, "late", nil)
	})
}

// TestLastingMinTTL: a transport whose values expire at once pauses between two sweeps.
func TestLastingMinTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := open(t, segment.Options{Dir: segment.Shm(t), Lasting: true, TTL: time.Nanosecond})
		put(t, end, "key", old)
		<-time.After(time.Second) // without a pause it would sweep without end
		wantNone(t, end, "key", nil)
	})
}

// TestLastingCleanup: Cleanup removes values of exactly its key, of any process.
func TestLastingCleanup(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		opts := segment.Options{Dir: segment.Shm(t), Generation: generation}
		metas := lasting(t, opts, "r1_thinker_0", "r1_thinker_1", "r2_thinker_0", "r3")
		opts.Lasting = true
		end := open(t, opts)
		for _, key := range []string{"r1", "r1_thinker_0", "r1_thinker_1", "r3", "r3"} {
			if err := end.Cleanup(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range []string{"r1_thinker_0", "r1_thinker_1", "r3"} {
			wantNone(t, end, key, metas[key])
		}
		if left := values(t, opts.Dir); len(left) != generation {
			t.Errorf("generation %d: %q is left", generation, left)
		}
		wantValue(t, end, "r2_thinker_0", metas["r2_thinker_0"], old)
	}
}

// TestLastingMaxTTL: a value whose expiry exceeds the note's range does not expire.
func TestLastingMaxTTL(t *testing.T) {
	opts := segment.Options{Dir: segment.Shm(t), TTL: math.MaxInt64}
	lasting(t, opts, "r1_thinker_0")
	open(t, opts) // sweeps
	opts.Lasting = true
	if err := open(t, opts).Cleanup(t.Context(), "r1_thinker_0"); err != nil {
		t.Fatal(err)
	}
	if left := values(t, opts.Dir); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}

// TestLastingReplaced: a value has its own TTL, not that of the value it replaced.
func TestLastingReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := segment.Options{Dir: segment.Shm(t), TTL: time.Minute}
		lasting(t, opts, "key")
		opts.TTL = time.Hour
		lasting(t, opts, "key")
		<-time.After(2 * time.Minute)
		wantValue(t, open(t, segment.Options{Dir: opts.Dir}), "key", nil, old)
	})
}

// TestLastingWriterKilled: a writer that is killed before its put has ended leaves no value.
func TestLastingWriterKilled(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		for _, point := range []string{"put-recorded", "put-noted", "put-linked"} {
			t.Run(fmt.Sprint(point, generation), func(t *testing.T) {
				opts := childOptions{Generation: generation, Dir: segment.Shm(t), Lasting: true}
				victim := spawn(t, opts, "segment-"+point)
				_, err := tryPut(t.Context(), victim, "key", fresh)
				wantErr(t, "put of a process that is killed", err, connectortest.ErrGone)
				_ = victim.Stop()
				wantNone(t, open(t, segment.Options{Dir: opts.Dir}), "key", nil)
				if left := values(t, opts.Dir); len(left) > 0 {
					t.Errorf("%q is left", left)
				}
			})
		}
	}
}
