package emul

import (
	"encoding/hex"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// ImportArena implements [cudaipc.Device].
func (v *device) ImportArena(fd int, sizeBytes int64) (cudaipc.Arena, error) {
	const call = "ImportArena"
	if err := v.check(call); err != nil {
		return nil, err
	}
	if err := v.missing(call, "Arenas"); err != nil {
		return nil, err
	}
	name, bytes := memfdOf(fd)
	owner, isArena := strings.CutPrefix(name, arenaName)
	if !isArena {
		return nil, invalidHandle.with(call, v.caps.Device, cudaipc.ErrStaleHandle, "descriptor %d is no arena", fd)
	}
	if bytes != sizeBytes {
		return nil, v.invalid(call, "the arena has %d bytes, not %d", bytes, sizeBytes)
	}
	if err := v.reaches(call, owner); err != nil {
		return nil, err
	}
	m := &memory{fd: -1}
	var err error
	if m.region, err = v.primary.driver.regions.mapDevice(v.primary, ofArena, fd, bytes, v.caps.GranularityBytes); err != nil {
		return nil, mapFailed.with(call, v.caps.Device, cudaipc.ErrOutOfMemory, "%v", err)
	}
	if err := v.primary.track(call, m); err != nil {
		return nil, err
	}
	return newArena(v.primary, m), nil
}

// reaches returns the reason why memory of another device cannot be mapped, or nil.
func (v *device) reaches(call, owner string) error {
	if device := v.caps.Device; owner == hex.EncodeToString(device[:]) {
		return nil
	}
	for _, peer := range v.caps.Peers {
		if owner == hex.EncodeToString(peer[:]) {
			return nil
		}
	}
	return notSupported.with(call, v.caps.Device, cudaipc.ErrUnsupported, "the memory belongs to a device that is no peer")
}

// Free implements [cudaipc.Device].
func (v *device) Free(base cudaipc.Ptr) error {
	const call = "Free"
	if v.closed.Load() {
		return contextDestroyed.with(call, v.caps.Device, cudaipc.ErrClosed, "the device is")
	}
	p := v.primary
	p.mu.Lock()
	m := p.memory[base]
	p.mu.Unlock()
	if m == nil || m.kind != ofAllocation {
		if err := p.failure(call); err != nil {
			return err
		}
		return v.invalid(call, "%#x was not made by Alloc", base)
	}
	p.synchronize()
	if !p.untrack(m) {
		return v.invalid(call, "%#x was freed twice", base)
	}
	p.release(m)
	return p.failure(call)
}

// Export implements [cudaipc.Device].
func (v *device) Export(at cudaipc.Ptr) (h cudaipc.Handle, offset int64, err error) {
	const call = "Export"
	if err := v.check(call); err != nil {
		return h, 0, err
	}
	if err := v.missing(call, "Handles"); err != nil {
		return h, 0, err
	}
	p := v.primary
	r := p.driver.regions.find(at)
	if r == nil || r.primary != p {
		return h, 0, v.invalid(call, "%#x is no memory of this device", at)
	}
	p.mu.Lock()
	m := p.memory[cudaipc.Ptr(r.base)]
	p.mu.Unlock()
	switch {
	case m == nil || r.kind == ofImport || r.kind == ofHost:
		return h, 0, v.invalid(call, "%#x was not made by Alloc", at)
	case r.kind == ofArena:
		return h, 0, notSupported.with(call, v.caps.Device, cudaipc.ErrUnsupported, "memory of an arena has no handle")
	}
	return m.handle.encode(), int64(uintptr(at) - m.base), nil
}

// Import implements [cudaipc.Device].
func (v *device) Import(handle cudaipc.Handle) (base cudaipc.Ptr, sizeBytes int64, err error) {
	const call = "Import"
	if err := v.check(call); err != nil {
		return 0, 0, err
	}
	if err := v.missing(call, "Handles"); err != nil {
		return 0, 0, err
	}
	h, ok := decodeHandle(handle)
	if !ok {
		return 0, 0, v.stale("it is no handle")
	}
	if h.pid == uint32(os.Getpid()) && h.namespace == pidNamespace() {
		owner, live := ownHandles.Load(h.nonce)
		if !live {
			return 0, 0, v.stale("this process has freed the memory")
		}
		if d := v.primary.driver; owner == d || !d.opts.Apart {
			return 0, 0, invalidContext.with(call, v.caps.Device, cudaipc.ErrOwnHandle, "")
		}
	}
	if err := v.reaches(call, hex.EncodeToString(h.device[:])); err != nil {
		return 0, 0, err
	}
	return v.importHandled(h)
}

func (v *device) stale(reason string) error {
	return mapFailed.with("Import", v.caps.Device, cudaipc.ErrStaleHandle, "%s", reason)
}

func (v *device) importHandled(h handleInfo) (base cudaipc.Ptr, sizeBytes int64, err error) {
	p := v.primary
	// The handle is resolved at each import: a handle of freed memory is stale, also if it was
	// opened before.
	fd, reason := h.open()
	if fd < 0 {
		return 0, 0, v.stale(reason)
	}
	defer unix.Close(fd)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, 0, contextDestroyed.with("Import", v.caps.Device, cudaipc.ErrClosed, "the device was")
	}
	m := p.opened[h.nonce]
	if m == nil {
		r, err := p.driver.regions.mapDevice(p, ofImport, fd, h.bytes, int64(pageBytes))
		if err != nil {
			return 0, 0, mapFailed.with("Import", v.caps.Device, cudaipc.ErrOutOfMemory, "%v", err)
		}
		m = &memory{region: r, fd: -1, handle: h}
		p.opened[h.nonce] = m
		p.memory[cudaipc.Ptr(r.base)] = m
	}
	m.opens++
	return cudaipc.Ptr(m.base), h.bytes, nil
}

// Unimport implements [cudaipc.Device].
func (v *device) Unimport(base cudaipc.Ptr) error {
	const call = "Unimport"
	if v.closed.Load() {
		return contextDestroyed.with(call, v.caps.Device, cudaipc.ErrClosed, "the device is")
	}
	p := v.primary
	p.mu.Lock()
	m := p.memory[base]
	known := m != nil && m.kind == ofImport
	last := false
	if known {
		if m.opens--; m.opens == 0 {
			last = true
			delete(p.memory, base)
			delete(p.opened, m.handle.nonce)
		}
	}
	p.mu.Unlock()
	if last {
		p.release(m)
	}
	if err := p.failure(call); err != nil {
		return err
	}
	if !known {
		return v.invalid(call, "%#x was not made by Import", base)
	}
	return nil
}
