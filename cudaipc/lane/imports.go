package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// imports holds the mapped pools of other processes. Mapped arenas stay, so that later tensors need
// no mapping, until their owner is dead or has withdrawn them, and no message reads them. That is
// checked before new arenas are mapped, and every tidyEvery.
type imports struct {
	directory  Directory
	openMu     ctxMutex        // held while a pool is opened
	ctx        context.Context // context of tidy
	stop       context.CancelFunc
	background sync.WaitGroup // tidy and unmap calls

	mu     sync.Mutex
	pools  map[[16]byte]*imported
	tidier *time.Timer // nil: there are no pools
	closed bool
}

// tidyEvery is the interval of tidy.
const tidyEvery = 10 * time.Second

func newImports(dir Directory) *imports {
	im := &imports{directory: dir, openMu: newCtxMutex(), pools: make(map[[16]byte]*imported)}
	im.ctx, im.stop = context.WithCancel(context.Background())
	return im
}

// ctxMutex is a mutex whose lock waits no longer than a context. The call that asks the directory
// and maps the result holds it; calls that need no mapping do not.
type ctxMutex chan struct{}

func newCtxMutex() ctxMutex { return make(ctxMutex, 1) }

func (t ctxMutex) lock(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t ctxMutex) unlock() { <-t }

// imported is one pool of another process.
type imported struct {
	id    [16]byte
	owner Owner
	words *shmstore.Segment

	mapMu ctxMutex // held while an arena is mapped

	mu     sync.Mutex
	arenas map[mapping]cudaipc.Arena
	uses   map[mapping]int // open messages of each arena
	refs   int             // open messages that read the words
	closed bool
}

// mapping is an arena and the GPU that has it mapped: a mapping on one GPU is of no use on another.
type mapping struct {
	device cudaipc.UUID
	number uint32
}

// get returns a pool with one more reference, and opens it first if it is new.
func (im *imports) get(ctx context.Context, id [16]byte) (*imported, error) {
	if p := im.known(id); p != nil {
		return p, nil
	}
	if err := im.openMu.lock(ctx); err != nil {
		return nil, fmt.Errorf("memory %v of another process: %w", Name{Pool: id}, err)
	}
	defer im.openMu.unlock()
	if p := im.known(id); p != nil {
		return p, nil
	}
	found, err := im.find(ctx, Name{Pool: id})
	if err != nil {
		return nil, err
	}
	seg, err := shmstore.OpenSegment("words", found.FD, found.SizeBytes)
	if err != nil {
		return nil, fmt.Errorf("words of pool %v: %w", Name{Pool: id}, err)
	}
	p := &imported{
		id: id, owner: found.Owner, words: seg, mapMu: newCtxMutex(),
		arenas: make(map[mapping]cudaipc.Arena), uses: make(map[mapping]int), refs: 1,
	}
	im.sweep()
	im.mu.Lock()
	defer im.mu.Unlock()
	im.pools[id] = p
	if im.tidier == nil && !im.closed {
		im.tidier = time.AfterFunc(tidyEvery, im.tidyAgain)
	}
	return p, nil
}

// known returns an open pool with one more reference, or nil.
func (im *imports) known(id [16]byte) *imported {
	im.mu.Lock()
	defer im.mu.Unlock()
	if p := im.pools[id]; p != nil && p.retain() {
		return p
	}
	return nil
}

func (im *imports) find(ctx context.Context, name Name) (Found, error) {
	if im.directory == nil {
		return Found{}, fmt.Errorf("memory %v of another process: %w: this lane was opened without one", name, ErrUnavailable)
	}
	found, err := im.directory.Find(ctx, name)
	if err != nil {
		return Found{}, fmt.Errorf("memory %v of another process: %w", name, err)
	}
	return found, nil
}

// sweep closes the pools of dead processes that no message reads.
func (im *imports) sweep() {
	for _, p := range im.all() {
		if p.dead() && p.closeUnused(im) {
			im.mu.Lock()
			if im.pools[p.id] == p {
				delete(im.pools, p.id)
			}
			im.mu.Unlock()
		}
	}
}

func (im *imports) all() (pools []*imported) {
	im.mu.Lock()
	defer im.mu.Unlock()
	for _, p := range im.pools {
		pools = append(pools, p)
	}
	return pools
}

// tidyAgain calls tidy, and sets the timer again while there are pools.
func (im *imports) tidyAgain() {
	if !im.addBackground() {
		return
	}
	defer im.background.Done()
	im.tidy()
	im.mu.Lock()
	defer im.mu.Unlock()
	switch {
	case im.closed:
	case len(im.pools) == 0:
		im.tidier = nil
	default:
		im.tidier.Reset(tidyEvery)
	}
}

// tidy closes the unread pools of dead processes, and unmaps withdrawn arenas, which would keep
// memory of a GPU in use.
func (im *imports) tidy() {
	im.sweep()
	for _, p := range im.all() {
		if p.mapMu.lock(im.ctx) == nil {
			p.dropWithdrawn(im.ctx, im)
			p.mapMu.unlock()
		}
	}
}

// addBackground registers a background call that close waits for. It returns false if close has
// begun.
func (im *imports) addBackground() bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	if !im.closed {
		im.background.Add(1)
	}
	return !im.closed
}

// unmap closes an arena in the background, because the driver may wait for all streams; only close
// waits for that. No caller could handle the error.
func (im *imports) unmap(a cudaipc.Arena) {
	if !im.addBackground() {
		_ = a.Close()
		return
	}
	go func() {
		defer im.background.Done()
		_ = a.Close()
	}()
}

// close closes all pools. No message is open any more.
func (im *imports) close() error {
	im.mu.Lock()
	im.closed = true
	if im.tidier != nil {
		im.tidier.Stop()
	}
	im.mu.Unlock()
	im.stop()
	im.background.Wait()
	var errs []error
	for id, p := range im.pools {
		if !p.closeUnused(im) {
			errs = append(errs, fmt.Errorf("messages still read pool %v", Name{Pool: p.id}))
		}
		delete(im.pools, id)
	}
	return errors.Join(errs...)
}

// dead reports whether the pool's process is dead.
func (p *imported) dead() bool {
	select {
	case <-p.owner.Done():
		return true
	default:
		return false
	}
}

func (p *imported) retain() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.refs++
	}
	return !p.closed
}

func (p *imported) release() {
	p.mu.Lock()
	p.refs--
	p.mu.Unlock()
}

// closeUnused closes the pool unless a message reads it.
func (p *imported) closeUnused(im *imports) bool {
	p.mu.Lock()
	unused, closed := p.refs == 0, p.closed
	var arenas map[mapping]cudaipc.Arena
	if unused {
		arenas, p.arenas = p.arenas, nil // a concurrent tidy finds none
	}
	p.closed = closed || unused
	p.mu.Unlock()
	if !unused || closed {
		return unused
	}
	for _, a := range arenas {
		im.unmap(a)
	}
	p.words.Close()
	return true
}

// wordsOf returns the words of a piece.
func wordsOf(words *shmstore.Segment, slot uint32) (ready, fault *atomic.Uint32, err error) {
	at := int64(slot) * pool.SlotBytes
	if at > words.Size()-pool.SlotBytes {
		return nil, nil, fmt.Errorf("%w: slot %d of %d", ErrForged, slot, words.Size()/pool.SlotBytes)
	}
	return wordAt(words.Bytes(), at+pool.ReadyOffset), wordAt(words.Bytes(), at+pool.FaultOffset), nil
}

// arena maps an arena of the pool on a device, and counts one use of it. The caller holds a
// reference to the pool.
func (p *imported) arena(ctx context.Context, im *imports, dev cudaipc.Device, which mapping) (cudaipc.Arena, error) {
	if a := p.useArena(which); a != nil {
		return a, nil
	}
	name := Name{Pool: p.id, Number: which.number}
	if which.number == wordsNumber {
		return nil, fmt.Errorf("%w: the words of a pool are no arena", ErrForged)
	}
	if err := p.mapMu.lock(ctx); err != nil {
		return nil, fmt.Errorf("memory %v of another process: %w", name, err)
	}
	defer p.mapMu.unlock()
	if a := p.useArena(which); a != nil {
		return a, nil
	}
	p.dropWithdrawn(ctx, im)
	found, err := im.find(ctx, name)
	if err != nil {
		return nil, err
	}
	a, err := importFound(dev, which.number, found)
	if err != nil {
		return nil, fmt.Errorf("map %v: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arenas[which] = a
	p.uses[which]++
	return a, nil
}

// useArena counts one use of a mapped arena; nil: it is not mapped.
func (p *imported) useArena(which mapping) cudaipc.Arena {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.arenas[which]
	if a != nil {
		p.uses[which]++
	}
	return a
}

// releaseArena undoes one use of an arena.
func (p *imported) releaseArena(which mapping) {
	p.mu.Lock()
	p.uses[which]--
	p.mu.Unlock()
}

// dropWithdrawn unmaps arenas that the owner has withdrawn, because they would keep the memory in
// use. mapMu is held. Arenas are seldom made or withdrawn.
func (p *imported) dropWithdrawn(ctx context.Context, im *imports) {
	for _, which := range p.unused() {
		found, err := im.directory.Find(ctx, Name{Pool: p.id, Number: which.number})
		if err == nil {
			closeDescriptor(found.FD)
		} else if errors.Is(err, ErrNotPublished) {
			p.drop(im, which)
		}
	}
}

// unused returns the arenas that no message uses.
func (p *imported) unused() (found []mapping) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for which := range p.arenas {
		if p.uses[which] == 0 {
			found = append(found, which)
		}
	}
	return found
}

// drop unmaps an arena, unless a message uses it by now.
func (p *imported) drop(im *imports, which mapping) {
	p.mu.Lock()
	a := p.arenas[which]
	unused := p.uses[which] == 0
	if unused {
		delete(p.arenas, which)
		delete(p.uses, which)
	}
	p.mu.Unlock()
	if unused && a != nil {
		im.unmap(a)
	}
}
