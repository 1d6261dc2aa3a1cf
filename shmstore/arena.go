package shmstore

import (
	"fmt"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// maxArenaWaiters bounds the goroutines that wait for room in one arena.
const maxArenaWaiters = 1 << 12

// The invariants of [Arena.Check]. Those of the ring below have the names of
// package ringbuf, after "ring: ".
const (
	InvariantRooms   = "rooms"            // as many rooms and bytes are out as the ring says
	InvariantWaiting = "waiting for room" // the first in line does not fit, and nobody waits for a closed arena
)

// ArenaOptions configure [NewArena]. The zero value works.
type ArenaOptions struct {
	// Name is for people; errors say it.
	Name string
	// MaxRooms bounds the rooms out at the same time, and with them the
	// memory of the books: some 60 bytes a room. Default one per KiB of arena,
	// and at least 64.
	MaxRooms int
}

func (o ArenaOptions) withDefaults(sizeBytes int) ArenaOptions {
	if o.MaxRooms == 0 {
		o.MaxRooms = max(sizeBytes/bytesPerSlot, defaultMinSlots)
	}
	return o
}

// Validate reports the first option that [NewArena] would refuse.
func (o ArenaOptions) Validate() error {
	if o.MaxRooms < 0 {
		return fmt.Errorf("%w: MaxRooms %d is negative", ErrOptions, o.MaxRooms)
	}
	return nil
}

// Arena keeps the books of memory that another process fills: which parts of
// it are in use. The books are in private memory, and the arena's own memory is
// neither read nor written, so that the other process can spoil nothing but the
// bytes of its own payloads.
//
// Unlike the objects of a [Store], rooms have no readers: whoever reserved one
// knows how many still need it, and releases it when nobody does. Room that was
// released just now is reserved first, since it is in the processors' caches. An Arena
// is safe for concurrent use.
type Arena struct {
	name     string
	maxRooms int

	mu        sync.Mutex // guards all below
	ring      *ringbuf.Ring
	rooms     int
	roomBytes int64 // as they were asked for
	waiting   []*roomWaiter
	closed    bool
	counters  arenaCounters
}

// arenaCounters count since the arena was made.
type arenaCounters struct{ reserved, full, canceled uint64 }

// Room is a part of an arena. It must be given back as it came: it is named by
// more than its place, so that a copy that outlived its release cannot give
// back the bytes of somebody else.
type Room struct {
	Offset int // of the first byte in the arena, a multiple of 64
	Size   int // in bytes
	id     uint64
}

// String gives the form used in error messages.
func (r Room) String() string {
	return fmt.Sprintf("room %d (%d bytes at %d)", r.id, r.Size, r.Offset)
}

func (r Room) chunk() ringbuf.Chunk {
	return ringbuf.Chunk{ID: r.id, Addr: uint64(r.Offset), Size: uint64(r.Size)}
}

// roomWaiter is one goroutine in line.
type roomWaiter struct {
	size    int
	room    Room
	err     error
	settled chan struct{} // closed when room or err is there
}

// NewArena returns the books of an empty arena over buf, which may be mapped
// read-only; it is not touched. The error is [ErrOptions], or the ring's if buf
// is of no use.
func NewArena(buf []byte, opts ArenaOptions) (*Arena, error) {
	err := opts.Validate()
	var ring *ringbuf.Ring
	if err == nil {
		ring, err = ringbuf.New(buf, ringbuf.Options{NoHeaders: true, Reuse: true})
	}
	if err != nil {
		return nil, fmt.Errorf("new arena %q of %d bytes: %w", opts.Name, len(buf), err)
	}
	opts = opts.withDefaults(len(buf))
	return &Arena{name: opts.Name, maxRooms: opts.MaxRooms, ring: ring}, nil
}

// Name is the arena's name.
func (a *Arena) Name() string { return a.name }

// TryReserve returns room for size bytes, or an [*ArenaFullError] if there is
// none now, which is also so while somebody waits in [Arena.Reserve]. The other
// errors are [ErrSize], [ErrTooLarge] and [ErrClosed].
func (a *Arena) TryReserve(size int) (Room, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	room, ok, err := a.reserve(size)
	if err == nil && !ok {
		err = a.full(size)
	}
	if err != nil {
		return Room{}, a.fail(size, err)
	}
	return room, nil
}

// Reserve is TryReserve that waits until there is room, until done is closed,
// which is [ErrCanceled], or until the arena is, which is [ErrClosed]. A nil
// done never is. Who came first is served first: a large room is waited for by
// all who come later. Only when thousands wait already is the error an
// [*ArenaFullError].
func (a *Arena) Reserve(size int, done <-chan struct{}) (Room, error) {
	w, room, err := a.line(size)
	if err == nil && w != nil {
		room, err = a.await(w, done)
	}
	if err != nil {
		return Room{}, a.fail(size, err)
	}
	return room, nil
}

func (a *Arena) fail(size int, err error) error {
	return fmt.Errorf("reserve %d bytes in arena %q: %w", size, a.name, err)
}

// line returns room, or a place in the line for it.
func (a *Arena) line(size int) (*roomWaiter, Room, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	room, ok, err := a.reserve(size)
	switch {
	case err != nil || ok:
		return nil, room, err
	case len(a.waiting) == maxArenaWaiters:
		return nil, Room{}, a.full(size)
	}
	w := &roomWaiter{size: size, settled: make(chan struct{})}
	a.waiting = append(a.waiting, w)
	return w, Room{}, nil
}

// await waits for what becomes of w.
func (a *Arena) await(w *roomWaiter, done <-chan struct{}) (Room, error) {
	select {
	case <-w.settled:
	case <-done:
		a.leave(w)
	}
	return w.room, w.err
}

// leave takes w out of the line, if it is still there: room that was found at
// the same moment is not lost.
func (a *Arena) leave(w *roomWaiter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.Index(a.waiting, w)
	if at < 0 {
		return
	}
	a.waiting = slices.Delete(a.waiting, at, at+1)
	a.counters.canceled++
	w.err = ErrCanceled
	a.serve() // it may have been what the others waited for
}

// reserve takes room for a newcomer, who is served only if nobody waits.
func (a *Arena) reserve(size int) (room Room, ok bool, err error) {
	switch {
	case a.closed:
		return Room{}, false, ErrClosed
	case size < 1:
		return Room{}, false, ErrSize
	case size > a.ring.MaxPayload():
		return Room{}, false, fmt.Errorf("%w: the arena has %d", ErrTooLarge, a.ring.MaxPayload())
	case len(a.waiting) > 0:
		return Room{}, false, nil
	}
	room, ok = a.take(size)
	return room, ok, nil
}

// take takes room if there is any.
func (a *Arena) take(size int) (room Room, ok bool) {
	if a.rooms == a.maxRooms {
		return Room{}, false
	}
	chunk, ok := a.ring.TryAllocate(size, 0)
	if !ok {
		return Room{}, false
	}
	a.rooms++
	a.roomBytes += int64(size)
	a.counters.reserved++
	return Room{Offset: int(chunk.Addr), Size: size, id: chunk.ID}, true
}

// serve gives room to those in line, as far as it goes. It is called after
// every change that may let the first of them in.
func (a *Arena) serve() {
	served := 0
	for _, w := range a.waiting {
		room, ok := a.take(w.size)
		if !ok {
			break
		}
		w.room = room
		close(w.settled)
		served++
	}
	a.waiting = slices.Delete(a.waiting, 0, served)
}

// Release gives a room back, exactly once, also after Close. Releasing it again,
// or a room that did not come from this arena, is a bug that could give away
// bytes somebody else uses; it panics.
func (a *Arena) Release(room Room) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.ring.Release(room.chunk()); err != nil {
		panic(fmt.Sprintf("shmstore: Release of %v of arena %q, which was released before or is not this arena's", room, a.name))
	}
	a.rooms--
	a.roomBytes -= int64(room.Size)
	a.serve()
}

// Close refuses new rooms, and lets all who wait go with [ErrClosed]. Rooms that
// are out stay valid and may be released. Closing again does nothing.
func (a *Arena) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, w := range a.waiting {
		w.err = ErrClosed
		close(w.settled)
	}
	a.waiting = nil
}

// ArenaStats are the figures of one moment. Sizes are in bytes; what is used
// includes the padding to whole cache lines.
type ArenaStats struct {
	Bytes       int64 // of the arena
	UsedBytes   int64
	FreeBytes   int64 // in however many pieces
	LargestFree int64 // the largest room that could be had
	Rooms       int   // reserved and not released
	Waiting     int   // goroutines in line for room

	ReservedTotal uint64 // rooms ever given out
	FullTotal     uint64 // reservations refused for lack of room
	CanceledTotal uint64 // waits that were given up
}

// Stats returns the present figures.
func (a *Arena) Stats() ArenaStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats()
}

func (a *Arena) stats() ArenaStats {
	ring := a.ring.Stats()
	return ArenaStats{
		Bytes:         int64(ring.CapacityBytes),
		UsedBytes:     int64(ring.UsedBytes),
		FreeBytes:     int64(ring.FreeBytes),
		LargestFree:   int64(ring.LargestGapBytes),
		Rooms:         a.rooms,
		Waiting:       len(a.waiting),
		ReservedTotal: a.counters.reserved,
		FullTotal:     a.counters.full,
		CanceledTotal: a.counters.canceled,
	}
}

// full explains why there is no room.
func (a *Arena) full(size int) error {
	a.counters.full++
	e := &ArenaFullError{Name: a.name, NeededBytes: size, Resource: ResourceRoom, ArenaStats: a.stats()}
	if a.rooms == a.maxRooms {
		e.Resource = ResourceSlots
	}
	return e
}

// Check compares everything the arena knows twice, and returns what does not
// agree: nothing, unless there is a bug. Its time grows with the number of
// rooms.
func (a *Arena) Check() []Violation {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []Violation
	report := func(invariant, format string, args ...any) {
		if len(found) < maxViolations {
			found = append(found, Violation{Invariant: invariant, Detail: fmt.Sprintf(format, args...)})
		}
	}
	for _, v := range a.ring.Check() {
		report(ringInvariantPrefix+v.Invariant, "%s", v.Detail)
	}
	rooms, roomBytes := 0, int64(0)
	for chunk, ok := a.ring.Oldest(); ok && rooms <= a.maxRooms; chunk, ok = a.ring.Next(chunk) {
		rooms++
		roomBytes += int64(chunk.Size)
	}
	if rooms != a.rooms || roomBytes != a.roomBytes || rooms > a.maxRooms {
		report(InvariantRooms, "the ring has %d rooms of %d bytes, %d of %d bytes are counted, the most is %d", rooms, roomBytes, a.rooms, a.roomBytes, a.maxRooms)
	}
	if len(a.waiting) == 0 {
		return found
	}
	first := a.waiting[0].size
	if largest := a.ring.Stats().LargestGapBytes; a.closed || a.rooms < a.maxRooms && uint64(first) <= largest {
		report(InvariantWaiting, "the first of %d in line waits for %d bytes, %d are free in one piece; closed: %t", len(a.waiting), first, largest, a.closed)
	}
	return found
}
