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

// patience is for how many frees an empty arena is kept before it is given back,
// and how many pass after the device refused one before it is asked again. Making
// arenas takes about as long as clearing so much memory.
const idleFrees = 64

// Pool is device memory that is shared out in chunks. It is a device for one
// store.
type Pool struct {
	dev      cudaipc.Device
	opts     Options
	byHandle bool // arenas are of memory that handles name

	closing sync.WaitGroup // arenas that are being given back

	mu         sync.Mutex
	slots      *slots
	chunks     []chunk  // by slot
	arenas     []*arena // by number; the first one stays
	lastArena  uint32   // the number last given out
	totalBytes int64    // of all arenas
	// closingBytes are those of arenas that are being given back, and that the device
	// has still.
	closingBytes int64
	frees        uint64
	growAgainAt  uint64 // not before so many frees is the device asked for an arena
	counters     counters
	closed       bool
}

var _ shmstore.Grower = (*Pool)(nil)

// arena is one arena of a pool, and who has which part of it.
type arena struct {
	number     uint32
	memory     cudaipc.Arena
	ranges     *tlsf.Allocator
	emptySince uint64 // frees
}

// chunk is where a piece lies.
type chunk struct {
	arena         *arena
	offset, bytes int64
}

// Chunk is a piece of a pool and where it lies: in the arena with this number, and
// in this process at Ptr.
type Chunk struct {
	Piece

	Arena  uint32
	Offset int64
	Bytes  int64 // as they were asked for
	Ptr    cudaipc.Ptr
}

// New makes a pool with one arena on a device that stays the caller's, and is
// closed after the pool. The errors are those of Options.Validate, of the device,
// and of shmstore.NewSegment.
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

// ID names the pool in all processes. It was drawn at random.
func (p *Pool) ID() [16]byte { return p.slots.id }

// Words is the words segment, for passing on. It stays the pool's own.
func (p *Pool) Words() *shmstore.Segment { return p.slots.segment }

// MaxBytes is half an arena: a piece that is larger would leave the rest of its
// arena to crumbs.
func (p *Pool) MaxBytes() int64 { return p.opts.ArenaBytes / 2 }

// Pieces is the number of pieces in use.
func (p *Pool) Pieces() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots.used()
}

// Allocate gives out a chunk of the first arena that has room, so that the others
// become empty in time.
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

// Grow gets one more arena, if there may be one.
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

// recordFailure takes down what the device refused.
func (p *Pool) recordFailure(err error) {
	p.counters.failures++
	p.counters.lastFailure = err
}

// Free takes a chunk back, and gives arenas back that have been empty for long. For that
// the driver may wait for streams, which nobody else does.
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

// reportGone says of arenas that they are no longer the pool's.
func (p *Pool) reportGone(gone []*arena) {
	for _, a := range gone {
		p.opts.OnArenaGone(a.number)
	}
}

// freeChunk takes a chunk back, and takes out the arenas that are to be closed.
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

// Late is the number of pieces that were freed while a stream still wrote to them.
// They are given out again when it does not: whoever waits for room looks once more
// then.
func (p *Pool) Late() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.slots.late)
}

// removeIdle takes out the arenas that have been empty for long.
func (p *Pool) removeIdle() (idle []*arena) {
	// What others have opened by a handle must not be freed, and nobody hears when
	// they close it.
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

// closeArenas gives arenas back that are no longer the pool's.
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

// Chunk says where a piece lies, for whoever holds it. From here on the piece is not
// given out again before its word is there.
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

// Close gives all memory back to the device. While pieces are in use it does
// nothing, and the error wraps shmstore.ErrBusy: close the store before. Other
// errors are the device's, and nothing is left all the same. Closing again does
// nothing.
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
