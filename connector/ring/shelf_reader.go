package ring

import (
	"maps"
	"time"

	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// Witness is what a table needs to know of somebody who takes from a shelf: a
// [shelf.Witness].
type Witness interface {
	// Alone reports whether nobody else has the value of a number.
	Alone(number uint64) bool
	// Share makes what the reader has something that another can share, if nobody else has
	// it: from there on it is nobody's to take.
	Share(number uint64) bool
	// Close gives up what the reader, which is gone, had.
	Close()
}

// early is a value that was taken before it was placed.
type early struct {
	reader *Reader
	over   bool // and is not read any more
}

// A Reader is a process that takes values from shelves.
type Reader struct {
	table *Table

	// Guarded by the table's lock:
	has    map[uint64]*entry
	opened bool // any shelf
}

// reading is a reader of one shelf.
type reading struct {
	Witness
	over bool // it takes nothing more there
}

// Reader adds somebody who takes.
func (t *Table) Reader() *Reader { return &Reader{table: t, has: make(map[uint64]*entry)} }

// Knows reports whether the reader needs not be given the shelf: it has been, or the shelf
// is gone.
func (r *Reader) Knows(s *Shelf) bool {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	return s.closed || s.readers[r] != nil
}

// Open says that the reader is given the shelf, and takes its witness over. It is false if
// the reader [Reader.Knows] it.
func (r *Reader) Open(s *Shelf, w Witness) bool {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if s.closed || s.readers[r] != nil {
		w.Close()
		return false
	}
	s.readers[r] = &reading{Witness: w}
	r.opened = true
	return true
}

// Over says that the reader takes nothing more from the shelf with that first number.
func (r *Reader) Over(first uint64) {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.shelves[first/rangeNumbers]; s != nil && s.readers[r] != nil {
		s.readers[r].over = true
		s.tidy()
	}
}

// Witnesses returns how many the table has, for all readers.
func (t *Table) Witnesses() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.shelves {
		n += len(s.readers)
	}
	return n
}

// Opened reports whether the reader was given any shelf.
func (r *Reader) Opened() bool {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	return r.opened
}

// Took says that the reader has taken a value from its shelf. One that has gone with
// its owner, or that somebody else has, is nobody's business here.
func (r *Reader) Took(number uint64) {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.shelves[number/rangeNumbers]
	if s == nil || s.readers[r] == nil || !s.readers[r].Alone(number) {
		return
	}
	e := s.on[number]
	switch {
	case e == nil && s.comes(number):
		s.early[number] = &early{reader: r}
		return
	case e == nil, e.shelved.claimed:
		return
	}
	if was := e.shelved.reader; was != nil { // and has given its claim up
		delete(was.has, number)
	}
	e.shelved.reader, e.shelved.out = r, false
	e.at = time.Now()
	r.has[number] = e
	if t.held[e.place] == e {
		t.drop(e)
	}
}

// Gave says that the reader needs a value no more that it took, whether it has said so or
// not.
func (r *Reader) Gave(number uint64) {
	t := r.table
	var out []*entry
	t.mu.Lock()
	if e := r.has[number]; e != nil {
		out = r.giveBack(out, e)
	} else if s := t.shelves[number/rangeNumbers]; s != nil {
		out = r.gaveFrom(s, number)
	}
	t.mu.Unlock()
	release(out)
}

// gaveFrom is Gave of what the reader has not said that it had.
func (r *Reader) gaveFrom(s *Shelf, number uint64) []*entry {
	e := s.on[number]
	switch {
	case e == nil && s.comes(number):
		if r.hands(s, number) { // whoever has said that it took it does not have it
			s.early[number] = &early{reader: r, over: true}
		}
		return nil
	case e == nil:
		return nil
	}
	return r.takeFrom(nil, e)
}

// takeFrom gives back what the reader has and has not said, if it has it: then nobody
// else does, whatever they say.
func (r *Reader) takeFrom(all []*entry, e *entry) []*entry {
	if h := e.shelved; h.claimed || !r.hands(h.shelf, e.number) {
		return all
	}
	return r.table.takeOver(all, e)
}

// takeOver gives back what the table has come to share, whoever had it.
func (t *Table) takeOver(all []*entry, e *entry) []*entry {
	h := e.shelved
	if was := h.reader; was != nil {
		delete(was.has, e.number)
		h.reader = nil
	}
	if t.held[e.place] == e {
		t.drop(e)
	}
	t.offShelf(e)
	return append(all, e)
}

// comes reports whether a value may have been taken that was not placed yet. Nobody knows
// of one that its owner has not told of.
func (s *Shelf) comes(number uint64) bool {
	return number > s.last && number <= s.claims.Published() && !s.closed && len(s.early) < shelf.Slots
}

// hands reports whether the table has what the reader had, without a moment in which
// somebody else could take it, until its slot holds something else.
func (r *Reader) hands(s *Shelf, number uint64) bool {
	w := s.readers[r]
	return w != nil && w.Share(number) && s.claims.Share(number)
}

// giveBack ends the reader's hold of an entry, which is released if nobody else has come
// to have it.
func (r *Reader) giveBack(all []*entry, e *entry) []*entry {
	delete(r.has, e.number)
	h := e.shelved
	h.reader = nil
	if !r.hands(h.shelf, e.number) {
		r.table.putOut(e)
		return all
	}
	r.table.offShelf(e)
	return append(all, e)
}

// Leave gives back what the reader has taken, said or not: its process is dead, or has
// left.
func (r *Reader) Leave() {
	t := r.table
	var out []*entry
	t.mu.Lock()
	for _, e := range r.has {
		out = r.giveBack(out, e)
	}
	for _, s := range t.shelves {
		if w := s.readers[r]; w != nil {
			out = r.leave(out, s)
			if w.over = true; !s.closed {
				delete(s.readers, r)
				w.Close()
			} // else what it had that was never placed stays locked, like the rest
			s.tidy()
		}
		out = s.claimOut(out)
	}
	t.mu.Unlock()
	release(out)
}

// leave gives back what the reader has not said that it had.
func (r *Reader) leave(all []*entry, s *Shelf) []*entry {
	for number, was := range s.early {
		if was.reader == r && !was.over {
			if was.over = r.hands(s, number); !was.over {
				delete(s.early, number)
			}
		}
	}
	// What the table has not heard of yet.
	for _, n := range s.claims.Beyond(s.last) {
		if s.closed {
			break // and never will
		}
		if was := s.early[n]; (was == nil || !was.over) && !s.claims.Free(n) && r.hands(s, n) {
			s.early[n] = &early{reader: r, over: true}
		}
	}
	for _, e := range maps.Clone(s.on) {
		if !s.claims.Free(e.number) {
			all = r.takeFrom(all, e)
		}
	}
	return all
}

// Entries lists what the reader has.
func (r *Reader) Entries() []Entry {
	t := r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Entry, 0, len(r.has))
	for _, e := range r.has {
		all = append(all, e.report())
	}
	return all
}
