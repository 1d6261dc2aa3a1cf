package shelf

import (
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Taker takes values from another process's shelf.
type Taker struct {
	mem   *shmstore.Segment
	page  *page
	first uint64

	mu     sync.Mutex
	locked map[uint64]struct{} // by this process; its values may be gone
	tidy   int                 // with how many of those to look which are
	closed bool
}

// Open opens a shelf whose numbers begin at first. It takes over the descriptor,
// which must be an open file description of the process's own: see [Describe]. The
// errors are those of [shmstore.OpenSegment].
func Open(fd int, first uint64) (*Taker, error) {
	mem, err := shmstore.OpenSegment("shelf", fd, Bytes)
	if err != nil {
		return nil, fmt.Errorf("open shelf: %w", err)
	}
	t := &Taker{mem: mem, page: pageOf(mem.Bytes()), first: first, locked: make(map[uint64]struct{}), tidy: tidyAt}
	if found := t.page.magic.Load(); found != magic {
		mem.Close()
		return nil, fmt.Errorf("open shelf: %w: it begins with %#x", shmstore.ErrProtocol, found)
	}
	return t, nil
}

// tidyAt is with how many locks to begin to look which are needed no more.
const tidyAt = 8

// FD is the descriptor, for [Describe]; -1 after Close.
func (t *Taker) FD() int { return t.mem.FD() }

// Published is the last number that the owner says it has told of; it is the owner's
// word, and can be anything.
func (t *Taker) Published() uint64 { return t.page.published.Load() }

// First is the first of the shelf's numbers.
func (t *Taker) First() uint64 { return t.first }

// Beyond returns the numbers of values that lie there, of those above one.
func (t *Taker) Beyond(number uint64) (all []uint64) {
	for i := range t.page.slots {
		if n := t.page.slots[i].number.Load(); n > number && t.Has(n) {
			all = append(all, n)
		}
	}
	return all
}

// Has reports whether a number is one of the shelf's.
func (t *Taker) Has(number uint64) bool { return number-t.first < Numbers }

// Take takes a value, if it has that tag. It is false if it is not there, or is not to be
// had: somebody else has it, or had it.
func (t *Taker) Take(number, tag uint64) (v Value, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// First: a lock that is given up again is in the way of others meanwhile.
	if !t.Has(number) || !t.lies(number, tag) || !t.lock(number) {
		return Value{}, false
	}
	at := t.slot(number)
	v = Value{Offset: at.offset.Load(), Size: at.size.Load(), Tag: tag}
	if !t.lies(number, tag) {
		t.unlock(number) // it is gone, and nobody wants it
		return Value{}, false
	}
	return v, true
}

func (t *Taker) lies(number, tag uint64) bool {
	at := t.slot(number)
	return at.tag.Load() == tag && at.number.Load() == number
}

// Claim keeps everybody else from taking a value, if nobody has it. It does not look
// whether the value is there.
func (t *Taker) Claim(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lock(number)
}

// Free reports whether nobody else has a value. Like Claim, it does not look whether the
// value is there.
func (t *Taker) Free(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.closed && t.Has(number) && !lockedElsewhere(t.mem.FD(), number-t.first)
}

// Share keeps everybody else from taking a value that somebody has whose [Witness.Share]
// was true.
func (t *Taker) Share(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || !t.Has(number) {
		return false
	}
	t.letGo()
	if !shareByte(t.mem.FD(), number-t.first) {
		return false
	}
	t.locked[number] = struct{}{}
	return true
}

// Give says to all who look at the lock that a value which was taken is read no more: it
// makes the lock a shared one, which still keeps everybody else from taking it.
func (t *Taker) Give(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ours := t.locked[number]; ours && !t.closed {
		shareByte(t.mem.FD(), number-t.first) // where that fails, it is told later all the same
	}
}

// Given reports whether somebody else has had a value and reads it no more.
func (t *Taker) Given(number uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.closed && t.Has(number) && sharedElsewhere(t.mem.FD(), number-t.first)
}

// PutBack gives a lock up, of a value that cannot be where its slot says.
func (t *Taker) PutBack(number uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ours := t.locked[number]; ours && !t.closed {
		t.unlock(number)
	}
}

// lock gets the lock of a number, once.
func (t *Taker) lock(number uint64) bool {
	if _, again := t.locked[number]; again || t.closed || !t.Has(number) {
		return false
	}
	t.letGo()
	if !lockByte(t.mem.FD(), number-t.first) {
		return false
	}
	t.locked[number] = struct{}{}
	return true
}

// letGo gives up, now and then, the locks whose slots have moved on.
func (t *Taker) letGo() {
	if len(t.locked) < t.tidy {
		return
	}
	for n := range t.locked {
		if t.slot(n).number.Load() != n {
			t.unlock(n)
		}
	}
	t.tidy = 2*len(t.locked) + tidyAt
}

func (t *Taker) unlock(number uint64) {
	delete(t.locked, number)
	unlockByte(t.mem.FD(), number-t.first)
}

func (t *Taker) slot(number uint64) *slot { return &t.page.slots[(number-t.first)%Slots] }

// Close lets go of everything that was taken.
func (t *Taker) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.mem.Close()
}
