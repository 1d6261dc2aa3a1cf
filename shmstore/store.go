package shmstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// Handle names an object. It is a plain value that can be copied, sent and
// forged: only a reader that turns it into a [Lease] may touch the bytes.
type Handle = messages.Handle

// Store is the owner's side of a payload store. Most of its methods are for
// one goroutine, the writer; those that any goroutine may call say so.
type Store struct {
	grantView           // of the objects in the arena
	inArena      uint64 // size of the largest object there; above it they are large
	maxLarge     uint64
	keepLarge    uint64 // of that, with segments that are kept for reuse
	memory       Memory
	reuse        bool
	maxReaders   int
	closed       atomic.Bool
	large        *largeTable
	onLarge      func(mem []byte) (forget func(unmap, stays func())) // nil: nobody wants to know
	leavingBytes atomic.Uint64                                       // bytes of large objects that are gone, and still mapped for a while
	stayingBytes atomic.Uint64                                       // and that stay mapped for good

	// The mapped segments; arena, lines and directory are views of them.
	arenaSegment, directorySegment *segment
	arena                          []byte
	directory                      []byte

	// All below is the writer's alone.
	ring             *ringbuf.Ring
	generation       uint64   // the last one given out
	records          []record // one for each slot that was ever used
	freeSlots        []uint32 // of those, the ones without an object
	inUse            int      // of those, the ones with an object
	largeSlots       []uint32 // of the large objects, ascending by generation
	largeBytes       uint64   // of their segments
	nextLargeReclaim int      // of a store that reuses: the one of largeSlots to look at next
	spares           spares
	accounts         []*account                // of the present readers, ascending by id
	columns          [readerIndexes]debtColumn // their owed columns, by id; nil if absent
	present          ReaderSet
	admitting        ReaderSet // indexes that admissions have
	quarantine       ReaderSet
	counters         counters
	nextReclaim      ringbuf.Chunk // of a store that reuses: where the next look begins; zero: at the oldest object
	whileClosing     func()        // for tests: between closing slots and looking at pins
	memoryErr        error         // why there was no memory for room, in the present attempt; nil: there was
	scratch          batch
	devices          []*deviceUse // that objects were reserved on
	pieces           []heldPiece  // by slot; as long as the highest that ever held one
	deviceEvicted    uint64       // of the evicted, those for room on a device
}

// debtColumn is the column of an account: what a reader owes, slot by slot.
type debtColumn []uint32

// record is what the writer alone knows about a slot.
type record struct {
	chunk   ringbuf.Chunk
	gen     uint64 // 0: no object
	charged ReaderSet
}

// Create makes an empty store and becomes its owner.
//
// If the machine or a control group has not enough memory for all of the store, the error
// is a [*MemoryError]. Shared memory is reserved and touched in full, so that no later
// access can fail for lack of it: here, or, with Options.Reuse, before room is first given
// out, see [Store.Reserve]. Another process that allocates at the same moment can still
// bring the kernel's out-of-memory killer.
func Create(opts Options) (*Store, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("create store: %w", err)
	}
	opts = opts.WithDefaults()
	s := &Store{
		grantView: grantView{
			geo: geometry{
				store:     newStoreID(),
				arena:     uint64(opts.ArenaBytes),
				maxObject: uint64(opts.MaxObjectBytes),
				slots:     uint32(opts.Slots),
			},
			doorbell: &doorbell{},
		},
		inArena:    uint64(min(opts.inArena(), opts.MaxObjectBytes)),
		maxLarge:   uint64(max(opts.MaxLargeBytes, 0)),
		keepLarge:  uint64(max(min(opts.KeepLargeBytes, opts.MaxLargeBytes), 0)),
		memory:     opts.Memory,
		large:      newLargeTable(),
		reuse:      opts.Reuse,
		maxReaders: opts.MaxReaders,
	}
	if err := s.allocateSegments(opts); err != nil {
		return nil, fmt.Errorf("create store of %d bytes: %w", opts.ArenaBytes, err)
	}
	s.doorbell.flag = wantRoomOf(s.directory)
	s.local = s.addLocalReader(LocalReader, "local")
	return s, nil
}

// newStoreID draws an identity. Zero would be no store.
func newStoreID() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if id := binary.NativeEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// allocateSegments makes the arena, the directory and the ring.
func (s *Store) allocateSegments(opts Options) error {
	dirBytes := directoryBytes(opts.Slots)
	if opts.Memory == Shared {
		if err := checkHeadroom(uint64(opts.ArenaBytes) + uint64(dirBytes)); err != nil {
			return err
		}
	}
	var err error
	if s.arenaSegment, err = s.newStoreSegment(kindArena, int(opts.ArenaBytes)); err != nil {
		return err
	}
	if s.directorySegment, err = s.newStoreSegment(kindDirectory, dirBytes); err != nil {
		s.arenaSegment.release()
		return err
	}
	s.arena, s.directory = s.arenaSegment.data, s.directorySegment.data
	s.data = s.arena
	ring := ringbuf.Options{Reuse: opts.Reuse}
	if s.fillsLater() {
		ring.Fill = s.fillArena
	}
	s.ring, err = ringbuf.New(s.arena, ring)
	if err == nil {
		err = s.directorySegment.fill(pageBytes)
	}
	if err != nil {
		s.arenaSegment.release()
		s.directorySegment.release()
		return err
	}
	sb := superblock{kind: kindDirectory, geometry: s.geo}.encode()
	copy(s.directory, sb[:])
	s.lines = linesOf(s.directory, opts.Slots)
	return nil
}

// fillArena is ringbuf.Options.Fill.
func (s *Store) fillArena(endBytes uint64) (filledBytes uint64) {
	if err := s.arenaSegment.fill(int(endBytes)); err != nil {
		s.memoryErr = err
	}
	return uint64(s.arenaSegment.filled)
}

// fillAll gives the store all of its memory.
func (s *Store) fillAll() error {
	return errors.Join(s.arenaSegment.fill(len(s.arena)), s.directorySegment.fill(len(s.directory)))
}

// MaxObjectBytes is the size of the largest object the store takes. Any
// goroutine may call it.
func (s *Store) MaxObjectBytes() int64 { return int64(s.geo.maxObject) }

// Local is reader 0: all consumers in the owner's process that need no
// account of their own. Any goroutine may call it.
func (s *Store) Local() *Reader { return s.local }

// OnRoom installs the function that is called when a release may have made
// room while [Store.WantRoom] is raised. It runs on the releasing goroutine,
// possibly several times and at once on several, and must not block. Any
// goroutine may call OnRoom.
func (s *Store) OnRoom(ring func()) { s.doorbell.onRoom.Store(&ring) }

// WantRoom says whether the writer is waiting for room. To wait without
// missing a wake-up, raise the flag, try once more, and only then wait.
func (s *Store) WantRoom(wanted bool) { s.doorbell.setWanted(wanted) }

// Close ends the store: it refuses new reservations and new leases, and gives the memory back. While leases or reservations of this
// process are open it leaves the memory mapped instead, for a live view must
// never fault, and returns an error that wraps [ErrBusy]; calling Close again
// tries again, and without that the memory stays until the process ends. What
// readers in other processes hold stays valid until they let go, save pieces of
// devices: these are all freed, and their readers are to be told before. Closing
// a closed store does nothing.
func (s *Store) Close() error {
	if s.arenaSegment.released {
		return nil
	}
	s.closed.Store(true)
	open := 0
	for _, a := range s.accounts {
		if a.reader != nil {
			a.reader.closed.Store(true)
			open += a.reader.openLeases()
		}
	}
	reserved, _ := s.reserved()
	if open > 0 || reserved > 0 {
		return fmt.Errorf("close store %x: %w: %d leases and %d reservations are open; release them and close again", s.geo.store, ErrBusy, open, reserved)
	}
	for _, a := range s.accounts {
		a.release()
	}
	s.freePieces()
	s.arenaSegment.release()
	s.directorySegment.release()
	s.large.close()
	s.dropSpares()
	return nil
}

// verify reports why h names no object of this store, if it does not.
func (s *Store) verify(h Handle) error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case h.Store != s.geo.store:
		return errForeign
	case h.Slot >= s.geo.slots:
		return ErrCorrupt
	case int(h.Slot) >= len(s.records) || h.IsZero() || s.records[h.Slot].gen != h.Gen:
		return ErrStale
	}
	ln := &s.lines[h.Slot]
	if stateOf(ln.word.load()) != stateLive {
		return ErrStale
	}
	if s.handle(h.Slot) != h {
		return ErrCorrupt
	}
	return nil
}

// handle returns the handle of the live object in slot.
func (s *Store) handle(slot uint32) Handle {
	ln := &s.lines[slot]
	return Handle{
		Store:  s.geo.store,
		Gen:    genOf(ln.word.load()),
		Offset: atomic.LoadUint64(&ln.offset),
		Size:   atomic.LoadUint64(&ln.size),
		Slot:   slot,
		Codec:  atomic.LoadUint32(&ln.codec),
	}
}
