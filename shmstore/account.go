package shmstore

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
)

// maxDebts bounds the debts of a reader for one object. It keeps the
// difference of two counters that wrap well inside an int32.
const maxDebts = 1 << 30

// account is the owner's side of one reader.
type account struct {
	id     ReaderID
	name   string
	owed   debtColumn // written here
	ledger []entry    // written by the reader
	reader *Reader    // if it is in this process

	segments []*segment // of owed and ledger, if the reader is in another process
}

// openDebts is the number of debts the reader has not settled for a slot. A
// negative number means that the reader settled more than it owed. Done is read first: a
// lease that was shared and then released has raised owed before done.
func (a *account) openDebts(slot uint32) int32 {
	done := a.ledger[slot].done.Load()
	return int32(atomic.LoadUint32(&a.owed[slot]) - done)
}

// release unmaps the segments of a reader in another process.
func (a *account) release() {
	for _, seg := range a.segments {
		seg.release()
	}
}

// charge adds one debt to each reader of the set, for a slot that is not live
// yet.
//
// The loop counts through runs of readers, and scans for the next bit only in the gaps
// between them: on common processors a scan waits for
// the last use of the register that takes its result, which in a loop that
// scans for every bit is the load of the previous iteration.
func (s *Store) charge(slot uint32, readers ReaderSet) {
	for id, set := 0, uint64(readers); set != 0; id, set = id+1, set>>1 {
		if set&1 == 0 {
			gap := bits.TrailingZeros64(set)
			id, set = id+gap, set>>(gap%readerIndexes)
		}
		owed := &s.columns[id%readerIndexes][slot]
		relaxedStore32(owed, *owed+1)
	}
}

// mayHold is the set of readers that were charged for the object in slot. It includes the
// local reader, which a commit may have charged.
func (s *Store) mayHold(slot uint32) ReaderSet {
	return s.records[slot].charged | Readers(LocalReader)
}

// DeclareReader adds a reader of this process with an account of its own, for
// a consumer whose debts must be counted apart from those of others, or be
// removed together when it dies. The error is [ErrTooManyReaders] or
// [ErrClosed]. Writer only.
func (s *Store) DeclareReader(name string) (*Reader, error) {
	id, err := s.freeIndex()
	if err != nil {
		return nil, fmt.Errorf("declare reader %q: %w", name, err)
	}
	return s.addLocalReader(id, name), nil
}

// freeIndex finds a reader index that is not in use.
func (s *Store) freeIndex() (ReaderID, error) {
	if s.closed.Load() {
		return 0, ErrClosed
	}
	if len(s.accounts)+bits.OnesCount64(uint64(s.admitting)) > s.maxReaders { // the local one is not counted
		return 0, fmt.Errorf("%w: all %d are present, or are being admitted; remove one, or raise MaxReaders up to %d", ErrTooManyReaders, s.maxReaders, MaxReaders)
	}
	return ReaderID(bits.TrailingZeros64(^uint64(s.present | s.admitting))), nil
}

// addLocalReader adds a reader of this process, with a ledger on the heap.
func (s *Store) addLocalReader(id ReaderID, name string) *Reader {
	r := &Reader{
		leaseView: leaseView{
			id:       id,
			geo:      s.geo,
			data:     s.arena,
			lines:    s.lines,
			ledger:   staggered[entry](id, s.geo.slots, lineBytes/entryBytes),
			owed:     staggered[uint32](id, s.geo.slots, lineBytes/accountBytes),
			taken:    make([]atomic.Uint32, s.geo.slots),
			wantRoom: s.doorbell.flag,
			doorbell: s.doorbell,
			leases:   &leaseBook{},
		},
		segments: []*segment{s.arenaSegment, s.directorySegment},
		large:    s.large,
	}
	s.addAccount(&account{id: id, name: name, owed: r.owed, ledger: r.ledger, reader: r})
	return r
}

// staggered makes a column of a reader in this process. A put and an
// eviction read the same slots in the columns of all readers. If these began
// at the same offset in their pages, as large allocations do, all entries of a
// slot would fall into one set of the processor's first cache, which holds a
// dozen of them: so each column begins one cache line later than the last.
func staggered[T any](id ReaderID, slots uint32, entriesPerLine int) []T {
	skip := int(id) * entriesPerLine
	return make([]T, skip+int(slots))[skip:]
}

// addAccount adds an account to the scan of evictions. From then on the reader can be
// charged, and evictions read its pins.
func (s *Store) addAccount(a *account) {
	index, _ := slices.BinarySearchFunc(s.accounts, a.id, func(a *account, id ReaderID) int { return cmp.Compare(a.id, id) })
	s.accounts = slices.Insert(s.accounts, index, a)
	s.columns[a.id] = a.owed
	s.present |= Readers(a.id)
}

// RemoveReader removes a reader with its debts and pins, so that the objects that it
// alone held can be evicted. Call it when the reader is dead or detached: a removed reader
// that still reads may see its data overwritten. Its index may be assigned again, with a
// new ledger. The local reader cannot be removed. The error is [ErrUnknownReader]. Writer
// only.
func (s *Store) RemoveReader(id ReaderID) error {
	if id == LocalReader || !s.present.Has(id) {
		return fmt.Errorf("remove reader %d: %w", id, ErrUnknownReader)
	}
	index := slices.IndexFunc(s.accounts, func(a *account) bool { return a.id == id })
	a := s.accounts[index]
	s.accounts = slices.Delete(s.accounts, index, index+1)
	s.columns[id] = nil
	s.present &^= Readers(id)
	s.quarantine &^= Readers(id)
	// The next reader of this index owes nothing for the present objects.
	for slot := range s.records {
		s.records[slot].charged &^= Readers(id)
	}
	if a.reader != nil {
		a.reader.closed.Store(true)
	}
	a.release()
	return nil
}
