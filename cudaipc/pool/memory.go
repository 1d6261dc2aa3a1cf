package pool

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// HandleBit is set in the number of an arena that other processes open by a handle, because the
// device has no descriptors.
const HandleBit = 1 << 31

// HandleArena is an arena that other processes open by a handle. It has no descriptor.
type HandleArena struct {
	dev    cudaipc.Device
	base   cudaipc.Ptr
	bytes  int64
	handle cudaipc.Handle
	offset int64 // the arena's offset in the allocation of the handle
	closed atomic.Bool
}

var _ cudaipc.Arena = (*HandleArena)(nil)

// newHandleArena makes memory and its handle.
func newHandleArena(dev cudaipc.Device, sizeBytes int64) (*HandleArena, error) {
	sizeBytes = (sizeBytes + minArenaBytes - 1) / minArenaBytes * minArenaBytes
	base, err := dev.Alloc(sizeBytes)
	if err != nil {
		return nil, err
	}
	h, offset, err := dev.Export(base)
	if err != nil {
		return nil, errors.Join(err, dev.Free(base))
	}
	return &HandleArena{dev: dev, base: base, bytes: sizeBytes, handle: h, offset: offset}, nil
}

// Base implements cudaipc.Arena.
func (h *HandleArena) Base() cudaipc.Ptr { return h.base }

// Bytes implements cudaipc.Arena.
func (h *HandleArena) Bytes() int64 { return h.bytes }

// FD implements cudaipc.Arena: a HandleArena has none.
func (h *HandleArena) FD() int { return -1 }

// Handle returns the handle of the arena's allocation, and the arena's offset in it.
func (h *HandleArena) Handle() (of cudaipc.Handle, offset int64) { return h.handle, h.offset }

// Close implements cudaipc.Arena. It waits for the device's submitted operations.
func (h *HandleArena) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	return h.dev.Free(h.base)
}

// sharesByHandle reports whether arenas are shared by handles: the device has no descriptors.
func sharesByHandle(dev cudaipc.Device) bool {
	caps := dev.Caps()
	return !caps.Arenas && caps.Handles
}

// newMemory makes the memory of an arena.
func (p *Pool) newMemory() (cudaipc.Arena, error) {
	if !p.byHandle {
		return p.dev.NewArena(p.opts.ArenaBytes)
	}
	h, err := newHandleArena(p.dev, p.opts.ArenaBytes)
	if err != nil {
		return nil, fmt.Errorf("memory that a handle names: %w", err)
	}
	return h, nil
}
