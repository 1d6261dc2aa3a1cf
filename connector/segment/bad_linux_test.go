package segment_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

func TestBadNames(t *testing.T) {
	end := open(t, segment.Options{Dir: segment.Shm(t)})
	for _, key := range []string{".", ".hidden", "sem.lock", "shm_key_lockfile.lock"} {
		_, putErr := tryPut(t.Context(), end, key, old)
		_, getErr := end.Get(t.Context(), edge, key, nil)
		_, awaitErr := end.Await(t.Context(), edge, key, nil)
		_, toldErr := end.Get(t.Context(), edge, key, shmMetadata(key, 10))
		for what, err := range map[string]error{"put": putErr, "get": getErr, "await": awaitErr, "get with metadata": toldErr} {
			wantErr(t, what+" of "+key, err, connector.ErrKey)
		}
	}
}

func shmMetadata(name string, size any) connector.Metadata {
	return connector.Metadata{"shm": map[string]any{"name": name, "size": size}}
}

// TestBadMetadata: with wrong metadata no segment is read or removed.
func TestBadMetadata(t *testing.T) {
	dir := segment.Shm(t)
	end := open(t, segment.Options{Dir: dir})
	put(t, end, "key", old)
	put(t, end, "another", old)
	before := values(t, dir)
	two := shmMetadata("key", len(old))
	two["size"] = len(old) + 1
	for name, tc := range map[string]struct {
		meta connector.Metadata
		want error
	}{
		"no map":               {connector.Metadata{"shm": 7}, connector.ErrMetadata},
		"an empty map":         {connector.Metadata{"shm": map[string]any{}}, connector.ErrMetadata},
		"a number for a name":  {connector.Metadata{"shm": map[string]any{"name": 7, "size": 1}}, connector.ErrMetadata},
		"another's name":       {shmMetadata("another", len(old)), connector.ErrMetadata},
		"a path":               {shmMetadata("../shm/key", len(old)), connector.ErrMetadata},
		"almost anonymous":     {shmMetadata("psm_0123456g", 1), connector.ErrMetadata},
		"no size":              {connector.Metadata{"shm": map[string]any{"name": "key"}}, connector.ErrMetadata},
		"a size of 0":          {shmMetadata("key", 0), connector.ErrMetadata},
		"a negative size":      {shmMetadata("key", -1), connector.ErrMetadata},
		"a broken size":        {shmMetadata("key", 1.5), connector.ErrMetadata},
		"text for a size":      {shmMetadata("key", "10000"), connector.ErrMetadata},
		"two sizes":            {two, connector.ErrMetadata},
		"more than there is":   {shmMetadata("key", len(old)+1), connector.ErrCorrupt},
		"much more":            {shmMetadata("key", int64(1)<<60), connector.ErrCorrupt},
		"less than there is":   {shmMetadata("key", len(old)-1), connector.ErrCorrupt},
		"anonymous, not there": {shmMetadata("psm_01234567", 10), connector.ErrNotFound},
	} {
		_, err := end.Get(t.Context(), edge, "key", tc.meta)
		wantErr(t, name, err, tc.want)
	}
	if now := values(t, dir); len(now) != len(before) {
		t.Errorf("there were %q, and now %q", before, now)
	}
	for want, meta := range map[string]connector.Metadata{
		`"shm" is of type int: it takes a map`: {"shm": 7},
		`it names the segment "another"`:       shmMetadata("another", len(old)),
		"bytes, and a size of 10001":           two,
	} {
		if _, err := end.Get(t.Context(), edge, "key", meta); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", meta, err, want)
		}
	}
}

// TestBadFiles: a file that is no segment of this user is refused, and stays unchanged.
func TestBadFiles(t *testing.T) {
	const size = 10_000
	lockFile := "shm_key_lockfile.lock"
	plain := func(name string, size int64, sparse bool) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, nil, 0o600); err != nil || sparse {
				return errors.Join(err, os.Truncate(path, size))
			}
			return os.WriteFile(path, make([]byte, size), 0o600)
		}
	}
	symlink := func(name string) func(dir string) error {
		return func(dir string) error {
			return errors.Join(plain("victim", size, false)(dir), os.Symlink("victim", filepath.Join(dir, name)))
		}
	}
	for name, tc := range map[string]struct {
		arrange        func(dir string) error
		unlocked       bool
		get, told, put error // nil: it succeeds
	}{
		"a link":            {arrange: symlink("key"), get: connector.ErrKey, told: connector.ErrKey, put: connector.ErrKey},
		"a link for a lock": {arrange: symlink(lockFile), unlocked: true, get: connector.ErrKey, told: connector.ErrKey, put: connector.ErrKey},
		"a directory": {
			arrange: func(dir string) error { return os.Mkdir(filepath.Join(dir, "key"), 0o700) },
			get:     connector.ErrKey, told: connector.ErrKey, put: connector.ErrKey,
		},
		"a pipe": {
			arrange: func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "key"), 0o600) },
			get:     connector.ErrKey, told: connector.ErrKey, put: connector.ErrKey,
		},
		"another user's": {
			arrange: func(dir string) error {
				return errors.Join(plain("key", size, false)(dir), os.Chown(filepath.Join(dir, "key"), 12345, -1))
			},
			get: connector.ErrKey, told: connector.ErrKey, put: connector.ErrKey,
		},
		"nothing yet":    {arrange: plain("key", 0, false), get: connector.ErrNotFound, told: connector.ErrCorrupt},
		"never written":  {arrange: plain("key", size, true), get: connector.ErrCorrupt, told: connector.ErrCorrupt},
		"cut short":      {arrange: plain("key", size-1, false), told: connector.ErrCorrupt},
		"too long":       {arrange: plain("key", size+1, false), told: connector.ErrCorrupt},
		"in whole pages": {arrange: plain("key", 12288, false)},
		"no lock":        {arrange: plain("key", size, false), unlocked: true, get: connector.ErrNotFound},
	} {
		for what, call := range map[string]struct {
			want error
			run  func(ctx context.Context, end connector.Transport) error
		}{
			"get": {tc.get, func(ctx context.Context, end connector.Transport) error { return tryGet(ctx, end, nil) }},
			"told": {tc.told, func(ctx context.Context, end connector.Transport) error {
				return tryGet(ctx, end, shmMetadata("key", size))
			}},
			"put": {tc.put, func(ctx context.Context, end connector.Transport) error {
				_, err := tryPut(ctx, end, "key", old)
				return err
			}},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				dir := segment.Shm(t)
				end := open(t, segment.Options{Dir: dir, Timeout: time.Millisecond})
				if os.Geteuid() != 0 && name == "another user's" {
					t.Skip("only root can make such a file")
				}
				if err := tc.arrange(dir); err != nil {
					t.Fatal(err)
				}
				if !tc.unlocked {
					if err := os.WriteFile(filepath.Join(dir, lockFile), nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				before := fmt.Sprint(values(t, dir))
				err := call.run(t.Context(), end)
				if !errors.Is(err, call.want) {
					t.Errorf("%v, want %v", err, call.want)
				}
				if now := fmt.Sprint(values(t, dir)); call.want != nil && now != before {
					t.Errorf("there were %v, and now %v", before, now)
				}
				for _, name := range values(t, dir) { // the directory must be empty in the end
					if call.want != nil || name == "victim" {
						_ = os.RemoveAll(filepath.Join(dir, name))
					}
				}
			})
		}
	}
}

func tryGet(ctx context.Context, end connector.Transport, meta connector.Metadata) error {
	payload, err := end.Get(ctx, edge, "key", meta)
	if err == nil {
		payload.Release()
	}
	return err
}

// TestCutShort: a segment that is truncated while it is read is an error, and never a signal.
func TestCutShort(t *testing.T) {
	dir := segment.Shm(t)
	end := open(t, segment.Options{Dir: dir})
	path := filepath.Join(dir, "key")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			_ = os.Truncate(path, 1<<10)
		}
	}()
	for range 20 {
		meta := put(t, end, "key", make([]byte, 4<<20))
		if err := tryGet(t.Context(), end, meta); err != nil && !errors.Is(err, connector.ErrCorrupt) {
			t.Error(err)
		}
	}
	stop.Store(true)
	<-done
	if err := end.Cleanup(t.Context(), "key"); err != nil {
		t.Error(err)
	}
}

// TestNoSpace: a put without space in the directory or the machine is an error, and leaves no file.
func TestNoSpace(t *testing.T) {
	dir := segment.SmallShm(t, "256k")
	end := open(t, segment.Options{Dir: dir})
	put(t, end, "small", old)
	for _, size := range []int{300 << 10, 65 << 20, 1 << 50} {
		// Larger values are refused before fill is called.
		fill := func(dst []byte) error {
			if len(dst) > 64<<20 {
				t.Errorf("a value of %d bytes without space was written", len(dst))
			}
			return nil
		}
		_, err := end.Put(t.Context(), edge, "large", size, fill)
		wantErr(t, fmt.Sprintf("put of %d bytes", size), err, connector.ErrFull)
	}
	wantNone(t, end, "large", nil)
	wantValue(t, end, "small", nil, old)
	wantValue(t, end, "large", put(t, end, "large", make([]byte, 128<<10)), make([]byte, 128<<10))
}

// TestGetFromFullDirectory: a transport without earlier gets gets a value from a full directory,
// and leaves no file.
func TestGetFromFullDirectory(t *testing.T) {
	dir := segment.SmallShm(t, "256k")
	putter, getter := open(t, segment.Options{Dir: dir}), open(t, segment.Options{Dir: dir})
	put(t, putter, "key", old)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 256<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the directory is not full: %v", err)
	}
	wantValue(t, getter, "key", nil, old)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if left := values(t, dir); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

// TestBadJournal: a row of a journal has an effect only if its file has the recorded identity.
func TestBadJournal(t *testing.T) {
	dir := segment.Shm(t)
	other := open(t, segment.Options{Dir: dir})
	put(t, other, "key", old)
	journals := filepath.Join(dir, fmt.Sprintf(".omnibus-%d", os.Geteuid()))
	lines := []string{
		`p 1 2 3 4 "key"`, `g 1 2 3 4 "key"`, `p 1 2 3 4 "../key"`, `p 1 2 3 4 ".omnibus-0"`, "p 1 2 3 4", "x", "", "\x00\x00",
		`q 1 2 3 4 "key"`, `p -1 2 3 4 "key"`, `p 1 2 3 4 "key`, strings.Repeat("p", 3000),
	}
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(line + "\n" + strings.Repeat("\x00", max(0, 1023-len(line))))
	}
	if err := os.WriteFile(filepath.Join(journals, "1-1"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	next := open(t, segment.Options{Dir: dir})
	if _, err := os.Stat(filepath.Join(journals, "1-1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the journal is still there: %v", err)
	}
	wantValue(t, next, "key", nil, old)
}

// TestJournalsOfAnother: New fails if other users may write into the directory of journals.
func TestJournalsOfAnother(t *testing.T) {
	for name, arrange := range map[string]func(path string) error{
		"anybody's": func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)) },
		"a link":    func(path string) error { return os.Symlink("/tmp", path) },
		"a file":    func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := segment.Shm(t)
			path := filepath.Join(dir, fmt.Sprintf(".omnibus-%d", os.Geteuid()))
			if err := arrange(path); err != nil {
				t.Fatal(err)
			}
			_, err := segment.New(segment.Options{Dir: dir})
			wantErr(t, "open", err, connector.ErrUnavailable)
			if err := os.RemoveAll(path); err != nil {
				t.Error(err)
			}
		})
	}
	_, err := segment.New(segment.Options{Dir: "/nowhere"})
	wantErr(t, "open of no directory", err, connector.ErrUnavailable)
}
