package lane

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// lent holds the allocations of this process that others open by handles: buffers that its lanes
// have sent in place, and arenas of pools. Receivers in this process need their addresses: a driver
// does not open a handle in its own process.
var lent = struct {
	mu      sync.Mutex
	buffers map[cudaipc.Handle]*lentBuffer
}{buffers: make(map[cudaipc.Handle]*lentBuffer)}

type lentBuffer struct {
	device cudaipc.UUID
	base   cudaipc.Ptr
	bytes  int64 // up to the end of the memory that was sent, at most
	uses   int   // messages or arenas
}

// lendBuffers records the allocations of a message, until release is called.
func lendBuffers(o *Outgoing) (release func()) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	for _, t := range o.tensors {
		p := &o.plan.Tensors[t.number]
		if p.Place == 0 {
			continue
		}
		place := &o.plan.Places[p.Place-1]
		addLent(place.Handle, lentBuffer{device: place.Device, base: t.from.Ptr - cudaipc.Ptr(place.Offset), bytes: place.Offset + place.Bytes})
	}
	return func() {
		releaseLent(o.plan.Places)
		go o.releaseSource() // freeing memory waits for streams, and release runs on the store's writer
	}
}

func releaseLent(places []bundle.Place) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	for i := range places {
		removeLent(places[i].Handle)
	}
}

// lendArena records an arena that others open by its handle, until releaseLentArena.
func lendArena(device cudaipc.UUID, a *pool.HandleArena) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	h, offset := a.Handle()
	addLent(h, lentBuffer{device: device, base: a.Base() - cudaipc.Ptr(offset), bytes: offset + a.Bytes()})
}

func releaseLentArena(a *pool.HandleArena) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	h, _ := a.Handle()
	removeLent(h)
}

// addLent counts one use of an allocation, with lent.mu held.
func addLent(h cudaipc.Handle, of lentBuffer) {
	at := lent.buffers[h]
	if at == nil {
		at = &of
		lent.buffers[h] = at
	}
	at.bytes = max(at.bytes, of.bytes)
	at.uses++
}

// removeLent undoes addLent.
func removeLent(h cudaipc.Handle) {
	if at := lent.buffers[h]; at != nil {
		if at.uses--; at.uses == 0 {
			delete(lent.buffers, h)
		}
	}
}

// findLent returns the base of an allocation that was sent by its handle, and how much of it was
// sent at least.
func findLent(h cudaipc.Handle, device cudaipc.UUID) (base cudaipc.Ptr, sizeBytes int64, ok bool) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	at := lent.buffers[h]
	if at == nil || at.device != device {
		return 0, 0, false
	}
	return at.base, at.bytes, true
}
