//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"math"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// blockBytes is the size of the blocks that CUDA divides among small allocations. A handle always
// gives access to the whole block, so memory that is to be exported has its own blocks.
const blockBytes = 2 << 20

// imported is an open handle.
type imported struct {
	base  cudaipc.Ptr
	bytes int64
	count int
}

func (g *gpu) alloc(sizeBytes int64) (p cudaipc.Ptr, err error) {
	switch {
	case sizeBytes <= 0:
		return 0, g.invalid(symMemAlloc, "an allocation of %d bytes", sizeBytes)
	case sizeBytes > math.MaxInt64-blockBytes:
		return 0, g.outOfMemory(symMemAlloc, sizeBytes)
	}
	bytes := (sizeBytes + blockBytes - 1) / blockBytes * blockBytes
	err = g.do(func(c *caller) error {
		if err := g.must(c, symMemAlloc, address(&c.word), uintptr(bytes)); err != nil {
			return err
		}
		p = cudaipc.Ptr(c.word)
		g.allocs[p] = bytes
		g.ranges.add(p, bytes)
		return nil
	})
	return p, err
}

// freeMemory frees memory of alloc, and no other.
func (g *gpu) freeMemory(p cudaipc.Ptr) error {
	if err := g.synchronize(); err != nil {
		return err
	}
	return g.free(p)
}

func (g *gpu) free(p cudaipc.Ptr) error {
	err := g.do(func(*caller) error {
		if _, ok := g.allocs[p]; !ok {
			return g.invalid(symMemFree, "%#x was not allocated here, or is free already", uint64(p))
		}
		delete(g.allocs, p)
		g.ranges.remove(p)
		for h, base := range g.exported {
			if base == p {
				delete(g.exported, h)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return g.doUnlocked(func(c *caller) error { return g.must(c, symMemFree, uintptr(p)) })
}

// exportHandle exports the allocation around an address, which any code of this process may have
// made: PyTorch's memory can be exported too.
func (g *gpu) exportHandle(p cudaipc.Ptr) (h cudaipc.Handle, offset int64, err error) {
	err = g.do(func(c *caller) error {
		if err := g.must(c, symMemGetAddressRange, address(&c.word), address(&c.second), uintptr(p)); err != nil {
			return err
		}
		base := cudaipc.Ptr(c.word)
		if _, ok := g.arenas[base]; ok {
			return g.unsupported(symIpcGetMemHandle, "memory of an arena travels as a descriptor")
		}
		c.number = 1
		if c.call(symPointerGetAttribute, address(&c.number), pointerLegacyIPC, uintptr(p)) == success && c.number == 0 {
			return g.unsupported(symIpcGetMemHandle, "the memory was made without support for handles")
		}
		c.handle = cudaipc.Handle{}
		if err := g.must(c, symIpcGetMemHandle, address(&c.handle), uintptr(base)); err != nil {
			return err
		}
		h, offset = c.handle, int64(p-base)
		if _, ok := g.allocs[base]; ok {
			g.exported[h] = base
		}
		return nil
	})
	return h, offset, err
}

func (g *gpu) importHandle(h cudaipc.Handle) (base cudaipc.Ptr, sizeBytes int64, err error) {
	g.importMu.Lock()
	defer g.importMu.Unlock()
	known := false
	err = g.do(func(*caller) error {
		if _, ok := g.exported[h]; ok {
			return refusal(symIpcOpenMemHandle, invalidContext, g.card.uuid, cudaipc.ErrOwnHandle, "use the address")
		}
		open, ok := g.imports[h]
		if known = ok; ok {
			open.count++
			base, sizeBytes = open.base, open.bytes
		}
		return nil
	})
	if err != nil || known {
		return base, sizeBytes, err
	}
	closeAgain := func(c *caller) { c.call(symIpcCloseMemHandle, uintptr(base)) }
	err = g.doMapping(func(c *caller) error {
		if base, err = g.open(c, h); err != nil {
			return err
		}
		if err := g.must(c, symMemGetAddressRange, address(&c.word), address(&c.second), uintptr(base)); err != nil {
			closeAgain(c)
			return err
		}
		sizeBytes = int64(c.word+c.second) - int64(base)
		return nil
	}, func() {
		g.imports[h] = &imported{base, sizeBytes, 1}
		g.bases[base] = h
		g.ranges.add(base, sizeBytes)
	}, closeAgain)
	return base, sizeBytes, err
}

// open maps the allocation of a handle.
func (g *gpu) open(c *caller, h cudaipc.Handle) (cudaipc.Ptr, error) {
	c.handle = h
	var room [maxArgs]uintptr
	args := openArgs(room[:0], address(&c.word), &h, address(&c.handle), ipcLazyPeerAccess)
	got := c.call(symIpcOpenMemHandle, args...)
	if got == success {
		return cudaipc.Ptr(c.word), nil
	}
	err := g.fail(c, symIpcOpenMemHandle, got)
	// The driver returns this code for the process's own memory.
	if e := (*cudaipc.Error)(nil); got == invalidContext && errors.As(err, &e) {
		e.Err = cudaipc.ErrOwnHandle
	}
	return 0, asStale(err, got)
}

func (g *gpu) unimport(base cudaipc.Ptr) error {
	last := false
	err := g.do(func(*caller) error {
		h, ok := g.bases[base]
		if !ok {
			return g.invalid(symIpcCloseMemHandle, "%#x is no base of an import", uint64(base))
		}
		open := g.imports[h]
		if open.count > 1 {
			open.count--
			return nil
		}
		last = true
		return nil
	})
	if err != nil || !last {
		return err
	}
	// The import ends also after an error, because no later call would end it.
	settled := g.synchronize()
	g.importMu.Lock()
	defer g.importMu.Unlock()
	err = g.do(func(*caller) error {
		h, ok := g.bases[base]
		if !ok {
			return g.invalid(symIpcCloseMemHandle, "%#x is no base of an import", uint64(base))
		}
		// Another goroutine may have imported it meanwhile.
		if open := g.imports[h]; open.count > 1 {
			open.count--
			last = false
			return nil
		}
		delete(g.imports, h)
		delete(g.bases, base)
		g.ranges.remove(base)
		return nil
	})
	if err != nil || !last {
		return err
	}
	return g.doUnlocked(func(c *caller) error {
		if err := g.must(c, symIpcCloseMemHandle, uintptr(base)); err != nil {
			return err
		}
		return settled
	})
}
