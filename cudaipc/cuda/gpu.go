//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// gpu is a device in use: its primary context, and the objects that were made there. All open
// cudaipc.Devices of it share it.
type gpu struct {
	lib  *library
	card card
	// caps is set when the device is opened. Until then all features are tried.
	caps    cudaipc.Caps
	context uintptr

	sticky   atomic.Pointer[cudaipc.Error]
	unlocked sync.WaitGroup // running calls of doUnlocked
	importMu sync.Mutex     // held while a handle is opened or closed

	mu      sync.Mutex // held during calls; guards all below
	caller  *caller
	stopped bool

	access      []int32 // devices with access to its arenas: itself, and its peers
	ranges      spans   // memory that CUDA certainly knows
	sparePoints []uintptr
	closedTails []uintptr // last points of streams that were closed with running operations
	streams     map[*stream]struct{}
	allocs      map[cudaipc.Ptr]int64
	arenas      map[cudaipc.Ptr]*arena
	imports     map[cudaipc.Handle]*imported
	bases       map[cudaipc.Ptr]cudaipc.Handle
	exported    map[cudaipc.Handle]cudaipc.Ptr // exported allocations
	hosts       int                            // pieces of registered memory
	events      int                            // including points
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

// fail returns the error of a call. A sticky code marks the device, and later calls return the
// first such error.
func (g *gpu) fail(c *caller, s symbol, got code) error {
	err := c.failure(s, got, g.card.uuid)
	if got.sticky() {
		g.sticky.CompareAndSwap(nil, err)
	}
	return err
}

// failed returns the sticky error, or nil.
func (g *gpu) failed() error {
	if err := g.sticky.Load(); err != nil {
		return err
	}
	return nil
}

// must makes a call and turns its code into an error.
func (g *gpu) must(c *caller, s symbol, args ...uintptr) error {
	if got := c.call(s, args...); got != success {
		return g.fail(c, s, got)
	}
	return nil
}

// invalid returns the error of an invalid argument, which the driver does not see.
func (g *gpu) invalid(s symbol, format string, args ...any) error {
	return refusal(s, invalidValue, g.card.uuid, cudaipc.ErrInvalid, format, args...)
}

// unsupported returns the error of a missing feature.
func (g *gpu) unsupported(s symbol, why string) error {
	return refusal(s, notSupported, g.card.uuid, cudaipc.ErrUnsupported, "%s", why)
}

// outOfMemory returns the error of an absurd size.
func (g *gpu) outOfMemory(s symbol, bytes int64) error {
	return refusal(s, outOfMemory, g.card.uuid, cudaipc.ErrOutOfMemory, "no device has %d bytes", bytes)
}

// closed returns the error of a closed object.
func (g *gpu) closed(s symbol, got code, what string) error {
	return refusal(s, got, g.card.uuid, cudaipc.ErrClosed, "the %s", what)
}

// span is a range of the address space.
type span struct{ base, end cudaipc.Ptr }

// spans are few: arenas, registered memory, imports. A linear search takes less time than a call of
// the driver.
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

// poll makes calls without effect, so that the driver reports failures. The results that mark the
// device as failed are kept by fail.
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

// addUsage adds the counts of the GPU's objects.
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
