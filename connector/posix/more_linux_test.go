package posix_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/posix"
)

// head is the path of a store's first file.
func (o childOptions) head() string {
	return filepath.Join(o.Dir, "omnibus-"+strconv.Itoa(os.Geteuid())+"-"+o.Name)
}

// TestRoomIsUsedAgain: a value is put where one was that a reader has got and released, though
// others stay, and though there is room elsewhere.
func TestRoomIsUsedAgain(t *testing.T) {
	opts := fresh(t)
	creator, reader := open(t, opts.options()), open(t, opts.options())
	put(t, creator, "stays", []byte("for long"))
	places := make(map[*byte]bool)
	for n := range 20 {
		key := fmt.Sprint(n)
		meta, err := creator.Put(t.Context(), edge, key, 10_000, func(dst []byte) error {
			places[&dst[0]] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := reader.Get(t.Context(), edge, key, meta)
		if err != nil {
			t.Fatal(err)
		}
		got.Release()
	}
	if len(places) > 1 {
		t.Errorf("one value after the other lay in %d places", len(places))
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

// number reads a number of a store's file.
func (o childOptions) number(t *testing.T, part string, at int64) uint64 {
	t.Helper()
	f, err := os.Open(o.head() + part)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 8)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b)
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

// TestRoomIsTold: a put that waits is told when a reader has released what it got, and
// does not find out with the next look.
func TestRoomIsTold(t *testing.T) {
	opts := fresh(t)
	blind := opts.options()
	blind.LookEvery = time.Hour
	creator, getter := open(t, blind), open(t, opts.options())
	value := content(1, 500_000)
	for i := range 10 {
		var held []connector.Payload
		for j := range 2 {
			key := fmt.Sprint(i, j)
			put(t, creator, key, value)
			held = append(held, hold(t, getter, key, nil, value))
		}
		done := make(chan error, 1)
		go func() {
			_, err := tryPut(t.Context(), creator, "waits", value)
			done <- err
		}()
		const wantRoomAt = 64
		for uint32(opts.number(t, ".directory", wantRoomAt))%2 == 0 {
			runtime.Gosched() // until it waits
		}
		for _, p := range held {
			p.Release()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantValue(t, getter, "waits", nil, value)
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

// TestRoomIsWaitedFor: a put waits until readers have released what they got, and says
// what to do when nobody does.
func TestRoomIsWaitedFor(t *testing.T) {
	opts := fresh(t)
	limited := opts.options()
	limited.Timeout = 20 * time.Millisecond
	creator, getter := open(t, limited), open(t, opts.options())
	var held []connector.Payload
	for i := range 2 {
		value := content(byte(i), 500_000)
		held = append(held, hold(t, getter, "key", put(t, creator, "key", value), value))
	}
	_, err := tryPut(t.Context(), creator, "key", content(3, 500_000))
	wantErr(t, "put without room", err, connector.ErrFull)
	for i, p := range held {
		wantBytes(t, p, content(byte(i), 500_000)) // whoever is short of room takes it from nobody
	}
	for _, p := range held {
		p.Release()
	}
	wantAllRoom(t, creator)
	_, err = tryPut(t.Context(), creator, "key", content(3, 600_000))
	wantErr(t, "put of more than half", err, connector.ErrTooLarge)
	if err == nil || !strings.Contains(err.Error(), "raise ring_bytes to 12") {
		t.Errorf("it does not say what to do: %v", err)
	}
}

// TestSwept: what nobody comes for goes in its time.
func TestSwept(t *testing.T) {
	opts := fresh(t)
	limited := opts.options()
	limited.TTL = 5 * time.Millisecond
	creator, getter := open(t, limited), open(t, opts.options())
	meta := put(t, creator, "key", old)
	peeker := getter.(connector.Peeker)
	for {
		payload, err := peeker.Peek(t.Context(), edge, "key", meta)
		if errors.Is(err, connector.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		payload.Release()
	}
	wantNone(t, creator, "key", nil)
	wantAllRoom(t, creator)
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]posix.Options{
		"no name":     {},
		"a slash":     {Name: "a/b"},
		"a dot":       {Name: "a.b"},
		"up":          {Name: ".."},
		"long":        {Name: strings.Repeat("a", posix.MaxNameBytes+1)},
		"a byte of 0": {Name: "a\x00b"},
		"readers":     {Name: "a", Readers: posix.MaxReaders + 1},
		"no readers":  {Name: "a", Readers: -1},
		"bytes":       {Name: "a", Bytes: 100},
		"timeout":     {Name: "a", Timeout: -1},
		"ttl":         {Name: "a", TTL: -1},
		"looks":       {Name: "a", LookEvery: -1},
	} {
		if _, err := posix.New(o); !errors.Is(err, connector.ErrSettings) {
			t.Errorf("%s: %v, want ErrSettings", name, err)
		}
	}
	if _, err := posix.New(posix.Options{Name: "a", Dir: "/nowhere"}); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("no directory: %v", err)
	}
}

// TestNotOurs: what has a store's name and is none of this user's is refused, from both
// sides, and stays.
func TestNotOurs(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"a link": func(path string) error {
			target := filepath.Join(t.TempDir(), "secret")
			return errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path))
		},
		"a directory": func(path string) error {
			return os.Mkdir(path, 0o700)
		},
		"a pipe":  func(path string) error { return unix.Mkfifo(path, 0o600) },
		"open":    func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)) },
		"foreign": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 12345, -1)) },
	} {
		for _, file := range []string{"", ".arena"} {
			t.Run(name+" "+file, func(t *testing.T) {
				opts := fresh(t)
				if err := spoil(opts.head() + file); err != nil {
					if name == "foreign" && errors.Is(err, os.ErrPermission) {
						t.Skip("it takes root to give a file away")
					}
					t.Fatal(err)
				}
				end := open(t, opts.options())
				_, err := tryPut(t.Context(), end, "key", old)
				wantErr(t, "put", err, connector.ErrUnavailable)
				if err == nil || !strings.Contains(err.Error(), opts.head()+file) {
					t.Errorf("it does not say which file: %v", err)
				}
				_, err = end.Get(t.Context(), edge, "key", nil)
				if want := connector.ErrUnavailable; file == "" {
					wantErr(t, "get", err, want)
				} else {
					wantErr(t, "get", err, connector.ErrNotFound)
				}
				if _, err := os.Lstat(opts.head() + file); err != nil {
					t.Errorf("it is gone: %v", err)
				}
			})
		}
	}
}

// TestOtherRelease: what another release has made is not read; what is left of it is
// removed.
func TestOtherRelease(t *testing.T) {
	opts := fresh(t)
	creator, err := newEnd(opts)
	if err != nil {
		t.Fatal(err)
	}
	put(t, creator, "key", old)
	f, err := os.OpenFile(opts.head(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{99}, 8); err != nil {
		t.Fatal(err)
	}
	f.Close()
	getter := open(t, opts.options())
	_, err = getter.Get(t.Context(), edge, "key", nil)
	wantErr(t, "get", err, connector.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "same release") {
		t.Errorf("it does not say what to do: %v", err)
	}
	if err := creator.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(opts.head()+".of another release", nil, 0o600), os.WriteFile(opts.head(), []byte("OMNIBUSN\x63"), 0o600)); err != nil {
		t.Fatal(err)
	}
	next, err := newEnd(opts)
	if err != nil {
		t.Fatal(err)
	}
	wantValue(t, getter, "key", put(t, next, "key", old), old)
	if err := errors.Join(getter.Close(), next.Close()); err != nil {
		t.Error(err)
	}
	wantEmpty(t, opts)
}

// TestSpoiled: files that were cut short are not mapped.
func TestSpoiled(t *testing.T) {
	for _, part := range []string{".arena", ".directory", ".index", ".ledger-1", ".marks-1"} {
		t.Run(part, func(t *testing.T) {
			opts := fresh(t)
			creator := spawn(t, opts, "")
			put(t, creator, "key", old)
			getter := open(t, opts.options())
			if err := os.Truncate(opts.head()+part, 100); err != nil {
				t.Fatal(err)
			}
			_, err := getter.Get(t.Context(), edge, "key", nil)
			wantErr(t, "get", err, connector.ErrCorrupt)
			creator.Kill() // before it finds out what was done to it
		})
	}
}

// TestModes: all files are their user's alone.
func TestModes(t *testing.T) {
	opts := fresh(t)
	creator := open(t, opts.options())
	put(t, creator, "key", old)
	files := list(t, opts.Dir)
	for _, want := range []string{"-speech", ".arena", ".directory", ".index", ".ledger-1", ".marks-1", ".room"} {
		if !has(files, want) {
			t.Errorf("no file %s: %q", want, files)
		}
	}
	for _, name := range files {
		if info, err := os.Lstat(filepath.Join(opts.Dir, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// TestNoMemory: what /dev/shm has no room for is an error, and leaves nothing.
func TestNoMemory(t *testing.T) {
	opts := fresh(t)
	opts.Bytes = 1 << 45
	end := open(t, opts.options())
	_, err := tryPut(t.Context(), end, "key", old)
	wantErr(t, "put", err, connector.ErrFull)
	wantEmpty(t, opts)
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
