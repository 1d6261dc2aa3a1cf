package keyed_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// storeOf makes a store of raw bytes, which is closed with the test.
func storeOf(t *testing.T, opts shmstore.Options) *keyed.Store {
	t.Helper()
	s, err := keyed.Create(keyed.Options{Store: opts, Serializer: codec.RawSerializer{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if wrong := s.Check(); len(wrong) > 0 {
			t.Error(wrong)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// cache makes a store with space for so many bytes, and readers of it.
func cache(t *testing.T, arenaBytes int64, readers int) (*keyed.Store, []*keyed.Reader, []shmstore.ReaderID) {
	t.Helper()
	s := storeOf(t, shmstore.Options{ArenaBytes: arenaBytes, MaxObjectBytes: arenaBytes / 2})
	var all []*keyed.Reader
	var ids []shmstore.ReaderID
	for range readers {
		r, id := reader(t, s)
		all, ids = append(all, r), append(ids, id)
	}
	return s, all, ids
}

// connPair returns the two ends of a connection.
func connPair(t testing.TB) [2]*net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends
}

// reader attaches a reader over a connection, as another process does.
func reader(t testing.TB, s *keyed.Store) (*keyed.Reader, shmstore.ReaderID) {
	t.Helper()
	ends := connPair(t)
	type opened struct {
		r   *keyed.Reader
		err error
	}
	there := make(chan opened, 1)
	go func() {
		r, err := keyed.Open(ends[1])
		there <- opened{r, err}
	}()
	id, err := s.Admit(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	o := <-there
	if o.err != nil {
		t.Fatal(o.err)
	}
	t.Cleanup(func() {
		if err := o.r.Close(); err != nil {
			t.Error(err)
		}
	})
	return o.r, id
}

func put(t *testing.T, s *keyed.Store, key string, value []byte) shmstore.Handle {
	t.Helper()
	h, err := s.Put(key, value)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(t *testing.T, r *keyed.Reader, h shmstore.Handle) *keyed.Value {
	t.Helper()
	v, err := r.Get(h)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func read(t *testing.T, r *keyed.Reader, h shmstore.Handle, want []byte) {
	t.Helper()
	v := get(t, r, h)
	defer v.Release()
	var got []byte
	if err := v.Decode(&got); err != nil || !bytes.Equal(got, want) || !bytes.Equal(v.Bytes(), want) {
		t.Errorf("%d bytes, %v, want %d others", len(got), err, len(want))
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

const kib = 1 << 10

func block(n byte, size int) []byte { return bytes.Repeat([]byte{n}, size) }

// TestDuplicateKeys: a key that exists is not written again. Its handle charges each reader once more.
func TestDuplicateKeys(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 2)
	value := block(1, 1000)
	first := put(t, s, "k", value)
	_, err := s.Put("k", block(2, 10))
	wantErr(t, "a second put", err, keyed.ErrExists)
	again, err := s.GetCached("k")
	if err != nil || again != first {
		t.Fatalf("GetCached: %v, %v, want %v", again, err, first)
	}
	if err := s.Touch("k"); err != nil {
		t.Fatal(err)
	}
	for _, r := range readers {
		for range 2 {
			read(t, r, first, value)
		}
		if err := r.Drop(first); err != nil {
			t.Error(err)
		}
		_, err := r.Get(first)
		wantErr(t, "a get without a charge", err, shmstore.ErrNoDebt)
	}
	if st := s.Stats(); st.Puts != 1 || st.Hits != 2 || st.BytesWritten != 1000 || st.BytesSaved != 2000 || st.Keys != 1 {
		t.Errorf("%+v", st)
	}
}

// TestFillReadAllFillAgain: objects that all readers have read are evicted, the oldest first, with their keys.
func TestFillReadAllFillAgain(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 2)
	for round := range byte(3) {
		var handles []shmstore.Handle
		for i := 0; ; i++ {
			h, err := s.Put(fmt.Sprint(round, i), block(round, 7*kib))
			if errors.Is(err, shmstore.ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, h)
		}
		if len(handles) < 8 {
			t.Fatalf("round %d: %d objects of 7 KiB lie in 64", round, len(handles))
		}
		for _, h := range handles {
			for _, r := range readers {
				read(t, r, h, block(round, 7*kib))
			}
		}
		if round > 0 && s.IsCached(fmt.Sprint(round-1, 0)) {
			t.Errorf("round %d: the oldest key of the round before is there", round)
		}
		if !s.IsCached(fmt.Sprint(round, len(handles)-1)) {
			t.Errorf("round %d: the youngest key is gone", round)
		}
	}
	if st := s.Stats(); st.Keys > st.Objects {
		t.Errorf("%d keys for %d objects", st.Keys, st.Objects)
	}
}

// TestReclamation: the object of a slow reader stays, and younger ones that were read are evicted around it.
func TestReclamation(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 2)
	held := put(t, s, "held", block(9, 7*kib))
	read(t, readers[0], held, block(9, 7*kib))
	for i := range 100 {
		h := put(t, s, fmt.Sprint(i), block(1, 7*kib))
		for _, r := range readers {
			read(t, r, h, block(1, 7*kib))
		}
	}
	if !s.IsCached("held") {
		t.Error("the key of an object that a reader owes for is gone")
	}
	v := get(t, readers[1], held)
	s.FreeUnused(math.MaxInt64)
	if !bytes.Equal(v.Bytes(), block(9, 7*kib)) {
		t.Error("an object was written over while it was read")
	}
	v.Release()
	if s.FreeUnused(math.MaxInt64) == 0 || s.IsCached("held") {
		t.Error("an object that all have read stays")
	}
}

// TestStaleHandles: the handle of an evicted object is an error, also if another object has its space.
func TestStaleHandles(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 1)
	old := put(t, s, "k", block(1, kib))
	read(t, readers[0], old, block(1, kib))
	if err := s.Delete("k"); err != nil {
		t.Fatal(err)
	}
	fresh := put(t, s, "k", block(2, kib))
	_, err := readers[0].Get(old)
	wantErr(t, "a get of what was deleted", err, shmstore.ErrStale)
	forged := fresh
	forged.Offset += 64
	_, err = readers[0].Get(forged)
	wantErr(t, "a get of a forged handle", err, shmstore.ErrCorrupt)
	read(t, readers[0], fresh, block(2, kib))
}

// TestClear: objects that readers read or were charged for stay; all others are freed at once.
func TestClear(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 1)
	reading, owed, read1 := put(t, s, "reading", block(1, kib)), put(t, s, "owed", block(2, kib)), put(t, s, "read", block(3, kib))
	v := get(t, readers[0], reading)
	read(t, readers[0], read1, block(3, kib))
	if err := s.Clear(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Keys != 0 || st.Objects != 2 {
		t.Errorf("%d keys, %d objects; want none, and the two that a reader needs", st.Keys, st.Objects)
	}
	for _, key := range []string{"reading", "owed", "read"} {
		_, err := s.GetCached(key)
		wantErr(t, key, err, keyed.ErrNotFound)
		wantErr(t, key, s.Delete(key), keyed.ErrNotFound)
	}
	if !bytes.Equal(v.Bytes(), block(1, kib)) {
		t.Error("an object was written over while it was read")
	}
	v.Release()
	read(t, readers[0], owed, block(2, kib))
}

// TestReaderDies: the objects that a reader owed for and read are free when it is removed.
func TestReaderDies(t *testing.T) {
	s, readers, ids := cache(t, 64*kib, 2)
	h := put(t, s, "k", block(1, kib))
	read(t, readers[0], h, block(1, kib))
	v := get(t, readers[1], h) // the reader dies with the value
	defer v.Release()
	if freed := s.FreeUnused(math.MaxInt64); freed != 0 {
		t.Errorf("%d bytes were freed while they were read", freed)
	}
	if err := s.RemoveReader(ids[1]); err != nil {
		t.Fatal(err)
	}
	if s.FreeUnused(math.MaxInt64) == 0 {
		t.Error("nothing was freed after a reader was removed")
	}
	wantErr(t, "a second removal", s.RemoveReader(ids[1]), shmstore.ErrUnknownReader)
	wantErr(t, "a removal of the local reader", s.RemoveReader(shmstore.LocalReader), shmstore.ErrUnknownReader)
	for err := error(nil); !errors.Is(err, keyed.ErrOwnerGone); _, err = readers[1].Get(h) {
		runtime.Gosched()
	}
	h = put(t, s, "again", block(2, kib)) // charges only the present reader
	read(t, readers[0], h, block(2, kib))
	if s.FreeUnused(math.MaxInt64) == 0 {
		t.Error("nothing was freed after a reader was removed")
	}
}

// failing is a value that cannot be encoded.
type failing struct{ codec.RawSerializer }

func (failing) Size(any) (int, bool)               { return 100, true }
func (failing) EncodeInto(dst []byte, v any) error { return v.(func() error)() }

// TestFailedPutFreesTheKey: after a failed put there is no object, and the key is free.
func TestFailedPutFreesTheKey(t *testing.T) {
	s, err := keyed.Create(keyed.Options{Store: shmstore.Options{ArenaBytes: 64 * kib}, Serializer: failing{}})
	if err != nil {
		t.Fatal(err)
	}
	fails := errors.New("on purpose")
	_, err = s.Put("k", func() error { return fails })
	wantErr(t, "a value that cannot be encoded", err, fails)
	func() {
		defer func() { _ = recover() }()
		_, _ = s.Put("k", func() error { panic("on purpose") })
	}()
	_, err = s.Put("k", func() error {
		_, err := s.Put("k", func() error { return nil }) // while it is being put
		wantErr(t, "a key that is being put", err, keyed.ErrExists)
		_, err = s.GetCached("k")
		wantErr(t, "a key that is being put", err, keyed.ErrNotFound)
		return s.Delete("k")
	})
	if err != nil || s.IsCached("k") {
		t.Errorf("put of a key that was deleted meanwhile: %v; is it there: %t", err, s.IsCached("k"))
	}
	s.FreeUnused(math.MaxInt64)
	if st := s.Stats(); st.Objects != 0 || st.Keys != 0 {
		t.Errorf("%d objects, %d keys are left", st.Objects, st.Keys)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	_, err = s.Put("k", func() error { return nil })
	wantErr(t, "a put into a store that is closed", err, shmstore.ErrClosed)
}

// TestBadInput: bad input gives a named error, and nothing is put.
func TestBadInput(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 1)
	for _, key := range []string{"", strings.Repeat("k", keyed.MaxKeyBytes+1)} {
		_, err := s.Put(key, block(1, 10))
		wantErr(t, "a bad key", err, keyed.ErrKey)
	}
	_, err := s.Put("large", block(1, 32*kib+1))
	wantErr(t, "a value above MaxObjectBytes", err, shmstore.ErrTooLarge)
	_, err = s.Put("kind", 5)
	if err == nil {
		t.Error("a number was put as raw bytes")
	}
	_, err = s.GetCached("never")
	wantErr(t, "GetCached", err, keyed.ErrNotFound)
	wantErr(t, "Touch", s.Touch("never"), keyed.ErrNotFound)
	_, err = readers[0].Get(shmstore.Handle{})
	if err == nil {
		t.Error("a get of the zero handle succeeded")
	}
	if st := s.Stats(); st.Objects != 0 || st.Keys != 0 || st.Puts != 0 {
		t.Errorf("%+v", st)
	}
}

// TestSilentPeerBlocksNothing: while an admission waits for a process that sends nothing, values are put and got, and
// another reader is admitted.
func TestSilentPeerBlocksNothing(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 1)
	ends := connPair(t)
	admitted := make(chan error, 1)
	go func() {
		_, err := s.Admit(ends[0])
		admitted <- err
	}()
	geometry := make([]byte, 64)
	hello := append([]byte("OMNIBUS@\x03\x00\x00\x00\x01\x00\x00\x00\x01"), make([]byte, 47)...)
	if _, err := ends[1].Write(hello); err != nil {
		t.Fatal(err)
	}
	if n, err := ends[1].Read(geometry); n != len(geometry) || err != nil {
		t.Fatalf("%d bytes, %v; want the geometry", n, err)
	}
	// Now the admission waits for the ledger.
	read(t, readers[0], put(t, s, "k", block(1, kib)), block(1, kib))
	other, id := reader(t, s)
	read(t, other, put(t, s, "l", block(2, kib)), block(2, kib))
	if index := geometry[44]; shmstore.ReaderID(index) == id {
		t.Errorf("two admissions have the index %d", id)
	}
	select {
	case err := <-admitted:
		t.Errorf("the admission has ended: %v", err)
	default:
	}
	ends[1].Close()
	if err := <-admitted; err == nil {
		t.Error("a process that sends nothing was admitted")
	}
	again, id := reader(t, s)
	if index := geometry[44]; shmstore.ReaderID(index) != id {
		t.Errorf("index %d, want %d, which is free again", id, index)
	}
	read(t, again, put(t, s, "m", block(3, kib)), block(3, kib))
}

// TestFreeUnused: the oldest objects are freed, as many as requested, around those that a reader needs.
func TestFreeUnused(t *testing.T) {
	s, readers, _ := cache(t, 64*kib, 1)
	handles := make([]shmstore.Handle, 6)
	for i := range handles {
		handles[i] = put(t, s, fmt.Sprint(i), block(byte(i), kib))
	}
	held := get(t, readers[0], handles[1])
	for _, i := range []int{0, 2, 3, 5} { // a reader owes for 4
		read(t, readers[0], handles[i], block(byte(i), kib))
	}
	for _, step := range []struct {
		bytes     int64
		fewest    int64
		most      int64
		keysThere string
	}{
		{0, 0, 0, "012345"},
		{-1, 0, 0, "012345"},
		{1, kib, 2 * kib, "12345"},
		{kib + kib/2, 2 * kib, 3 * kib, "145"},
		{math.MaxInt64, kib, 2 * kib, "14"},
		{math.MaxInt64, 0, 0, "14"},
	} {
		freed := s.FreeUnused(step.bytes)
		there := ""
		for i := range handles {
			if s.IsCached(fmt.Sprint(i)) {
				there += fmt.Sprint(i)
			}
		}
		if freed < step.fewest || freed > step.most || there != step.keysThere {
			t.Errorf("FreeUnused(%d) freed %d, and left %s; want %d to %d, and %s", step.bytes, freed, there, step.fewest, step.most, step.keysThere)
		}
	}
	held.Release()
}
