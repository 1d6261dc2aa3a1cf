package shelf

import (
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Shelf is the owner's side. It holds nothing until Begin.
type Shelf struct {
	mem  *shmstore.Segment
	page *page

	mu     sync.Mutex
	first  uint64
	next   uint64 // number; 0: not begun, or used up
	holds  int    // values
	closed bool
	// Of those, the ones that Reclaim was true for.
	reclaimed map[uint64]struct{}
}

// New makes an empty shelf. The errors are those of [shmstore.NewSegment].
func New() (*Shelf, error) {
	mem, err := shmstore.NewSegment("shelf", Bytes)
	if err != nil {
		return nil, fmt.Errorf("make shelf: %w", err)
	}
	s := &Shelf{mem: mem, page: pageOf(mem.Bytes()), reclaimed: make(map[uint64]struct{})}
	s.page.magic.Store(magic)
	return s, nil
}

// FD is the descriptor, for passing on; -1 after Close. It stays the shelf's own.
func (s *Shelf) FD() int { return s.mem.FD() }

// Begin says which numbers its values have: the first one, of [Numbers]. It is
// called once.
func (s *Shelf) Begin(first uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.next = first, first+1 // so that none is zero
}

// Put lays a value down, under a number that no other has had, and that is higher
// than those before. It is false when all slots are taken, when the numbers are used
// up, and before Begin.
func (s *Shelf) Put(v Value) (number uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.holds == Slots {
		return 0, false
	}
	for s.next != 0 {
		number := s.next
		if s.next++; s.next-s.first == Numbers {
			s.next = 0
		}
		at := s.slot(number)
		if at.number.Load() != 0 {
			continue
		}
		at.offset.Store(v.Offset)
		at.size.Store(v.Size)
		at.tag.Store(v.Tag)
		at.number.Store(number)
		s.holds++
		return number, true
	}
	return 0, false
}

// Publish says that whoever keeps account will learn of the values up to this one, soon,
// unless this process ends.
func (s *Shelf) Publish(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && number > s.page.published.Load() {
		s.page.published.Store(number)
	}
}

// Reclaim reports whether somebody has had a value and reads it no more. From then on nobody
// gets it, and its memory can be used again. It is to be cleared only when whoever keeps
// account knows of that, too: until then its lock is needed.
func (s *Shelf) Reclaim(number uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.slot(number).number.Load() != number {
		return false // it was cleared meanwhile, and would stay locked
	}
	at, fd := number-s.first, s.mem.FD()
	// The owner shares the lock, so that nobody can give it up and have others take the value.
	if !sharedElsewhere(fd, at) || !shareByte(fd, at) {
		return false
	}
	s.reclaimed[number] = struct{}{}
	return true
}

// Clear takes a value away, before its memory is used again: nobody has it, or will.
func (s *Shelf) Clear(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if at := s.slot(number); at.number.CompareAndSwap(number, 0) {
		s.holds--
	}
	if _, shared := s.reclaimed[number]; shared {
		delete(s.reclaimed, number)
		unlockByte(s.mem.FD(), number-s.first)
	}
}

func (s *Shelf) slot(number uint64) *slot { return &s.page.slots[(number-s.first)%Slots] }

// Close gives the memory back. Others keep what they have mapped. Nothing is put from then
// on, and what the other methods are called for is done.
func (s *Shelf) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.mem.Close()
}
