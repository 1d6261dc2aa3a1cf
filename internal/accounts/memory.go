package accounts

import "github.com/omnibus-runtime/omnibus/shmstore"

// Announcer announces memory to the other process. It does not block.
type Announcer interface {
	ShowMemory(number uint32, mem *shmstore.Segment) error
	HideMemory(number uint32) // no more payloads come into it
}

// announcedSegment is memory of this process that was announced to the other process.
type announcedSegment struct {
	seg     *Segment
	number  uint32
	uses    int
	lasting bool // more payloads may come into it
	alone   bool // it is for one payload, whose message alone names it

	file       bool // Account.Files counts it
	keeps      int  // payloads in it that the other process has finished and still reads
	keepsBytes int64
}

// isFile reports whether the memory stays only for views that the other process keeps.
func (t *announcedSegment) isFile() bool { return t.keeps > 0 && !t.lasting }

// announce, with mu held, announces memory to the other process, unless it was announced before,
// and counts one more payload in it.
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

// releaseAnnounced, with mu held, counts one payload less. Memory that no more payloads come into
// is forgotten with the last one.
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
	if !a.closed { // else the other process forgets all memory
		a.announcer.HideMemory(t.number)
	}
}

// Retire notes that no more payloads come into memory of this process.
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

// AddPeerSegment adds memory that the other process has announced. It reports false if the number
// is in use, or if there are most segments already.
func (a *Account) AddPeerSegment(number uint32, seg *Segment, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.peerSegments[number] != nil || len(a.peerSegments) >= most {
		return false
	}
	a.peerSegments[number] = seg
	return true
}

// PeerSegment finds memory of the other process; nil: it was not announced.
func (a *Account) PeerSegment(number uint32) *Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.peerSegments[number]
}

// RemovePeerSegment removes memory of the other process, and passes it to the caller; nil: it was
// not announced.
func (a *Account) RemovePeerSegment(number uint32) *Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	seg := a.peerSegments[number]
	delete(a.peerSegments, number)
	return seg
}

// maxTransientKept is how many payloads a process may keep in passing: it gets the next
// delivery before it releases the payload of the last.
const maxTransientKept = 4

// fillsWindow reports whether the other process keeps views of half of a segment that more
// payloads come into.
func (t *announcedSegment) fillsWindow() bool {
	return t != nil && t.lasting && t.keeps > maxTransientKept && t.keepsBytes*2 >= t.seg.mem.Size()
}
