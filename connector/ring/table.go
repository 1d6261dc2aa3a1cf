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

// An address is the edge and the key of a payload.
type address struct {
	edge connector.Edge
	key  string
}

// An entry is a payload that was put and not got.
type entry struct {
	address  address
	number   uint64 // unique in the table
	payload  connector.Payload
	owner    *Owner
	placedAt time.Time
	element  *list.Element // in Table.oldest
}

// maxBatch bounds the entries that are removed under one hold of the table's lock: a table has tens
// of thousands, and other processes wait for the lock.
const maxBatch = 128

// Table maps keys to payloads. It is safe for concurrent use.
type Table struct {
	ttl time.Duration
	log *slog.Logger

	mu         lockorder.Mutex[lockorder.RingTable]
	entries    map[address]*entry
	oldest     list.List // the same entries, *entry, in the order of their puts
	lastNumber uint64    // the last number given out
	bytes      int64     // of the entries
	swept      int64     // so far
	watched    map[connector.Edge]*edgeWatch
	stopped    bool
	waiting    map[address][]chan struct{} // closed by the next put
	sweeper    *time.Timer                 // runs while there are entries and a TTL
}

// NewTable makes an empty table. Entries older than ttl are swept and logged; a ttl of zero sweeps
// none.
func NewTable(ttl time.Duration, log *slog.Logger) *Table {
	// Numbers start at a random value, so that a number of another table matches no entry here.
	return &Table{ttl: ttl, log: log, lastNumber: rand.Uint64(), entries: make(map[address]*entry), waiting: make(map[address][]chan struct{}), watched: make(map[connector.Edge]*edgeWatch)}
}

// An Owner puts payloads. Close of the owner releases its payloads that were not got.
type Owner struct {
	table *Table
	name  string

	// Guarded by the table's lock.
	byKey      map[string][]*entry // by key; one entry for each edge
	entryCount int                 // entries in byKey
	closed     bool
}

// Owner adds an owner. The name is for reports.
func (t *Table) Owner(name string) *Owner {
	return &Owner{table: t, name: name, byKey: make(map[string][]*entry)}
}

// Put places a payload, in place of an earlier one at the same address, and returns its number,
// which is unique and not 0. The table owns the payload from the call on, even when Put fails: with
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

// add inserts an entry at a free address. The table's lock is held.
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

// drop removes an entry. The table's lock is held; the caller releases the payload without the
// lock.
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

// PutBack returns the payload unread: it is at its address again, for the table's whole TTL. If the
// address has another payload, or the owner is closed, PutBack releases it.
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

// Entry returns the payload's address, size and age, for reports.
func (got Taken) Entry() Entry { return got.entry.report() }

// Get removes and returns the payload of a key, or returns [connector.ErrNotFound]. A number that
// is not 0 must be the payload's.
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

// A Sharer is a payload that returns further references to itself, each with its own Release.
type Sharer interface {
	Share() (connector.Payload, error)
}

// Peek returns another reference to the payload of a key, which stays in the table. If the payload
// is no [Sharer], it is [connector.ErrUnavailable].
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

// Await is Get, but waits until there is a payload, the context ends, or gone is closed, with
// [connector.ErrClosed]. With a number it does not wait: that payload was put already.
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
			continue // another reader may have been faster
		case <-ctx.Done():
			err = ctx.Err()
		case <-gone:
			err = connector.ErrClosed
		}
		t.stopWaiting(at, put)
		return Taken{}, err
	}
}

// stopWaiting removes a waiting channel.
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

// Cleanup releases the owner's payloads under a key, on any edge, that were not got, and returns
// their number.
func (o *Owner) Cleanup(key string) int {
	return o.release(func() *entry {
		if all := o.byKey[key]; len(all) > 0 {
			return all[0]
		}
		return nil
	})
}

// Close releases all payloads of the owner that were not got, and refuses further puts. It returns
// the number of released payloads.
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

// release removes and releases the entries that next returns, until next returns nil. The table's
// lock is held during next.
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

// dropBatch removes the entries that next returns, at most maxBatch.
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

// sweep releases the entries that are older than the TTL, and sets the timer for the next one.
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

// takeExpired removes entries that are older than the TTL, at most maxBatch. If it removes fewer,
// it has set the timer for the next one.
func (t *Table) takeExpired(now time.Time) (out []*entry, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.ttl > 0 && len(out) < maxBatch { // 0: the table was stopped
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
	Entries int   // payloads that were not got
	Bytes   int64 // of those
	Swept   int64 // so far
}

// Stats returns the table's figures.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Stats{Entries: len(t.entries), Bytes: t.bytes, Swept: t.swept}
}

// An Entry describes a payload that was not got, for reports.
type Entry struct {
	Edge  connector.Edge
	Key   string
	Bytes int
	Age   time.Duration
}

func (e *entry) report() Entry {
	return Entry{Edge: e.address.edge, Key: e.address.key, Bytes: len(e.payload.Bytes()), Age: time.Since(e.placedAt)}
}

// Len returns the number of the owner's payloads that were not got.
func (o *Owner) Len() int {
	o.table.mu.Lock()
	defer o.table.mu.Unlock()
	return o.entryCount
}

// Entries lists the owner's payloads that were not got, in no order.
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

// Stop ends the sweeping. Later calls of Stop do nothing.
func (t *Table) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sweeper != nil {
		t.sweeper.Stop()
		t.sweeper = nil
	}
	t.ttl, t.stopped = 0, true
}
