package actors

import (
	"errors"
	"slices"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// waiters are the reservations that wait for room, in one queue by the order in
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
type waiters struct {
	queue []*reserve // oldest first
	// What those in the queue lacked when they were last served.
	arena   bool
	devices []shmstore.Device
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
func (w *waiters) blocks(m *reserve) bool {
	return w.arena || m.device != nil && slices.Contains(w.devices, m.device)
}

// lack takes down what somebody in the queue lacks.
func (w *waiters) lack(s shortage) {
	w.arena = w.arena || s.arena
	if s.device != nil {
		w.devices = append(w.devices, s.device)
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
		a.waiting.lack(lacks)
		a.wantRoom()
	}
}

// wantRoom raises the flag that makes releases speak up, takes back what lies
// unused in extents if the arena is short of room, and then looks again: a
// release before the flag was seen would otherwise go unnoticed.
func (a *writerActor) wantRoom() {
	a.w.store.WantRoom(true)
	a.takeExtentsBack()
	a.serveWaiting()
}

// takeExtentsBack does so if somebody lacks the arena, and the extents were not
// taken back for it yet. It reports whether it did.
func (a *writerActor) takeExtentsBack() bool {
	if !a.waiting.arena || a.w.scarce.Load() {
		return false
	}
	a.w.scarce.Store(true)
	a.w.revokeExtents()
	return true
}

// serveWaiting grants what it can, in order, and forgets who has given up.
func (a *writerActor) serveWaiting() {
	for again := true; again; again = a.takeExtentsBack() {
		a.serveOnce()
	}
	a.w.scarce.Store(a.waiting.arena)
	if len(a.waiting.queue) == 0 {
		a.waiting = waiters{}
		a.w.store.WantRoom(false)
	}
}

// serveOnce goes through the queue once.
func (a *writerActor) serveOnce() {
	w := &a.waiting
	w.arena, w.devices = false, w.devices[:0]
	w.queue = slices.DeleteFunc(w.queue, func(m *reserve) bool {
		if m.settled() {
			return true
		}
		if w.blocks(m) {
			return false
		}
		lacks := a.grant(m)
		w.lack(lacks)
		return lacks == (shortage{})
	})
}
