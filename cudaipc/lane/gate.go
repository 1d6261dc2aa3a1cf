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

// gate is a place in device memory that a message's tensors lie in, and the
// word that says when they are complete.
type gate struct {
	lane       *Lane
	dev        *device
	base       cudaipc.Ptr // of the place
	generation uint32
	ready      *atomic.Uint32
	fault      *atomic.Uint32
	owner      Owner // nil: this process
	line       *line // with a mirror that streams wait for; nil: none yet
	release    []func()
	broken     atomic.Bool // they will never be complete

	// The words of a gate that was left may be unmapped, and whoever watched them
	// may still be about to look.
	mu   sync.Mutex
	left bool
}

// enter opens a place that a message names.
func (l *Lane) enter(ctx context.Context, p bundle.Place) (*gate, error) {
	dev, err := l.device(p.Device)
	if err != nil {
		return nil, err
	}
	g := &gate{lane: l, dev: dev, generation: p.Generation}
	if own, words := l.own(p.Pool); own != nil {
		err = g.enterOwn(own, words, p)
	} else {
		err = gone(g.enterForeign(ctx, p))
	}
	if err != nil {
		g.leave()
		return nil, fmt.Errorf("tensors on %v: %w", dev.uuid, err)
	}
	// The word counts generations. Whoever holds the piece has seen it begin one
	// before its own: beyond that the memory is somebody else's already, and what is
	// to come later nobody may wait for.
	if ready := g.ready.Load(); ready != g.generation && ready != g.generation-1 {
		g.leave()
		return nil, fmt.Errorf("tensors on %v: %w: generation %d of slot %d, which is at %d", dev.uuid, ErrForged, p.Generation, p.Slot, ready)
	}
	return g, nil
}

// gone says what it means that there is no memory by the name that its owner gave it:
// as of names, handles end with their process.
func gone(err error) error {
	if errors.Is(err, ErrNotPublished) || errors.Is(err, cudaipc.ErrStaleHandle) {
		return fmt.Errorf("%w: their sender is dead, or has freed them: %w", ErrPoisoned, err)
	}
	return err
}

// enterForeign opens a place of another process's.
func (g *gate) enterForeign(ctx context.Context, p bundle.Place) error {
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
			return g.withinLent(p)
		}
		if err != nil {
			return fmt.Errorf("open the producer's buffer: %w", err)
		}
		g.release = append(g.release, func() { _ = g.dev.Unimport(base) })
		return g.within(base, sizeBytes, p)
	}
	which := mapping{g.dev.uuid, p.Arena}
	a, err := from.arena(ctx, im, g.dev.Device, which)
	if err != nil {
		return err
	}
	g.release = append(g.release, func() { from.unuse(which) })
	return g.within(a.Base(), a.Bytes(), p)
}

// withinLent sets the address of a place in an allocation of this process's.
func (g *gate) withinLent(p bundle.Place) error {
	base, sizeBytes, ok := lentAt(p.Handle, g.dev.uuid)
	if !ok {
		return fmt.Errorf("%w: a handle of this process that nothing on %v was sent by", ErrForged, g.dev.uuid)
	}
	return g.within(base, sizeBytes, p)
}

// within sets the address of a place in an arena, or an allocation.
func (g *gate) within(base cudaipc.Ptr, sizeBytes int64, p bundle.Place) error {
	if p.Offset > sizeBytes || p.Bytes > sizeBytes-p.Offset {
		return fmt.Errorf("%w: %d bytes at %d of memory of %d", ErrForged, p.Bytes, p.Offset, sizeBytes)
	}
	g.base = base + cudaipc.Ptr(p.Offset)
	return nil
}

// complete reports, with mu held, whether the tensors are, or never will be.
func (g *gate) complete() bool { return cudaipc.Reached(g.ready.Load(), g.generation) }

// over reports whether waiting is over: the tensors are complete, whoever would
// complete them is dead, or nobody reads them any more.
func (g *gate) over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left || g.complete() {
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

// judge says what the end of waiting means.
func (g *gate) judge() {
	g.mu.Lock()
	defer g.mu.Unlock()
	// What was written before its producer died is complete.
	if !g.left && (!g.complete() || g.fault.Load() == g.generation) {
		g.broken.Store(true)
	}
}

func (g *gate) err() error {
	switch {
	case g.dev.Err() != nil:
		return fmt.Errorf("tensors on %v: %w", g.dev.uuid, g.dev.Err())
	case g.broken.Load():
		return fmt.Errorf("tensors on %v: %w", g.dev.uuid, ErrPoisoned)
	}
	return nil
}

// wait waits until the tensors are complete.
func (g *gate) wait(ctx context.Context) error {
	if !g.over() {
		over := make(chan struct{})
		g.lane.watcher.add(g.dev, g.over, func() { close(over) })
		select {
		case <-over:
		case <-ctx.Done():
			return fmt.Errorf("wait for tensors on %v: %w", g.dev.uuid, ctx.Err())
		}
	}
	g.judge()
	if g.isLeft() {
		return fmt.Errorf("wait for tensors on %v: %w", g.dev.uuid, errGivenBack)
	}
	return g.err()
}

func (g *gate) isLeft() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left
}

// await has a stream wait until the tensors are complete, or never will be.
// The wait itself is on a stream of the lane's: whoever owns s may not know what
// it would wait for, nor may the driver.
func (g *gate) await(s cudaipc.Stream) error {
	if g.over() {
		g.judge()
		return g.err()
	}
	if g.line == nil {
		line, err := g.dev.takeLine()
		if err != nil {
			return err
		}
		g.line = line
		g.dev.holdLine(line) // for the watcher
		seq := line.seq
		g.lane.watcher.add(g.dev, g.over, func() {
			g.judge() // before anybody is let through
			line.mirror.Host.Store(seq)
			g.dev.giveLine(line)
		})
	}
	return g.dev.bridge(s, cudaipc.Op{Kind: cudaipc.OpWait, Word: g.line.mirror, Value: g.line.seq}, g.over)
}

// leave gives back what entering took. No stream reads there any more.
func (g *gate) leave() {
	g.mu.Lock()
	g.left = true
	g.mu.Unlock()
	if g.line != nil {
		g.dev.giveLine(g.line)
	}
	for i := len(g.release) - 1; i >= 0; i-- {
		g.release[i]()
	}
	g.release = nil
}
