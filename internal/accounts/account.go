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

// Account records the payloads of this process that another process has, the values that the
// other process has placed and fetched, and the memory that the two have announced to each
// other. Code that handles the end of the other process reads nothing else. When the connection
// ends, Close refuses new payloads and returns the unfinished deliveries; payloads that the other
// process may still read stay until Drop, which is called when the kernel reports its death, or
// when its reads do not matter any more.
//
// Payloads are announced to the other process with mu held: Close finds every payload that was
// announced, and none is announced afterwards. No payload is given back under mu.
type Account struct {
	announcer Announcer
	allFiles  *atomic.Int64 // the sum of files over all accounts with this counter; nil: none

	mu            lockorder.Mutex[lockorder.Account] // guards the fields below and their contents
	closed        bool
	holds         map[uint32]*Hold               // by the number that the other process was sent
	lastHold      uint32                         // number of the last of them
	announced     map[*Segment]*announcedSegment // memory of this process that was announced, for more than one payload
	lastAnnounced uint32                         // number of the last of them
	peerSegments  map[uint32]*Segment            // memory of the other process, by its numbers
	owners        map[uint32]Owner               // of the values that the other process has placed, by its numbers
	files         int                            // see Files
	returning     sync.WaitGroup                 // holds that GiveBack has removed and not yet given back; added to with mu held
}

// ErrClosed reports that the account is closed: no payload can be added.
var ErrClosed = errors.New("the connection to the other process is closed")

// Open initializes the account; no other goroutine has it yet. announcer announces memory to the
// other process; nil: the account is that of this process, which needs no announcements.
func (a *Account) Open(announcer Announcer) {
	a.announcer, a.holds, a.announced, a.peerSegments, a.owners = announcer, make(map[uint32]*Hold), make(map[*Segment]*announcedSegment), make(map[uint32]*Segment), make(map[uint32]Owner)
}

// CountFiles adds the segments that Files counts to n, which other accounts may share. The goroutine that opens the
// account calls it, before other goroutines have the account.
func (a *Account) CountFiles(n *atomic.Int64) { a.allFiles = n }

// Files counts the segments that are open only for views of the other process: no more payloads come into them, and
// each uses a descriptor of this process.
func (a *Account) Files() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.files
}

// countFile, with mu held, counts a segment in files from its first kept view to its last.
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

// AddAndSend adds a payload and the memory that it lies in to the account, and calls send, which
// sends it to the other process, with the account's lock held. The error is ErrClosed when the
// account is closed, or that of the announcement or of send: the payload is not added then.
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
	for a.lastHold++; a.lastHold == 0 || a.holds[a.lastHold] != nil; a.lastHold++ { // the numbers have wrapped
	}
	number := a.lastHold
	a.holds[number] = h
	if err := send(number, segment); err != nil {
		a.remove(number, h)
		return err
	}
	return nil
}

// remove, with mu held, removes a hold.
func (a *Account) remove(number uint32, h *Hold) {
	delete(a.holds, number)
	if h.kept != nil {
		h.countKept(-1)
		a.countFile(h.segment)
	}
	a.releaseAnnounced(h.segment)
}

// find, with mu held, finds the payload of a delivery; nil: there is none of this number.
func (a *Account) find(number uint32) *Hold {
	if h := a.holds[number]; h != nil && h.state != Fetched {
		return h
	}
	return nil
}

// Share takes one more reference to the payload of a delivery; nil: the other process has none of
// this number.
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

// Inspect calls visit with a hold, with the account's lock held; nil: there is none of this number.
func (a *Account) Inspect(number uint32, visit func(h *Hold)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	visit(a.holds[number])
}

// Finishing notes that the other process has finished a payload: a delivery, which Finish ends
// later, or a value, which is removed at once. ok is false for a payload that it does not have, or
// has finished before.
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

// Finish ends a delivery. With keep its payload stays, unless it was released meanwhile. fills
// reports whether the payloads that the other process keeps fill the memory, see fillsWindow. d is
// nil if there is no delivery of this number.
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

// Handled notes that the other process has handled a delivery and still reads the payload.
func (a *Account) Handled(number uint32) {
	a.Inspect(number, func(h *Hold) {
		if h != nil {
			h.state = Kept
		}
	})
}

// Release gives back a payload that outlives its delivery. If the finish of the delivery waits,
// Finish gives the payload back. Release reports whether the other process has the payload.
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

// Has reports whether the other process has a payload, and in which state.
func (a *Account) Has(number uint32) (why HoldState, has bool) {
	a.Inspect(number, func(h *Hold) {
		if h != nil {
			why, has = h.state, true
		}
	})
	return why, has
}

// GiveBack calls before and then gives back a payload. It does nothing if the other process has
// none of this number.
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

// CloseResult lists the contents of a closed account that the caller has to dispose of.
type CloseResult struct {
	Unfinished []Delivery // the other process will not finish them
	ToFree     []*Hold    // to be freed
	Owners     []Owner    // to be closed, with their values that were not fetched
	NeedsDrop  bool       // other payloads stay until Drop
}

// Close refuses new payloads and returns the unfinished ones. With reads, the other process may
// still read: payloads in announced memory stay. Payloads with Returned stay in any case.
func (a *Account) Close(reads bool) (r CloseResult) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	r.Owners = slices.Collect(maps.Values(a.owners))
	for number, h := range a.holds {
		if h.Returned != nil { // its sender calls GiveBack
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

// Drop gives back all payloads, releases the announced memory, and returns the memory that the
// other process has announced, for the caller to release.
func (a *Account) Drop() []*Segment {
	a.mu.Lock()
	a.closed = true
	announced, shown := a.announced, a.peerSegments
	a.announced, a.peerSegments = nil, nil
	a.mu.Unlock()
	a.GiveBackAll(All)
	for seg := range announced {
		seg.Release()
	}
	return slices.Collect(maps.Values(shown))
}

// All selects every payload, for GiveBackAll and GiveBackSome.
func All(*Hold) bool { return true }

// giveBackBatch is how many payloads are given back at a time.
const giveBackBatch = 64

// GiveBackAll gives back the payloads that which selects.
func (a *Account) GiveBackAll(which func(*Hold) bool) {
	for a.GiveBackSome(which) {
	}
}

// GiveBackSome is GiveBackAll for at most giveBackBatch payloads. It reports whether there may be
// more.
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

// Wait returns when every call of GiveBack that has begun has given its payload back. The account
// is closed.
func (a *Account) Wait() { a.returning.Wait() }

// Each calls visit with every hold, with the account's lock held.
func (a *Account) Each(visit func(h *Hold)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.holds {
		visit(h)
	}
}

// Sizes counts the holds, the segments announced to the other process, and the segments that the
// other process has announced.
func (a *Account) Sizes() (holds, announced, shown int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.holds), len(a.announced), len(a.peerSegments)
}

// Tally adds up the payloads in one state.
func (a *Account) Tally(reason HoldState) (all Tally) {
	a.Each(func(h *Hold) {
		if h.state == reason {
			all.add(h)
		}
	})
	return all
}

// Check reports broken invariants of the account, and of the payloads in the other process's memory.
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
