package bus

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// shelving is what a link has of shelves. Its lock comes before the account's and the sender's.
type shelving struct {
	mu       sync.Mutex
	own      *shelf.Shelf // nil: there is none yet, or none is to be had
	seg      *segment     // that its values lie in
	token    uint32       // of the question of it
	ready    bool         // the host knows it
	lie      []*lying     // on it, the one that was looked at longest ago first
	byNumber bool         // the last of them that was over was seen to be, before the host said so: others take them by number
	owners   map[uint32]struct{}
	others   []otherShelf
	has      map[uint64]*taken // from them
	over     []uint64          // of those, what is needed no more, and the host does not know
	timer    *time.Timer       // runs while there is something to be told; nil: never did
	runs     bool
}

// lying is a value on the own shelf.
type lying struct {
	number  uint64
	payload *foreign // nil: its room was given back
}

// taken is a value that was taken from another process's shelf.
type taken struct {
	since time.Time
	told  bool
}

// What was taken is told the host in time, and not each by itself: it would be woken for each.
const (
	tellEvery  = time.Millisecond
	tellHeld   = 10 * time.Millisecond // what is held for that long, and who has it is of interest
	tellValues = 16
)

// otherShelf is a shelf of another process.
type otherShelf struct {
	taker *shelf.Taker
	seg   *segment // that its values lie in
}

// tagOf says which value is meant.
func tagOf(edge connector.Edge, key string) uint64 {
	h := fnv.New64a()
	for _, text := range []string{edge.From, "\x00", edge.To, "\x00", key} {
		_, _ = h.Write([]byte(text)) // it never fails
	}
	return h.Sum64()
}

// close lets go of all shelves.
func (sh *shelving) close() {
	sh.mu.Lock()
	shelves, own := sh.others, sh.own
	sh.others = nil
	sh.mu.Unlock()
	if own != nil {
		own.Close()
	}
	for _, o := range shelves {
		o.taker.Close()
	}
}

// forget forgets an owner.
func (sh *shelving) forget(owner uint32) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	delete(sh.owners, owner)
}

// knows notes that the host knows an owner, and gives it a shelf for what
// is put into a segment, if it has none. Without one everything is placed.
func (l *link) knows(owner uint32, seg *segment) {
	sh := &l.shelving
	if owner == wire.LastingOwner {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.owners == nil {
		sh.owners = make(map[uint32]struct{})
	}
	sh.owners[owner] = struct{}{}
	number := l.account.knows(seg)
	if sh.token != 0 || number == 0 {
		return
	}
	sh.token = l.tokens.Add(1)
	own, err := shelf.New()
	if err != nil {
		return
	}
	if l.send(&wire.Shelf{Token: sh.token, Segment: number}, own.FD()) != nil {
		own.Close()
		return
	}
	sh.own, sh.seg = own, seg
}

// shelved says that the host has the shelf.
func (l *link) shelved(m *wire.Shelved) error {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	sh := &l.shelving
	if sh.own == nil || sh.ready || m.Token != sh.token {
		return fmt.Errorf("%w: shelved was not asked for", wire.ErrProtocol)
	}
	sh.own.Begin(m.First)
	sh.ready = true
	return nil
}

// inlineBytes bounds the values that are put into messages: what lies on a shelf is had
// sooner.
func (l *link) inlineBytes() int {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	if l.shelving.ready {
		return 0
	}
	return wire.MaxInline
}

// reclaim gives back room of values that whoever took them needs no more, although the host
// has not said so: caches still know it.
func (l *link) reclaim() {
	for _, p := range l.reclaimed() {
		p.release()
		faultpoint.Hit("node-reclaimed")
	}
}

func (l *link) reclaimed() (all []*foreign) {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	sh := &l.shelving
	for range min(ring.ReclaimEach, len(sh.lie)) {
		v := sh.lie[0]
		sh.lie = sh.lie[1:]
		switch {
		case v.payload == nil: // the host has said so
		case sh.own.Reclaim(v.number):
			all = append(all, v.payload)
			v.payload, sh.byNumber = nil, true
		default:
			sh.lie = append(sh.lie, v)
		}
	}
	return all
}

// returnedFrom is what the host's word does, that a value on the shelf is needed no more.
func (l *link) returnedFrom(own *shelf.Shelf, v *lying) {
	own.Clear(v.number) // before the room is used again
	l.shelving.mu.Lock()
	p := v.payload
	if v.payload = nil; p != nil {
		l.shelving.byNumber = false
	}
	l.shelving.mu.Unlock()
	if p != nil {
		p.release()
	}
}

// shelve puts a payload on this process's shelf, and tells the host without waiting for
// an answer: at once, or, where others take what lies there by its number, within a
// millisecond. It takes the payload over unless entry is 0 and there is no error: then it is
// to be placed.
func (l *link) shelve(ctx context.Context, owner uint32, edge connector.Edge, key string, p *foreign) (entry uint64, err error) {
	if named := edge.Check() == nil && connector.CheckKey(key) == nil; !named {
		return 0, nil // the host says why
	}
	m := &wire.Shelve{Owner: owner, Size: uint64(len(p.data)), From: edge.From, To: edge.To, Key: key}
	l.shelving.mu.Lock()
	own := l.shelving.own
	sent, err := l.sendShelve(m, p)
	if sent {
		own.Publish(m.Entry)
	}
	l.shelving.mu.Unlock()
	if err != nil {
		p.release()
		return 0, err
	}
	if m.Entry != 0 {
		faultpoint.Hit("node-shelved")
	}
	if sent || m.Entry == 0 {
		return m.Entry, nil
	}
	// It waits in this process. What the host answers behind it says that it has come.
	if err := l.cleanup(ctx, nobody, key); err != nil {
		if ctx.Err() != nil {
			err = notKnown(ctx.Err())
		}
		return 0, err
	}
	own.Publish(m.Entry)
	return m.Entry, nil
}

// nobody is the number of no owner.
const nobody = 0

// sendShelve is shelve with mu held. Entry is 0 if the payload cannot lie on the shelf. It
// reports whether the host needs do no more than read for it.
func (l *link) sendShelve(m *wire.Shelve, p *foreign) (sent bool, err error) {
	sh := &l.shelving
	_, known := sh.owners[m.Owner]
	if can := known && sh.ready && p.seg == sh.seg && l.parting.why() == nil; !can {
		return false, nil
	}
	m.Offset = uint64(p.offset)
	number, ok := sh.own.Put(shelf.Value{Offset: m.Offset, Size: m.Size, Tag: tagOf(connector.Edge{From: m.From, To: m.To}, m.Key)})
	if !ok {
		return false, nil
	}
	m.Entry, m.At = number, ring.Now()
	own, v := sh.own, &lying{number, p}
	h := &hold{returned: func() { l.returnedFrom(own, v) }, bytes: len(p.data), at: time.Now()}
	err = l.account.hold(h, location{}, func(put, _ uint32) (err error) {
		m.Put = put
		faultpoint.Hit("node-before-shelve")
		if sh.byNumber {
			sent, err = l.later(m)
		} else {
			err = l.send(m)
			sent = l.sender.Backlog() == 0
		}
		return err
	})
	if errors.Is(err, errOver) {
		m.Entry, err = 0, nil // a place fails in its own words
	}
	if err != nil || m.Entry == 0 {
		own.Clear(number)
		return false, err
	}
	sh.lie = append(sh.lie, v)
	return sent, nil
}

// learnShelf takes in another process's shelf.
func (l *link) learnShelf(m *wire.ShelfAt, fds []int) error {
	taker, err := shelf.Open(fds[0], m.First)
	if err != nil {
		return err
	}
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	seg := l.account.memory(m.Segment)
	if seg == nil {
		taker.Close()
		return fmt.Errorf("%w: values of a shelf lie in segment %d, which is not known", wire.ErrProtocol, m.Segment)
	}
	l.shelving.others = append(l.shelving.others, otherShelf{taker, seg})
	return nil
}

// forgetShelf lets go of the shelf whose values lie in a segment. The host
// keeps what was taken there for this process, until it is told.
func (l *link) forgetShelf(seg *segment) {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	kept := l.shelving.others[:0]
	for _, o := range l.shelving.others {
		if o.seg == seg {
			o.taker.Close()
			l.queue(&wire.Taken{Flags: wire.TakenAll, Entries: []uint64{o.taker.First()}})
		} else {
			kept = append(kept, o)
		}
	}
	clear(l.shelving.others[len(kept):])
	l.shelving.others = kept
}

// take takes a value from another process's shelf, without asking the host. It is nil if
// it is not to be had so.
func (l *link) take(edge connector.Edge, key string, entry uint64) *foreign {
	o, ok := l.shelfOf(entry)
	if !ok {
		return nil
	}
	defer o.seg.release()
	p := l.takeFrom(o, entry, tagOf(edge, key))
	if p == nil {
		l.parting.reading.Done()
	}
	return p
}

// shelfOf finds the shelf of a number. What is taken there counts as read, and its segment
// is retained.
func (l *link) shelfOf(entry uint64) (otherShelf, bool) {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	for _, o := range l.shelving.others {
		if o.taker.Has(entry) {
			reads := l.parting.reads()
			if reads {
				o.seg.retain()
			}
			return o, reads
		}
	}
	return otherShelf{}, false
}

func (l *link) takeFrom(o otherShelf, entry, tag uint64) *foreign {
	v, ok := o.taker.Take(entry, tag)
	if !ok {
		return nil
	}
	faultpoint.Hit("node-claimed")
	p, err := o.seg.claimed(v.Offset, v.Size, func() {
		o.taker.Give(entry)
		faultpoint.Hit("node-given")
		l.gave(entry)
		l.parting.reading.Done()
	})
	if err != nil { // the host knows better where it lies, or that it does not
		o.taker.PutBack(entry)
		return nil
	}
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	sh := &l.shelving
	if sh.has == nil {
		sh.has = make(map[uint64]*taken)
	}
	sh.has[entry] = &taken{since: time.Now()}
	l.tellSoon()
	return p
}

// gave notes that a value is needed no more that was taken.
func (l *link) gave(entry uint64) {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	sh := &l.shelving
	delete(sh.has, entry)
	sh.over = append(sh.over, entry)
	if len(sh.over) >= tellValues {
		l.tellTaken()
	} else {
		l.tellSoon()
	}
}

// tellSoon, with mu held, has the host told of what was taken in a while.
func (l *link) tellSoon() {
	sh := &l.shelving
	switch {
	case sh.runs:
		return
	case sh.timer == nil:
		sh.timer = time.AfterFunc(tellEvery, l.tellInTime)
	default:
		sh.timer.Reset(tellEvery)
	}
	sh.runs = true
}

// tellInTime tells the host what it is time to tell.
func (l *link) tellInTime() {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	sh := &l.shelving
	sh.runs = false
	l.tellTaken()
	var held []uint64
	for entry, t := range sh.has {
		switch {
		case t.told:
		case time.Since(t.since) < tellHeld || len(held) == wire.MaxTaken:
			l.tellSoon()
		default:
			t.told = true
			held = append(held, entry)
		}
	}
	if len(held) > 0 {
		l.queue(&wire.Taken{Entries: held})
	}
}

// tellAllTaken is tellTaken at the end.
func (l *link) tellAllTaken() {
	l.shelving.mu.Lock()
	defer l.shelving.mu.Unlock()
	l.tellTaken()
}

// tellTaken, with mu held, tells the host what was taken and is needed no more.
func (l *link) tellTaken() {
	sh := &l.shelving
	if len(sh.over) > 0 {
		l.queue(&wire.Taken{Flags: wire.TakenOver, Entries: sh.over})
		sh.over = sh.over[:0]
		faultpoint.Hit("node-told")
	}
}
