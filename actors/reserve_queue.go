package actors

import (
	"errors"
	"slices"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// reserveQueue are the reservations that wait for room, in one queue by the order in
// which they came. Each blocks those behind it that need what it lacks, and
// nobody else.
//
// What may be lacking is room in the arena, which everybody needs, or on one
// device. A queue for each would not do, because a reservation on a device needs
// room in two memories: at the head of the one queue it would have to compete for
// the other memory with those who wait for nothing else, and could lose for ever.
// One queue in which everybody waits for the head would tie the memories
// together: a slow consumer on a GPU would stop all traffic that has nothing to
// do with it. So the queue gives the order and the shortage says whom it binds:
//
//   - Nobody starves for the arena. The oldest that lacks it blocks all behind.
//   - Nobody starves for a device. The oldest that lacks it blocks all behind who
//     want it, and the arena is free for the others meanwhile.
//   - Who waits for both gets both at one moment, or nothing: nobody holds room
//     of one memory while it waits for the other. What it lacks is looked at anew
//     each time, so it may turn from one that blocks a device into one that
//     blocks the arena, at the place in the order that it always had.
type reserveQueue struct {
	queue []*reserve // oldest first
	// What those in the queue lacked when they were last served.
	arenaShort  bool
	fullDevices []shmstore.Device
}

// shortage is what a reservation lacks: nothing, the arena, or a device.
type shortage struct {
	arena  bool
	device shmstore.Device
}

// shortageOf is what m lacks by what the full store says.
func shortageOf(m *reserve, err error) shortage {
	if full, ok := errors.AsType[*shmstore.FullError](err); ok && full.Resource == shmstore.ResourceDevice {
		return shortage{device: m.device}
	}
	return shortage{arena: true}
}

// blocks reports whether m has to wait for somebody in front of it.
func (w *reserveQueue) blocks(m *reserve) bool {
	return w.arenaShort || m.device != nil && slices.Contains(w.fullDevices, m.device)
}

// addShortage takes down what somebody in the queue lacks.
func (w *reserveQueue) addShortage(s shortage) {
	w.arenaShort = w.arenaShort || s.arena
	if s.device != nil {
		w.fullDevices = append(w.fullDevices, s.device)
	}
}

// mayFit reports whether room is all that m can lack. What else is wrong with
// it need not wait to be told.
func (m *reserve) mayFit(store *shmstore.Store) bool {
	return m.n >= 1 && m.size >= 0 && int64(m.size) <= store.MaxObjectBytes() &&
		(m.device == nil || m.deviceBytes >= 0 && m.deviceBytes <= m.device.MaxBytes())
}

// reserve grants m, or lets it wait behind those that came before.
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

// wantSpace raises the flag that makes releases speak up, takes back what lies
// unused in extents if the arena is short of room, and then looks again: a
// release before the flag was seen would otherwise go unnoticed.
func (a *writerActor) wantSpace() {
	a.w.store.WantRoom(true)
	a.revokeIfShort()
	a.serveWaiting()
}

// revokeIfShort does so if somebody lacks the arena, and the extents were not
// taken back for it yet. It reports whether it did.
func (a *writerActor) revokeIfShort() bool {
	if !a.waiting.arenaShort || a.w.scarce.Load() {
		return false
	}
	a.w.scarce.Store(true)
	a.w.revokeExtents()
	return true
}

// serveWaiting grants what it can, in order, and forgets who has given up.
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
