package shmstore

import (
	"fmt"
	"sync/atomic"
)

// errPinsOnly refuses to charge a reader that nobody may have come to be.
var errPinsOnly = fmt.Errorf("%w: readers that open the store by name pin, and are charged for nothing", ErrUnsupported)

// Find returns the handle of the object in a slot, for readers that are told slots
// and no handles; ok is false where none is. Another object may be there by the
// time the handle is used, which is [ErrStale] then.
func (r *Reader) Find(slot uint32) (h Handle, ok bool) {
	if r.closed.Load() || slot >= uint32(len(r.lines)) {
		return Handle{}, false
	}
	ln := &r.lines[slot]
	word := ln.word.load()
	h = Handle{
		Store:  r.geo.store,
		Gen:    genOf(word),
		Offset: atomic.LoadUint64(&ln.offset),
		Size:   atomic.LoadUint64(&ln.size),
		Slot:   slot,
		Codec:  atomic.LoadUint32(&ln.codec),
	}
	return h, h.Gen != 0 && isPresent(word, h.Gen) && isPresent(ln.word.load(), h.Gen)
}
