package accounts

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Account is the one book of what another process has here, with the values that it has placed
// and got, and of which memory the two have told each other. The end of the other process looks
// at nothing else. When the connection is over, Close lets it have nothing new and gives
// back what it has not finished; what it may be reading stays until Drop, for the kernel says
// that it is dead, or it does not matter any more.
//
// The other process is told of a payload with mu held: Close finds every payload that it was
// told of, and it is told of none that Close does not find. No payload is given back under mu.
type Account struct {
	announcer Announcer
	allFiles  *atomic.Int64 // files of all accounts that it was given to; nil: they are not added up

	mu            lockorder.Mutex[lockorder.Account] // guards what follows, with what is in it
	closed        bool
	holds         map[uint32]*Hold               // by the number that the other process knows
	lastHold      uint32                         // number of the last of them
	announced     map[*Segment]*announcedSegment // our memory that it was told of, for more than one payload
	lastAnnounced uint32                         // number of the last of them
	peerSegments  map[uint32]*Segment            // its memory that it has told us of
	owners        map[uint32]Owner               // of the values that it has placed, by its numbers
	files         int                            // see Files
	returning     sync.WaitGroup                 // holds that are being given back; added to while they are there
}

// ErrOver says that the other process is given nothing any more.
var ErrClosed = errors.New("the other process is given nothing any more")

// Open opens it, before others have it. by tells the other process; nil: it is this one, which
// is told of no memory.
func (a *Account) Open(announcer Announcer) {
	a.announcer, a.holds, a.announced, a.peerSegments, a.owners = announcer, make(map[uint32]*Hold), make(map[*Segment]*announcedSegment), make(map[uint32]*Segment), make(map[uint32]Owner)
}

// CountFiles has n count the segments that Files counts, with those of other accounts. It is for the one that opens
// the account, before others have it.
func (a *Account) CountFiles(n *atomic.Int64) { a.allFiles = n }

// Files counts the segments that the other process keeps views in and that no more payloads come to: without the
// views they would be gone, each with a descriptor of this process.
func (a *Account) Files() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.files
}

// countFile, with mu held, counts a segment from its first view that is kept to its last.
func (a *Account) countFile(t *announcedSegment) {
	if t == nil || t.file == t.isFile() {
		return
	}
	n := 1
	if t.file {
		n = -1
	}
	t.file = !t.file
	a.files += n
	if a.allFiles != nil {
		a.allFiles.Add(int64(n))
	}
}

// AddAndSend enters a payload, and the memory that it lies in, and has say tell the other process of
// it, with the account's lock held. It is ErrOver when that is given nothing any more, and what
// say returns: the payload is not entered then.
func (a *Account) AddAndSend(h *Hold, at Location, send func(number, segment uint32) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return ErrClosed
	}
	segment := uint32(0)
	if at.Seg != nil {
		var err error
		if h.segment, err = a.announce(at); err != nil {
			return err
		}
		segment = h.segment.number
	}
	if h.Value != nil {
		h.state = Fetched
	}
	for a.lastHold++; a.lastHold == 0 || a.holds[a.lastHold] != nil; a.lastHold++ { // the numbers came round
	}
	number := a.lastHold
	a.holds[number] = h
	if err := send(number, segment); err != nil {
		a.remove(number, h)
		return err
	}
	return nil
}

// remove, with mu held, takes a hold out.
func (a *Account) remove(number uint32, h *Hold) {
	delete(a.holds, number)
	if h.kept != nil {
		h.countKept(-1)
		a.countFile(h.segment)
	}
	a.releaseAnnounced(h.segment)
}

// find, with mu held, finds a payload that the other process has as a delivery.
func (a *Account) find(number uint32) *Hold {
	if h := a.holds[number]; h != nil && h.state != Fetched {
		return h
	}
	return nil
}

// Share holds a payload that the other process has once more; nil: it has no such.
func (a *Account) Share(number uint32) Held {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch h := a.find(number); {
	case h == nil:
		return nil
	case h.Delivery != nil:
		return h.Delivery.Hold()
	case h.kept != nil:
		return h.kept.Hold()
	}
	return nil
}

// Inspect looks at one hold, with the account's lock held; nil: the other process has no such.
func (a *Account) Inspect(number uint32, visit func(h *Hold)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	visit(a.holds[number])
}

// Finishing notes that the other process is done with a payload, once: with a delivery, which
// Finish ends, or with a value, which is not its any more.
func (a *Account) Finishing(number uint32) (source uint32, value Value, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.holds[number]
	switch {
	case h == nil || h.finishing || h.state == Kept || h.state == HungUp:
		return 0, nil, false
	case h.state == Fetched:
		a.remove(number, h)
	}
	h.finishing = true
	return h.Source, h.Value, true
}

// Finish ends a delivery, whose payload stays if it is to be kept. It reports whether what
// the other process keeps fills memory; the delivery is nil if it has no such.
func (a *Account) Finish(number uint32, keep bool) (d Delivery, fills bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.find(number)
	if h == nil || h.Delivery == nil {
		return nil, false
	}
	d = h.Delivery
	if keep && !h.released {
		h.keep(Kept)
		a.countFile(h.segment)
		return d, h.segment.fillsWindow()
	}
	a.remove(number, h)
	return d, false
}

// Handled notes that the other process has handled a delivery, whose payload it still reads.
func (a *Account) Handled(number uint32) {
	a.Inspect(number, func(h *Hold) {
		if h != nil {
			h.state = Kept
		}
	})
}

// Release gives back a payload that outlived its delivery; behind its finish, if that waits. It
// reports whether the other process has it.
func (a *Account) Release(number uint32) bool {
	a.mu.Lock()
	h := a.find(number)
	kept := h != nil && h.state == Kept
	switch {
	case kept:
		a.remove(number, h)
	case h != nil:
		h.released = h.finishing
	}
	a.mu.Unlock()
	if kept {
		h.Free()
	}
	return kept || h != nil && h.finishing
}

// Has reports whether the other process has a payload, and what for.
func (a *Account) Has(number uint32) (why HoldState, has bool) {
	a.Inspect(number, func(h *Hold) {
		if h != nil {
			why, has = h.state, true
		}
	})
	return why, has
}

// GiveBack gives back a payload of a node's, after before. It does nothing if the other process
// has no such.
func (a *Account) GiveBack(number uint32, before func()) {
	a.mu.Lock()
	h := a.holds[number]
	if h != nil {
		a.remove(number, h)
		a.returning.Add(1)
	}
	a.mu.Unlock()
	if h != nil {
		before()
		h.Free()
		a.returning.Done()
	}
}

// CloseResult are what an account had that goes elsewhere when it closes.
type CloseResult struct {
	Unfinished []Delivery // that the other process will not finish
	ToFree     []*Hold    // to be freed
	Owners     []Owner    // to be closed: what was not fetched goes with them
	NeedsDrop  bool       // the rest stays until it is dropped
}

// Close lets the other process have nothing new, and takes from it what it has not finished.
// What lies in memory that it was told of stays, if it may go on reading.
func (a *Account) Close(reads bool) (r CloseResult) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	r.Owners = slices.Collect(maps.Values(a.owners))
	for number, h := range a.holds {
		if h.Returned != nil { // its sender takes it back
			continue
		}
		stays, sent := reads && h.segment != nil, h.Delivery != nil
		switch {
		case sent:
			r.Unfinished = append(r.Unfinished, h.Delivery)
			if stays {
				h.keep(HungUp)
				a.countFile(h.segment)
			}
		case stays:
			h.state = HungUp
		default:
			r.ToFree = append(r.ToFree, h)
		}
		if stays {
			r.NeedsDrop = true
		} else {
			a.remove(number, h)
		}
	}
	return r
}

// Drop lets go of all that the other process had and was told of, and returns the memory that
// it has told us of, for the caller to let go of.
func (a *Account) Drop() []*Segment {
	a.mu.Lock()
	a.closed = true
	told, shown := a.announced, a.peerSegments
	a.announced, a.peerSegments = nil, nil
	a.mu.Unlock()
	a.GiveBackAll(All)
	for seg := range told {
		seg.Release()
	}
	return slices.Collect(maps.Values(shown))
}

// All is all that GiveBackAll and GiveBackSome may give back.
func All(*Hold) bool { return true }

// givenBack is how much of what the other process has is given back at a time.
const giveBackBatch = 64

// GiveBackAll gives back what which reports of what the other process has.
func (a *Account) GiveBackAll(which func(*Hold) bool) {
	for a.GiveBackSome(which) {
	}
}

// GiveBackSome is GiveBackAll of a few. It reports whether there may be more.
func (a *Account) GiveBackSome(which func(*Hold) bool) (more bool) {
	var back []*Hold
	a.mu.Lock()
	for number, h := range a.holds {
		if !which(h) {
			continue
		}
		a.remove(number, h)
		if back = append(back, h); len(back) == giveBackBatch {
			break
		}
	}
	a.mu.Unlock()
	for _, h := range back {
		h.Free()
	}
	return len(back) == giveBackBatch
}

// Wait returns when each payload that GiveBack has begun to give back is back. The account is
// closed.
func (a *Account) Wait() { a.returning.Wait() }

// Each looks at all that the other process has, with the account's lock held.
func (a *Account) Each(visit func(h *Hold)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.holds {
		visit(h)
	}
}

// Sizes counts what the other process has, the memory of ours that it knows, and the memory of
// its that is known here.
func (a *Account) Sizes() (holds, told, shown int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.holds), len(a.announced), len(a.peerSegments)
}

// Tally adds up what the other process has for one reason.
func (a *Account) Tally(reason HoldState) (all Tally) {
	a.Each(func(h *Hold) {
		if h.state == reason {
			all.add(h)
		}
	})
	return all
}

// Check reports what is wrong with the account, and with what lies in the other process's memory.
func (a *Account) Check() (wrong []error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := make(map[*announcedSegment]announcedSegment)
	for _, t := range a.announced {
		counts[t] = announcedSegment{}
	}
	for number, h := range a.holds {
		if h.segment != nil {
			c := counts[h.segment]
			c.uses++
			if h.kept != nil {
				c.keeps, c.keepsBytes = c.keeps+1, c.keepsBytes+int64(h.Bytes)
			}
			counts[h.segment] = c
		}
		if h.Delivery != nil && a.closed && h.Returned == nil {
			wrong = append(wrong, fmt.Errorf("delivery %d is unfinished, and the account is closed", number))
		}
	}
	files := 0
	for t, c := range counts {
		if t.file {
			files++
		}
		if t.file != t.isFile() {
			wrong = append(wrong, fmt.Errorf("segment %d is counted as kept by views alone: %t; %d views are kept there", t.number, t.file, t.keeps))
		}
		if t.uses != c.uses || t.keeps != c.keeps || t.keepsBytes != c.keepsBytes || (!t.alone && a.announced != nil && a.announced[t.seg] != t) {
			wrong = append(wrong, fmt.Errorf("segment %d is counted for %d payloads and %d that are kept, of %d bytes; there are %d, %d and %d",
				t.number, t.uses, t.keeps, t.keepsBytes, c.uses, c.keeps, c.keepsBytes))
		}
	}
	if files != a.files {
		wrong = append(wrong, fmt.Errorf("%d segments are counted that views alone keep, there are %d", a.files, files))
	}
	for number, seg := range a.peerSegments {
		if err := seg.claimed.check(uint64(seg.mem.Size())); err != nil {
			wrong = append(wrong, fmt.Errorf("segment %d: %w", number, err))
		}
	}
	return wrong
}
