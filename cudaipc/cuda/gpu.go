//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// gpu is a device in use: its primary context, and what was made there. Every
// cudaipc.Device that is open on it shares it.
type gpu struct {
	lib  *library
	card card
	// From when it was opened on. Until then everything is tried.
	caps    cudaipc.Caps
	context uintptr

	sticky   atomic.Pointer[cudaipc.Error]
	unlocked sync.WaitGroup // for calls without mu
	importMu sync.Mutex     // of handles: one is not opened while it is being closed

	mu      sync.Mutex // around calls, and all below
	caller  *caller
	stopped bool

	access      []int32 // devices that see its arenas: itself, and its peers
	ranges      spans   // memory that CUDA knows, for sure
	sparePoints []uintptr
	closedTails []uintptr // points behind streams that were closed while they worked
	streams     map[*stream]struct{}
	allocs      map[cudaipc.Ptr]int64
	arenas      map[cudaipc.Ptr]*arena
	imports     map[cudaipc.Handle]*imported
	bases       map[cudaipc.Ptr]cudaipc.Handle
	exported    map[cudaipc.Handle]cudaipc.Ptr // what was exported of allocs
	hosts       int                            // pieces of registered memory
	events      int                            // points too
}

// startGPU makes the context.
func startGPU(lib *library, of card, peers []int32) (*gpu, error) {
	g := &gpu{
		lib:      lib,
		card:     of,
		access:   append([]int32{of.number}, peers...),
		streams:  make(map[*stream]struct{}),
		allocs:   make(map[cudaipc.Ptr]int64),
		arenas:   make(map[cudaipc.Ptr]*arena),
		imports:  make(map[cudaipc.Handle]*imported),
		bases:    make(map[cudaipc.Ptr]cudaipc.Handle),
		exported: make(map[cudaipc.Handle]cudaipc.Ptr),
	}
	var err error
	if g.caller, err = newCaller(&lib.addresses); err != nil {
		return nil, err
	}
	if err := g.retain(); err != nil {
		g.caller.free()
		return nil, err
	}
	return g, nil
}

// fail is the error of a call. One after which the context is lost marks the
// device, and every call from then on gets the first such error.
func (g *gpu) fail(c *caller, s symbol, got code) error {
	err := c.failure(s, got, g.card.uuid)
	if got.sticky() {
		g.sticky.CompareAndSwap(nil, err)
	}
	return err
}

// failed is the sticky error, if there is one.
func (g *gpu) failed() error {
	if err := g.sticky.Load(); err != nil {
		return err
	}
	return nil
}

// must turns a code into an error.
func (g *gpu) must(c *caller, s symbol, args ...uintptr) error {
	if got := c.call(s, args...); got != success {
		return g.fail(c, s, got)
	}
	return nil
}

// invalid is the error for an argument that the driver is not even asked about.
func (g *gpu) invalid(s symbol, format string, args ...any) error {
	return refusal(s, invalidValue, g.card.uuid, cudaipc.ErrInvalid, format, args...)
}

// unsupported is the error for what the device was seen not to have.
func (g *gpu) unsupported(s symbol, why string) error {
	return refusal(s, notSupported, g.card.uuid, cudaipc.ErrUnsupported, "%s", why)
}

// outOfMemory is the error for a size that is beyond counting.
func (g *gpu) outOfMemory(s symbol, bytes int64) error {
	return refusal(s, outOfMemory, g.card.uuid, cudaipc.ErrOutOfMemory, "nothing has %d bytes", bytes)
}

// closed is the error for the use of something after its end.
func (g *gpu) closed(s symbol, got code, what string) error {
	return refusal(s, got, g.card.uuid, cudaipc.ErrClosed, "the %s", what)
}

// span is a piece of the address space.
type span struct{ base, end cudaipc.Ptr }

// spans are few: arenas, registered memory, imports. Looking through all of
// them takes less than asking the driver.
type spans []span

func (s *spans) add(base cudaipc.Ptr, sizeBytes int64) {
	*s = append(*s, span{base, base + cudaipc.Ptr(sizeBytes)})
}

func (s *spans) remove(base cudaipc.Ptr) {
	for i, old := range *s {
		if old.base == base {
			*s = append((*s)[:i], (*s)[i+1:]...)
			return
		}
	}
}

func (s spans) contain(p cudaipc.Ptr) bool {
	for _, known := range s {
		if p >= known.base && p < known.end {
			return true
		}
	}
	return false
}

// poll makes calls that do nothing, to be told of failures. Those that end the
// device are what it is about.
func (g *gpu) poll() {
	_ = g.do(func(c *caller) error {
		for s := range g.streams {
			if got := c.call(symStreamQuery, s.raw); got != success && got != notReady {
				return g.fail(c, symStreamQuery, got)
			}
		}
		return g.must(c, symMemGetInfo, address(&c.word), address(&c.second))
	})
}

// addUsage counts what is there.
func (g *gpu) addUsage(u *cudaipc.Usage) {
	_ = g.do(func(*caller) error {
		for _, bytes := range g.allocs {
			u.Bytes += bytes
		}
		for _, a := range g.arenas {
			if a.fd < 0 {
				u.Imports++
				continue
			}
			u.Arenas++
			u.Bytes += a.bytes
		}
		for _, open := range g.imports {
			u.Imports += open.count
		}
		u.Allocations += len(g.allocs)
		u.HostMemories += g.hosts
		u.Streams += len(g.streams)
		u.Events += g.events - len(g.sparePoints) - len(g.closedTails)
		return nil
	})
}
