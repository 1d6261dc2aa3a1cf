//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"math"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// arena is physical memory of a device, mapped into this process. The mapping and the descriptor
// keep the memory alive: its own handle is released at once.
type arena struct {
	g      *gpu
	base   cudaipc.Ptr
	bytes  int64
	fd     int
	closed atomic.Bool
}

// Base implements cudaipc.Arena.
func (a *arena) Base() cudaipc.Ptr { return a.base }

// Bytes implements cudaipc.Arena.
func (a *arena) Bytes() int64 { return a.bytes }

// FD implements cudaipc.Arena.
func (a *arena) FD() int { return a.fd }

// newArena makes memory and maps it.
func (g *gpu) newArena(sizeBytes int64) (a *arena, err error) {
	if sizeBytes <= 0 {
		return nil, g.invalid(symMemCreate, "an arena of %d bytes", sizeBytes)
	}
	a = &arena{g: g, fd: -1}
	err = g.doMapping(func(c *caller) error {
		unit, err := g.granularity(c)
		if err != nil {
			return err
		}
		if sizeBytes > math.MaxInt64-unit {
			return g.outOfMemory(symMemCreate, sizeBytes)
		}
		a.bytes = (sizeBytes + unit - 1) / unit * unit
		g.describe(c)
		if err := g.must(c, symMemCreate, address(&c.word), uintptr(a.bytes), address(&c.memory), 0); err != nil {
			return err
		}
		memory := uintptr(c.word)
		defer c.call(symMemRelease, memory)
		if a.fd, err = g.export(c, memory); err != nil {
			return err
		}
		if a.base, err = g.mapMemory(c, memory, a.bytes); err != nil {
			unix.Close(a.fd)
		}
		return err
	}, a.track, func(c *caller) { unix.Close(a.fd); _ = a.unmap(c) })
	if err != nil {
		return nil, err
	}
	return a, nil
}

// granularity returns the unit of sizes and addresses of arenas.
func (g *gpu) granularity(c *caller) (int64, error) {
	g.describe(c)
	if err := g.must(c, symMemGetAllocationGranularity, address(&c.word), address(&c.memory), granularityMinimum); err != nil {
		return 0, err
	}
	if unit := int64(c.word); unit > 0 {
		return unit, nil
	}
	return 0, g.unsupported(symMemGetAllocationGranularity, "the granularity of memory is 0")
}

// describe fills in the frame's description of an arena's memory.
func (g *gpu) describe(c *caller) {
	c.memory = allocation{
		kind: allocationPinned, handles: handleDescriptor,
		where: location{locationDevice, g.card.number},
	}
}

// export makes the descriptor of memory. The fork lock keeps it out of programs that are started
// meanwhile.
func (g *gpu) export(c *caller, memory uintptr) (int, error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	c.number = -1
	if err := g.must(c, symMemExportToShareableHandle, address(&c.number), memory, handleDescriptor, 0); err != nil {
		return -1, err
	}
	fd := int(c.number)
	unix.CloseOnExec(fd)
	return fd, nil
}

// mapMemory maps memory at an address that the device and its peers may use.
func (g *gpu) mapMemory(c *caller, memory uintptr, bytes int64) (cudaipc.Ptr, error) {
	if err := g.must(c, symMemAddressReserve, address(&c.word), uintptr(bytes), 0, 0, 0); err != nil {
		return 0, err
	}
	base := uintptr(c.word)
	err := g.must(c, symMemMap, base, uintptr(bytes), 0, memory, 0)
	if err == nil {
		if err = g.grant(c, base, bytes); err == nil {
			return cudaipc.Ptr(base), nil
		}
		c.call(symMemUnmap, base, uintptr(bytes))
	}
	c.call(symMemAddressFree, base, uintptr(bytes))
	return 0, err
}

// grant gives access to the device and its peers; if that fails, to the device alone, since peers
// are optional.
func (g *gpu) grant(c *caller, base uintptr, bytes int64) error {
	n := 0
	for _, number := range g.access {
		if n < len(c.reach) {
			c.reach[n] = access{location{locationDevice, number}, accessReadWrite}
			n++
		}
	}
	got := c.call(symMemSetAccess, base, uintptr(bytes), address(&c.reach), uintptr(n))
	if got != success && n > 1 {
		got = c.call(symMemSetAccess, base, uintptr(bytes), address(&c.reach), 1)
	}
	if got != success {
		return g.fail(c, symMemSetAccess, got)
	}
	return nil
}

// importArena maps the memory behind a descriptor.
func (g *gpu) importArena(fd int, sizeBytes int64) (a *arena, err error) {
	if fd < 0 || sizeBytes <= 0 {
		return nil, g.invalid(symMemImportFromShareableHandle, "an arena of %d bytes behind descriptor %d", sizeBytes, fd)
	}
	a = &arena{g: g, bytes: sizeBytes, fd: -1}
	err = g.doMapping(func(c *caller) error {
		unit, err := g.granularity(c)
		if err != nil {
			return err
		}
		if sizeBytes%unit != 0 {
			return g.invalid(symMemImportFromShareableHandle, "an arena of %d bytes, which is no multiple of %d", sizeBytes, unit)
		}
		// The descriptor travels as a pointer by value, not behind one.
		got := c.call(symMemImportFromShareableHandle, address(&c.word), uintptr(fd), handleDescriptor)
		if got != success {
			return asStale(g.fail(c, symMemImportFromShareableHandle, got), got)
		}
		memory := uintptr(c.word)
		defer c.call(symMemRelease, memory)
		a.base, err = g.mapMemory(c, memory, sizeBytes)
		return err
	}, a.track, func(c *caller) { _ = a.unmap(c) })
	if err != nil {
		return nil, err
	}
	return a, nil
}

// asStale makes a general error of the driver for a handle or a descriptor an ErrStaleHandle.
func asStale(err error, got code) error {
	switch got {
	case invalidValue, mapFailed, operatingSystem, invalidHandle:
		var e *cudaipc.Error
		if errors.As(err, &e) {
			e.Err = cudaipc.ErrStaleHandle
		}
	default:
	}
	return err
}

// track records the mapped arena.
func (a *arena) track() {
	a.g.arenas[a.base] = a
	a.g.ranges.add(a.base, a.bytes)
}

// unmap releases the arena's memory and its address.
func (a *arena) unmap(c *caller) error {
	if err := a.g.must(c, symMemUnmap, uintptr(a.base), uintptr(a.bytes)); err != nil {
		return err
	}
	return a.g.must(c, symMemAddressFree, uintptr(a.base), uintptr(a.bytes))
}

// Close implements cudaipc.Arena. It waits for the operations that were submitted before.
func (a *arena) Close() error {
	if a.closed.Swap(true) {
		return nil
	}
	if a.fd >= 0 {
		unix.Close(a.fd)
	}
	g := a.g
	settled := g.synchronize()
	return g.doFreeing(func(*caller) error {
		delete(g.arenas, a.base)
		g.ranges.remove(a.base)
		return nil
	}, func(c *caller) error {
		if err := a.unmap(c); err != nil {
			return err
		}
		return settled
	})
}
