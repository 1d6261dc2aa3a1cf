package accounts

import "github.com/omnibus-runtime/omnibus/shmstore"

// Teller tells the other process of memory. It does not wait.
type Teller interface {
	ShowMemory(number uint32, mem *shmstore.Segment) error
	HideMemory(number uint32) // nothing more will lie there
}

// told is memory of ours that the other process was told of.
type told struct {
	seg     *Segment
	number  uint32
	uses    int
	lasting bool // more payloads may come in it
	alone   bool // it is for one payload, and named by that alone

	file       bool // Account.Files counts it
	keeps      int  // payloads in it that the other process has finished, and still reads
	keepsBytes int64
}

// isFile reports whether views that the other process keeps are what the memory stays for.
func (t *told) isFile() bool { return t.keeps > 0 && !t.lasting }

// tell, with mu held, tells the other process of memory of ours unless it knows it, and counts
// one payload more there.
func (a *Account) tell(at Location) (*told, error) {
	t := a.told[at.Seg]
	if t != nil && !at.Own {
		t.uses++
		return t, nil
	}
	a.lastTold++
	alone := at.Own || at.Most > 0 && len(a.told) >= at.Most
	t = &told{seg: at.Seg, number: a.lastTold, uses: 1, alone: alone, lasting: !alone && at.Seg.lasting.Load()}
	if err := a.by.ShowMemory(t.number, t.seg.mem); err != nil {
		return nil, err
	}
	if !t.alone {
		t.seg.retain()
		a.told[t.seg] = t
	}
	return t, nil
}

// untell, with mu held, counts one payload less. Memory that nothing more will lie in is
// forgotten with the last.
func (a *Account) untell(t *told) {
	if t == nil {
		return
	}
	if t.uses--; t.uses > 0 || t.lasting {
		return
	}
	if a.told[t.seg] == t {
		delete(a.told, t.seg)
		defer t.seg.Release()
	}
	if !a.closed { // else it forgets everything
		a.by.HideMemory(t.number)
	}
}

// Retire notes that nothing new will lie in memory of ours.
func (a *Account) Retire(seg *Segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.told[seg]; t != nil {
		t.lasting = false
		a.countFile(t)
		t.uses++
		a.untell(t)
	}
}

// Show takes in memory that the other process tells us of, up to so much at a time. It
// reports false of a number that is taken, and of memory that is too much.
func (a *Account) Show(number uint32, seg *Segment, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shown[number] != nil || len(a.shown) >= most {
		return false
	}
	a.shown[number] = seg
	return true
}

// Memory finds memory of the other process's; nil: it was not told of.
func (a *Account) Memory(number uint32) *Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown[number]
}

// Hide forgets memory of the other process's, which is the caller's then; nil: it was not told of.
func (a *Account) Hide(number uint32) *Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	seg := a.shown[number]
	delete(a.shown, number)
	return seg
}

// fewKept are so many that a process may keep them for a moment: what it handles
// next is there before it lets go of the last.
const fewKept = 4

// fills reports whether the other process keeps views of half of a memory that payloads come in
// again and again.
func (t *told) fills() bool {
	return t != nil && t.lasting && t.keeps > fewKept && t.keepsBytes*2 >= t.seg.mem.Size()
}
