package tensorqueue

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Words between the owner and its clients.
const (
	wordGet    = "get"
	wordBack   = "back"
	wordQueued = "queued"
	wordFull   = "full"
	wordClosed = "closed"
	wordBusy   = "busy"

	attrAttempt = "attempt"
	methodSize  = "size"
)

// hub is the queue at its owner: the stage that receives puts and gets. Nothing is emitted or finished
// with its lock held.
type hub struct {
	maxSize int

	mu      lockorder.Mutex[lockorder.Hub]
	closed  bool
	lastSeq uint64
	queued  []*entry  // not taken, by seq
	putters []*entry  // waiting for space, oldest first
	getters []*getter // waiting for an item, oldest first
	getting int       // getters that wait or have an item
	taken   int
}

// entry is an item, and the request that put it.
type entry struct {
	kept *bus.Kept

	// Guarded by hub.mu.
	seq      uint64
	state    entryState
	attempts int // getters that departed with the item
	refs     int // uses of kept outside the lock
}

type entryState int

const (
	entryWaiting entryState = iota // for space
	entryQueued
	entryTaken
	entryDone // done or withdrawn: finished when refs is 0
)

// getter is a request that gets an item.
type getter struct {
	kept *bus.Kept

	// Guarded by hub.mu.
	item *entry // nil: the getter waits
	done bool
}

// afterUnlock lists the calls to make when the lock is released.
type afterUnlock []func()

func (d *afterUnlock) add(f func()) { *d = append(*d, f) }

// withLock runs f with the lock held, then the calls that f leaves for afterUnlock.
func (h *hub) withLock(f func(after *afterUnlock)) {
	var after afterUnlock
	h.mu.Lock()
	f(&after)
	h.match(&after)
	h.mu.Unlock()
	for _, do := range after {
		do()
	}
}

// handle is the stage's handler. One actor handles all requests, in no order among them: messages of
// two requests of one process may arrive in either order.
func (h *hub) handle(batch []*bus.Delivery) error {
	for _, d := range batch {
		if err := h.handleOne(d.Task(), d); err != nil {
			_ = d.Finish(err) // fails the request
		}
	}
	return nil
}

func (h *hub) handleOne(t *bus.Task, d *bus.Delivery) error {
	if t.State == nil && d.PayloadCodec() == codec.IDBundle {
		h.put(t, d)
		return nil
	}
	var word string
	if d.PayloadCodec() != codec.IDBundle {
		_ = d.Decode(&word) // "" is no word either
	}
	g, gets := t.State.(*getter)
	e, puts := t.State.(*entry)
	switch {
	case t.State == nil && word == wordGet:
		h.get(t, d)
	case gets && word == wordBack:
		h.withLock(func(after *afterUnlock) { h.giveBack(g, after) })
	case puts && word == wordBack:
		h.withLock(func(after *afterUnlock) { h.stopWaiting(e, after) })
	default:
		return fmt.Errorf("%w: an input that is neither a bundle, nor %q, nor %q behind one of those", ErrItem, wordGet, wordBack)
	}
	return nil
}

func (h *hub) put(t *bus.Task, d *bus.Delivery) {
	e := &entry{kept: d.Keep()}
	t.State = e
	h.withLock(func(after *afterUnlock) {
		switch {
		case h.closed:
			e.refuse(wordClosed, after)
		case len(h.putters) >= MaxWaiting:
			e.refuse(wordBusy, after)
		default:
			h.putters = append(h.putters, e)
		}
	})
	context.AfterFunc(t.Context(), func() { h.withLock(func(after *afterUnlock) { h.withdraw(e, after) }) })
}

func (h *hub) get(t *bus.Task, d *bus.Delivery) {
	g := &getter{kept: d.Keep()}
	t.State = g
	h.withLock(func(after *afterUnlock) {
		switch {
		case h.closed:
			g.refuse(wordClosed, after)
		case h.getting >= MaxTaken:
			g.refuse(wordBusy, after)
		default:
			h.getting++
			h.getters = append(h.getters, g)
		}
	})
	context.AfterFunc(t.Context(), func() { h.withLock(func(after *afterUnlock) { h.abandon(g, after) }) })
}

// requestEnded is the stage's End: a getter that ends its inputs has finished its item.
func (h *hub) requestEnded(t *bus.Task) error {
	g, ok := t.State.(*getter)
	if !ok {
		return nil // a putter
	}
	h.withLock(func(after *afterUnlock) {
		if e := h.removeGetter(g); e != nil {
			e.finish(after)
		}
	})
	return nil
}

// match, with mu held, admits waiting puts while there is space, and gives items to waiting getters.
func (h *hub) match(after *afterUnlock) {
	for {
		switch {
		case len(h.queued) > 0 && len(h.getters) > 0:
			e, g := h.queued[0], h.getters[0]
			h.dequeue(0)
			h.getters = slices.Delete(h.getters, 0, 1)
			e.state, g.item = entryTaken, e
			e.refs++
			h.taken++
			attempt := e.attempts
			after.add(func() { h.deliver(e, g, attempt) })
		case len(h.putters) > 0 && len(h.queued) < h.maxSize:
			e := h.putters[0]
			h.putters = slices.Delete(h.putters, 0, 1)
			h.lastSeq++
			e.seq, e.state = h.lastSeq, entryQueued
			h.queued = append(h.queued, e)
			e.refs++
			after.add(func() {
				_ = e.kept.Emit(wordQueued) // an ended request withdraws its item
				h.releaseRef(e)
			})
		default:
			return
		}
	}
}

// deliver forwards an item to a getter, by reference. If the getter's request has ended, abandon puts
// the item back.
func (h *hub) deliver(e *entry, g *getter, attempt int) {
	var opts []bus.EmitOption
	if attempt > 0 {
		opts = append(opts, bus.Attr(attrAttempt, strconv.Itoa(attempt)))
	}
	err := g.kept.Forward(e.kept.Delivery(), opts...)
	h.releaseRef(e)
	_ = g.kept.Finish(err) // until this the getter cannot finish the item
}

func (h *hub) releaseRef(e *entry) {
	h.withLock(func(after *afterUnlock) {
		if e.refs--; e.state == entryDone {
			e.finish(after)
		}
	})
}

// withdraw, with mu held, removes an item whose request has ended.
func (h *hub) withdraw(e *entry, after *afterUnlock) {
	switch e.state {
	case entryWaiting:
		h.putters = remove(h.putters, e)
	case entryQueued:
		h.dequeue(h.position(e))
	case entryTaken, entryDone: // the getter holds its own reference
	}
	e.finish(after)
}

// stopWaiting, with mu held, ends a put that waits for space. An item in the queue stays, since a
// getter may have it: its put was answered with "queued".
func (h *hub) stopWaiting(e *entry, after *afterUnlock) {
	if e.state == entryWaiting {
		h.putters = remove(h.putters, e)
		e.refuse(wordFull, after)
	}
}

// abandon is giveBack for a getter whose request has ended: the getter may have begun with the item.
func (h *hub) abandon(g *getter, after *afterUnlock) {
	if g.item != nil && !g.done {
		g.item.attempts++
	}
	h.giveBack(g, after)
}

// giveBack, with mu held, puts a getter's item back at its position in the queue, or removes the
// waiting getter.
func (h *hub) giveBack(g *getter, after *afterUnlock) {
	if g.done {
		return
	}
	h.getters = remove(h.getters, g)
	e := h.removeGetter(g)
	switch {
	case e == nil:
		after.add(func() { _ = g.kept.Finish(nil) })
	case e.state == entryDone:
	case h.closed:
		e.finish(after)
	default:
		e.state = entryQueued
		h.queued = slices.Insert(h.queued, h.position(e), e)
	}
}

// position, with mu held, is the index of an item in the queue, or the index at which it belongs.
func (h *hub) position(e *entry) int {
	i, _ := slices.BinarySearchFunc(h.queued, e, func(o, e *entry) int { return cmp.Compare(o.seq, e.seq) })
	return i
}

// dequeue, with mu held, removes an item from the queue. Removing the first does not move the others,
// of which there may be a million.
func (h *hub) dequeue(i int) {
	if i > 0 {
		h.queued = slices.Delete(h.queued, i, i+1)
		return
	}
	h.queued[0] = nil
	h.queued = h.queued[1:]
}

// removeGetter, with mu held, removes a getter from the counts, and returns its item.
func (h *hub) removeGetter(g *getter) *entry {
	if g.done {
		return nil
	}
	g.done = true
	h.getting--
	if g.item != nil {
		h.taken--
	}
	return g.item
}

// finish, with the hub locked, finishes an item as soon as the hub no longer uses it.
func (e *entry) finish(after *afterUnlock) {
	e.state = entryDone
	if e.refs == 0 {
		after.add(func() { _ = e.kept.Finish(nil) }) // it may be finished already
	}
}

func (e *entry) refuse(word string, after *afterUnlock) {
	e.state = entryDone
	after.add(func() { answer(e.kept, word) })
}

func (g *getter) refuse(word string, after *afterUnlock) {
	g.done = true
	after.add(func() { answer(g.kept, word) })
}

// answer finishes an input with a word.
func answer(k *bus.Kept, word string) { _ = k.Finish(k.Emit(word)) } // the request may have ended

// close drops the items that were not taken, and answers all waiting puts and gets.
func (h *hub) close() {
	h.withLock(func(after *afterUnlock) {
		h.closed = true
		for _, e := range h.putters {
			e.refuse(wordClosed, after)
		}
		for _, e := range h.queued {
			e.finish(after)
		}
		for _, g := range h.getters {
			h.getting--
			g.refuse(wordClosed, after)
		}
		h.putters, h.queued, h.getters = nil, nil, nil
	})
}

// figures is the answer to methodSize.
type figures struct {
	Size    int `json:"size"`
	MaxSize int `json:"max_size"`
	Taken   int `json:"taken"`
}

func (h *hub) figures() figures {
	h.mu.Lock()
	defer h.mu.Unlock()
	return figures{Size: len(h.queued), MaxSize: h.maxSize, Taken: h.taken}
}

// size answers the clients' calls of methodSize.
func (h *hub) size(context.Context, []byte) (any, error) { return h.figures(), nil }

func parseFigures(b []byte) (f figures, err error) {
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("tensorqueue: the answer of the owner: %w", err)
	}
	return f, nil
}

func remove[T comparable](s []T, v T) []T {
	if i := slices.Index(s, v); i >= 0 {
		return slices.Delete(s, i, i+1)
	}
	return s
}
