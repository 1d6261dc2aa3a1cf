package pool

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/tlsf"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// idleFrees is the number of frees after which an empty arena is closed, and after which a device
// that refused an arena is asked again. Making an arena takes about as long as clearing its memory.
const idleFrees = 64

// Pool divides device memory into chunks. It is a device for one store.
type Pool struct {
	dev      cudaipc.Device
	opts     Options
	byHandle bool // arenas are HandleArenas

	closing sync.WaitGroup // arenas that are being closed

	mu         sync.Mutex
	slots      *slots
	chunks     []chunk  // by slot
	arenas     []*arena // by number; the first one is never closed
	lastArena  uint32   // the number last given out
	totalBytes int64    // of all arenas
	// closingBytes is the memory of the arenas that are being closed, which the device still has.
	closingBytes int64
	frees        uint64
	growAgainAt  uint64 // count of frees before which the device is not asked for an arena
	counters     counters
	closed       bool
}

var _ shmstore.Grower = (*Pool)(nil)

// arena is one arena of a pool, with its free and used ranges.
type arena struct {
	number     uint32
	memory     cudaipc.Arena
	ranges     *tlsf.Allocator
	emptySince uint64 // count of frees when it became empty
}

// chunk is the position of a piece.
type chunk struct {
	arena         *arena
	offset, bytes int64
}

// Chunk is a piece of a pool with its position: in the arena with this number, and in this process
// at Ptr.
type Chunk struct {
	Piece

	Arena  uint32
	Offset int64
	Bytes  int64 // as requested
	Ptr    cudaipc.Ptr
}

// New makes a pool with one arena. The caller closes the device after the pool. The errors are
// those of Options.Validate, of the device, and of shmstore.NewSegment.
func New(dev cudaipc.Device, opts Options) (*Pool, error) {
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("new GPU pool: %w", err)
	}
	opts = opts.withDefaults()
	slots, err := newSlots(dev, opts.Slots)
	if err != nil {
		return nil, fmt.Errorf("new GPU pool: %w", err)
	}
	p := &Pool{dev: dev, opts: opts, slots: slots, chunks: make([]chunk, opts.Slots), byHandle: sharesByHandle(dev)}
	if p.byHandle {
		p.lastArena = HandleBit
	}
	if err := p.addArena(); err != nil {
		return nil, fmt.Errorf("new GPU pool: an arena of %d bytes: %w", opts.ArenaBytes, errors.Join(err, slots.close()))
	}
	return p, nil
}

// addArena gets one more arena from the device.
func (p *Pool) addArena() error {
	memory, err := p.newMemory()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.lastArena++
	a := &arena{number: p.lastArena, memory: memory, ranges: tlsf.New(memory.Bytes()), emptySince: p.frees}
	p.arenas = append(p.arenas, a)
	p.totalBytes += memory.Bytes()
	p.counters.grown++
	p.mu.Unlock()
	p.opts.OnArena(a.number, memory)
	return nil
}

// ID names the pool in all processes. It is random.
func (p *Pool) ID() [16]byte { return p.slots.id }

// Words is the words segment, for other processes. The pool closes it.
func (p *Pool) Words() *shmstore.Segment { return p.slots.segment }

// MaxBytes is half an arena: a larger piece would leave the rest of its arena fragmented.
func (p *Pool) MaxBytes() int64 { return p.opts.ArenaBytes / 2 }

// Pieces is the number of pieces in use.
func (p *Pool) Pieces() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.used()
}

// Allocate returns a chunk of the first arena that has space, so that later arenas become empty.
func (p *Pool) Allocate(sizeBytes int64) (piece uint32, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || sizeBytes < 0 || sizeBytes > p.MaxBytes() {
		return 0, false
	}
	p.slots.reclaimLate(p.freeRange)
	if len(p.slots.free) == 0 {
		return 0, false
	}
	for _, a := range p.arenas {
		if offset, ok := a.ranges.Allocate(sizeBytes); ok {
			number, _ := p.slots.allocate()
			p.chunks[number] = chunk{arena: a, offset: offset, bytes: sizeBytes}
			return number, true
		}
	}
	return 0, false
}

// Grow gets one more arena from the device, if the bound allows it.
func (p *Pool) Grow(sizeBytes int64) bool {
	p.mu.Lock()
	may := !p.closed && sizeBytes <= p.MaxBytes() && len(p.slots.free) > 0 &&
		p.totalBytes+p.closingBytes+p.arenas[0].memory.Bytes() <= p.opts.MaxBytes && p.frees >= p.growAgainAt
	p.mu.Unlock()
	if !may {
		return false
	}
	err := p.addArena()
	if err == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recordFailure(err)
	p.growAgainAt = p.frees + idleFrees
	return false
}

// recordFailure records an error of the device.
func (p *Pool) recordFailure(err error) {
	p.counters.failures++
	p.counters.lastFailure = err
}

// Free frees a chunk, and closes arenas that have been empty for idleFrees, on another goroutine,
// because the driver may wait for streams.
func (p *Pool) Free(piece uint32) {
	idle := p.freeChunk(piece)
	if len(idle) == 0 {
		return
	}
	p.reportGone(idle)
	p.closing.Go(func() {
		_ = p.closeArenas(idle)
		p.mu.Lock()
		for _, a := range idle {
			p.closingBytes -= a.memory.Bytes()
		}
		p.mu.Unlock()
		p.opts.OnSpace()
	})
}

// reportGone calls OnArenaGone for arenas that the pool has removed.
func (p *Pool) reportGone(gone []*arena) {
	for _, a := range gone {
		p.opts.OnArenaGone(a.number)
	}
}

// freeChunk frees a chunk, and removes the arenas that are to be closed.
func (p *Pool) freeChunk(piece uint32) (idle []*arena) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.mustBeUsed("Free", piece)
	p.frees++
	if p.slots.release(piece) {
		p.freeRange(piece)
	}
	return p.removeIdle()
}

// freeRange frees the chunk of a piece that no stream writes to any more.
func (p *Pool) freeRange(piece uint32) {
	c := p.chunks[piece]
	p.chunks[piece] = chunk{}
	c.arena.ranges.Free(c.offset)
	if c.arena.ranges.Blocks() == 0 {
		c.arena.emptySince = p.frees
	}
}

// Late is the number of pieces that were freed while a stream still wrote to them. They can be
// allocated again when it has ended: a waiting allocation has to try again then.
func (p *Pool) Late() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.slots.late)
}

// removeIdle removes the arenas that have been empty for idleFrees.
func (p *Pool) removeIdle() (idle []*arena) {
	// Memory that other processes have opened by a handle must not be freed, and the pool does not
	// learn when they close it.
	if len(p.arenas) == 1 || p.byHandle {
		return nil
	}
	p.arenas = slices.DeleteFunc(p.arenas, func(a *arena) bool {
		if a == p.arenas[0] || a.ranges.Blocks() > 0 || p.frees-a.emptySince < idleFrees {
			return false
		}
		idle = append(idle, a)
		p.totalBytes -= a.memory.Bytes()
		p.closingBytes += a.memory.Bytes()
		p.counters.shrunk++
		return true
	})
	return idle
}

// closeArenas closes arenas that the pool has removed.
func (p *Pool) closeArenas(gone []*arena) error {
	var errs []error
	for _, a := range gone {
		if err := a.memory.Close(); err != nil {
			errs = append(errs, err)
			p.mu.Lock()
			p.recordFailure(err)
			p.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// Chunk returns the position of a piece to its holder. From then on the piece is not allocated
// again before its ready word is written.
func (p *Pool) Chunk(piece uint32) Chunk {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.mustBeUsed("Chunk", piece)
	c := p.chunks[piece]
	return Chunk{
		Piece:  p.slots.expose(piece),
		Arena:  c.arena.number,
		Offset: c.offset,
		Bytes:  c.bytes,
		Ptr:    c.arena.memory.Base() + cudaipc.Ptr(c.offset),
	}
}

// Close closes all arenas and the words. While pieces are in use it has no effect, and the error
// wraps shmstore.ErrBusy: close the store first. After other errors, which are the device's, the
// pool is closed all the same. Closing again has no effect.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.slots.reclaimLate(p.freeRange)
	if len(p.slots.free) < len(p.slots.state) {
		defer p.mu.Unlock()
		return fmt.Errorf("close GPU pool: %w", p.slots.errInUse())
	}
	p.closed = true
	gone := p.arenas
	p.arenas, p.totalBytes = nil, 0
	p.mu.Unlock()
	p.closing.Wait()
	p.reportGone(gone)
	if err := errors.Join(p.closeArenas(gone), p.slots.close()); err != nil {
		return fmt.Errorf("close GPU pool: %w", err)
	}
	return nil
}
