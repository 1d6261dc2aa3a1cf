package pool

import (
	"fmt"
	"math"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Exports retains memory of other owners while objects refer to it. It is a device for one store,
// with pieces that take no space: their number is bounded.
type Exports struct {
	mu     sync.Mutex
	slots  *slots
	kept   []func() // release functions by slot; nil: none
	closed bool
}

var _ shmstore.Device = (*Exports)(nil)

// NewExports makes exports with n slots; 0 means 4096. The device writes the words; the caller
// closes it after the exports. The errors are those of [New].
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

// ID names the exports in all processes. It is random.
func (e *Exports) ID() [16]byte { return e.slots.id }

// Words is the words segment, for other processes. The exports close it.
func (e *Exports) Words() *shmstore.Segment { return e.slots.segment }

// MaxBytes returns no bound: pieces take no memory of the exports.
func (e *Exports) MaxBytes() int64 { return math.MaxInt64 }

// Pieces is the number of pieces in use.
func (e *Exports) Pieces() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.slots.used()
}

// Late is [Pool.Late] for exports.
func (e *Exports) Late() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.slots.late)
}

// Allocate returns a piece without a release function. The size is for the store's figures.
func (e *Exports) Allocate(sizeBytes int64) (piece uint32, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || sizeBytes < 0 {
		return 0, false
	}
	e.slots.reclaimLate(func(uint32) {})
	return e.slots.allocate()
}

// Keep sets the function that the store's writer calls once when the piece is freed: it must not
// block. Until then the memory stays unchanged. The holder of a piece calls Keep once.
func (e *Exports) Keep(piece uint32, release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots.mustBeUsed("Keep", piece)
	if e.kept[piece] != nil {
		panic(fmt.Sprintf("pool: a second Keep of piece %d", piece))
	}
	e.kept[piece] = release
}

// Free frees a piece and calls its release function.
func (e *Exports) Free(piece uint32) {
	if release := e.takeRelease(piece); release != nil {
		release()
	}
}

// takeRelease frees a piece, and returns its release function.
func (e *Exports) takeRelease(piece uint32) (release func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots.mustBeUsed("Free", piece)
	release, e.kept[piece] = e.kept[piece], nil
	e.slots.release(piece)
	return release
}

// Piece returns the names and words of a piece to its holder: see [Pool.Chunk].
func (e *Exports) Piece(piece uint32) Piece {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots.mustBeUsed("Piece", piece)
	return e.slots.expose(piece)
}

// Close releases the words, as [Pool.Close] does.
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
