package shmstore

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Reader is one identified reader of a store. It serves all consumers that share its
// account. It is safe for concurrent use. [Store.Local], [Store.DeclareReader]
// and [Attach] make readers.
type Reader struct {
	leaseView // of the objects in the arena; first, because leases point to it

	closed   atomic.Bool
	segments []*segment // the segments of the view
	large    *largeTable
}

// ID is the reader's index in its store.
func (r *Reader) ID() ReaderID { return r.id }

// Arena is the memory of the payloads. In a process other than the owner's it is mapped
// read-only. It is valid until the reader is closed.
func (r *Reader) Arena() []byte { return r.data }

// Take collects one of the debts this reader was charged for the object, and
// returns the lease that will settle it. It is the way to read a delivery: one
// Take, or one [Reader.Drop], for each delivery. The error is [ErrNoDebt] if
// nothing is left to collect, or one of those of [Reader.Pin].
func (r *Reader) Take(h Handle) (Lease, error) {
	ln, err := r.locate(&h)
	if err == nil {
		err = r.collect(ln, &h)
	}
	if err != nil {
		return r.takeLarge("take", &h, err)
	}
	faultpoint.Hit("lease-taken")
	return newLease(&r.leaseView, &h, heldByDebt), nil
}

// Drop settles one debt without reading, for a delivery that no consumer will read.
// The errors are those of [Reader.Take].
func (r *Reader) Drop(h Handle) error {
	ln, err := r.locate(&h)
	if err != nil {
		ln, err = r.locateLarge(&h, err)
	}
	if err == nil {
		err = r.collect(ln, &h)
	}
	if err != nil {
		return r.fail("drop", h, err)
	}
	r.ledger[h.Slot].done.Add(1)
	r.pressDoorbell()
	return nil
}

// Pin returns a lease that settles no debt, on an object for which this reader need not
// have been charged: its handle was kept, or came from another reader. The errors
// are [ErrStale], [ErrCorrupt], [ErrClosed] and [ErrOwnerStalled], and [ErrSegment] for a
// large object whose segment this process lacks: see [Reader.AddSegment].
func (r *Reader) Pin(h Handle) (Lease, error) {
	ln, err := r.locate(&h)
	if err == nil {
		err = r.pin(ln, &h)
	}
	if err != nil {
		return r.pinLarge(&h, err)
	}
	faultpoint.Hit("lease-taken")
	return newLease(&r.leaseView, &h, heldByPin), nil
}

func (r *Reader) fail(op string, h Handle, err error) error {
	return fmt.Errorf("%s %v by reader %d: %w", op, h, r.id, err)
}

// The functions below take a pointer: a handle passed by value to a function
// that is inlined is copied with wider moves than it was stored with, which
// stalls the processor and doubles the time of a read.

// locate returns the directory line of a handle, after all checks that do not read
// the line.
func (r *Reader) locate(h *Handle) (*line, error) {
	switch {
	case r.closed.Load():
		return nil, ErrClosed
	case h.Store != r.geo.store:
		return nil, errForeign
	case h.Slot >= uint32(len(r.lines)), h.Gen == 0, h.Gen > maxGeneration:
		return nil, ErrCorrupt
	case h.Offset > r.geo.arena, h.Size > r.geo.arena-h.Offset:
		return nil, ErrCorrupt
	}
	return &r.lines[h.Slot], nil
}

// matches reports whether the line describes the handle. The answer counts
// only if the word is live with the handle's generation before and after.
func (ln *line) matches(h *Handle) bool {
	return atomic.LoadUint64(&ln.offset) == h.Offset &&
		atomic.LoadUint64(&ln.size) == h.Size &&
		atomic.LoadUint32(&ln.codec) == h.Codec
}

// collect adds one to the collected debts of this reader, if one is left.
//
// The object is present before and after the line and the debts are read,
// so both are those of its generation. If taken does not change until the compare
// and swap, one of its debts was left all that time, and a slot with a debt
// left is not evicted. From then on the debt holds the object: no shared byte
// had to be written. The state may be closing if a lease was shared while an
// eviction checked the slot, which will find the new debt: see evict.
func (r *Reader) collect(ln *line, h *Handle) error {
	taken, owed := &r.taken[h.Slot], &r.owed[h.Slot]
	for { // a compare and swap fails only because another one succeeded
		if !isPresent(ln.word.load(), h.Gen) {
			return ErrStale
		}
		collected := taken.Load()
		left := int32(atomic.LoadUint32(owed) - collected)
		matches := ln.matches(h)
		if !isPresent(ln.word.load(), h.Gen) {
			return ErrStale
		}
		if !matches {
			return ErrCorrupt
		}
		if left <= 0 {
			return ErrNoDebt
		}
		if taken.CompareAndSwap(collected, collected+1) {
			break
		}
	}
	// Close counts collected debts after it has set the flag.
	if r.closed.Load() {
		taken.Add(^uint32(0)) // no lease will settle it
		return ErrClosed
	}
	return nil
}

// pin is the reader's half of the protocol in doc.go: raise the pin, then read
// the word. Go's atomics are totally ordered, so either the owner, which reads
// pins after it has stored closing, sees this pin, or this reader sees closing.
func (r *Reader) pin(ln *line, h *Handle) error {
	r.ledger[h.Slot].pin.Add(1)
	faultpoint.Hit("pin-raised")
	err := r.awaitLive(ln, h)
	if err == nil && r.closed.Load() {
		err = ErrClosed
	}
	if err != nil {
		r.lowerPin(h.Slot)
	}
	return err
}

func (r *Reader) lowerPin(slot uint32) {
	r.ledger[slot].pin.Add(^uint32(0))
	r.pressDoorbell() // the pin may have prevented an eviction
}

// The bounds of a reader's wait for the owner to read the pins of a closing slot. The
// owner needs microseconds, unless it lost its processor meanwhile, or died.
const (
	closingPolls  = 64
	closingYields = 256
	closingSleeps = 5000
	closingSleep  = time.Millisecond
)

// awaitLive decides whether a pinned slot holds the object. The pin is raised: if
// the word is live, it stays so; if it is closing, the owner either finds the pin
// and stores live again, or read the pins before this one was raised and stores free.
func (r *Reader) awaitLive(ln *line, h *Handle) error {
	live, closing := wordOf(h.Gen, stateLive), wordOf(h.Gen, stateClosing)
	for i := range closingPolls + closingYields + closingSleeps {
		switch ln.word.load() {
		case live:
			if !ln.matches(h) {
				return ErrCorrupt
			}
			return nil
		case closing:
			switch {
			case i < closingPolls:
			case i < closingPolls+closingYields:
				runtime.Gosched()
			default:
				time.Sleep(closingSleep) //nolint:forbidigo // another process is to act, and nothing wakes a reader
			}
		default:
			return ErrStale
		}
	}
	return ErrOwnerStalled
}

// OnRoom installs the function that is called when a release may have freed
// space for which the owner waits, for a reader in another process: the function must
// have the owner woken. See [Store.OnRoom], which serves the readers of the owner's
// process.
func (r *Reader) OnRoom(ring func()) {
	if r.remote {
		r.doorbell.onRoom.Store(&ring)
	}
}

// Close ends a reader made by [Attach]: it takes no new leases, and its memory
// is unmapped. While leases are open the memory stays mapped, and the error
// wraps [ErrBusy]; call Close again once they are released. On a reader of the
// owner's process, Close only refuses new leases: [Store.RemoveReader] releases its
// account.
func (r *Reader) Close() error {
	r.closed.Store(true)
	if !r.remote || r.segments[0].released {
		return nil
	}
	if open := r.openLeases(); open > 0 {
		return fmt.Errorf("close reader %d of store %x: %w: %d leases are open; release them and close again", r.id, r.geo.store, ErrBusy, open)
	}
	for _, seg := range r.segments {
		seg.release()
	}
	r.large.close()
	return nil
}

// openLeases counts the leases and the pins that this reader holds.
func (r *Reader) openLeases() int {
	open := 0
	for slot := range r.ledger {
		e := &r.ledger[slot]
		open += int(e.pin.Load()) + int(r.taken[slot].Load()-e.done.Load())
	}
	return open
}
