package emul

import (
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// arena is memory made by NewArena or mapped by ImportArena.
type arena struct {
	primary *primary
	memory  *memory
	fd      int
	closed  atomic.Bool
}

func newArena(p *primary, m *memory) *arena { return &arena{primary: p, memory: m, fd: m.fd} }

// Base implements [cudaipc.Arena].
func (a *arena) Base() cudaipc.Ptr { return cudaipc.Ptr(a.memory.base) }

// Bytes implements [cudaipc.Arena].
func (a *arena) Bytes() int64 { return int64(a.memory.bytes) }

// FD implements [cudaipc.Arena].
func (a *arena) FD() int { return a.fd }

// Close implements [cudaipc.Arena]. Later operations find no memory at its addresses.
func (a *arena) Close() error {
	if a.closed.Swap(true) || !a.primary.untrack(a.memory) {
		return nil
	}
	a.primary.release(a.memory)
	return a.primary.failure("Arena.Close")
}

// hostMemory is registered host memory.
type hostMemory struct {
	primary *primary
	region  *region
	closed  atomic.Bool
}

// RegisterHost implements [cudaipc.Device].
func (v *device) RegisterHost(mem []byte, readOnly bool) (cudaipc.HostMemory, error) {
	const call = "RegisterHost"
	if err := v.check(call); err != nil {
		return nil, err
	}
	if err := v.missing(call, "RegisterHost"); err != nil {
		return nil, err
	}
	if readOnly {
		if err := v.missing(call, "RegisterReadOnly"); err != nil {
			return nil, err
		}
	}
	s := span{addressOf(mem), uintptr(len(mem))}
	if len(mem) == 0 || s.base%uintptr(pageBytes) != 0 {
		return nil, v.invalid(call, "%d bytes at %#x: it begins on a page boundary", len(mem), s.base)
	}
	if !isMapped(s, !readOnly) {
		return nil, v.invalid(call, "%d bytes at %#x are not mapped, or for reading only", len(mem), s.base)
	}
	p := v.primary
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, contextDestroyed.with(call, v.caps.Device, cudaipc.ErrClosed, "the device was")
	}
	r, ok := p.driver.regions.addHost(p, s, readOnly)
	if !ok {
		return nil, alreadyRegistered.with(call, v.caps.Device, cudaipc.ErrInvalid, "a part of it is")
	}
	p.hosts++
	return &hostMemory{primary: p, region: r}, nil
}

// Ptr implements [cudaipc.HostMemory].
func (h *hostMemory) Ptr(offset int64) cudaipc.Ptr {
	return cudaipc.Ptr(h.region.base + uintptr(offset))
}

// Word implements [cudaipc.HostMemory].
func (h *hostMemory) Word(offset int64) cudaipc.Word {
	if offset < 0 || offset%4 != 0 || offset+4 > int64(h.region.bytes) {
		panic("emul: no word at this offset of registered memory")
	}
	return cudaipc.Word{Host: wordAt(h.region.base + uintptr(offset)), Dev: h.Ptr(offset)}
}

// Close implements [cudaipc.HostMemory].
func (h *hostMemory) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	p := h.primary
	p.driver.regions.remove(h.region)
	p.mu.Lock()
	p.hosts--
	p.mu.Unlock()
	return p.failure("HostMemory.Close")
}
