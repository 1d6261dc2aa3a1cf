package ring

import (
	"maps"
	"time"
)

// lookAgain is after how long the table looks again for what is out.
const lookAgain = time.Second

// putOut notes that somebody else has a value that is to be given back, and has not said so.
// Whoever it is will say it, or die; or gives it up without a word, or nobody has it and the
// system had no memory for a claim. So the table looks again, until it gets it.
func (t *Table) putOut(e *entry) {
	e.shelved.out = true
	if t.looking == nil && !t.stopped {
		t.looking = time.AfterFunc(lookAgain, t.look)
	}
}

// look gives back what nobody has any more.
func (t *Table) look() {
	var back []*entry
	t.mu.Lock()
	t.looking = nil
	for _, s := range t.shelves {
		back = s.claimOut(back)
	}
	t.mu.Unlock()
	release(back)
}

// claimOut claims what is out, and adds what it gets to what is to be released.
func (s *Shelf) claimOut(all []*entry) []*entry {
	for _, e := range maps.Clone(s.on) {
		if e.shelved.out {
			e.shelved.out = false
			all = s.table.takeOff(all, e) // unless somebody has it
		}
	}
	return all
}

// nobodys reports whether nobody has a value that could not be claimed.
func (e *entry) nobodys() bool { return e.shelved.shelf.claims.Free(e.number) }
