package bench

import (
	"context"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A copyTrial puts objects by copying them into a full store.
//
// The baseline copies the same source to heap memory of the store's size, at one
// place after the other, as the store does. Only the accounts and the kind of
// memory differ.
type copyTrial struct {
	store  *shmstore.Store
	source []byte
	heap   *heapRing
	count  int // copies in a round
}

// copySpeed is the part of the heap copy's speed that a put has to reach.
const copySpeed = 0.9

// cacheLine is what an object takes in a store besides its bytes.
const cacheLine = 64

// copyObjects is how many objects fit the smallest store of the scenario: a
// store takes objects of up to a quarter of its arena.
const copyObjects = 4

func copyScenario(size int) scenario {
	return scenario{
		name:    "store/copy/size=" + sizeName(size),
		metrics: []metric{{unit: "µs", target: ratioUpTo(1 / copySpeed)}},
		needs:   copyObjects * int64(size+cacheLine),
		open: func(_ context.Context, opts Options) (trial, error) {
			return openCopy(opts.StoreBytes, size)
		},
	}
}

func openCopy(storeBytes int64, size int) (trial, error) {
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: storeBytes})
	if err != nil {
		return nil, err
	}
	return &copyTrial{
		store:  store,
		source: touched(int64(size)),
		heap:   newHeapRing(storeBytes, size),
		count:  max(64*mib/size, 2),
	}, nil
}

func (t *copyTrial) round(_ context.Context, swapped bool) ([]sample, error) {
	our, base, err := measureBoth(swapped,
		func() error {
			for range t.count {
				if _, err := t.store.Put(t.source, 0); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			for range t.count {
				codec.Copy(t.heap.next(), t.source)
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	return []sample{{our.microsPer(t.count), base.microsPer(t.count)}}, nil
}

func (t *copyTrial) close(context.Context) error { return t.store.Close() }

// A heapRing is heap memory that is written to in turn, object by object, as
// a store that is full uses its arena.
type heapRing struct {
	memory []byte
	size   int
	at     int
}

func newHeapRing(sizeBytes int64, objectBytes int) *heapRing {
	return &heapRing{memory: touched(sizeBytes), size: objectBytes}
}

// next returns the memory for one object.
func (f *heapRing) next() []byte {
	if f.at+f.size > len(f.memory) {
		f.at = 0
	}
	object := f.memory[f.at : f.at+f.size]
	f.at += f.size + cacheLine // as far apart as the objects of a store
	return object
}

// touched returns memory that the system has handed out page by page.
func touched(sizeBytes int64) []byte {
	b := make([]byte, sizeBytes)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}
