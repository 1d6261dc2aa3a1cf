package shmstore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// sealed fills b with bytes that end in their own checksum; the first eight
// are the seed, so that two objects differ.
func sealed(b []byte, seed uint64) {
	binary.NativeEndian.PutUint64(b, seed)
	fill(b[8:len(b)-4], seed)
	binary.NativeEndian.PutUint32(b[len(b)-4:], crc32.ChecksumIEEE(b[:len(b)-4]))
}

func isSealed(b []byte) bool {
	return len(b) >= 12 && binary.NativeEndian.Uint32(b[len(b)-4:]) == crc32.ChecksumIEEE(b[:len(b)-4])
}

// stress is a writer that evicts all the time, in a store with space for a few
// objects, and readers that take their deliveries and pin handles that are
// mostly stale.
type stress struct {
	store  *Store
	last   [16]atomic.Pointer[Handle] // handles that every reader may pin
	torn   atomic.Int64
	reads  atomic.Int64
	stales atomic.Int64
}

// consume takes every delivery, and after each one pins one of the handles.
func (st *stress) consume(t *testing.T, r *Reader, deliveries <-chan Handle) {
	pull := 0
	for h := range deliveries {
		l, err := r.Take(h)
		if err != nil {
			t.Errorf("delivery %v to %d: %v", h, r.ID(), err)
			continue
		}
		st.verify(&l)
		if r.ID() == LocalReader && h.Gen%3 == 0 {
			st.share(t, &l)
		} else {
			l.Release()
		}
		pull++
		st.pull(t, r, pull)
	}
}

// share passes a delivery on to its own reader, by reference.
func (st *stress) share(t *testing.T, l *Lease) {
	h := l.Handle()
	if err := l.Share(1); err != nil {
		t.Error(err)
	}
	l.Release()
	again, err := st.store.Local().Take(h)
	if err != nil {
		t.Errorf("shared delivery %v: %v", h, err)
		return
	}
	st.verify(&again)
	again.Release()
}

func (st *stress) pull(t *testing.T, r *Reader, n int) {
	h := st.last[n%len(st.last)].Load()
	if h == nil {
		return
	}
	l, err := r.Pin(*h)
	switch {
	case err == nil:
		st.verify(&l)
		if r.ID() == LocalReader && n%4 == 0 {
			st.share(t, &l)
			return
		}
		l.Release()
	case errors.Is(err, ErrStale):
		st.stales.Add(1)
	default:
		t.Errorf("pull %v by %d: %v", *h, r.ID(), err)
	}
}

func (st *stress) verify(l *Lease) {
	st.reads.Add(1)
	if !isSealed(l.Bytes()) {
		st.torn.Add(1)
	}
}

// TestStress is the test to run with the race detector: on heap memory, where
// the detector sees every access.
func TestStress(t *testing.T) {
	stressed(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, Slots: 8, MaxObjectBytes: 500})
}

// TestStressReuse is TestStress where each reservation evicts settled objects.
func TestStressReuse(t *testing.T) {
	stressed(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, Slots: 8, MaxObjectBytes: 500, Reuse: true})
}

// TestStressLarge is TestStress where every other object has a segment of its
// own.
func TestStressLarge(t *testing.T) {
	stressed(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, Slots: 8, MaxObjectBytes: 500, LargeObjectBytes: 200, MaxLargeBytes: 4 * pageBytes})
}

// TestStressLargeReuse is TestStressLarge where those segments are used again.
func TestStressLargeReuse(t *testing.T) {
	stressed(t, Options{Memory: Heap, ArenaBytes: minArenaBytes, Slots: 8, MaxObjectBytes: 500, LargeObjectBytes: 200, MaxLargeBytes: 4 * pageBytes, Reuse: true})
}

func stressed(t *testing.T, opts Options) {
	const readers, puts = 4, 4000
	s := create(t, opts)
	st := &stress{store: s}
	room := make(chan struct{}, 1)
	s.OnRoom(func() {
		select {
		case room <- struct{}{}:
		default:
		}
	})
	all := []*Reader{s.Local()}
	for range readers - 1 {
		all = append(all, mustDeclare(t, s, "stress"))
	}
	var consumers sync.WaitGroup
	deliveries := make([]chan Handle, readers)
	for i, r := range all {
		deliveries[i] = make(chan Handle, 2)
		for range 2 { // two goroutines share each reader
			consumers.Go(func() { st.consume(t, r, deliveries[i]) })
		}
	}
	for i := range uint64(puts) {
		charge := ReaderSet(i) & s.present
		r, err := s.Reserve(20+int(i*37%400), codec.IDRaw, charge&^1)
		for errors.Is(err, ErrFull) {
			// The order that loses no wake-up: raise the flag, try again, wait.
			s.WantRoom(true)
			if r, err = s.Reserve(20+int(i*37%400), codec.IDRaw, charge&^1); errors.Is(err, ErrFull) {
				<-room
			}
			s.WantRoom(false)
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			r.Abort()
			continue
		}
		sealed(r.Bytes(), i)
		h, err := r.Commit(len(r.Bytes()), int(charge&1))
		if err != nil {
			t.Fatal(err)
		}
		st.last[i%uint64(len(st.last))].Store(&h)
		for id := range charge.All() {
			deliveries[id] <- h
		}
		if i%500 == 0 {
			wantClean(t, s)
		}
	}
	for _, c := range deliveries {
		close(c)
	}
	consumers.Wait()
	if torn := st.torn.Load(); torn != 0 {
		t.Errorf("%d of %d reads were torn", torn, st.reads.Load())
	}
	if st.stales.Load() == 0 {
		t.Error("no pull met an evicted object: the test tested nothing")
	}
	if left := freeAll(s); left != 0 {
		t.Errorf("%d objects are held after all were released", left)
	}
	if q := s.Stats().Quarantined; q != 0 {
		t.Errorf("readers %v are quarantined", q)
	}
	t.Logf("%d reads, %d stale pulls, %d pin conflicts", st.reads.Load(), st.stales.Load(), s.Stats().PinConflictsTotal)
}
