package actors

import (
	"errors"
	"slices"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// reserveQueue holds the reservations that wait for space, oldest first. Each
// blocks the later reservations that need the memory which it lacks, and no other.
//
// A reservation may lack space in the arena, which every reservation needs, or on
// one device. One queue for each memory would let a reservation starve: one on a
// device needs space in two memories, and at the head of its queue it would compete
// for the arena with reservations that need the arena alone. One queue that always
// waits for its head would tie the memories together: a slow consumer on a GPU
// would stop traffic that uses no GPU. So the queue gives the order, and the
// shortage of a reservation says which later ones it blocks:
//
//   - No reservation starves for the arena. The oldest that lacks it blocks all
//     later ones.
//   - No reservation starves for a device. The oldest that lacks it blocks the later
//     ones on that device; the others can use the arena meanwhile.
//   - A reservation that needs both gets both at once, or neither: it holds no space
//     of one memory while it waits for the other. Its shortage is determined anew
//     each time: a reservation that blocked a device may block the arena later,
//     without a change of its place in the order.
type reserveQueue struct {
	queue []*reserve // oldest first
	// The shortages of the queued reservations when they were last served.
	arenaShort  bool
	fullDevices []shmstore.Device
}

// shortage is the memory that a reservation lacks: none, the arena, or a device.
type shortage struct {
	arena  bool
	device shmstore.Device
}

// shortageOf is the shortage of m by the error of the full store.
func shortageOf(m *reserve, err error) shortage {
	if full, ok := errors.AsType[*shmstore.FullError](err); ok && full.Resource == shmstore.ResourceDevice {
		return shortage{device: m.device}
	}
	return shortage{arena: true}
}

// blocks reports whether m has to wait for an older reservation.
func (w *reserveQueue) blocks(m *reserve) bool {
	return w.arenaShort || m.device != nil && slices.Contains(w.fullDevices, m.device)
}

// addShortage notes the shortage of a reservation in the queue.
func (w *reserveQueue) addShortage(s shortage) {
	w.arenaShort = w.arenaShort || s.arena
	if s.device != nil {
		w.fullDevices = append(w.fullDevices, s.device)
	}
}

// mayFit reports whether m can be granted once there is space. A reservation that
// cannot is refused at once.
func (m *reserve) mayFit(store *shmstore.Store) bool {
	return m.n >= 1 && m.size >= 0 && int64(m.size) <= store.MaxObjectBytes() &&
		(m.device == nil || m.deviceBytes >= 0 && m.deviceBytes <= m.device.MaxBytes())
}

// reserve grants m, or queues it behind the older reservations.
func (a *writerActor) reserve(m *reserve) {
	if a.waiting.blocks(m) && m.mayFit(a.w.store) {
		a.waiting.queue = append(a.waiting.queue, m)
		return
	}
	if lacks := a.grant(m); lacks != (shortage{}) {
		a.waiting.queue = append(a.waiting.queue, m)
		a.waiting.addShortage(lacks)
		a.wantSpace()
	}
}

// wantSpace sets the flag that makes releases call retry, takes unused reservations
// back from extents if the arena is short of space, and then serves the queue again:
// a release that came before the flag was set calls no retry.
func (a *writerActor) wantSpace() {
	a.w.store.WantRoom(true)
	a.revokeIfShort()
	a.serveWaiting()
}

// revokeIfShort revokes all extents if a reservation lacks the arena and they have
// not been revoked since then. It reports whether it has revoked them.
func (a *writerActor) revokeIfShort() bool {
	if !a.waiting.arenaShort || a.w.scarce.Load() {
		return false
	}
	a.w.scarce.Store(true)
	a.w.revokeExtents()
	return true
}

// serveWaiting grants the reservations that fit, in order, and removes those whose
// caller has given up.
func (a *writerActor) serveWaiting() {
	for again := true; again; again = a.revokeIfShort() {
		a.serveOnce()
	}
	a.w.scarce.Store(a.waiting.arenaShort)
	if len(a.waiting.queue) == 0 {
		a.waiting = reserveQueue{}
		a.w.store.WantRoom(false)
	}
}

// serveOnce goes through the queue once.
func (a *writerActor) serveOnce() {
	w := &a.waiting
	w.arenaShort, w.fullDevices = false, w.fullDevices[:0]
	w.queue = slices.DeleteFunc(w.queue, func(m *reserve) bool {
		if m.resolved() {
			return true
		}
		if w.blocks(m) {
			return false
		}
		lacks := a.grant(m)
		w.addShortage(lacks)
		return lacks == (shortage{})
	})
}
