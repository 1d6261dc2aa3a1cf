package bus

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector/ring"
)

// account is the one book of what another process has here, with the values that it has placed
// and got, and of which memory the two have told each other: a session, a link and a pair have
// one each, and the host's process has one for its values. The end of the other process looks
// at nothing else. When the connection is over, close lets it have nothing new and gives
// back what it has not finished; what it may be reading stays until drop, for the kernel says
// that it is dead, or it does not matter any more.
//
// mu comes after the locks of remote stages, flows and arrivals, and before those of the
// senders that tell the other process: the session's, a pair's. The other process
// is told of a payload with mu held: close finds every payload that it was told of, and it is
// told of none that close does not find. No payload is given back under mu, and no owner of
// values is asked for them.
type account struct {
	by teller

	mu        sync.Mutex // guards what follows, with what is in it
	closed    bool
	holds     map[uint32]*hold       // by the number that the other process knows
	last      uint32                 // number of the last of them
	told      map[*segment]*told     // our memory that it was told of, for more than one payload
	lastTold  uint32                 // number of the last of them
	shown     map[uint32]*segment    // its memory that it has told us of
	owners    map[uint32]*ring.Owner // of the values that it has placed, by its numbers
	returning sync.WaitGroup         // holds that are being given back; added to while they are there
}

// hold is one payload that the other process has.
type hold struct {
	why       why
	lent      bool // the other process passes it on: others may read it when that is dead
	finishing bool // the other process has said that it is done
	released  bool // ... and that the payload may go
	bytes     int
	at        time.Time // since when it has it
	told      *told     // memory of ours that it lies in; nil: it came in a message, or lies elsewhere

	d       *Delivery // whose payload it is, until it is finished
	work    *work     // that the delivery is a part of, at the host; nil: a result
	payload *payload  // of a delivery that is finished, at the host
	value   *fetched  // ... of none: it is a value of the exchange
	// returned is called once, without locks, when a payload of a node's is given back.
	returned func()

	source uint32 // of the host's: whose task it is for, or of which a node has sent it

	// For reports:
	edge int
	seq  uint64
}

// why says what the other process has a payload for.
type why uint8

const (
	whySent    why = iota // it has not finished the delivery
	whyKept               // it has, and reads the payload still
	whyFetched            // it has got the value under a key
	whyLeft               // it has hung up, and lives: it may be reading
)

// errOver says that the other process is given nothing any more.
var errOver = errors.New("the other process is given nothing any more")

// open opens it, before anybody else has it.
func (a *account) open(by teller) {
	a.by, a.holds, a.told, a.shown, a.owners = by, make(map[uint32]*hold), make(map[*segment]*told), make(map[uint32]*segment), make(map[uint32]*ring.Owner)
}

// hold enters a payload, and the memory that it lies in, and has say tell the other process
// of it. It is errOver when that is given nothing any more.
func (a *account) hold(h *hold, at location, say func(number, segment uint32) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errOver
	}
	segment := uint32(0)
	if at.seg != nil {
		var err error
		if h.told, err = a.tell(at); err != nil {
			return err
		}
		segment = h.told.number
	}
	for a.last++; a.last == 0 || a.holds[a.last] != nil; a.last++ { // the numbers came round
	}
	number := a.last
	a.holds[number] = h
	if err := say(number, segment); err != nil {
		a.remove(number, h)
		return err
	}
	return nil
}

// remove, with mu held, takes a hold out.
func (a *account) remove(number uint32, h *hold) {
	delete(a.holds, number)
	h.unkept()
	a.untell(h.told)
}

// find, with mu held, finds a payload that the other process has as a delivery.
func (a *account) find(number uint32) *hold {
	if h := a.holds[number]; h != nil && h.why != whyFetched {
		return h
	}
	return nil
}

// share holds a payload that the other process has once more; nil: it has no such.
func (a *account) share(number uint32) *payload {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch h := a.find(number); {
	case h == nil:
		return nil
	case h.d != nil:
		return h.d.hold()
	default:
		return h.payload.hold()
	}
}

// workOf is the work that a delivery is part of; nil: of none, or it is finished.
func (a *account) workOf(number uint32) *work {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.holds[number]; h != nil {
		return h.work
	}
	return nil
}

// lend notes that the other process passes a payload on. It reports whether it has it.
func (a *account) lend(number uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.find(number)
	if h != nil {
		h.lent = true
	}
	return h != nil
}

// finishing notes that the other process is done with a payload, once: with a delivery,
// which finish ends, or with a value, which is its no more.
func (a *account) finishing(number uint32) (source uint32, value *fetched, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.holds[number]
	switch {
	case h == nil || h.finishing || h.why == whyKept || h.why == whyLeft:
		return 0, nil, false
	case h.why == whyFetched:
		a.remove(number, h)
	}
	h.finishing = true
	return h.source, h.value, true
}

// finish ends a delivery, whose payload stays if it is to be kept. It reports whether what
// the other process keeps fills memory; d is nil if it has no such.
func (a *account) finish(number uint32, keep bool) (d *Delivery, w *work, fills bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.find(number)
	if h == nil || h.d == nil {
		return nil, nil, false
	}
	d, w = h.d, h.work
	if keep && !h.released {
		h.keep(whyKept)
		return d, w, h.told.fills()
	}
	a.remove(number, h)
	return d, w, false
}

// release gives back a payload that outlived its delivery; behind its finish, if that waits. It
// reports whether the other process has it.
func (a *account) release(number uint32) bool {
	a.mu.Lock()
	h := a.find(number)
	kept := h != nil && h.why == whyKept
	switch {
	case kept:
		a.remove(number, h)
	case h != nil:
		h.released = h.finishing
	}
	a.mu.Unlock()
	if kept {
		h.free()
	}
	return kept || h != nil && h.finishing
}

// has reports whether the other process has a payload, and what for.
func (a *account) has(number uint32) (why, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.holds[number]
	if h == nil {
		return 0, false
	}
	return h.why, true
}

// take takes a hold out, whose payload the caller gives back by back; nil: it is not there any more.
func (a *account) take(number uint32) *hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.holds[number]
	if h != nil {
		a.remove(number, h)
		a.returning.Add(1)
	}
	return h
}

// back gives back what take has taken.
func (a *account) back(h *hold) {
	h.free()
	a.returning.Done()
}

// spend takes the credit of a delivery whose payload is still needed, or its place in the
// window alone, for the caller to give back. With handled, the other process has handled it.
func (a *account) spend(number uint32, bytesToo, handled bool) (f *flow, credit uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := a.holds[number]
	if h == nil {
		return nil, 0
	}
	if handled {
		h.why = whyKept
	}
	return h.spend(bytesToo)
}

// keep, with mu held, has the payload of a delivery outlive it.
func (h *hold) keep(as why) {
	h.why, h.payload = as, h.d.hold()
	h.d, h.work = nil, nil
	h.count(1)
}

// unkept, with mu held, counts a payload that is kept no more.
func (h *hold) unkept() {
	if h.payload != nil {
		h.count(-1)
	}
}

func (h *hold) count(n int) {
	if t := h.told; t != nil {
		bytes := int64(n * h.bytes)
		t.keeps, t.keepsBytes = t.keeps+n, t.keepsBytes+bytes
		t.seg.kept.bytes.Add(bytes)
	}
}

// free gives back a payload that is in no account any more.
func (h *hold) free() {
	switch {
	case h.value != nil:
		h.value.settle(h.value.got.Release)
	case h.returned != nil:
		h.returned()
	default:
		h.payload.release()
	}
}

// unfinished is a delivery that the other process will not finish.
type unfinished struct {
	d    *Delivery
	work *work // nil: a result
}

// closing is what an account had that goes elsewhere when it closes.
type closing struct {
	unfinished []unfinished
	lent       []*payload    // which others may be reading
	back       []*hold       // to be freed
	owners     []*ring.Owner // to be closed: what nobody got goes with them
	stays      bool          // the rest stays until it is dropped
}

// close lets the other process have nothing new, and takes from it what it has not finished.
// What lies in memory that it was told of stays, if it may go on reading; what it has passed
// on goes to the caller, if others may.
func (a *account) close(reads, lends bool) (c closing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	c.owners = slices.Collect(maps.Values(a.owners))
	for number, h := range a.holds {
		if h.returned != nil { // its sender takes it back
			continue
		}
		lent, stays, sent := h.lent && lends, reads && h.told != nil, h.d != nil
		switch {
		case sent:
			c.unfinished = append(c.unfinished, unfinished{h.d, h.work})
			if lent {
				c.lent = append(c.lent, h.d.hold().lent())
			}
			if stays {
				h.keep(whyLeft)
			}
		case lent:
			c.lent, stays = append(c.lent, h.payload.lent()), false
		case stays:
			h.why = whyLeft
		default:
			c.back = append(c.back, h)
		}
		if stays {
			c.stays = true
		} else {
			a.remove(number, h)
		}
	}
	return c
}

// drop lets go of all that the other process had and was told of, and returns the memory that
// it has told us of, for the caller to let go of.
func (a *account) drop() []*segment {
	a.mu.Lock()
	a.closed = true
	told, shown := a.told, a.shown
	a.told, a.shown = nil, nil
	a.mu.Unlock()
	a.giveBack(everything)
	for seg := range told {
		seg.release()
	}
	all := make([]*segment, 0, len(shown))
	for _, seg := range shown {
		all = append(all, seg)
	}
	return all
}

// everything is all that giveBack takes back.
func everything(*hold) bool { return true }

// givenBack is how much of what the other process has is given back at a time.
const givenBack = 64

// giveBack takes back a part of what the other process has.
func (a *account) giveBack(which func(*hold) bool) {
	for a.giveBackSome(which) {
	}
}

// giveBackSome is giveBack of a few. It reports whether there may be more.
func (a *account) giveBackSome(which func(*hold) bool) (more bool) {
	var back []*hold
	a.mu.Lock()
	for number, h := range a.holds {
		if !which(h) {
			continue
		}
		a.remove(number, h)
		if back = append(back, h); len(back) == givenBack {
			break
		}
	}
	a.mu.Unlock()
	for _, h := range back {
		h.free()
	}
	return len(back) == givenBack
}

// each looks at all that the other process has.
func (a *account) each(look func(h *hold)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, h := range a.holds {
		look(h)
	}
}

// tally adds up what the other process has for one reason.
func (a *account) tally(reason why) (all tally) {
	a.each(func(h *hold) {
		if h.why == reason {
			all.add(h.bytes, h.at)
		}
	})
	return all
}

// check reports what is wrong with the account, and with what lies in the other process's memory.
func (a *account) check() (wrong []error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := make(map[*told]told)
	for number, h := range a.holds {
		if h.told != nil {
			c := counts[h.told]
			c.uses++
			if h.payload != nil {
				c.keeps, c.keepsBytes = c.keeps+1, c.keepsBytes+int64(h.bytes)
			}
			counts[h.told] = c
		}
		if h.d != nil && a.closed && h.returned == nil {
			wrong = append(wrong, fmt.Errorf("delivery %d is unfinished, and the account is closed", number))
		}
	}
	for _, t := range a.told {
		if _, used := counts[t]; !used {
			counts[t] = told{}
		}
	}
	for t, c := range counts {
		if t.uses != c.uses || t.keeps != c.keeps || t.keepsBytes != c.keepsBytes || (!t.alone && a.told != nil && a.told[t.seg] != t) {
			wrong = append(wrong, fmt.Errorf("segment %d is counted for %d payloads and %d that are kept, of %d bytes; there are %d, %d and %d",
				t.number, t.uses, t.keeps, t.keepsBytes, c.uses, c.keeps, c.keepsBytes))
		}
	}
	for number, seg := range a.shown {
		if err := seg.puts.check(uint64(seg.mem.Size())); err != nil {
			wrong = append(wrong, fmt.Errorf("segment %d: %w", number, err))
		}
	}
	return wrong
}
