package ring

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// rangeNumbers is how many numbers a shelf has, and the table for all that is on none.
const rangeNumbers = shelf.Numbers

// Claims is what a table needs of a shelf: a [shelf.Taker].
type Claims interface {
	// Claim keeps everybody else from taking the value of a number, if nobody has it.
	Claim(number uint64) bool
	// Free reports whether nobody has it.
	Free(number uint64) bool
	// Given reports whether somebody has had it, and reads it no more.
	Given(number uint64) bool
	// Share keeps everybody else from it, too, beside somebody who shares it.
	Share(number uint64) bool
	// Beyond returns the numbers of values that lie there, of those above one.
	Beyond(number uint64) []uint64
	// Published is the last number that the owner says it has told of.
	Published() uint64
	// Close comes when nothing is left.
	Close()
}

// A Shelf is where a process puts values that others can take without asking the
// table. The table learns of both behind that, and in any order: it claims what it is to
// give to somebody, or to take back, as they do.
type Shelf struct {
	table  *Table
	first  uint64
	claims Claims

	// Guarded by the table's lock:
	readers map[*Reader]*reading
	last    uint64            // the number of the value placed last
	on      map[uint64]*entry // what was placed, until it is given back
	early   map[uint64]*early // taken before it was placed here
	caught  chan struct{}     // closed when last moves; nil: nobody waits
	doubt   uint64            // was published and did not come: not waited for
	closed  bool              // nothing more is placed
}

// shelved is what there is to know of an entry on a shelf.
type shelved struct {
	shelf   *Shelf
	claimed bool    // by the table: nobody else can take it
	out     bool    // somebody has claimed it, who has not said so
	reader  *Reader // who has taken it
	over    bool    // it was given back
}

// ErrShelf says that a process did with its shelf what it must not.
var ErrShelf = errors.New("this is not how a shelf is used")

// NewRange returns the first of the numbers for a new shelf.
func (t *Table) NewRange() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		t.ranges = (t.ranges + 1) % (1 << 64 / rangeNumbers)
		if t.ranges != t.last/rangeNumbers && t.shelves[t.ranges] == nil {
			return t.ranges * rangeNumbers
		}
	}
}

// Shelf adds a shelf, with a range of numbers that is nobody's.
func (t *Table) Shelf(first uint64, claims Claims) *Shelf {
	s := &Shelf{
		table: t, first: first, last: first, claims: claims,
		readers: make(map[*Reader]*reading), on: make(map[uint64]*entry), early: make(map[uint64]*early),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shelves[first/rangeNumbers] = s
	return s
}

// First is the first of the shelf's numbers.
func (s *Shelf) First() uint64 { return s.first }

// Len returns how many values are on the shelf, or are read.
func (s *Shelf) Len() int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return len(s.on)
}

// Claims is what the table claims by.
func (s *Shelf) Claims() Claims { return s.claims }

// PutOn is Put of a value that lies on a shelf already, by its number there, and when it was
// put, which [Now] tells its owner: the table learns of it later, and perhaps behind one that
// somebody has put in its place. The numbers of a shelf come in their order.
func (o *Owner) PutOn(s *Shelf, number uint64, put int64, edge connector.Edge, key string, payload connector.Payload) error {
	t := o.table
	e := &entry{place: place{edge, key}, number: number, payload: payload, owner: o, at: time.Now(), put: min(put, Now()), shelved: &shelved{shelf: s}}
	t.mu.Lock()
	if err := s.check(number); err != nil {
		t.mu.Unlock()
		payload.Release()
		return err
	}
	closed := o.closed
	s.last = number
	s.on[number] = e
	was := s.early[number]
	maps.DeleteFunc(s.early, func(n uint64, _ *early) bool { return n <= number }) // those before it never come
	if was != nil {
		e.shelved.reader = was.reader // first: it is not the table's to claim
	}
	var old []*entry
	if closed {
		old = t.takeOff(nil, e) // unless somebody has taken it
	} else {
		old = t.replace(e)
	}
	if was != nil {
		if t.held[e.place] == e {
			t.drop(e)
		}
		if was.over {
			t.offShelf(e)
			old = append(old, e)
		} else {
			was.reader.has[number] = e
		}
	}
	s.catchUp()
	t.mu.Unlock()
	release(old)
	if closed {
		return connector.ErrClosed
	}
	return nil
}

// check refuses a number that cannot be the next one.
func (s *Shelf) check(number uint64) error {
	switch {
	case s.closed:
		return connector.ErrClosed
	case number-s.first >= rangeNumbers || number <= s.last:
		return fmt.Errorf("%w: number %#x behind %#x", ErrShelf, number, s.last)
	case len(s.on) >= shelf.Slots:
		return fmt.Errorf("%w: %d values are on it, which has as many slots", ErrShelf, len(s.on))
	}
	return nil
}

// ReclaimEach is at how many values an owner looks with each Put whether they are read no
// more: one more than it puts.
const ReclaimEach = 2

// Reclaim gives back some of what is read no more and whose readers have not said so yet. It
// is for an owner who wants its room again soon.
func (s *Shelf) Reclaim() {
	var back []*entry
	looks := 0
	s.table.mu.Lock()
	for number, e := range s.on { // any of them: it begins somewhere else each time
		if looks++; looks > ReclaimEach {
			break
		}
		if !e.shelved.claimed && s.claims.Given(number) && s.claims.Share(number) {
			back = s.table.takeOver(back, e)
		}
	}
	s.table.mu.Unlock()
	release(back)
}

// claim reports whether an entry is the table's to give to somebody, or to take back.
func (t *Table) claim(e *entry) bool {
	h := e.shelved
	switch {
	case h == nil || h.claimed:
		return true
	case h.reader != nil || h.out || h.over:
		return false
	case h.shelf.claims.Claim(e.number), e.nobodys() && h.shelf.claims.Claim(e.number): // it was given up in between
		h.claimed = true
	default:
		t.putOut(e)
	}
	return h.claimed
}

// offShelf forgets an entry that is given back.
func (t *Table) offShelf(e *entry) {
	if h := e.shelved; h != nil && !h.over {
		h.over = true
		delete(h.shelf.on, e.number)
		h.shelf.tidy()
	}
}

// tidy lets go of a shelf that is used no more. Until nobody can take from it, what was
// claimed stays so: its slots will hold it for ever.
func (s *Shelf) tidy() {
	if !s.closed || len(s.on) > 0 || s.table.shelves[s.first/rangeNumbers] != s {
		return
	}
	for _, r := range s.readers {
		if !r.over {
			return
		}
	}
	delete(s.table.shelves, s.first/rangeNumbers)
	s.claims.Close()
	for _, r := range s.readers {
		r.Close()
	}
}

// Close says that its owner places nothing more: it is gone. What lies there goes with
// those who own it, and what was taken is given back by those who took it.
func (s *Shelf) Close() {
	t := s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s.closed = true
	clear(s.early) // they never come
	s.catchUp()
	s.tidy()
}

// catchUp wakes those who wait for the owner.
func (s *Shelf) catchUp() {
	if s.caught != nil {
		close(s.caught)
		s.caught = nil
	}
}

// Behind is a shelf whose owner has put more than the table knows of.
type Behind struct {
	shelf     *Shelf
	published uint64
}

// Behind lists them. Who looks for something that may have been put there waits
// for each first.
func (t *Table) Behind() (all []Behind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shelves {
		published := s.claims.Published()
		if !s.closed && published > s.last && s.doubt <= s.last {
			all = append(all, Behind{s, published})
		}
	}
	return all
}

// Wait waits until the table knows of them, or the owner is gone.
func (b Behind) Wait(ctx context.Context) error {
	s, t := b.shelf, b.shelf.table
	for {
		t.mu.Lock()
		if s.closed || s.last >= b.published || s.doubt > s.last {
			t.mu.Unlock()
			return nil
		}
		if s.caught == nil {
			s.caught = make(chan struct{})
		}
		caught := s.caught
		t.mu.Unlock()
		select {
		case <-caught:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Doubt has nobody wait for the shelf again until it has come so far: what the owner
// says it has told of is not so.
func (b Behind) Doubt() {
	s, t := b.shelf, b.shelf.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s.doubt = b.published
	s.catchUp()
}
