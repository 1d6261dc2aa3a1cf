package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// gate is a range of device memory with tensors of a message, and the word that says when they are
// complete.
type gate struct {
	lane       *Lane
	dev        *device
	base       cudaipc.Ptr // address of the range
	generation uint32
	ready      *atomic.Uint32
	fault      *atomic.Uint32
	owner      Owner // nil: this process
	line       *line // its mirror is what streams wait for; nil until the first Await
	release    []func()
	poisoned   atomic.Bool // the tensors will never be complete

	// After close the words may be unmapped, while the watcher may still be about to read them.
	mu     sync.Mutex
	closed bool
}

// openGate maps a range that a message names.
func (l *Lane) openGate(ctx context.Context, p bundle.Place) (*gate, error) {
	dev, err := l.device(p.Device)
	if err != nil {
		return nil, err
	}
	g := &gate{lane: l, dev: dev, generation: p.Generation}
	if own, words := l.ownSender(p.Pool); own != nil {
		err = g.openOwn(own, words, p)
	} else {
		err = asPoisoned(g.openForeign(ctx, p))
	}
	if err != nil {
		g.close()
		return nil, fmt.Errorf("tensors on %v: %w", dev.uuid, err)
	}
	// The ready word counts generations. A holder of the piece has seen it start one before its own
	// generation: after a later generation the memory has another owner, and no reader may wait for
	// a future one.
	if ready := g.ready.Load(); ready != g.generation && ready != g.generation-1 {
		g.close()
		return nil, fmt.Errorf("tensors on %v: %w: generation %d of slot %d, which is at %d", dev.uuid, ErrForged, p.Generation, p.Slot, ready)
	}
	return g, nil
}

// asPoisoned turns the error for unpublished or stale memory into ErrPoisoned: names and handles
// end with their process.
func asPoisoned(err error) error {
	if errors.Is(err, ErrNotPublished) || errors.Is(err, cudaipc.ErrStaleHandle) {
		return fmt.Errorf("%w: their sender is dead, or has freed them: %w", ErrPoisoned, err)
	}
	return err
}

// openForeign maps a range of another process.
func (g *gate) openForeign(ctx context.Context, p bundle.Place) error {
	im := g.lane.imports
	from, err := im.get(ctx, p.Pool)
	if err != nil {
		return err
	}
	g.release = append(g.release, from.release)
	g.owner = from.owner
	if g.ready, g.fault, err = wordsOf(from.words, p.Slot); err != nil {
		return err
	}
	if p.Kind == bundle.PlaceHandle {
		base, sizeBytes, err := g.dev.Import(p.Handle)
		if errors.Is(err, cudaipc.ErrOwnHandle) { // another lane of this process
			return g.setLentBase(p)
		}
		if err != nil {
			return fmt.Errorf("open the producer's buffer: %w", err)
		}
		g.release = append(g.release, func() { _ = g.dev.Unimport(base) })
		return g.setBase(base, sizeBytes, p)
	}
	which := mapping{g.dev.uuid, p.Arena}
	a, err := from.arena(ctx, im, g.dev.Device, which)
	if err != nil {
		return err
	}
	g.release = append(g.release, func() { from.releaseArena(which) })
	return g.setBase(a.Base(), a.Bytes(), p)
}

// setLentBase sets the address of a range in an allocation of this process.
func (g *gate) setLentBase(p bundle.Place) error {
	base, sizeBytes, ok := findLent(p.Handle, g.dev.uuid)
	if !ok {
		return fmt.Errorf("%w: a handle of this process, by which no memory on %v was sent", ErrForged, g.dev.uuid)
	}
	return g.setBase(base, sizeBytes, p)
}

// setBase sets the address of a range in an arena or an allocation.
func (g *gate) setBase(base cudaipc.Ptr, sizeBytes int64, p bundle.Place) error {
	if p.Offset > sizeBytes || p.Bytes > sizeBytes-p.Offset {
		return fmt.Errorf("%w: %d bytes at %d of memory of %d", ErrForged, p.Bytes, p.Offset, sizeBytes)
	}
	g.base = base + cudaipc.Ptr(p.Offset)
	return nil
}

// isComplete reports whether the tensors are complete or never will be. mu is held.
func (g *gate) isComplete() bool { return cudaipc.Reached(g.ready.Load(), g.generation) }

// waitEnded reports whether waiting has ended: the tensors are complete, their producer is dead, or
// the message was closed.
func (g *gate) waitEnded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.isComplete() {
		return true
	}
	if g.owner == nil {
		return false
	}
	select {
	case <-g.owner.Done():
		return true
	default:
		return false
	}
}

// recordOutcome marks the tensors as poisoned if waiting has ended without them.
func (g *gate) recordOutcome() {
	g.mu.Lock()
	defer g.mu.Unlock()
	// Tensors that were complete before their producer died are valid.
	if !g.closed && (!g.isComplete() || g.fault.Load() == g.generation) {
		g.poisoned.Store(true)
	}
}

func (g *gate) err() error {
	switch {
	case g.dev.Err() != nil:
		return fmt.Errorf("tensors on %v: %w", g.dev.uuid, g.dev.Err())
	case g.poisoned.Load():
		return fmt.Errorf("tensors on %v: %w", g.dev.uuid, ErrPoisoned)
	}
	return nil
}

// wait waits until the tensors are complete.
func (g *gate) wait(ctx context.Context) error {
	if !g.waitEnded() {
		over := make(chan struct{})
		g.lane.watcher.add(g.dev, g.waitEnded, func() { close(over) })
		select {
		case <-over:
		case <-ctx.Done():
			return fmt.Errorf("wait for tensors on %v: %w", g.dev.uuid, ctx.Err())
		}
	}
	g.recordOutcome()
	if g.isClosed() {
		return fmt.Errorf("wait for tensors on %v: %w", g.dev.uuid, errMessageClosed)
	}
	return g.err()
}

func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// await makes a stream wait until the tensors are complete, or never will be. The wait itself runs
// on a stream of the lane: the owner of s, and the driver, may not support such a wait.
func (g *gate) await(s cudaipc.Stream) error {
	if g.waitEnded() {
		g.recordOutcome()
		return g.err()
	}
	if g.line == nil {
		line, err := g.dev.takeLine()
		if err != nil {
			return err
		}
		g.line = line
		g.dev.holdLine(line) // reference of the watcher
		seq := line.seq
		g.lane.watcher.add(g.dev, g.waitEnded, func() {
			g.recordOutcome() // before a stream continues
			line.mirror.Host.Store(seq)
			g.dev.giveLine(line)
		})
	}
	return g.dev.waitOnOwnStream(s, cudaipc.Op{Kind: cudaipc.OpWait, Word: g.line.mirror, Value: g.line.seq}, g.waitEnded)
}

// close releases everything that openGate acquired. No stream reads the memory any more.
func (g *gate) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	if g.line != nil {
		g.dev.giveLine(g.line)
	}
	for i := len(g.release) - 1; i >= 0; i-- {
		g.release[i]()
	}
	g.release = nil
}
