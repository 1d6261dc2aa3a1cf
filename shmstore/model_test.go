package shmstore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
)

// model is the store's promises in the simplest form: an object that a reader
// owes for, reads or pins is present with its bytes; another object
// is present with its bytes, or gone for ever.
type model struct {
	store   *Store
	readers map[ReaderID]*Reader
	objects map[uint64]*object // by generation; also those that are gone
	leases  []openLease
	pending []pendingReservation
	seed    uint64
	device  *countedDevice
	liar    *Reader // see Lie; nil: none
}

type object struct {
	handle Handle
	data   []byte
	debts  map[ReaderID]int // not collected
	held   int              // leases
	gone   bool             // seen to be gone
	piece  *uint32          // of the device; nil: none
}

type openLease struct {
	lease  Lease
	reader ReaderID
	object *object
}

type pendingReservation struct {
	reservation Reservation
	charge      ReaderSet
	piece       *uint32
}

func (m *model) mustBeThere(o *object) bool {
	uncollected := 0
	for _, n := range o.debts {
		uncollected += n
	}
	return uncollected > 0 || o.held > 0
}

// charge draws a set of present readers.
func (m *model) charge(t *rapid.T) ReaderSet {
	set := ReaderSet(0)
	for _, id := range slices.Sorted(maps.Keys(m.readers)) {
		if rapid.Bool().Draw(t, fmt.Sprintf("charge %d", id)) {
			set |= Readers(id)
		}
	}
	return set
}

func (m *model) object(t *rapid.T) *object {
	if len(m.objects) == 0 {
		t.Skip("no object")
	}
	gens := slices.Sorted(maps.Keys(m.objects))
	// Mostly one of the last: those that may still be present.
	back := rapid.IntRange(0, min(len(gens)-1, 20)).Draw(t, "age")
	return m.objects[gens[len(gens)-1-back]]
}

func (m *model) reader(t *rapid.T) *Reader {
	return m.readers[rapid.SampledFrom(slices.Sorted(maps.Keys(m.readers))).Draw(t, "reader")]
}

// added puts a new object into the model.
func (m *model) added(h Handle, data []byte, charge ReaderSet, local int) *object {
	o := &object{handle: h, data: data, debts: make(map[ReaderID]int)}
	for id := range charge.All() {
		o.debts[id]++
	}
	o.debts[LocalReader] += local
	m.objects[h.Gen] = o
	return o
}

func (m *model) data(t *rapid.T) []byte {
	m.seed++
	return content(rapid.IntRange(0, 700).Draw(t, "size"), m.seed)
}

// full checks an error of a put: every object that leaves no space must be held.
func (m *model) full(t *rapid.T, err error) {
	if !errors.Is(err, ErrFull) {
		t.Fatalf("a put failed: %v", err)
	}
	var full *FullError
	if !errors.As(err, &full) {
		t.Fatalf("no figures: %v", err)
	}
	if m.liar != nil {
		return // the liar may hold any object
	}
	for _, o := range m.objects {
		if full.Resource == ResourceLarge && !IsLarge(o.handle) {
			continue // it would not have helped
		}
		if full.Resource == ResourceDevice && o.piece == nil {
			continue
		}
		if !o.gone && !m.mustBeThere(o) {
			if l, err := m.store.Local().Pin(o.handle); err == nil {
				l.Release()
				t.Fatalf("the store is full while no reader holds %v", o.handle)
			}
			o.gone = true
		}
	}
}

func (m *model) Put(t *rapid.T) {
	data, charge := m.data(t), m.charge(t)
	h, err := m.store.Put(data, charge)
	if err != nil {
		m.full(t, err)
		return
	}
	m.added(h, data, charge, 0)
}

func (m *model) Reserve(t *rapid.T) {
	charge := m.charge(t)
	r, err := m.store.Reserve(rapid.IntRange(0, 700).Draw(t, "size"), codec.IDRaw, charge)
	if err != nil {
		m.full(t, err)
		return
	}
	m.pending = append(m.pending, pendingReservation{r, charge, nil})
}

func (m *model) pop(t *rapid.T) pendingReservation {
	if len(m.pending) == 0 {
		t.Skip("no reservation")
	}
	i := rapid.IntRange(0, len(m.pending)-1).Draw(t, "reservation")
	p := m.pending[i]
	m.pending = slices.Delete(m.pending, i, i+1)
	return p
}

func (m *model) Commit(t *rapid.T) {
	p := m.pop(t)
	m.seed++
	fill(p.reservation.Bytes(), m.seed)
	size := rapid.IntRange(0, len(p.reservation.Bytes())).Draw(t, "committed")
	local := rapid.IntRange(0, 2).Draw(t, "local")
	data := bytes.Clone(p.reservation.Bytes()[:size])
	h, err := p.reservation.Commit(size, local)
	if err != nil {
		t.Fatal(err)
	}
	m.added(h, data, p.charge, local).piece = p.piece
}

func (m *model) Abort(t *rapid.T) {
	p := m.pop(t)
	p.reservation.Abort()
}

// Read takes a lease in one of the two ways.
func (m *model) Read(t *rapid.T) {
	o, r := m.object(t), m.reader(t)
	verb := rapid.SampledFrom([]string{"take", "pin"}).Draw(t, "verb")
	l, err := map[string]func(Handle) (Lease, error){"take": r.Take, "pin": r.Pin}[verb](o.handle)
	owes := o.debts[r.ID()] > 0
	switch {
	case err == nil && !o.gone && (verb != "take" || owes):
		if owes && verb != "pin" {
			o.debts[r.ID()]--
		}
		o.held++
		m.leases = append(m.leases, openLease{lease: l, reader: r.ID(), object: o})
	case errors.Is(err, ErrNoDebt) && verb == "take" && !owes:
	case errors.Is(err, ErrStale) && !m.mustBeThere(o):
		o.gone = true
	default:
		t.Fatalf("%s %v by %d: %v, the model has %+v", verb, o.handle, r.ID(), err, o)
	}
}

func (m *model) Drop(t *rapid.T) {
	o, r := m.object(t), m.reader(t)
	err := r.Drop(o.handle)
	if (err == nil) != (o.debts[r.ID()] > 0) {
		t.Fatalf("Drop %v by %d: %v, the model has %+v", o.handle, r.ID(), err, o)
	}
	if err == nil {
		o.debts[r.ID()]--
	}
}

func (m *model) Release(t *rapid.T) {
	if len(m.leases) == 0 {
		t.Skip("no lease")
	}
	i := rapid.IntRange(0, len(m.leases)-1).Draw(t, "lease")
	m.leases[i].lease.Release()
	m.leases[i].object.held--
	m.leases = slices.Delete(m.leases, i, i+1)
}

func (m *model) Share(t *rapid.T) {
	for i := range m.leases {
		if l := &m.leases[i]; l.reader == LocalReader {
			if err := l.lease.Share(1); err != nil {
				t.Fatal(err)
			}
			l.object.debts[LocalReader]++
			return
		}
	}
	t.Skip("no local lease")
}

func (m *model) FreeUnused(*rapid.T) {
	m.store.FreeUnused()
	if m.liar != nil {
		return
	}
	for _, o := range m.objects {
		o.gone = o.gone || !m.mustBeThere(o)
	}
}

func (m *model) Join(t *rapid.T) {
	r, err := m.store.DeclareReader("joined")
	if present := len(m.readers); present == 4 || present == 3 && m.liar != nil {
		if !errors.Is(err, ErrTooManyReaders) {
			t.Fatalf("one reader too many: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.readers[r.ID()] = startAt(r, rapid.SampledFrom(countsBegin).Draw(t, "counts begin at"))
}

// countsBegin are the first counts of a reader: 0, or one step before they change
// sign or wrap.
var countsBegin = []uint32{0, math.MaxInt32, math.MaxUint32}

// startAt makes a reader without debts one that has settled
// so many debts in every slot.
func startAt(r *Reader, debts uint32) *Reader {
	for slot := range r.ledger {
		r.owed[slot] = debts
		r.taken[slot].Store(debts)
		r.ledger[slot].done.Store(debts)
	}
	return r
}

// Die removes a reader with its debts, leases and pins.
func (m *model) Die(t *rapid.T) {
	r := m.reader(t)
	if r.ID() == LocalReader {
		t.Skip("the local reader stays")
	}
	if err := m.store.RemoveReader(r.ID()); err != nil {
		t.Fatal(err)
	}
	delete(m.readers, r.ID())
	for _, o := range m.objects {
		delete(o.debts, r.ID())
	}
	for i := range m.pending { // the next reader of the index is not charged for these
		m.pending[i].charge &^= Readers(r.ID())
	}
	m.leases = slices.DeleteFunc(m.leases, func(l openLease) bool {
		if l.reader == r.ID() {
			l.object.held--
		}
		return l.reader == r.ID()
	})
}

// Check runs after every step.
func (m *model) Check(t *rapid.T) {
	for _, v := range m.violations() {
		t.Errorf("Check: %v", v)
	}
	m.checkPieces(t)
	for i := range m.leases {
		if l := &m.leases[i]; !bytes.Equal(l.lease.Bytes(), l.object.data) {
			t.Errorf("the bytes under a lease on %v changed", l.object.handle)
		}
	}
	for _, o := range m.objects {
		l, err := m.store.Local().Pin(o.handle)
		switch {
		case err == nil:
			if o.gone || !bytes.Equal(l.Bytes(), o.data) {
				t.Errorf("%v is back, or has other bytes", o.handle)
			}
			l.Release()
		case !errors.Is(err, ErrStale) || m.mustBeThere(o):
			t.Errorf("%v is not there: %v, the model has %+v", o.handle, err, o)
		default:
			o.gone = true
		}
	}
}

func TestModel(t *testing.T) {
	againstModel(t, Options{MaxObjectBytes: 700})
}

// TestModelWithReuse: settled objects are evicted sooner, and no others.
func TestModelWithReuse(t *testing.T) {
	againstModel(t, Options{MaxObjectBytes: 700, Reuse: true})
}

// TestModelWithLargeObjects: the promises hold for objects with
// segments of their own, of which three fit here.
func TestModelWithLargeObjects(t *testing.T) {
	againstModel(t, Options{MaxObjectBytes: 700, LargeObjectBytes: 400, MaxLargeBytes: 3 * pageBytes})
}

// TestModelWithLargeReuse: the promises hold if their segments are reused.
func TestModelWithLargeReuse(t *testing.T) {
	againstModel(t, Options{MaxObjectBytes: 700, LargeObjectBytes: 400, MaxLargeBytes: 3 * pageBytes, Reuse: true})
}

func againstModel(t *testing.T, opts Options) {
	eachMemory(t, func(t *testing.T, memory Memory) {
		rapid.Check(t, func(t *rapid.T) {
			opts := opts
			opts.Memory, opts.ArenaBytes = memory, minArenaBytes
			opts.Slots = rapid.IntRange(1, 12).Draw(t, "slots")
			opts.MaxReaders = 3
			s, err := Create(opts)
			if err != nil {
				t.Fatal(err)
			}
			m := &model{
				store:   s,
				readers: map[ReaderID]*Reader{LocalReader: startAt(s.Local(), rapid.SampledFrom(countsBegin).Draw(t, "local counts begin at"))},
				objects: make(map[uint64]*object),
				device:  newCountedDevice(rapid.Int64Range(1, 10).Draw(t, "device")),
			}
			steps := rapid.StateMachineActions(m)
			t.Repeat(steps)
			for len(m.leases) > 0 {
				m.leases[0].lease.Release()
				m.leases = m.leases[1:]
			}
			for _, p := range m.pending {
				p.reservation.Abort()
			}
			m.end(t)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if n := m.device.Pieces(); n != 0 {
				t.Errorf("%d pieces are in use after the store was closed", n)
			}
		})
	})
}
