package bus

import "github.com/omnibus-runtime/omnibus/shmstore"

// teller tells the other process of memory. It does not wait.
type teller interface {
	showMemory(number uint32, mem *shmstore.Segment) error
	hideMemory(number uint32) // nothing more will lie there
}

// told is memory of ours that the other process was told of.
type told struct {
	seg     *segment
	number  uint32
	uses    int
	lasting bool // more payloads may come in it
	alone   bool // it is for one payload, and named by that alone

	keeps      int // payloads in it that the other process has finished, and still reads
	keepsBytes int64
}

// tell, with mu held, tells the other process of memory of ours unless it knows it, and counts
// one payload more there.
func (a *account) tell(at location) (*told, error) {
	t := a.told[at.seg]
	if t != nil && !at.own {
		t.uses++
		return t, nil
	}
	a.lastTold++
	alone := at.own || at.most > 0 && len(a.told) >= at.most
	t = &told{seg: at.seg, number: a.lastTold, uses: 1, alone: alone, lasting: !alone && at.seg.lasting.Load()}
	if err := a.by.showMemory(t.number, t.seg.mem); err != nil {
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
func (a *account) untell(t *told) {
	if t == nil {
		return
	}
	if t.uses--; t.uses > 0 || t.lasting {
		return
	}
	if a.told[t.seg] == t {
		delete(a.told, t.seg)
		defer t.seg.release()
	}
	if !a.closed { // else it forgets everything
		a.by.hideMemory(t.number)
	}
}

// retire notes that nothing new will lie in memory of ours.
func (a *account) retire(seg *segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.told[seg]; t != nil {
		t.lasting = false
		t.uses++
		a.untell(t)
	}
}

// show takes in memory that the other process tells us of, up to so much at a time. It
// reports false of a number that is taken, and of memory that is too much.
func (a *account) show(number uint32, seg *segment, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.shown[number] != nil || len(a.shown) >= most {
		return false
	}
	a.shown[number] = seg
	return true
}

// memory finds memory of the other process's; nil: it was not told of.
func (a *account) memory(number uint32) *segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shown[number]
}

// hide forgets memory of the other process's, which is the caller's then; nil: it was not told of.
func (a *account) hide(number uint32) *segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	seg := a.shown[number]
	delete(a.shown, number)
	return seg
}
