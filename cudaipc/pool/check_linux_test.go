package pool

import (
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// TestCheckFindsDamage breaks each invariant by hand and expects its name.
func TestCheckFindsDamage(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	for _, tc := range []struct {
		invariant, name string
		damage          func(p *Pool) (undo func())
	}{
		{InvariantSlots, "lost", func(p *Pool) func() {
			free := p.slots.free
			p.slots.free = free[1:]
			return func() { p.slots.free = free }
		}},
		{InvariantSlots, "listed twice", func(p *Pool) func() {
			p.slots.free = append(p.slots.free, p.slots.free[0])
			return func() { p.slots.free = p.slots.free[:len(p.slots.free)-1] }
		}},
		{InvariantSlots, "without a chunk", func(p *Pool) func() {
			c := p.chunks[0]
			p.chunks[0] = chunk{}
			return func() { p.chunks[0] = c }
		}},
		{InvariantSlots, "without a generation", func(p *Pool) func() {
			p.slots.generations[0] = 0
			return func() { p.slots.generations[0] = 1 }
		}},
		{InvariantWords, "ahead", func(p *Pool) func() {
			ready := p.Chunk(1).Ready.Host
			ready.Add(2)
			return func() { ready.Store(0) }
		}},
		{InvariantBounds, "beyond the arena", func(p *Pool) func() {
			p.chunks[1].bytes += 1 << 20
			return func() { p.chunks[1].bytes -= 1 << 20 }
		}},
		{InvariantOverlap, "on another", func(p *Pool) func() {
			at := p.chunks[1].offset
			p.chunks[1].offset = p.chunks[0].offset
			return func() { p.chunks[1].offset = at }
		}},
		{InvariantArenas, "miscounted", func(p *Pool) func() {
			p.totalBytes++
			return func() { p.totalBytes-- }
		}},
		{InvariantArenas, "forgotten", func(p *Pool) func() {
			arenas := p.arenas
			p.arenas = nil
			return func() { p.arenas = arenas }
		}},
		{rangesPrefix + "blocks in use", "freed behind the back", func(p *Pool) func() {
			extra, _ := p.arenas[0].ranges.Allocate(1)
			broken := *p.arenas[0].ranges
			p.arenas[0].ranges.Free(extra)
			sound := p.arenas[0].ranges
			p.arenas[0].ranges = &broken
			return func() { p.arenas[0].ranges = sound }
		}},
	} {
		t.Run(tc.invariant+"/"+tc.name, func(t *testing.T) {
			p := machine.pool(t, small)
			pieces := []uint32{mustAllocate(t, p, 1000), mustAllocate(t, p, 1000)}
			wantClean(t, p.Check())
			undo := tc.damage(p)
			found := p.Check()
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == tc.invariant && v.Detail != "" }) {
				t.Errorf("Check found %v, want %q", found, tc.invariant)
			}
			undo()
			for _, piece := range pieces {
				free(p, piece)
			}
		})
	}
}
