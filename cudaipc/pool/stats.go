package pool

import "fmt"

// counters count since the pool was made.
type counters struct {
	grown, shrunk, failures uint64
	lastFailure             error
}

// Stats are the figures of one moment. Sizes are in bytes.
type Stats struct {
	Slots       int
	Pieces      int // in use
	Arenas      int
	ArenaBytes  int64 // of all arenas
	MaxBytes    int64 // bound of ArenaBytes
	UsedBytes   int64 // of the pieces in use, in whole granules
	LargestFree int64 // in one piece

	GrownTotal    uint64 // arenas ever made
	ShrunkTotal   uint64 // of them, closed because they were empty
	FailuresTotal uint64 // calls that the device refused
	LastFailure   error  // the last failure; nil: none
}

// Stats returns the present figures.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{
		Slots:         len(p.chunks),
		Pieces:        p.slots.used(),
		Arenas:        len(p.arenas),
		ArenaBytes:    p.totalBytes,
		MaxBytes:      p.opts.MaxBytes,
		GrownTotal:    p.counters.grown,
		ShrunkTotal:   p.counters.shrunk,
		FailuresTotal: p.counters.failures,
		LastFailure:   p.counters.lastFailure,
	}
	for _, a := range p.arenas {
		st.UsedBytes += a.ranges.UsedBytes()
		st.LargestFree = max(st.LargestFree, a.ranges.LargestFree())
	}
	return st
}

// String describes the used and free space, for people.
func (p *Pool) String() string {
	st := p.Stats()
	return fmt.Sprintf("a pool of %d bytes, of which %d are in use in %d pieces of at most %d, and %d are free in one; it may have %d bytes",
		st.ArenaBytes, st.UsedBytes, st.Pieces, st.Slots, st.LargestFree, st.MaxBytes)
}

// String describes the used and free space, for people.
func (e *Exports) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("%d of at most %d messages in buffers of their own are read", e.slots.used(), len(e.kept))
}
