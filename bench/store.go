package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const (
	// putWindow is how many objects are put before they are read.
	putWindow = 64
	// putArenaObjects is how many objects the arena has room for: a put finds
	// the store full, and the oldest objects read long ago.
	putArenaObjects = 4 * putWindow
	// putReads bounds the reads of a round, which has at least one window.
	putReads = 1 << 17
)

// A putLimit says what a put may take that charges a number of readers.
type putLimit struct {
	readers int
	ns      float64
}

var putLimits = []putLimit{{1, 60}, {8, 70}, {64, 250}}

// readNS is what one reader may take for one object.
const readNS = 20

// A putTrial reserves and commits objects without filling them, each charged to
// all readers, in a store that is full. Then each reader takes and releases each
// object. All of it runs on one goroutine: it is the price of the accounts, free
// of contention.
//
// The time of a put is the mean of a round, and so has its part of an eviction in
// it. The store evicts dozens of objects at once; the median of shorter spans
// would leave that out.
//
// The baseline is a handle that goes into a buffered channel and comes out
// again, by one goroutine: what it costs to hand a payload over without a store.
type putTrial struct {
	store   *shmstore.Store
	readers []*shmstore.Reader
	size    int
	windows int // in a round
	handles [putWindow]shmstore.Handle
	channel chan shmstore.Handle
}

func putScenario(size int, limit putLimit) scenario {
	arena := max(int64(putArenaObjects*size), mib)
	return scenario{
		name: fmt.Sprintf("store/zero-copy/size=%s/readers=%d", sizeName(size), limit.readers),
		metrics: []metric{
			{name: "put", unit: "ns", target: valueUpTo(limit.ns)},
			{name: "take-release", unit: "ns", target: valueUpTo(readNS)},
			{name: "allocs", unit: "allocs/put", target: valueUpTo(0)},
		},
		needs: arena,
		open: func(context.Context, Options) (trial, error) {
			return openPut(arena, size, limit.readers)
		},
	}
}

func openPut(arena int64, size, readers int) (trial, error) {
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: arena})
	if err != nil {
		return nil, err
	}
	t := &putTrial{
		store:   store,
		readers: []*shmstore.Reader{store.Local()},
		size:    size,
		windows: max(putReads/putWindow/readers, 1),
		channel: make(chan shmstore.Handle, putWindow),
	}
	if err := errors.Join(t.declare(readers), t.fill()); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return t, nil
}

// declare adds readers to the local one.
func (t *putTrial) declare(readers int) error {
	for len(t.readers) < readers {
		r, err := t.store.DeclareReader("bench")
		if err != nil {
			return err
		}
		t.readers = append(t.readers, r)
	}
	return nil
}

// fill puts and reads until the store has evicted something.
func (t *putTrial) fill() error {
	for range t.store.Stats().Slots {
		if t.store.Stats().EvictedTotal > 0 {
			return nil
		}
		if err := t.put(); err != nil {
			return err
		}
		if err := t.read(); err != nil {
			return err
		}
	}
	return fmt.Errorf("a store of %d slots evicts nothing", t.store.Stats().Slots)
}

func (t *putTrial) put() error {
	for i := range t.handles {
		r, err := t.store.Reserve(t.size, codec.IDRaw, 1<<len(t.readers)-1) // each of them
		if err != nil {
			return err
		}
		if t.handles[i], err = r.Commit(t.size, 0); err != nil {
			return err
		}
	}
	return nil
}

func (t *putTrial) read() error {
	for _, r := range t.readers {
		for i := range t.handles {
			l, err := r.Take(t.handles[i])
			if err != nil {
				return err
			}
			l.Release()
		}
	}
	return nil
}

func (t *putTrial) round(_ context.Context, swapped bool) ([]sample, error) {
	var putting, reading cost
	ours := func() error {
		for range t.windows {
			start := time.Now()
			if err := t.put(); err != nil {
				return err
			}
			middle := time.Now()
			if err := t.read(); err != nil {
				return err
			}
			putting.elapsed += middle.Sub(start)
			reading.elapsed += time.Since(middle)
		}
		return nil
	}
	const pairs = 1 << 16
	our, base, err := measureBoth(swapped, ours, func() error { t.exchange(pairs); return nil })
	if err != nil {
		return nil, err
	}
	puts := t.windows * putWindow
	pair := base.nsPer(pairs)
	return []sample{
		{putting.nsPer(puts), pair},
		{reading.nsPer(puts * len(t.readers)), pair},
		{our.allocsPer(puts), 0},
	}, nil
}

// exchange sends and receives n handles.
func (t *putTrial) exchange(n int) {
	var h shmstore.Handle
	for range n {
		t.channel <- h
		h = <-t.channel
	}
}

func (t *putTrial) close(context.Context) error { return t.store.Close() }
