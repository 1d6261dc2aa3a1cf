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
	keepLarge    uint64 // bound of large objects and of segments kept for reuse, in bytes
	memory       Memory
	reuse        bool
	maxReaders   int
	closed       atomic.Bool
	large        *largeTable
	onLarge      func(mem []byte) (forget func(unmap, stays func())) // nil: no function is installed
	leavingBytes atomic.Uint64                                       // of large objects that are gone, until they are unmapped
	stayingBytes atomic.Uint64                                       // of large objects that are gone and stay mapped for good

	// The mapped segments; arena, lines and directory are views of them.
	arenaSegment, directorySegment *segment
	arena                          []byte
	directory                      []byte

	// All below is the writer's alone.
	ring             *ringbuf.Ring
	generation       uint64   // the last one granted
	records          []record // one for each slot that was ever used
	freeSlots        []uint32 // of those, the ones without an object
	inUse            int      // of those, the ones with an object
	largeSlots       []uint32 // of the large objects, ascending by generation
	largeBytes       uint64   // of their segments
	nextLargeReclaim int      // with Reuse: index in largeSlots of the object to check next
	spares           spares
	accounts         []*account                // of the present readers, ascending by id
	columns          [readerIndexes]debtColumn // their owed columns, by id; nil if absent
	present          ReaderSet
	admitting        ReaderSet // indexes that admissions have
	quarantine       ReaderSet
	counters         counters
	nextReclaim      ringbuf.Chunk // with Reuse: where the next reclaim begins; zero: at the oldest object
	whileClosing     func()        // for tests: called between closing slots and reading pins
	memoryErr        error         // why the present attempt got no memory for space; nil: it got some, or asked for none
	scratch          batch
	devices          []*deviceUse // that objects were reserved on
	pieces           []heldPiece  // by slot; as long as the highest that ever held one
	deviceEvicted    uint64       // of the evicted, those for space on a device
}

// debtColumn holds the debts ever charged to one reader, by slot.
type debtColumn []uint32

// record is the writer's private state of a slot.
type record struct {
	chunk   ringbuf.Chunk
	gen     uint64 // 0: no object
	charged ReaderSet
}

// Create makes an empty store and becomes its owner.
//
// If the machine or a control group has not enough memory for all of the store, the error
// is a [*MemoryError]. Shared memory is reserved and touched in full, so that no later
// access can fail for lack of it: here, or, with Options.Reuse, before space is first
// granted, see [Store.Reserve]. Another process that allocates at the same moment can still
// trigger the kernel's out-of-memory killer.
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

// newStoreID draws a random identity other than zero, which names no store.
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

// fillArena implements ringbuf.Options.Fill. It keeps an error in memoryErr.
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

// Local returns reader 0, which serves all consumers in the owner's process that need no
// account of their own. Any goroutine may call it.
func (s *Store) Local() *Reader { return s.local }

// OnRoom installs the function that is called when a release may have freed
// space while [Store.WantRoom] is raised. The function runs on the releasing goroutine,
// possibly several times and at once on several, and must not block. Any
// goroutine may call OnRoom.
func (s *Store) OnRoom(ring func()) { s.doorbell.onRoom.Store(&ring) }

// WantRoom raises or lowers the flag that says that the writer waits for space. To wait
// without missing a wake-up, raise the flag, try once more, and only then wait. Writer only.
func (s *Store) WantRoom(wanted bool) { s.doorbell.setWanted(wanted) }

// Close ends the store: it refuses new reservations and new leases, and gives the memory
// back. While leases or reservations of this process are open, it leaves the memory mapped,
// because a live view must never fault, and returns an error that wraps [ErrBusy]; call
// Close again then, or the memory stays until the process ends. Objects that readers in
// other processes hold stay valid until they are released. Pieces of devices are all freed:
// tell their readers before. Closing a closed store does nothing. Writer only.
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

// verify returns the reason why h names no object of this store, or nil.
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
