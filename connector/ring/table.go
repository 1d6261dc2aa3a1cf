package ring

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// A place is where a payload lies.
type place struct {
	edge connector.Edge
	key  string
}

// An entry is a payload that nobody has got yet.
type entry struct {
	place   place
	payload connector.Payload
	owner   *Owner
	at      time.Time
}

// Table says what lies under which key. It is for any goroutine.
type Table struct {
	ttl time.Duration
	log *slog.Logger

	mu      sync.Mutex
	held    map[place]*entry
	waiting map[place][]chan struct{} // closed with the next put
	sweeper *time.Timer               // runs while something is held and there is a TTL
}

// NewTable makes an empty table. What lies longer than ttl is swept, and the log is
// told; zero is never.
func NewTable(ttl time.Duration, log *slog.Logger) *Table {
	return &Table{ttl: ttl, log: log, held: make(map[place]*entry), waiting: make(map[place][]chan struct{})}
}

// An Owner is somebody who puts. What it put and nobody got goes with it.
type Owner struct {
	table  *Table
	mine   map[*entry]struct{} // guarded by the table's lock
	closed bool                // as well
}

// Owner adds somebody who puts.
func (t *Table) Owner() *Owner { return &Owner{table: t, mine: make(map[*entry]struct{})} }

// Put places a payload, in place of what lay there. It takes the payload over, even
// when it fails: with [connector.ErrClosed] if the owner is closed.
func (o *Owner) Put(edge connector.Edge, key string, payload connector.Payload) error {
	t := o.table
	e := &entry{place: place{edge, key}, payload: payload, owner: o, at: time.Now()}
	t.mu.Lock()
	if o.closed {
		t.mu.Unlock()
		payload.Release()
		return connector.ErrClosed
	}
	old := t.held[e.place]
	if old != nil {
		t.drop(old)
	}
	t.held[e.place] = e
	o.mine[e] = struct{}{}
	for _, w := range t.waiting[e.place] {
		close(w)
	}
	delete(t.waiting, e.place)
	if t.ttl > 0 && t.sweeper == nil {
		t.sweeper = time.AfterFunc(t.ttl, t.sweep)
	}
	t.mu.Unlock()
	if old != nil {
		old.payload.Release()
	}
	return nil
}

// drop takes an entry out. The payload is released without the lock.
func (t *Table) drop(e *entry) {
	delete(t.held, e.place)
	delete(e.owner.mine, e)
}

// Get takes what lies under a key, or returns [connector.ErrNotFound].
func (t *Table) Get(edge connector.Edge, key string) (connector.Payload, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.take(place{edge, key})
}

func (t *Table) take(at place) (connector.Payload, error) {
	e := t.held[at]
	if e == nil {
		return nil, connector.ErrNotFound
	}
	t.drop(e)
	return e.payload, nil
}

// Await is Get, but waits until something is there, the context ends, or gone is
// closed, with [connector.ErrClosed].
func (t *Table) Await(ctx context.Context, gone <-chan struct{}, edge connector.Edge, key string) (connector.Payload, error) {
	at := place{edge, key}
	for {
		t.mu.Lock()
		payload, err := t.take(at)
		if err == nil {
			t.mu.Unlock()
			return payload, nil
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
		t.leave(at, put)
		return nil, err
	}
}

// leave forgets somebody who waits no more.
func (t *Table) leave(at place, put chan struct{}) {
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

// Cleanup releases what the owner put under a key, and under all keys whose
// request it is, and returns how many there were.
func (o *Owner) Cleanup(key string) int {
	return o.release(func(e *entry) bool {
		return e.place.key == key || connector.Request(e.place.edge, e.place.key) == key
	}, false)
}

// Close releases all that the owner put and nobody got, and refuses more.
func (o *Owner) Close() {
	o.release(func(*entry) bool { return true }, true)
}

func (o *Owner) release(is func(*entry) bool, closing bool) int {
	t := o.table
	var out []*entry
	t.mu.Lock()
	o.closed = o.closed || closing
	for e := range o.mine {
		if is(e) {
			t.drop(e)
			out = append(out, e)
		}
	}
	t.mu.Unlock()
	for _, e := range out {
		e.payload.Release()
	}
	return len(out)
}

// sweep releases what has lain too long, and comes again when the next will have.
func (t *Table) sweep() {
	now := time.Now()
	var out []*entry
	next := time.Duration(0)
	t.mu.Lock()
	for _, e := range t.held {
		if left := t.ttl - now.Sub(e.at); left <= 0 {
			t.drop(e)
			out = append(out, e)
		} else if next == 0 || left < next {
			next = left
		}
	}
	if next > 0 {
		t.sweeper.Reset(next)
	} else {
		t.sweeper = nil
	}
	t.mu.Unlock()
	for _, e := range out {
		t.log.Warn("nobody came for a value", "edge", e.place.edge.String(), "key", e.place.key,
			"bytes", len(e.payload.Bytes()), "after", t.ttl)
		e.payload.Release()
	}
}

// Len returns the number of payloads that nobody has got yet.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.held)
}

// Stop ends the sweeping.
func (t *Table) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sweeper != nil {
		t.sweeper.Stop()
		t.sweeper = nil
	}
	t.ttl = 0
}
