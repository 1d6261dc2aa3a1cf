package accounts

import "github.com/omnibus-runtime/omnibus/shmstore"

// Announcer tells the other process of memory. It does not wait.
type Announcer interface {
	ShowMemory(number uint32, mem *shmstore.Segment) error
	HideMemory(number uint32) // nothing more will lie there
}

// announcedSegment is memory of ours that the other process was told of.
type announcedSegment struct {
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
func (t *announcedSegment) isFile() bool { return t.keeps > 0 && !t.lasting }

// announce, with mu held, tells the other process of memory of ours unless it knows it, and counts
// one payload more there.
func (a *Account) announce(at Location) (*announcedSegment, error) {
	t := a.announced[at.Seg]
	if t != nil && !at.Alone {
		t.uses++
		return t, nil
	}
	a.lastAnnounced++
	alone := at.Alone || at.MaxKnown > 0 && len(a.announced) >= at.MaxKnown
	t = &announcedSegment{seg: at.Seg, number: a.lastAnnounced, uses: 1, alone: alone, lasting: !alone && at.Seg.lasting.Load()}
	if err := a.announcer.ShowMemory(t.number, t.seg.mem); err != nil {
		return nil, err
	}
	if !t.alone {
		t.seg.retain()
		a.announced[t.seg] = t
	}
	return t, nil
}

// releaseAnnounced, with mu held, counts one payload less. Memory that nothing more will lie in is
// forgotten with the last.
func (a *Account) releaseAnnounced(t *announcedSegment) {
	if t == nil {
		return
	}
	if t.uses--; t.uses > 0 || t.lasting {
		return
	}
	if a.announced[t.seg] == t {
		delete(a.announced, t.seg)
		defer t.seg.Release()
	}
	if !a.closed { // else it forgets everything
		a.announcer.HideMemory(t.number)
	}
}

// Retire notes that nothing new will lie in memory of ours.
func (a *Account) Retire(seg *Segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.announced[seg]; t != nil {
		t.lasting = false
		a.countFile(t)
		t.uses++
		a.releaseAnnounced(t)
	}
}

// AddPeerSegment takes in memory that the other process tells us of, up to so much at a time. It
// reports false of a number that is taken, and of memory that is too much.
func (a *Account) AddPeerSegment(number uint32, seg *Segment, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.peerSegments[number] != nil || len(a.peerSegments) >= most {
		return false
	}
	a.peerSegments[number] = seg
	return true
}

// PeerSegment finds memory of the other process's; nil: it was not told of.
func (a *Account) PeerSegment(number uint32) *Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peerSegments[number]
}

// RemovePeerSegment forgets memory of the other process's, which is the caller's then; nil: it was not told of.
func (a *Account) RemovePeerSegment(number uint32) *Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	seg := a.peerSegments[number]
	delete(a.peerSegments, number)
	return seg
}

// fewKept are so many that a process may keep them for a moment: what it handles
// next is there before it lets go of the last.
const maxTransientKept = 4

// fillsWindow reports whether the other process keeps views of half of a memory that payloads come in
// again and again.
func (t *announcedSegment) fillsWindow() bool {
	return t != nil && t.lasting && t.keeps > maxTransientKept && t.keepsBytes*2 >= t.seg.mem.Size()
}
