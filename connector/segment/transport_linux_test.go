package segment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

func TestTransport(t *testing.T) {
	for name, generation := range map[string]int{"by metadata": segment.ByMetadata, "by key": segment.ByKey} {
		for ends, apart := range map[string]bool{"one end": false, "two ends": true} {
			t.Run(name+", "+ends, func(t *testing.T) {
				connectortest.Run(t, connectortest.Ends{
					ByMetadata: generation == segment.ByMetadata,
					Open: func(t *testing.T) (put, get connector.Transport) {
						opts := segment.Options{Generation: generation, Dir: segment.Shm(t)}
						if end := open(t, opts); !apart {
							return end, end
						}
						return open(t, opts), open(t, opts)
					},
				})
			})
		}
	}
}

// TestFormat: metadata, names, contents and modes of values are those of the format.
func TestFormat(t *testing.T) {
	dir := segment.Shm(t)
	end := open(t, segment.Options{Dir: dir})
	meta := put(t, end, "r1_thinker_0", old)
	want := shmMetadata("r1_thinker_0", len(old))
	if want["size"] = len(old); fmt.Sprint(meta) != fmt.Sprint(want) {
		t.Errorf("metadata %v, want %v", meta, want)
	}
	if names := fmt.Sprint(values(t, dir)); names != "[r1_thinker_0 shm_r1_thinker_0_lockfile.lock]" {
		t.Errorf("the directory has %v", names)
	}
	b, err := os.ReadFile(filepath.Join(dir, "r1_thinker_0"))
	if err != nil || !bytes.Equal(b, old) {
		t.Errorf("the segment has %d bytes that are not the %d that were put: %v", len(b), len(old), err)
	}
	st, err := os.Stat(filepath.Join(dir, "r1_thinker_0"))
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("the segment's mode is %v, %v", st.Mode(), err)
	}

	first := open(t, segment.Options{Generation: segment.ByMetadata, InlineBytes: 100, Dir: dir})
	if meta := put(t, first, "r2", old[:100]); !bytes.Equal(meta["inline_bytes"].([]byte), old[:100]) || len(meta) != 1 {
		t.Errorf("metadata of a small value: %v", meta)
	}
	meta = put(t, first, "r2", old[:101])
	name, err := meta.Map("shm").Text("name")
	if err != nil || len(name) != 12 || !strings.HasPrefix(name, "psm_") {
		t.Errorf("metadata of a larger value: %v, %v", meta, err)
	}
}

// TestNoBytes: an empty value has no segment.
func TestNoBytes(t *testing.T) {
	end := open(t, segment.Options{Dir: segment.Shm(t)})
	c := connector.New("test", end, codec.RawSerializer{})
	_, meta, err := c.Put(t.Context(), edge, "key", []byte{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(t.Context(), edge, "key", meta)
	if err != nil || v.Size() != 0 {
		t.Errorf("get of no bytes: %v", err)
	}
}

// TestOneReaderGetsValue: one of many readers, in two processes, gets each value, with metadata and
// without.
func TestOneReaderGetsValue(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		dir := segment.Shm(t)
		opts := segment.Options{Generation: generation, Dir: dir}
		writer := open(t, opts)
		readers := []connector.Transport{open(t, opts), open(t, opts), spawn(t, childOptions{Generation: generation, Dir: dir}, "")}
		for i := range 60 {
			key := fmt.Sprintf("key_%d", i)
			meta := put(t, writer, key, old)
			if generation == segment.ByKey && i%2 == 0 {
				meta = nil
			}
			var got atomic.Int32
			var all sync.WaitGroup
			for _, r := range readers {
				all.Go(func() {
					payload, err := r.Get(t.Context(), edge, key, meta)
					if err == nil {
						if got.Add(1); !bytes.Equal(payload.Bytes(), old) {
							t.Error("the bytes differ from those that were put")
						}
					} else if !errors.Is(err, connector.ErrNotFound) {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if got.Load() != 1 {
				t.Errorf("%d readers got the value", got.Load())
			}
		}
	}
}

// TestReplacedValueIsWhole: a reader of a key that is replaced all the time gets complete values.
func TestReplacedValueIsWhole(t *testing.T) {
	dir := segment.Shm(t)
	writer := open(t, segment.Options{Dir: dir})
	reader := spawn(t, childOptions{Generation: segment.ByKey, Dir: dir}, "")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := byte(0); ctx.Err() == nil; i++ {
			if _, err := tryPut(context.Background(), writer, "key", content(i, 1000+int(i)*300)); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 100 {
		payload, err := reader.Await(t.Context(), edge, "key", nil)
		if err != nil {
			t.Fatal(err)
		}
		if b := payload.Bytes(); !bytes.Equal(b, content(b[0], 1000+int(b[0])*300)) {
			t.Errorf("%d bytes that were never put", len(b))
		}
	}
	cancel()
	<-done
}

// TestSweep: values are removed and logged after the TTL, and later ones are not.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		const ttl = time.Minute
		dir := segment.Shm(t)
		end := open(t, segment.Options{Dir: dir, TTL: ttl, Log: slog.New(slog.NewTextHandler(&log, nil))})
		put(t, end, "early", old)
		put(t, end, "got", old)
		wantValue(t, end, "got", nil, old)
		<-time.After(ttl / 2)
		put(t, end, "late", old)
		<-time.After(ttl/2 + time.Second)
		synctest.Wait()
		wantNone(t, end, "early", nil)
		if text := log.String(); !strings.Contains(text, "early") || strings.Contains(text, "late") || strings.Contains(text, "got") {
			t.Errorf("the log says %q", text)
		}
		if left := values(t, dir); len(left) != 2 {
			t.Errorf("left: %q", left)
		}
		wantValue(t, end, "late", nil, old)
	})
}

// TestLockLeft: a lock that its consumer never removes is removed by a put after orphanGrace.
func TestLockLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := segment.Shm(t)
		end := open(t, segment.Options{Dir: dir})
		put(t, end, "got", old)
		if err := os.Remove(filepath.Join(dir, "got")); err != nil {
			t.Fatal(err)
		}
		for want, wait := range []time.Duration{2 * time.Second, 0} {
			put(t, end, fmt.Sprint("first", want), old)
			put(t, end, fmt.Sprint("second", want), old)
			if left := len(values(t, dir)); left != 4*(want+1)+1-want {
				t.Errorf("round %d: %d names in %q", want, left, values(t, dir))
			}
			<-time.After(wait)
		}
	})
}

// TestNamedLikeMetadata: a key may be "shm", which metadata use for the segment.
func TestNamedLikeMetadata(t *testing.T) {
	for _, generation := range []int{segment.ByMetadata, segment.ByKey} {
		c := connector.New("T", open(t, segment.Options{Dir: segment.Shm(t), Generation: generation}), codec.RawSerializer{})
		want := bytes.Repeat([]byte("v"), 1<<20)
		_, meta, err := c.Put(t.Context(), edge, "shm", want)
		if err != nil {
			t.Fatal(err)
		}
		for i, withMeta := range []connector.Metadata{meta, {"shm": map[string]any(meta)}} { // the metadata, and wrapped
			if i > 0 {
				if _, withMeta["shm"], err = c.Put(t.Context(), edge, "shm", want); err != nil {
					t.Fatal(err)
				}
			}
			v, err := c.Get(t.Context(), edge, "shm", withMeta)
			if err != nil {
				t.Fatalf("generation %d, %v: %v", generation, withMeta, err)
			}
			if !bytes.Equal(v.Bytes(), want) {
				t.Errorf("generation %d: %d bytes that are the bytes differ from those that were put", generation, v.Size())
			}
			v.Release()
		}
	}
}

// TestNoDescriptors: without free descriptors Cleanup fails, and a later one removes the lock too.
func TestNoDescriptors(t *testing.T) {
	dir := segment.Shm(t)
	end := open(t, segment.Options{Dir: dir})
	put(t, end, "key", old)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	err := end.Cleanup(t.Context(), "key")
	if again := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); again != nil {
		t.Fatal(again)
	}
	wantErr(t, "cleanup without descriptors", err, connector.ErrFull)
	if err := end.Cleanup(t.Context(), "key"); err != nil {
		t.Error(err)
	}
	if left := values(t, dir); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// TestLocked: a lock that another process holds delays puts, gets and cleanups until the timeout; a
// lock that was released does not.
func TestLocked(t *testing.T) {
	dir := segment.Shm(t)
	end := open(t, segment.Options{Dir: dir, Timeout: time.Millisecond})
	meta := put(t, end, "key", old)
	lock, err := os.OpenFile(filepath.Join(dir, "shm_key_lockfile.lock"), os.O_RDWR, 0)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = tryPut(t.Context(), end, "key", old)
	wantErr(t, "put", err, connector.ErrBusy)
	wantErr(t, "get", tryGet(t.Context(), end, meta), connector.ErrBusy)
	wantErr(t, "get by key", tryGet(t.Context(), end, nil), connector.ErrBusy)
	wantErr(t, "cleanup", end.Cleanup(t.Context(), "key"), connector.ErrBusy)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	wantValue(t, end, "key", meta, old)
}

// TestCloseBusy: files that Close cannot remove, because a living process has locked them, are
// removed by the next transport that is opened.
func TestCloseBusy(t *testing.T) {
	key := uniquePrefix(t)
	p := startPython(t, "by key")
	end, err := segment.New(segment.Options{Timeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	put(t, end, key, old)
	p.ask(t, order{Op: "lock", Key: key})
	wantErr(t, "close", end.Close(), connector.ErrBusy)
	p.ask(t, order{Op: "unlock", Key: key})
	next := open(t, segment.Options{})
	wantNone(t, next, key, shmMetadata(key, len(old)))
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]segment.Options{
		"generation": {Generation: 3}, "bytes": {InlineBytes: -1}, "timeout": {Timeout: -1}, "ttl": {TTL: -1},
	} {
		_, err := segment.New(opts)
		wantErr(t, name, err, connector.ErrSettings)
	}
}
