package ring

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// A place is where a payload lies.
type address struct {
	edge connector.Edge
	key  string
}

// An entry is a payload that was put and not got.
type entry struct {
	address  address
	number   uint64 // never another entry's
	payload  connector.Payload
	owner    *Owner
	placedAt time.Time     // when it was placed
	element  *list.Element // of the table's oldest
}

// batch is how many entries one hold of the table's lock takes out: a table has tens of thousands,
// and other processes wait for the lock.
const maxBatch = 128

// Table says what lies under which key. It is for any goroutine.
type Table struct {
	ttl time.Duration
	log *slog.Logger

	mu         lockorder.Mutex[lockorder.RingTable]
	entries    map[address]*entry
	oldest     list.List // the same entries, *entry, in the order in which they were placed
	lastNumber uint64    // number given out
	bytes      int64     // of what is held
	swept      int64     // so far
	watched    map[connector.Edge]*edgeWatch
	stopped    bool
	waiting    map[address][]chan struct{} // closed with the next put
	sweeper    *time.Timer                 // runs while something is held and there is a TTL
}

// NewTable makes an empty table. What lies longer than ttl is swept, and the log is
// told; zero is never.
func NewTable(ttl time.Duration, log *slog.Logger) *Table {
	// Numbers begin anywhere, so that those of another table say nothing here.
	return &Table{ttl: ttl, log: log, lastNumber: rand.Uint64(), entries: make(map[address]*entry), waiting: make(map[address][]chan struct{}), watched: make(map[connector.Edge]*edgeWatch)}
}

// An Owner is somebody who puts. What it put and nobody got goes with it.
type Owner struct {
	table *Table
	name  string

	// Guarded by the table's lock.
	byKey      map[string][]*entry // by key: an entry for each edge
	entryCount int                 // of the entries
	closed     bool
}

// Owner adds somebody who puts. The name is for reports.
func (t *Table) Owner(name string) *Owner {
	return &Owner{table: t, name: name, byKey: make(map[string][]*entry)}
}

// Put places a payload, in place of what lay there, and returns its number, which
// is not 0 and never another's. It takes the payload over, even when it fails: with
// [connector.ErrClosed] if the owner is closed.
func (o *Owner) Put(edge connector.Edge, key string, payload connector.Payload) (number uint64, err error) {
	t := o.table
	e := &entry{address: address{edge, key}, payload: payload, owner: o}
	t.mu.Lock()
	if o.closed {
		t.mu.Unlock()
		payload.Release()
		return 0, connector.ErrClosed
	}
	if t.lastNumber++; t.lastNumber == 0 {
		t.lastNumber++
	}
	e.number = t.lastNumber
	old := t.entries[e.address]
	if old != nil {
		t.drop(old)
	}
	t.add(e)
	t.mu.Unlock()
	if old != nil {
		old.payload.Release()
	}
	return e.number, nil
}

// add takes an entry in, where none is.
func (t *Table) add(e *entry) {
	o := e.owner
	e.placedAt = time.Now()
	t.entries[e.address] = e
	e.element = t.oldest.PushBack(e)
	t.bytes += int64(len(e.payload.Bytes()))
	o.byKey[e.address.key] = append(o.byKey[e.address.key], e)
	o.entryCount++
	t.countEntry(e.address.edge)
	for _, w := range t.waiting[e.address] {
		close(w)
	}
	delete(t.waiting, e.address)
	if t.ttl > 0 && t.sweeper == nil {
		t.sweeper = time.AfterFunc(t.ttl, t.sweep)
	}
}

// drop takes an entry out. The payload is released without the lock.
func (t *Table) drop(e *entry) {
	o, key := e.owner, e.address.key
	delete(t.entries, e.address)
	t.oldest.Remove(e.element)
	t.bytes -= int64(len(e.payload.Bytes()))
	all := o.byKey[key]
	i := slices.Index(all, e)
	all[i], all[len(all)-1] = all[len(all)-1], nil
	if all = all[:len(all)-1]; len(all) > 0 {
		o.byKey[key] = all
	} else {
		delete(o.byKey, key)
	}
	o.entryCount--
	t.uncountEntry(e.address.edge)
}

// Taken is a payload that was got.
type Taken struct {
	connector.Payload
	entry *entry
}

// PutBack gives the payload back unread: it lies where it lay, for the table's whole TTL, unless
// another does, or its owner is closed.
func (got Taken) PutBack() {
	e := got.entry
	t := e.owner.table
	t.mu.Lock()
	back := !e.owner.closed && t.entries[e.address] == nil
	if back {
		t.add(e)
	}
	t.mu.Unlock()
	if !back {
		got.Release()
	}
}

// Entry is where the payload lay, for reports.
func (got Taken) Entry() Entry { return got.entry.report() }

// Get takes what lies under a key, or returns [connector.ErrNotFound]. With a number that is
// not 0, only that payload will do.
func (t *Table) Get(edge connector.Edge, key string, number uint64) (Taken, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takeLocked(address{edge, key}, number)
}

func (t *Table) takeLocked(at address, number uint64) (Taken, error) {
	t.markAsked(at.edge)
	e := t.entries[at]
	if e == nil || (number != 0 && e.number != number) {
		return Taken{}, connector.ErrNotFound
	}
	t.drop(e)
	return Taken{e.payload, e}, nil
}

// A Sharer is a payload that can be had a second time, to be released on its own.
type Sharer interface {
	Share() (connector.Payload, error)
}

// Peek returns what lies under a key and leaves it there. Where the payload is no
// [Sharer], it is [connector.ErrUnavailable].
func (t *Table) Peek(edge connector.Edge, key string, number uint64) (connector.Payload, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.markAsked(edge)
	e := t.entries[address{edge, key}]
	if e == nil || (number != 0 && e.number != number) {
		return nil, connector.ErrNotFound
	}
	s, ok := e.payload.(Sharer)
	if !ok {
		return nil, fmt.Errorf("%w: this value can only be taken", connector.ErrUnavailable)
	}
	return s.Share()
}

// Await is Get, but waits until something is there, the context ends, or gone is
// closed, with [connector.ErrClosed]. What has a number was there: it is not waited
// for.
func (t *Table) Await(ctx context.Context, gone <-chan struct{}, edge connector.Edge, key string, number uint64) (Taken, error) {
	at := address{edge, key}
	for {
		t.mu.Lock()
		got, err := t.takeLocked(at, number)
		if err == nil || number != 0 {
			t.mu.Unlock()
			return got, err
		}
		put := make(chan struct{})
		t.waiting[at] = append(t.waiting[at], put)
		t.mu.Unlock()
		select {
		case <-put:
			continue // somebody else may have been faster
		case <-ctx.Done():
			err = ctx.Err()
		case <-gone:
			err = connector.ErrClosed
		}
		t.stopWaiting(at, put)
		return Taken{}, err
	}
}

// stopWaiting forgets somebody who waits no more.
func (t *Table) stopWaiting(at address, put chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.waiting[at]
	for i, w := range all {
		if w == put {
			all[i] = all[len(all)-1]
			t.waiting[at] = all[:len(all)-1]
			break
		}
	}
	if len(t.waiting[at]) == 0 {
		delete(t.waiting, at)
	}
}

// Cleanup releases the payloads that the owner put under a key, on any edge, and that were not got. It
// returns their number.
func (o *Owner) Cleanup(key string) int {
	return o.release(func() *entry {
		if all := o.byKey[key]; len(all) > 0 {
			return all[0]
		}
		return nil
	})
}

// Close releases all payloads that the owner put and that were not got, and refuses more. It returns
// their number.
func (o *Owner) Close() int {
	t := o.table
	t.mu.Lock()
	o.closed = true
	t.mu.Unlock()
	return o.release(func() *entry {
		for _, all := range o.byKey {
			return all[0]
		}
		return nil
	})
}

// release takes out the entries that next returns, under the lock, until it returns nil.
func (o *Owner) release(next func() *entry) (n int) {
	for {
		out := o.table.dropBatch(next)
		for _, e := range out {
			e.payload.Release()
		}
		if n += len(out); len(out) < maxBatch {
			return n
		}
	}
}

// dropBatch takes out entries that next returns, a batch at most.
func (t *Table) dropBatch(next func() *entry) (out []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(out) < maxBatch {
		e := next()
		if e == nil {
			break
		}
		t.drop(e)
		out = append(out, e)
	}
	return out
}

// sweep releases the entries that lie for longer than the TTL, and comes again when the next one does.
func (t *Table) sweep() {
	now := time.Now()
	for {
		out, ttl := t.takeExpired(now)
		for _, e := range out {
			t.log.Warn("no reader came for a value", "edge", e.address.edge.String(), "key", e.address.key,
				"bytes", len(e.payload.Bytes()), "from", e.owner.name, "after", ttl)
			e.payload.Release()
		}
		if len(out) < maxBatch {
			return
		}
	}
}

// takeExpired takes out entries that lie for longer than the TTL, a batch at most. Where these are fewer, it
// has set the timer for the next.
func (t *Table) takeExpired(now time.Time) (out []*entry, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.ttl > 0 && len(out) < maxBatch { // 0: stopped meanwhile
		first := t.oldest.Front()
		if first == nil {
			t.sweeper = nil
			break
		}
		e := first.Value.(*entry) //nolint:forcetypeassert // the list has no others
		if left := t.ttl - now.Sub(e.placedAt); left > 0 {
			t.sweeper.Reset(left)
			break
		}
		t.drop(e)
		out = append(out, e)
	}
	t.swept += int64(len(out))
	return out, t.ttl
}

// Stats are a table's figures.
type Stats struct {
	Entries int   // payloads that nobody has got yet
	Bytes   int64 // of those
	Swept   int64 // so far
}

// Stats returns the table's figures.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{Entries: len(t.entries), Bytes: t.bytes, Swept: t.swept}
}

// An Entry is a payload that nobody has got yet, for reports.
type Entry struct {
	Edge  connector.Edge
	Key   string
	Bytes int
	Age   time.Duration
}

func (e *entry) report() Entry {
	return Entry{Edge: e.address.edge, Key: e.address.key, Bytes: len(e.payload.Bytes()), Age: time.Since(e.placedAt)}
}

// Len returns the number of payloads that the owner put and that were not got.
func (o *Owner) Len() int {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	return o.entryCount
}

// Entries lists the payloads that the owner put and that were not got, in no order.
func (o *Owner) Entries() (all []Entry) {
	t := o.table
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, mine := range o.byKey {
		for _, e := range mine {
			all = append(all, e.report())
		}
	}
	return all
}

// Stop ends the sweeping.
func (t *Table) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sweeper != nil {
		t.sweeper.Stop()
		t.sweeper = nil
	}
	t.ttl, t.stopped = 0, true
}
