package pool

import (
	"fmt"
	"math"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Exports keeps memory that is somebody else's as long as objects tell others
// about it. It is a device for one store, with pieces that take no room: what is
// bounded is their number.
type Exports struct {
	mu     sync.Mutex
	slots  *slots
	kept   []func() // by slot; nil: nothing is kept
	closed bool
}

var _ shmstore.Device = (*Exports)(nil)

// NewExports makes room for so many pieces; 0 means 4096. The device is for the
// words alone: it stays the caller's and is closed after. The errors are those of
// [New].
func NewExports(dev cudaipc.Device, n int) (*Exports, error) {
	if n == 0 {
		n = defaultSlots
	}
	err := validateSlots(n)
	var slots *slots
	if err == nil {
		slots, err = newSlots(dev, n)
	}
	if err != nil {
		return nil, fmt.Errorf("new GPU exports: %w", err)
	}
	return &Exports{slots: slots, kept: make([]func(), n)}, nil
}

// ID names the exports in all processes. It was drawn at random.
func (e *Exports) ID() [16]byte { return e.slots.id }

// Words is the words segment, for passing on. It stays the exports' own.
func (e *Exports) Words() *shmstore.Segment { return e.slots.segment }

// MaxBytes is no bound: the memory is there already.
func (e *Exports) MaxBytes() int64 { return math.MaxInt64 }

// Pieces is the number of pieces in use.
func (e *Exports) Pieces() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.slots.used()
}

// Late is [Pool.Late] for pieces that take no room.
func (e *Exports) Late() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.slots.late)
}

// Allocate gives out a piece that keeps nothing yet. The size is for the figures
// of the store.
func (e *Exports) Allocate(sizeBytes int64) (piece uint32, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || sizeBytes < 0 {
		return 0, false
	}
	e.slots.reclaimLate(func(uint32) {})
	return e.slots.allocate()
}

// Keep has release called when the piece is freed, once, by the store's writer:
// it must not wait for anybody. Until then the memory stays as it is. It is called
// once for a piece, by whoever holds it.
func (e *Exports) Keep(piece uint32, release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots.mustBeUsed("Keep", piece)
	if e.kept[piece] != nil {
		panic(fmt.Sprintf("pool: a second Keep of piece %d", piece))
	}
	e.kept[piece] = release
}

// Free gives what the piece keeps back to its owner.
func (e *Exports) Free(piece uint32) {
	if release := e.takeRelease(piece); release != nil {
		release()
	}
}

// takeRelease takes a piece back, and returns what gives its memory back.
func (e *Exports) takeRelease(piece uint32) (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots.mustBeUsed("Free", piece)
	release, e.kept[piece] = e.kept[piece], nil
	e.slots.release(piece)
	return release
}

// Piece names a piece, for whoever holds it: see [Pool.Chunk].
func (e *Exports) Piece(piece uint32) Piece {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots.mustBeUsed("Piece", piece)
	return e.slots.expose(piece)
}

// Close gives the words back, as [Pool.Close] does.
func (e *Exports) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.slots.reclaimLate(func(uint32) {})
	if len(e.slots.free) < len(e.slots.state) {
		defer e.mu.Unlock()
		return fmt.Errorf("close GPU exports: %w", e.slots.errInUse())
	}
	e.closed = true
	e.mu.Unlock()
	if err := e.slots.close(); err != nil {
		return fmt.Errorf("close GPU exports: %w", err)
	}
	return nil
}
