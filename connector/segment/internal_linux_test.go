package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

func TestRecord(t *testing.T) {
	for _, name := range []string{"key", "a b", `"quoted"`, "umlaut ü", "\u00a0\U000e0001", strings.Repeat("\u00a0", connector.MaxKeyBytes/2), strings.Repeat(`"`, connector.MaxKeyBytes)} {
		want := record{purpose: getting, name: name, segment: identity{1<<64 - 1, 1<<63 - 1}, lock: identity{3, -4}}
		text := want.encode()
		if len(text) > rowBytes {
			t.Errorf("a record of %d bytes", len(text))
		}
		got, ok := parseRecord(text)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(record{}, identity{})); !ok || diff != "" {
			t.Error(diff)
		}
		if _, ok := parseRecord(text[:len(text)-1]); ok {
			t.Error("half a record was read")
		}
	}
}

func TestNote(t *testing.T) {
	for _, name := range []string{"key", "a b", `"quoted"`, "umlaut ü", strings.Repeat("\u00a0", connector.MaxKeyBytes/2), strings.Repeat(`"`, connector.MaxKeyBytes)} {
		want := note{record: record{purpose: putting, name: name, segment: identity{1, 2}}, key: name, until: 1<<63 - 1}
		text := want.encode()
		if len(text) > maxNote {
			t.Errorf("a note of %d bytes", len(text))
		}
		got, ok := parseNote(text)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(note{}, record{}, identity{})); !ok || diff != "" {
			t.Error(diff)
		}
		if _, ok := parseRecord(text); ok {
			t.Error("a note was read as a record")
		}
		if _, ok := parseNote(text[:len(text)-1]); ok {
			t.Error("half a note was read")
		}
	}
	for _, text := range []string{"", "\n", "l x \"k\" \"r\"\np 1 2 3 4 \"k\"\n", "l -1 \"k\" \"r\"\np 1 2 3 4 \"k\"\n", "l 1 k r\np 1 2 3 4 \"k\"\n", "l 1 \"k\" \"r\"\np 1 2 3 4 \"../k\"\n"} {
		if n, ok := parseNote([]byte(text)); ok {
			t.Errorf("%q was read as %+v", text, n)
		}
	}
}

// FuzzJournal reads arbitrary rows and notes: an accepted one names a segment, and encodes to an
// equal record.
func FuzzJournal(f *testing.F) {
	r := record{purpose: putting, name: "key", segment: identity{1, 2}, lock: identity{3, 4}}
	f.Add(r.encode())
	f.Add(note{record: r, key: "key", until: 5}.encode())
	f.Add([]byte("l 1 \"k\" \"r\"\np 1 2 3 4 \"../k\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, isNote := parseNote(text)
		r, isRecord := parseRecord(text)
		if isNote {
			r = n.record
			again, ok := parseNote(n.encode())
			if diff := cmp.Diff(n, again, cmp.AllowUnexported(note{}, record{}, identity{})); !ok || diff != "" {
				t.Error(diff)
			}
		}
		if !isNote && !isRecord {
			return
		}
		if isNote && isRecord {
			t.Errorf("%q is a note and a record", text)
		}
		if err := errors.Join(connector.CheckKey(r.name), checkName(r.name)); err != nil {
			t.Error(err)
		}
		again, ok := parseRecord(r.encode())
		if diff := cmp.Diff(r, again, cmp.AllowUnexported(record{}, identity{})); !ok || diff != "" {
			t.Error(diff)
		}
	})
}

// TestNoteOfLiveWriter: a sweep during the put of a lasting value keeps its note; a put that fails
// leaves none.
func TestNoteOfLiveWriter(t *testing.T) {
	opened, err := New(Options{Dir: t.TempDir(), Lasting: true})
	if err != nil {
		t.Fatal(err)
	}
	end := opened.(*Transport)
	notes := func() int {
		names, err := os.ReadDir(end.journal.dir.path)
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(names, func(n os.DirEntry) bool { return !strings.HasPrefix(n.Name(), notePrefix) }))
	}
	err = end.publishRecorded(&entry{record: record{purpose: putting, name: "key"}}, func() error {
		_, err := end.journal.sweepNotes(end.dir, end.opts.Log)
		if n := notes(); n != 1 {
			t.Errorf("during the put there are %d notes", n)
		}
		return err
	})
	if _, sweep := end.journal.sweepNotes(end.dir, end.opts.Log); errors.Join(err, sweep) != nil || notes() != 0 {
		t.Errorf("after the put, without a segment, there are %d notes: %v, %v", notes(), err, sweep)
	}
	failed := errors.New("it cannot be put")
	if err := end.publishRecorded(&entry{record: record{purpose: putting, name: "key"}}, func() error { return failed }); !errors.Is(err, failed) || notes() != 0 {
		t.Errorf("after a failed put there are %d notes: %v", notes(), err)
	}
	if err := end.Close(); err != nil {
		t.Error(err)
	}
}

// TestSweepOfLockedValue: a dead process's value that a living process has locked is removed soon
// after the unlock, or by Close.
func TestSweepOfLockedValue(t *testing.T) {
	for what, held := range map[string]time.Duration{"for a moment": sweepPatience / 2, "for long": 2 * sweepPatience} {
		t.Run(what, func(t *testing.T) {
			dir := Shm(t)
			synctest.Test(t, func(t *testing.T) {
				dead, err := New(Options{Dir: dir, Timeout: time.Millisecond})
				if err != nil {
					t.Fatal(err)
				}
				mustPut(t, dead.(*Transport), "key", contents(1, 10_000))
				d, err := openDirectory(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer d.close()
				l, err := d.lockOf("key")
				if err != nil {
					t.Fatal(err)
				}
				if err := dead.Close(); !errors.Is(err, connector.ErrBusy) { // the files stay, as after the death of a process
					t.Fatal(err)
				}
				time.AfterFunc(held, l.unlock)
				next, err := New(Options{Dir: dir})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := d.lookup("key"); isMissing(err) != (held < sweepPatience) {
					t.Errorf("the dead process's value: %v", err)
				}
				time.Sleep(held) //nolint:forbidigo // of the bubble
				synctest.Wait()
				if err := next.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestTableAndJournalAreBounded: neither grows with values that another transport has got.
func TestTableAndJournalAreBounded(t *testing.T) {
	dir := Shm(t)
	open := func() *Transport {
		end, err := New(Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := end.Close(); err != nil {
				t.Error(err)
			}
		})
		return end.(*Transport)
	}
	writer, reader := open(), open()
	edge := connector.Edge{From: "a", To: "b"}
	for i := range 1000 {
		key := fmt.Sprint(i)
		_, err := writer.Put(t.Context(), edge, key, 10, func(dst []byte) error { dst[0] = 1; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := reader.Get(t.Context(), edge, key, nil); err != nil {
			t.Fatal(err)
		}
	}
	const most = 4
	if len(writer.entries) > most || len(writer.oldest) > most || writer.journal.rows > most || reader.journal.rows > most {
		t.Errorf("%d held, %d to look at, %d and %d rows", len(writer.entries), len(writer.oldest), writer.journal.rows, reader.journal.rows)
	}
}

// Shm makes a directory of segments that is empty again when the test ends.
func Shm(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "omnibus-test-") //nolint:usetesting // memory, as it is for others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var left []string
		err := fs.WalkDir(os.DirFS(dir), ".", func(path string, _ fs.DirEntry, err error) error {
			left = append(left, path)
			return err
		})
		if len(left) > 1 || err != nil {
			t.Errorf("left in the directory: %q, %v", left, err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// SmallShm is Shm on its own file system, with a size in mount's notation.
func SmallShm(t *testing.T, size string) string {
	t.Helper()
	dir := Shm(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("a file system of its own: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestOrphanedLock: a lock on a file that its consumer removes is not acquired.
func TestOrphanedLock(t *testing.T) {
	d, err := openDirectory(Shm(t))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	consumer, err := d.newLock("key")
	if err == nil {
		err = consumer.link()
	}
	if err != nil {
		t.Fatal(err)
	}
	fd, err := d.openAny(consumer.name, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	late := &lock{dir: d, name: consumer.name, fd: fd, linked: true}
	defer late.unlock()
	for _, step := range []func(){func() {}, consumer.remove, consumer.unlock} {
		step()
		if err := late.acquire(); !errors.Is(err, connector.ErrBusy) {
			t.Errorf("%v, want ErrBusy", err)
		}
	}
}

// TestLink: link gives a file its name, also through /proc, and never takes a name that is in use.
func TestLink(t *testing.T) {
	before := linkByProc.Load()
	defer linkByProc.Store(before)
	d, err := openDirectory(Shm(t))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for name, byProc := range map[string]bool{"plain": false, "by /proc": true} {
		t.Run(name, func(t *testing.T) {
			fd, err := d.create()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			linkByProc.Store(byProc)
			if err := d.link(fd, "key"); err != nil {
				t.Fatal(err)
			}
			if err := d.link(fd, "key"); !errors.Is(err, fs.ErrExist) {
				t.Errorf("a name was given twice: %v", err)
			}
			named, err := d.lookup("key")
			made, madeErr := describeFD(fd)
			if err := errors.Join(err, madeErr, d.unlink("key")); err != nil || named.identity != made.identity || made.links != 1 {
				t.Errorf("%+v has the name of %+v: %v", named, made, err)
			}
		})
	}
}

// TestWatchNotifies: a waiting call is woken by events with its name or its lock's name, and when
// events were lost.
func TestWatchNotifies(t *testing.T) {
	w := &watch{waiting: make(map[string][]chan struct{})}
	changed := w.subscribe("key")
	for what, tc := range map[string]struct {
		names []string
		want  int
	}{
		"the key":     {[]string{"key"}, 1},
		"its lock":    {[]string{lockName("key")}, 1},
		"lost":        {[]string{""}, 1},
		"another":     {[]string{"key2"}, 0},
		"both, twice": {[]string{"key2", "key", "key2", "key"}, 1},
	} {
		for _, name := range tc.names {
			w.notify([]byte(name))
		}
		if len(changed) != tc.want {
			t.Errorf("%s: %d notifications, want %d", what, len(changed), tc.want)
		}
		for len(changed) > 0 {
			<-changed
		}
	}
	if w.unsubscribe("key", changed); len(w.waiting) != 0 {
		t.Errorf("still waiting: %v", w.waiting)
	}
}

// TestBuffers: a payload stays unchanged until it is released, during later puts and gets, and its
// memory is reused after that.
func TestBuffers(t *testing.T) {
	end, err := New(Options{Dir: Shm(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	edge := connector.Edge{From: "a", To: "b"}
	get := func(size int, with byte) connector.Payload {
		t.Helper()
		fill := func(dst []byte) error {
			for i := range dst {
				dst[i] = with
			}
			return nil
		}
		meta, err := end.Put(t.Context(), edge, "key", size, fill)
		if err != nil {
			t.Fatal(err)
		}
		got, err := end.Get(t.Context(), edge, "key", meta)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := func(got connector.Payload, size int, with byte) {
		t.Helper()
		if b := got.Bytes(); len(b) != size || bytes.Count(b, []byte{with}) != size {
			t.Errorf("%d bytes, %d of them %d, want %d", len(b), bytes.Count(b, []byte{with}), with, size)
		}
	}
	for _, size := range []int{1, minPooled - 1, minPooled, minPooled + 1, 100_000} {
		first := get(size, 1)
		second := get(size+1, 2)
		want(first, size, 1)
		first.Release()
		third := get(size, 3)
		want(second, size+1, 2)
		want(third, size, 3)
		second.Release()
		third.Release()
	}
}

// TestMemoryProbeInterval: the free memory is checked once in probeAhead bytes where there is so
// much, once in unprobedBytes where there is less, and again after probeValidity.
func TestMemoryProbeInterval(t *testing.T) {
	free := func(kib int) fstest.MapFS {
		return fstest.MapFS{"meminfo": {Data: fmt.Appendf(nil, "MemAvailable: %d kB\n", kib)}}
	}
	const mib = 1 << 20
	much, little, none := free(1<<20), free(64<<10), free(0)
	m := memory{probe: headroom.Probe{Proc: much, Cgroup: none}}
	take := func(size int, want error) {
		t.Helper()
		if err := m.check(size); !errors.Is(err, want) {
			t.Errorf("%d bytes, %d since the last check: %v, want %v", size, m.taken, err, want)
		}
	}
	take(mib, nil)
	m.probe.Proc = none
	take(probeAhead/2, nil)
	take(probeAhead/2, nil)
	take(1, connector.ErrFull)

	m.probe.Proc = much
	take(unprobedBytes, nil)
	m.probe.Proc, m.until = none, m.until.Add(-probeValidity)
	take(unprobedBytes, connector.ErrFull)

	m.probe.Proc = little
	take(unprobedBytes, nil)
	m.probe.Proc = none
	take(unprobedBytes-1, nil)
	take(1, connector.ErrFull)
}
